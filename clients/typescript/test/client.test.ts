// The client against a simulated `fetch`: what it sends, when it fails, and when it asks the server again.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as tick } from "node:timers/promises";

import { type Decision, type Options, ProblemError, Spillgate, TokenError, Unavailable } from "spillgate";

import { pause } from "./server.js";

type Fetch = NonNullable<Options["fetch"]>;
const quiet = { warn() {} };

interface Sent {
  operation: string;
  body: unknown;
  authorization: string | null;
}

/** A server by a function from a request to the answer, and what it was sent. */
class Simulated {
  readonly sent: Sent[] = [];
  underWay = 0;
  mostUnderWay = 0;
  readonly #answer: (sent: Sent) => Response | Promise<Response>;

  constructor(answer: (sent: Sent) => Response | Promise<Response>) {
    this.#answer = answer;
  }

  client(options: Options = {}): Spillgate {
    const fetch: Fetch = async (url, request) => {
      const operation = `${url}`.split("/v1/")[1] ?? "";
      const authorization = new Headers(request?.headers).get("authorization");
      const sent = { operation, body: JSON.parse(`${request?.body}`), authorization };
      this.sent.push(sent);
      this.underWay += 1;
      this.mostUnderWay = Math.max(this.mostUnderWay, this.underWay);
      try {
        return await this.#answer(sent);
      } finally {
        this.underWay -= 1;
      }
    };
    return new Spillgate({ fetch, logger: quiet, timeoutMs: 20_000, ...options });
  }
}

/** An answer that gives each check of a batch this result. */
function results({ body }: Sent, result: object = { allowed: true }): Response {
  return Response.json({ results: (body as unknown[]).map(() => result) });
}

const never = () => new Promise<Response>(() => {});
const problem = (status: number, fields: object) => Response.json({ title: "x", status, ...fields }, { status });

test("the checks of one tick leave together, also a lone one", async () => {
  const server = new Simulated(results);
  const client = server.client();
  await Promise.all(Array.from({ length: 600 }, () => client.check({ attributes: { ip: "a" } })));
  await client.check({});
  assert.deepEqual(
    server.sent.map(({ operation, body }) => [operation, (body as unknown[]).length]),
    [
      ["check/batch", 250],
      ["check/batch", 250],
      ["check/batch", 100],
      ["check/batch", 1],
    ],
  );
});

test("a batch has at most 512 KiB, and a check that is larger fails alone", async () => {
  const server = new Simulated(results);
  const client = server.client();
  const domain = (bytes: number) => ({ domain: "\u00e9".repeat(bytes / 2) });
  const checks = [domain(300_000), domain(600_000), domain(200_000), domain(200_000)].map((check) =>
    client.check(check),
  );
  const outcomes = await Promise.allSettled(checks);
  assert.deepEqual(
    outcomes.map(({ status }) => status),
    ["fulfilled", "rejected", "fulfilled", "fulfilled"],
  );
  assert.equal(((outcomes[1] as PromiseRejectedResult).reason as ProblemError).status, 413);
  assert.deepEqual(
    server.sent.map(({ body }) => (body as unknown[]).length),
    [2, 1],
  );
});

test("an item with a problem fails alone", async () => {
  const error = { title: "Bad Request", status: 400, detail: "cost: x", field: "cost" };
  const server = new Simulated(({ body }) =>
    Response.json({
      results: (body as { cost?: number }[]).map(({ cost }) => (cost === -1 ? { error } : { allowed: true })),
    }),
  );
  const client = server.client();
  const [first, second] = await Promise.allSettled([client.check({ cost: -1 }), client.check({})]);
  assert.deepEqual((first as PromiseRejectedResult).reason.problem, error);
  assert.equal((second as PromiseFulfilledResult<Decision>).value.allowed, true);
  await assert.rejects(client.checkBatch([{}, { cost: -1 }, { cost: -1 }]), (thrown: ProblemError) => {
    assert.equal(thrown.problem["field"], "[1].cost");
    return true;
  });
});

