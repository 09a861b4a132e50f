// Runs clients/conformance/cases.json: the client and the three middlewares, on memory and on Redis.
import { createServer, request as send } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { type CheckRequest, Denied, type Options, ProblemError, type ReserveRequest, Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

import { conformance, hasRedis, pause, Server, TOKEN } from "./server.js";

interface HttpRequest {
  peer: string;
  method: string;
  path: string;
  headers?: [string, string][];
}

interface HttpAnswer {
  status: number;
  headers: Record<string, string>;
  body: string;
  reached: boolean;
}

interface Step {
  server?: "up" | "hung";
  pause_ms?: number;
  http?: HttpRequest;
  call?: string;
  with?: unknown;
  expect?: Record<string, unknown>;
  expect_problem?: unknown;
  ends_by?: string;
  settles?: Record<string, number>;
  deadline_ms?: number;
  repeat?: number;
  within_ms?: number;
  takes_at_least_ms?: number;
}

interface CaseOptions {
  on_failure?: "allow" | "deny";
  timeout_ms?: number;
  token?: string;
  cost?: number;
  headers?: "ietf" | "draft-7" | "draft-6" | "legacy" | "none";
  trusted_proxies?: string[];
}

interface Case {
  name: string;
  server?: "hung" | "down";
  options?: CaseOptions;
  steps: Step[];
}

const cases = JSON.parse(conformance("cases.json")).cases as Case[];
const policy = conformance("policy.toml");
const chosen = process.env["SPILLGATE_CASE"] ?? "";
// A machine that is busy with something else is no failure: only cases about failures have a short time-out.
const PATIENCE_MS = 20_000;
const OWN_FIELD = '"inner";r=7';

type Limited = (
  client: Spillgate,
  options: CaseOptions,
) => Promise<{
  http(request: HttpRequest): Promise<HttpAnswer>;
  close(): Promise<void>;
}>;

const middlewares: Record<string, Limited> = {
  async express(client, options) {
    let reached = false;
    const app = express();
    app.use(expressLimit(client, settings(options)));
    app.use((request, response) => {
      reached = true;
      if (request.path === "/own-fields") response.set("RateLimit", OWN_FIELD);
      response.send("ok");
    });
    const server = createServer(app);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return {
      async http(request) {
        reached = false;
        const answer = await overHttp((server.address() as AddressInfo).port, request);
        return { ...answer, reached };
      },
      async close() {
        server.closeAllConnections();
        await new Promise((resolve) => server.close(resolve));
      },
    };
  },

  async fastify(client, options) {
    let reached = false;
    const app = Fastify({ routerOptions: { maxParamLength: 10_000 }, forceCloseConnections: true });
    app.addHook("onRequest", fastifyLimit(client, settings(options)));
    app.get("/*", async (request, reply) => {
      reached = true;
      if (request.url === "/own-fields") reply.header("RateLimit", OWN_FIELD);
      return "ok";
    });
    await app.listen({ port: 0, host: "127.0.0.1" });
    return {
      async http(request) {
        reached = false;
        const answer = await overHttp((app.server.address() as AddressInfo).port, request);
        return { ...answer, reached };
      },
      close: () => app.close(),
    };
  },

  async hono(client, options) {
    let reached = false;
    const app = new Hono();
    app.use(honoLimit(client, settings(options)));
    app.get("/*", (context) => {
      reached = true;
      if (context.req.path === "/own-fields") context.header("RateLimit", OWN_FIELD);
      return context.text("ok");
    });
    return {
      async http({ peer, method, path, headers }) {
        reached = false;
        const environment = { incoming: { socket: { remoteAddress: peer } } };
        const fields = new Headers();
        for (const [name, value] of headers ?? []) fields.append(name, value);
        const response = await app.request(path, { method, headers: fields }, environment);
        const answered = Object.fromEntries(response.headers);
        return { status: response.status, headers: answered, body: await response.text(), reached };
      },
      close: async () => {},
    };
  },
};

function settings({ cost, headers, trusted_proxies }: CaseOptions) {
  return {
    ...(cost !== undefined && { cost }),
    ...(headers !== undefined && { headers }),
    ...(trusted_proxies !== undefined && { trustedProxies: trusted_proxies }),
  };
}

/** The peers of all cases are addresses of this machine, so that a request can come from them. */
function overHttp(port: number, { peer, method, path, headers }: HttpRequest): Promise<Omit<HttpAnswer, "reached">> {
  return new Promise((resolve, reject) => {
    const lines = (headers ?? []).flat();
    const from = { host: "127.0.0.1", port, method, path, localAddress: peer, agent: false };
    const request = send({ ...from, headers: ["Host", "app.test", ...lines] as never }, (response) => {
      let body = "";
      response.setEncoding("utf8");
      response.on("data", (text) => (body += text));
      response.on("end", () => {
        resolve({ status: response.statusCode ?? 0, headers: response.headers as Record<string, string>, body });
      });
    });
    request.on("error", reject);
    request.end();
  });
}

let runs = 0;

class Run {
  readonly #case: Case;
  readonly #server: Server;
  readonly #client: Spillgate;
  readonly #number: number;
  readonly #operations = new Set<string>();
  #receipt: string | undefined;

  constructor(played: Case, server: Server) {
    const { token = TOKEN, timeout_ms: timeoutMs = PATIENCE_MS, on_failure: onFailure } = played.options ?? {};
    const options: Options = { url: server.url, token, timeoutMs, ...(onFailure && { onFailure }) };
    options.observe = (call) => this.#operations.add(call.operation);
    this.#case = played;
    this.#server = server;
    this.#client = new Spillgate(options);
    this.#number = ++runs;
  }

  async play(limited: Limited | undefined): Promise<void> {
    const app = await limited?.(this.#client, this.#case.options ?? {});
    try {
      for (const [index, step] of this.#case.steps.entries()) {
        for (let time = 0; time < (step.repeat ?? 1); time += 1) {
          const start = performance.now();
          try {
            await this.#step(this.#filled(step) as Step, app?.http);
            const ms = performance.now() - start;
            if (ms > (step.within_ms ?? ms)) throw new Error(`took ${ms} ms, at most ${step.within_ms} expected`);
            if (ms < (step.takes_at_least_ms ?? ms))
              throw new Error(`took ${ms} ms, at least ${step.takes_at_least_ms} expected`);
          } catch (error) {
            throw new Error(`${this.#case.name}: step ${index + 1}: ${(error as Error).message}`, { cause: error });
          }
        }
      }
    } finally {
      await app?.close();
    }
  }

  #filled(value: unknown): unknown {
    const text = JSON.stringify(value).replaceAll("{run}", `${this.#number}`).replaceAll("{long}", "a".repeat(5_000));
    return JSON.parse(text);
  }

  async #step(step: Step, http: ((request: HttpRequest) => Promise<HttpAnswer>) | undefined): Promise<void> {
    if (step.server !== undefined) {
      if (step.server === "hung") await this.#server.hang();
      else this.#server.goOn();
    } else if (step.pause_ms !== undefined) {
      await pause(step.pause_ms);
    } else if (step.http !== undefined) {
      if (http === undefined) throw new Error("no middleware to send it to");
      const answer = await http(step.http);
      const expect = step.expect as { status: number; headers?: object; json?: unknown; reaches_app: boolean };
      const named = Object.entries(expect.headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]);
      match(expect.status, answer.status, "status");
      match(Object.fromEntries(named), answer.headers, "headers");
      match(expect.reaches_app, answer.reached, "reaches_app");
      if (expect.json !== undefined) match(expect.json, JSON.parse(answer.body), "json");
      if (step.http.method === "HEAD") match("", answer.body, "body");
    } else if (step.expect_problem !== undefined) {
      const error = await this.#call(step).then(
        (answer) => new Error(`no error, but ${JSON.stringify(answer)}`),
        (error: Error) => error,
      );
      if (!(error instanceof ProblemError)) throw error;
      match(step.expect_problem, { status: error.status, ...error.problem }, "problem");
    } else {
      match(step.expect, await this.#call(step), `${step.call}`);
    }
  }

  async #call(step: Step): Promise<unknown> {
    this.#operations.clear();
    try {
      return await this.#answer(step);
    } finally {
      this.#isObserved(step.call ?? "");
    }
  }

  #isObserved(call: string): void {
    if (["settle", "cancel", "release", "renew"].includes(call) && this.#receipt === undefined) return;
    const expected = { acquire: "check", scope: "reserve" }[call] ?? call;
    if (!this.#operations.has(expected)) throw new Error(`the hook saw ${[...this.#operations]}, not ${expected}`);
  }

  async #answer(step: Step): Promise<unknown> {
    return renamed(await this.#answerOf(step), (name) =>
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    );
  }

  async #answerOf(step: Step): Promise<unknown> {
    const [client, receipt] = [this.#client, this.#receipt];
    const given = renamed(step.with, camelCase) as ReserveRequest & { ttlMs: number; cost: number };
    switch (step.call) {
      case "check":
        return client.check(given);
      case "check_batch":
        return client.checkBatch(renamed(step.with, camelCase) as CheckRequest[]);
      case "acquire":
        return client.acquire(given, { deadlineMs: step.deadline_ms ?? 0 });
      case "reserve": {
        const job = await client.reserve(given);
        this.#receipt = job.receipt;
        return job.decision;
      }
      case "scope":
        return this.#scope(step, given);
    }
    // What a reservation without a receipt does by itself.
    if (receipt === undefined) return { result: "unknown" };
    switch (step.call) {
      case "settle":
        return { result: await client.settle(receipt, given.cost) };
      case "cancel":
        return { result: await client.cancel(receipt) };
      case "release":
        return { result: await client.release(receipt) };
      case "renew":
        return { result: await client.renew(receipt, given.ttlMs) };
    }
    throw new Error(`no such call: ${step.call}`);
  }

  async #scope({ ends_by, settles }: Step, request: ReserveRequest): Promise<unknown> {
    try {
      await this.#client.withReservation(request, async (job) => {
        if (ends_by === "settle") await job.settle(settles ?? 0);
        if (ends_by === "error") throw new RangeError("the work failed");
      });
    } catch (error) {
      if (error instanceof Denied) return { entered: false, reason: error.decision.reason };
      if (!(error instanceof RangeError)) throw error;
    }
    return { entered: true };
  }
}

