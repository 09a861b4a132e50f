// What needs no server.
import assert from "node:assert/strict";
import { test } from "node:test";

import { ClientAddress, type Options, Spillgate } from "spillgate";

import { pathOf } from "../dist/middleware.js";
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
  let calls = 0;
  const fetch = (async () => {
    calls += 1;
    return new Response(body, { status });
  }) as NonNullable<Options["fetch"]>;
  return { client: new Spillgate({ fetch, timeoutMs: 20_000 }), calls: () => calls };
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