test("a check that JSON cannot carry fails alone, before anything is sent", async () => {
  const server = new Simulated(results);
  const client = server.client();
  const circle: Record<string, unknown> = {};
  circle["circle"] = circle;
  for (const cost of [5n, circle]) await assert.rejects(client.check({ cost: cost as never }), ProblemError);
  assert.equal(server.sent.length, 0);
});

test("names are camelCase in TypeScript, and those of the HTTP API when sent", async () => {
  const answered = {
    allowed: false,
    retry_after_ms: 5,
    reset_after_ms: 6,
    limits: [{ allowed: false, retry_after_ms: 7 }],
  };
  const server = new Simulated((sent) => results(sent, answered));
  const decided = await server.client().check({ key: "a", limit: { quota: "1", timeZone: "UTC", maxHold: "1s" } });
  assert.deepEqual(server.sent[0]?.body, [{ key: "a", limit: { quota: "1", time_zone: "UTC", max_hold: "1s" } }]);
  assert.deepEqual([decided.retryAfterMs, decided.resetAfterMs, decided.limits[0]?.retryAfterMs], [5, 6, 7]);
});

test("a long key is shortened as forward auth does", async () => {
  const server = new Simulated(results);
  await server.client().check({ key: `${"a".repeat(5_000)}\ud800`, limit: { quota: "1/second" } });
  const [check] = (server.sent[0] as Sent).body as { key: string }[];
  assert.match(check?.key ?? "", /^a{1024}sha256:[0-9a-f]{64}a{1021}\ufffd$/);
});

test("at most 64 calls are under way, of which at most 32 carry a wait", async () => {
  const server = new Simulated(async ({ operation }) => {
    await pause(20);
    return Response.json(operation === "settle" ? { result: "done" } : { allowed: true });
  });
  const client = server.client();
  const settles = Array.from({ length: 200 }, () => client.settle("AQAB", 1));
  assert.ok((await Promise.all(settles)).every((outcome) => outcome === "done"));
  assert.equal(server.mostUnderWay, 64);
  server.mostUnderWay = 0;
  const waits = Array.from({ length: 100 }, () => client.check({ waitMs: 10_000 }));
  assert.ok((await Promise.all(waits)).every(({ source }) => source === null));
  assert.equal(server.mostUnderWay, 32);
});

test("checks gather while two batches are under way, unless these take half of the time-out", async () => {
  const answers: (() => void)[] = [];
  const server = new Simulated(async (sent) => {
    await new Promise<void>((answer) => answers.push(answer));
    return results(sent);
  });
  const client = server.client({ timeoutMs: 1_000 });
  const checks = [client.check({ domain: "first" })];
  await pause(20);
  checks.push(client.check({ domain: "second" }));
  await pause(20);
  for (let check = 0; check < 20; check += 1) checks.push(client.check({}));
  await pause(20);
  assert.equal(server.sent.length, 2, "both of the places are taken");
  while (server.sent.length < 3) await pause(10);
  assert.deepEqual(
    server.sent.map(({ body }) => (body as unknown[]).length),
    [1, 1, 20],
  );
  for (const answer of answers) answer();
  await Promise.all(checks);
});

test("a wait that ends before the check finds a place is decided without a wait", async () => {
  const server = new Simulated(async (sent) => {
    if (sent.operation === "check/batch") return results(sent, { allowed: false, reason: "limit-exceeded" });
    await pause(500);
    return Response.json({ allowed: true });
  });
  const client = server.client();
  const decided = await Promise.all(Array.from({ length: 40 }, () => client.check({ waitMs: 60 })));
  assert.equal(decided.filter(({ allowed }) => allowed).length, 32);
  assert.equal(decided.filter(({ reason }) => reason === "limit-exceeded").length, 8);
});

test("calls that find no place end when the server is silent for one time-out", async () => {
  const server = new Simulated(never);
  const client = server.client({ timeoutMs: 50 });
  const outcomes = await Promise.all(Array.from({ length: 100 }, () => client.settle("AQAB", 1)));
  assert.deepEqual([...new Set(outcomes)], ["unavailable"]);
  assert.equal(server.sent.length, 64);
});