const camelCase = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** The same value with other names of fields: the cases have those of the HTTP API. */
function renamed(value: unknown, rename: (name: string) => string): unknown {
  if (Array.isArray(value)) return value.map((item) => renamed(item, rename));
  if (typeof value !== "object" || value === null || value instanceof Error) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [rename(name), renamed(inner, rename)]));
}

/** Compares by the rules in README.md of the conformance suite. */
function match(expected: unknown, actual: unknown, where: string): void {
  const wrong = () => new Error(`${where}: ${JSON.stringify(actual)}, expected ${JSON.stringify(expected)}`);
  if (Array.isArray(expected)) {
    if (!Array.isArray(actual) || actual.length !== expected.length) throw wrong();
    for (const [index, item] of expected.entries()) match(item, actual[index], `${where}[${index}]`);
  } else if (typeof expected === "object" && expected !== null) {
    const { $absent, $matches, $at_least, $at_most } = expected as Record<string, never>;
    if ($absent !== undefined) {
      if (actual !== undefined) throw wrong();
    } else if ($matches !== undefined) {
      if (typeof actual !== "string" || !new RegExp($matches).test(actual)) throw wrong();
    } else if ($at_least !== undefined || $at_most !== undefined) {
      if (typeof actual !== "number" || actual < ($at_least ?? actual) || actual > ($at_most ?? actual)) throw wrong();
    } else {
      if (typeof actual !== "object" || actual === null) throw wrong();
      for (const [name, value] of Object.entries(expected)) {
        match(value, (actual as Record<string, unknown>)[name], `${where}.${name}`);
      }
    }
  } else if (expected !== actual) {
    throw wrong();
  }
}

