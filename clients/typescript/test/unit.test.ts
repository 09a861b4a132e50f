// What needs no server.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { type TestContext, test } from "node:test";

import { ClientAddress, type Options, ProblemError, Spillgate } from "spillgate";

import { Gate, pathOf } from "../dist/middleware.js";
import { conformance } from "./server.js";

interface Row {
  trusted_proxies: string[];
  peer: string;
  forwarded_for: string[];
  ip: string;
}

test("every client is found", () => {
  for (const row of JSON.parse(conformance("addresses.json")) as Row[]) {
    const found = new ClientAddress(row.trusted_proxies).attribute(row.peer, row.forwarded_for.join(","));
    assert.equal(found, row.ip, JSON.stringify(row));
  }
});

test("refuses what is no network", () => {
  for (const text of ["10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/8/8", "10.0.0.0/-1", "local", ""]) {
    assert.throws(() => new ClientAddress([text]), /is no network; write one such as 10\.0\.0\.0\/8/, text);
  }
});

test("options are checked", () => {
  assert.throws(() => new Spillgate({ url: "127.0.0.1:8080" }), /url must be http:\/\/HOST:PORT/);
  assert.throws(() => new Spillgate({ timeoutMs: 0 }), /timeoutMs must be above 0, got 0/);
  assert.throws(() => new Spillgate({ onFailure: "open" as "allow" }), /onFailure must be "allow" or "deny", got "open"/);
});

/** A client of a server that gives one answer to every call. */
function answered(status: number, body: string): { client: Spillgate; calls: () => number } {
  const { fetch, sent } = answering(status, body);
  return { client: new Spillgate({ fetch, timeoutMs: 20_000 }), calls: () => sent.length };
}

/** A server that gives these answers in turn, the last one again and again, and what it was sent. */
function answering(status: number, ...bodies: string[]): { fetch: NonNullable<Options["fetch"]>; sent: string[] } {
  const sent: string[] = [];
  const fetch = (async (_url, request) => {
    const body = bodies[Math.min(sent.length, bodies.length - 1)];
    sent.push(`${request?.body}`);
    return new Response(body, { status });
  }) as NonNullable<Options["fetch"]>;
  return { fetch, sent };
}

/** Ends every timer at once, and returns the times that they were given. */
function instantTimers(context: TestContext): number[] {
  const times: number[] = [];
  context.mock.method(globalThis, "setTimeout", (end: () => void, ms: number) => {
    times.push(ms);
    queueMicrotask(end);
  });
  return times;
}

const TIMER_MAX_MS = 2 ** 31 - 1;

test("a time-out longer than any timer is the longest timer", async (context) => {
  const times = instantTimers(context);
  const { fetch } = answering(200, '{"allowed":true}');
  for (const timeoutMs of [Infinity, Number.MAX_SAFE_INTEGER, 2 ** 31 + 60_000]) {
    await new Spillgate({ fetch, timeoutMs }).check({});
    assert.deepEqual(times.splice(0), [TIMER_MAX_MS], `${timeoutMs}`);
  }
});

test("acquire does not spin before a wait longer than any timer", async (context) => {
  const times = instantTimers(context);
  const denied = `{"allowed":false,"retry_after_ms":${30 * 86_400_000}}`;
  const { fetch, sent } = answering(200, denied, denied, '{"allowed":true}');
  const { allowed } = await new Spillgate({ fetch, timeoutMs: 20_000 }).acquire({}, { deadlineMs: Infinity });
  assert.deepEqual([allowed, sent.length], [true, 3]);
  assert.deepEqual(times.filter((ms) => ms > 20_000), [TIMER_MAX_MS, TIMER_MAX_MS]);
});

test("acquire without a deadline returns a denial whose wait is unknown", async (context) => {
  instantTimers(context);
  const { fetch, sent } = answering(200, '{"allowed":false,"retry_after_ms":null}', '{"allowed":true}');
  const { allowed } = await new Spillgate({ fetch }).acquire({}, { deadlineMs: Infinity });
  assert.deepEqual([allowed, sent.length], [false, 1]);
});