test("the breaker opens after three failures, and then one call at a time tries the server", async () => {
  const server = new Simulated(never);
  const client = server.client({ timeoutMs: 25 });
  for (let check = 0; check < 3; check += 1) assert.equal((await client.check({})).source, "client");
  assert.equal((await client.check({})).source, "client");
  assert.equal(server.sent.length, 3, "while it is open, a check is not sent");
  await pause(110);
  await Promise.all(Array.from({ length: 10 }, () => client.check({})));
  assert.deepEqual(
    server.sent.slice(3).map(({ body }) => (body as unknown[]).length),
    [1],
  );
});

test("the breaker closes with the first answer", async () => {
  let isUp = false;
  const server = new Simulated((sent) => (isUp ? results(sent) : new Response("", { status: 500 })));
  const lines: string[] = [];
  const logger = { warn: (line: string) => lines.push(line) };
  const client = server.client({ logger });
  for (let check = 0; check < 4; check += 1) await client.check({});
  assert.equal(server.sent.length, 3);
  isUp = true;
  await pause(110);
  assert.equal((await client.check({})).source, null);
  await Promise.all(Array.from({ length: 10 }, () => client.check({})));
  assert.equal(server.sent.length, 5);
  assert.deepEqual(
    lines.map((line) => line.split(" (")[0]),
    ["Spillgate does not answer", "Spillgate answers again"],
  );
});

test("the breaker never opens while answers arrive", async () => {
  const server = new Simulated((sent) => (JSON.stringify(sent.body).includes("hangs") ? never() : results(sent)));
  const client = server.client({ timeoutMs: 200 });
  const silent = [];
  for (let check = 0; check < 5; check += 1) {
    silent.push(client.check({ domain: "hangs" }));
    while (server.sent.length <= check) await pause(10);
  }
  assert.equal((await client.check({})).source, null);
  assert.ok((await Promise.all(silent)).every(({ source }) => source === "client"));
  assert.equal((await client.check({})).source, null);
  assert.equal(server.sent.length, 7);
});

test("a flood that waits for ten time-outs while the server answers is denied, also where onFailure allows", async () => {
  const server = new Simulated(async () => {
    await pause(50);
    return Response.json({ allowed: true });
  });
  const client = server.client({ timeoutMs: 100, onFailure: "allow" });
  const flood = Array.from({ length: 2_000 }, () => client.reserve({ attributes: { ip: "a" } }));
  const decisions = (await Promise.all(flood)).map(({ decision }) => decision);
  const late = decisions.filter(({ source }) => source === "client");
  assert.ok(late.length > 0);
  assert.ok(late.every(({ allowed, reason }) => !allowed && reason === "overloaded"));
});

test("a token is cut to its visible characters", async () => {
  const server = new Simulated(results);
  await server.client({ token: () => " secret\r\n" }).check({});
  await server.client({ token: "secret\n" }).check({});
  assert.deepEqual(
    server.sent.map(({ authorization }) => authorization),
    ["Bearer secret", "Bearer secret"],
  );
});

test("a token that cannot be sent is an error of the application, and no failure of the server", async () => {
  const server = new Simulated(results);
  const bad = ["", " \n", "a b", "a\r\nX-Evil: 1", "s\u00e9cret", "a\0"];
  for (const token of bad) {
    assert.throws(() => server.client({ token }), TokenError, JSON.stringify(token));
  }
  let token: unknown = "good";
  const client = server.client({
    token: () => {
      if (token instanceof Error) throw token;
      return token as string;
    },
  });
  for (token of [...bad, ...bad, undefined, 42, new Error("no such file")]) {
    await assert.rejects(client.check({}), TokenError);
    await assert.rejects(client.settle("AQAB", 1), TokenError);
  }
  assert.equal(server.sent.length, 0);
  token = "good";
  assert.equal((await client.check({})).source, null);
});

test("an overloaded server denies a reservation", async () => {
  const server = new Simulated(() => problem(503, { reason: "overloaded" }));
  const { decision } = await server.client().reserve({});
  const { allowed, reason, degraded, source, error } = decision;
  assert.deepEqual([allowed, reason, degraded, source, error], [false, "overloaded", true, "outage-policy", undefined]);
  assert.equal(server.sent.length, 1);
});