for (const redis of [false, true]) {
  const skip = redis && !hasRedis ? "left out: there is no redis-server" : false;
  test(`conformance on ${redis ? "Redis" : "memory"}`, { skip }, async (context) => {
    context.mock.method(console, "warn", () => {});
    const server = await Server.start(policy, { redis });
    try {
      const client = new Spillgate({ url: server.url, token: TOKEN, timeoutMs: PATIENCE_MS });
      // On Redis the first decisions may come before the first connection.
      const deadline = Date.now() + PATIENCE_MS;
      const start = { key: "start", limit: { quota: "1000/second" } };
      while ((await client.check(start)).degraded && Date.now() < deadline) await pause(50);

      for (const state of ["up", "hung", "down"]) {
        if (state === "hung") await server.hang();
        if (state === "down") await server.stop();
        for (const played of cases) {
          if ((played.server ?? "up") !== state || !played.name.includes(chosen)) continue;
          if (!played.steps.some((step) => step.http !== undefined)) {
            await context.test(played.name, () => new Run(played, server).play(undefined));
            continue;
          }
          for (const [name, limited] of Object.entries(middlewares)) {
            await context.test(`${name}: ${played.name}`, () => new Run(played, server).play(limited));
          }
        }
        if (state === "hung") server.goOn();
      }
    } finally {
      await server.close();
    }
  });
}