test("a lone surrogate in an attribute is sent as U+FFFD", async () => {
  const long = "a".repeat(2_000);
  const given = { high: "x\ud800", low: "\udc00x", swapped: "\udc00\ud800", pair: "\ud83d\ude00", long: `${long}\ud800` };
  const expected = { high: "x\ufffd", low: "\ufffdx", swapped: "\ufffd\ufffd", pair: "\ud83d\ude00", long: `${long}\ufffd` };
  assert.deepEqual(await sentFor(given), expected);
});

test("a long attribute keeps both ends, and its hash between them", async () => {
  const sha256 = (text: string) => `sha256:${createHash("sha256").update(text).digest("hex")}`;
  const middle = "a".repeat(5_000);
  const [start, end] = ["<".repeat(1_024), ">".repeat(1_024)];
  // Each `\u00e9` has two bytes, so that the cuts go through the middle of one.
  const wide = `x${"\u00e9".repeat(2_100)}x`;
  const [left, right] = [`x${"\u00e9".repeat(511)}`, `${"\u00e9".repeat(511)}x`];
  // A lone surrogate has three bytes as U+FFFD: the second value is too long only then.
  const [fits, grows] = ["a".repeat(4_093), "a".repeat(4_094)];
  const given = {
    long: `${start}${middle}${end}`,
    wide,
    bom: `\ufeff${middle}`,
    fits: `${fits}\ud800`,
    grows: `${grows}\ud800`,
  };
  const expected = {
    long: `${start}${sha256(given.long)}${end}`,
    wide: `${left}${sha256(wide)}${right}`,
    bom: `\ufeff${"a".repeat(1_021)}${sha256(given.bom)}${"a".repeat(1_024)}`,
    fits: `${fits}\ufffd`,
    grows: `${"a".repeat(1_024)}${sha256(`${grows}\ufffd`)}${"a".repeat(1_021)}\ufffd`,
  };
  assert.deepEqual(await sentFor(given), expected);
});

test("a wait below 0 is none, and a late answer to it no other failure", async (context) => {
  const times = instantTimers(context);
  const { fetch, sent } = answering(200, '{"allowed":true}');
  const client = new Spillgate({ fetch, timeoutMs: 300 });
  const expected = [[-1_000, 0, 300], [NaN, 0, 300], [49.6, 50, 350], [Number.MAX_VALUE, 120_000, 120_300], [Infinity, 120_000, 120_300]];
  for (const [given = 0, wait, timeoutMs] of expected) {
    await client.check({ wait_ms: given });
    assert.deepEqual([JSON.parse(sent.pop() ?? "").wait_ms, Math.round(times.pop() ?? 0)], [wait, timeoutMs], `${given}`);
  }
});

test("an attribute that is no text is sent as JSON, or left out", async () => {
  // `?key=a&key=b` and `?key[a]=1`, as frameworks parse them; no client can have its request refused by one.
  const given = { list: ["a", "b"], object: { a: "1" }, id: 42, large: 2n ** 64n, no: undefined, none: null };
  const expected = { list: '["a","b"]', object: '{"a":"1"}', id: "42", large: "18446744073709551616" };
  assert.deepEqual(await sentFor(given), expected);
});

/** What a middleware sends for the attributes that an application returns. */
async function sentFor(given: Record<string, unknown>): Promise<Record<string, unknown>> {
  const { fetch, sent } = answering(200, '{"allowed":true}');
  const gate = new Gate<null>(new Spillgate({ fetch }), { attributes: () => given });
  await gate.decide(null, { peer: "203.0.113.7", forwardedFor: undefined, method: "GET", target: "/" });
  const { ip: _ip, method: _method, path: _path, ...attributes } = JSON.parse(sent[0] ?? "").attributes;
  return attributes;
}

test("an overloaded server denies a reservation", async () => {
  const { client, calls } = answered(503, '{"status":503,"detail":"no room","reason":"overloaded"}');
  const { decision } = await client.reserve({});
  const { allowed, reason, degraded, source, error } = decision;
  assert.deepEqual([allowed, reason, degraded, source, error], [false, "overloaded", true, "outage-policy", undefined]);
  assert.equal(calls(), 1);
});