test("a retryable answer is repeated, and no failure of the server", async () => {
  const server = new Simulated(() => problem(503, { retryable: true }));
  const client = server.client();
  assert.equal(await client.settle("AQAB", 1), "unavailable");
  assert.equal(server.sent.length, 3);
  await client.check({});
  assert.equal(server.sent.length, 4, "the next check asks the server");
});

const TOKEN = 'no rule uses the unit "token"';
const USR = 'no rule uses the attribute "usr"';

/** Allows everything, and reports these names. */
function reporting(unused: unknown): Simulated {
  return reportingEach(() => unused);
}

function reportingEach(next: () => unknown): Simulated {
  return new Simulated(({ body }) =>
    Response.json({
      ...(Array.isArray(body)
        ? { results: body.map(() => ({ allowed: true })) }
        : { allowed: true, receipt: "AQAB", result: "done" }),
      unused: next(),
    }),
  );
}

test("every decision has the unused names, and the log names each once", async () => {
  const lines: string[] = [];
  const client = reporting([TOKEN, USR]).client({ logger: { warn: (line) => void lines.push(line) } });
  for (let round = 0; round < 2; round += 1) {
    const [first, second] = await client.checkBatch([{}, {}]);
    const decisions = [
      await client.check({}),
      await client.check({ waitMs: 1 }),
      first,
      second,
      (await client.reserve({})).decision,
    ];
    for (const decision of decisions) assert.deepEqual(decision?.unused, [TOKEN, USR]);
  }
  assert.deepEqual(
    lines,
    [TOKEN, USR].map((sentence) => `Spillgate reports an unused name: ${JSON.stringify(sentence)}`),
  );
});

test("a settlement reports unused names in the log", async () => {
  const lines: string[] = [];
  const client = reporting([TOKEN]).client({ logger: { warn: (line) => void lines.push(line) } });
  assert.equal(await client.settle("AQAB", { token: 1 }), "done");
  assert.deepEqual(lines, [`Spillgate reports an unused name: ${JSON.stringify(TOKEN)}`]);
});

test("the log names at most 64 unused names, and the start of each", async () => {
  const lines: string[] = [];
  const many = ["x".repeat(5_000), ...Array.from({ length: 100 }, (_, number) => `${number}`)];
  const client = reportingEach(() => [many.shift()]).client({ logger: { warn: (line) => void lines.push(line) } });
  while (many.length > 0) assert.equal((await client.check({})).unused.length, 1);
  assert.deepEqual([lines.length, lines[0]], [64, `Spillgate reports an unused name: "${"x".repeat(1_000)}"`]);
});

test("a sentence of the server forges no line in the log", async () => {
  const lines: string[] = [];
  const sentence = "x\r\nforged \x1b[31m \x7f \x9b \u2028 \ud800";
  const client = reporting([sentence]).client({ logger: { warn: (line) => void lines.push(line) } });
  assert.deepEqual((await client.check({})).unused, [sentence]);
  const escaped = String.raw`x\r\nforged \u001b[31m \u007f \u009b \u2028 \ud800`;
  assert.deepEqual(lines, [`Spillgate reports an unused name: "${escaped}"`]);
});

test("a decision has up to 64 unused names", async () => {
  const most = new Array(64).fill("x");
  const client = reporting(most).client();
  const decisions = [await client.check({}), ...(await client.checkBatch([{}])), (await client.reserve({})).decision];
  for (const decision of decisions) assert.deepEqual(decision.unused, most);
});

test("no decision can change the unused names of another one", async () => {
  const down = new Simulated(() => new Response("", { status: 500 })).client();
  const decisions = [
    ...(await reporting([TOKEN]).client().checkBatch([{}, {}])),
    await reporting(null).client().check({}),
    await down.check({}),
  ];
  for (const { unused } of decisions) assert.throws(() => (unused as string[]).push("x"), TypeError);
});

test("unused names of a wrong type, and too many, count as absent", async () => {
  const tooMany = new Array(65).fill("x");
  for (const unused of [null, [], 7, "x", { a: "b" }, [TOKEN, 7], [null], [[]], tooMany]) {
    const lines: string[] = [];
    const client = reporting(unused).client({ logger: { warn: (line) => void lines.push(line) } });
    const decisions = [await client.check({}), ...(await client.checkBatch([{}])), (await client.reserve({})).decision];
    for (const decision of decisions) {
      assert.deepEqual([decision.allowed, decision.error, decision.unused], [true, undefined, []]);
    }
    assert.equal(await client.settle("AQAB", 1), "done");
    assert.deepEqual(lines, []);
  }
});

test("a logger or a hook that throws reaches no caller", async () => {
  const fails = () => {
    throw new Error("no disk");
  };
  const server = new Simulated(() => new Response("", { status: 500 }));
  const client = server.client({ logger: { warn: fails }, observe: fails });
  const { error } = await client.check({});
  assert.ok(error instanceof Unavailable);
});

test("acquire does not spin before a wait longer than any timer", async (context) => {
  const answers = [false, false, true];
  const server = new Simulated((sent) => results(sent, { allowed: answers.shift(), retry_after_ms: 30 * 86_400_000 }));
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const acquired = server.client().acquire({}, { deadlineMs: Number.POSITIVE_INFINITY });
  for (const calls of [1, 2]) {
    while (server.sent.length < calls) await tick();
    for (let turn = 0; turn < 10; turn += 1) await tick();
    context.mock.timers.tick(2 ** 31 - 2);
    for (let turn = 0; turn < 10; turn += 1) await tick();
    assert.equal(server.sent.length, calls);
    context.mock.timers.tick(1);
  }
  assert.equal((await acquired).allowed, true);
});

test("acquire without a deadline returns a denial whose wait is unknown", async () => {
  const server = new Simulated((sent) => results(sent, { allowed: false, retry_after_ms: null }));
  const { allowed } = await server.client().acquire({}, { deadlineMs: Number.POSITIVE_INFINITY });
  assert.deepEqual([allowed, server.sent.length], [false, 1]);
});

test("a wait below 0 is none, and a long one is bounded", async () => {
  const server = new Simulated((sent) =>
    sent.operation === "check" ? Response.json({ allowed: true }) : results(sent),
  );
  const client = server.client();
  for (const waitMs of [-1_000, Number.NaN, 0]) await client.check({ waitMs });
  assert.deepEqual(
    server.sent.splice(0).map(({ body }) => body),
    [[{}], [{}], [{}]],
  );
  for (const waitMs of [4_999.6, Number.MAX_VALUE, Number.POSITIVE_INFINITY]) await client.check({ waitMs });
  const [first = 0, ...others] = server.sent.map(({ body }) => (body as { wait_ms: number }).wait_ms);
  assert.ok(Number.isInteger(first) && first <= 5_000 && first > 0);
  assert.ok(others.every((wait) => wait <= 120_000 && wait > 60_000));
});

test("a call that the server refuses ends no reservation", async () => {
  let status = 400;
  const server = new Simulated(({ operation }) => {
    if (operation === "settle") return problem(status, { detail: "refused" });
    return Response.json(operation === "reserve" ? { allowed: true, receipt: "AQAB" } : { result: "done" });
  });
  const client = server.client();
  const operations = () => server.sent.splice(0).map(({ operation }) => operation);
  await assert.rejects(
    client.withReservation({}, (job) => job.settle(1)),
    ProblemError,
  );
  assert.deepEqual(operations(), ["reserve", "settle", "cancel"]);
  await client.withReservation({}, (job) => job.settle(1).catch(() => {}));
  assert.deepEqual(operations(), ["reserve", "settle", "release"]);
  status = 409;
  await client.withReservation({}, (job) => job.settle(1).catch(() => {}));
  assert.deepEqual(operations(), ["reserve", "settle"], "it has ended in another way");
  status = 400;
  await client.withReservation({}, async (job) => {
    await job.cancel();
    await job.settle(1).catch(() => {});
  });
  assert.deepEqual(operations(), ["reserve", "cancel", "settle"], "it has ended before");
});