test("a retryable answer is repeated, and no failure of the server", async () => {
  const { client, calls } = answered(503, '{"status":503,"detail":"a shard is down","retryable":true}');
  assert.equal(await client.settle("AQAB", 1), "unavailable");
  assert.equal(calls(), 3);
  await client.check({});
  assert.equal(calls(), 4, "the next check asks the server");
});

test("while the client does not ask the server, calls return at once", async (context) => {
  context.mock.method(console, "warn", () => {});
  const times = instantTimers(context);
  const { client, calls } = answered(500, "");
  for (let check = 0; check < 2; check += 1) await client.check({});
  assert.equal(await client.settle("AQAB", 1), "unavailable");
  assert.equal(await client.settle("AQAB", 1), "unavailable");
  assert.equal((await client.check({})).source, "client");
  assert.deepEqual([calls(), times.length], [3, 3], "three time-outs, and no pause");
});

test("a call that the server refuses ends no reservation", async () => {
  const operations: string[] = [];
  let status = 400;
  const fetch = (async (url) => {
    const operation = `${url}`.split("/").at(-1) ?? "";
    operations.push(operation);
    if (operation === "settle") return Response.json({ status, detail: "refused" }, { status });
    return Response.json(operation === "reserve" ? { allowed: true, receipt: "AQAB" } : { result: "done" });
  }) as NonNullable<Options["fetch"]>;
  const client = new Spillgate({ fetch });
  await assert.rejects(client.withReservation({}, (job) => job.settle(1)), ProblemError);
  assert.deepEqual(operations.splice(0), ["reserve", "settle", "cancel"]);
  await client.withReservation({}, (job) => job.settle(1).catch(() => {}));
  assert.deepEqual(operations.splice(0), ["reserve", "settle", "release"]);
  status = 409;
  await client.withReservation({}, (job) => job.settle(1).catch(() => {}));
  assert.deepEqual(operations.splice(0), ["reserve", "settle"], "it has ended in another way");
  status = 400;
  await client.withReservation({}, async (job) => {
    await job.cancel();
    await job.settle(1).catch(() => {});
  });
  assert.deepEqual(operations.splice(0), ["reserve", "cancel", "settle"], "it has ended before");
});

test("answers that are not of Spillgate are failures", async (context) => {
  context.mock.method(console, "warn", () => {});
  for (const [status, body] of [[503, "busy"], [200, "{}"]] as const) {
    const { client, calls } = answered(status, body);
    for (let check = 0; check < 4; check += 1) {
      const { allowed, source } = await client.check({});
      assert.deepEqual([allowed, source], [true, "client"]);
    }
    assert.equal(calls(), 3, `${status} ${body}: the breaker trips`);
  }
});

test("no spelling of a target escapes its rule", () => {
  for (const target of ["/login", "/log%69n?x", "http://x/login", "HTTP://u@x:80/login?http://y/z", "/login#x"]) {
    assert.equal(pathOf(target), "/login", target);
  }
  assert.equal(pathOf("http://x"), "/");
  assert.equal(pathOf("/to/http://x/login"), "/to/http://x/login");
});

test("an escaped separator or percent sign stays in its segment", () => {
  for (const target of ["/s/a%2Fb", "/s/%3fx", "/s/%23x", "/s/%2541"]) assert.equal(pathOf(target), target);
  assert.equal(pathOf("/s/%25%34%31"), "/s/%2541");
  // Routers give both spellings to a handler as one parameter.
  assert.equal(pathOf("/s/a%3Ab"), "/s/a:b");
});

test("a bad escape leaves the others of a target unescaped", () => {
  const paths = { "/%66iles/x%ff": "/files/x%ff", "/%e4%66/%66": "/%e4%66/f", "/100%/%66": "/100%25/f", "/%%36c": "/%256c" };
  for (const [target, path] of Object.entries(paths)) assert.equal(pathOf(target), path, target);
});
