// What needs no server.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";

import { ClientAddress, type Options, ProblemError, Spillgate, Unavailable } from "spillgate";
import { rateLimit } from "spillgate/express";

import { Breaker } from "../dist/breaker.js";
import { Gate } from "../dist/gate.js";
import { pathOf } from "../dist/target.js";
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

test("refuses what is not a network", () => {
  for (const text of ["10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/8/8", "10.0.0.0/-1", "local", ""]) {
    assert.throws(() => new ClientAddress([text]), /is not a valid network; write one such as 10\.0\.0\.0\/8/, text);
  }
});

test("options are checked", () => {
  assert.throws(() => new Spillgate({ url: "127.0.0.1:8080" }), /url must be http:\/\/HOST:PORT/);
  assert.throws(() => new Spillgate({ timeoutMs: 0 }), /timeoutMs must be above 0, got 0/);
  assert.throws(
    () => new Spillgate({ onFailure: "open" as "allow" }),
    /onFailure must be "allow" or "deny", got "open"/,
  );
});

test("a misspelt limit is refused at once, and each spelling that the server reads is accepted", () => {
  const client = new Spillgate();
  const periods = ["second", "minute", "hour", "day", "week", "month", "year", "ms", "s", "m", "h", "d", "30s", "1_0m"];
  const limits = ["unlimited", "block", ...periods.map((period) => `1_000/${period}`)];
  for (const limit of limits) rateLimit(client, { limit });
  const misspelt = ["", "/", "5/", "/s", "5/minut", "5/minutes", "5 per minute", "5/Minute", "5/30", "2w", "5/2w"];
  for (const limit of [
    ...misspelt,
    "20",
    "_5/s",
    "5_/s",
    "5__0/s",
    "-1/s",
    "1.5/s",
    "5/s\n",
    "5/2second",
    "5/s/s",
    "none",
  ]) {
    assert.throws(() => rateLimit(client, { limit }), /limit must be such as "5\/minute", .*, got "/, limit);
  }
  for (const limit of [5, null, ["5/minute"], true]) {
    assert.throws(() => rateLimit(client, { limit: limit as unknown as string }), /limit must be such as/);
  }
});

test("options that do not exist or have another value are refused at once", () => {
  const client = new Spillgate();
  const limit = "5/minute";
  assert.throws(
    () => rateLimit(client, { limits: limit } as object),
    /rateLimit has no option limits; it has attributes,/,
  );
  assert.throws(() => rateLimit(client, { peer: () => "::1" } as object), /no option peer/, "only Hono's has it");
  assert.throws(() => rateLimit({ limit } as unknown as Spillgate), /needs a client: .*, got an object with limit/);
  assert.throws(() => rateLimit(undefined as unknown as Spillgate), /needs a client: .*, got undefined/);
  assert.throws(() => rateLimit(client, { headers: "IETF" as "ietf" }), /headers must be one of ietf, .*, got "IETF"/);
  assert.throws(
    () => rateLimit(client, { path: "Route" as "route" }),
    /path must be one of request, route, got "Route"/,
  );
  rateLimit(client, { headers: "none", path: "route" });
});

test("an outage that begins within the pause of the log is logged after it, and so is its end", (context) => {
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const lines: string[] = [];
  const breaker = new Breaker({ warn: (line) => void lines.push(line) }, "allow");
  const fail = () => breaker.failed(breaker.answers, new Unavailable("refused"));
  const down = 'Spillgate does not answer (refused): onFailure "allow" decides';
  const up = "Spillgate answers again";
  const logged = (...expected: string[]) => assert.deepEqual(lines.splice(0), expected, `after ${now} ms`);

  fail();
  breaker.answered();
  logged(down, up);
  for (now of [2_000, 9_999]) fail();
  logged();
  now = 10_000;
  fail();
  fail();
  logged(down);
  now = 15_000;
  breaker.answered();
  breaker.answered();
  logged(up);
  now = 16_000;
  fail();
  breaker.answered();
  logged();
});

test("the log names each counter whose request is refused once in ten seconds, and at most 64 of them", (context) => {
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const lines: string[] = [];
  const client = new Spillgate({ logger: { warn: (line) => void lines.push(line) }, onFailure: "deny" });
  const refuse = (counter: string) =>
    client.decideRefused(new ProblemError(400, { title: "Bad Request", detail: "no such quota" }), counter);
  assert.deepEqual([refuse("GET /a").allowed, refuse("GET /a").reason], [false, "store-unavailable"]);
  refuse('GET /"b\n');
  assert.deepEqual(lines.splice(0), [
    'Spillgate refuses a request (400: no such quota) of "GET /a": onFailure "deny" decides',
    'Spillgate refuses a request (400: no such quota) of "GET /\\"b\\n": onFailure "deny" decides',
  ]);
  for (let counter = 0; counter < 1_000; counter += 1) refuse(`GET /${counter}`);
  assert.equal(lines.splice(0).length, 62);
  now = 10_000;
  refuse("GET /a");
  refuse("GET /a");
  assert.equal(lines.length, 1);
});

test("a lone surrogate in an attribute is sent as U+FFFD", async () => {
  const long = "a".repeat(2_000);
  const given = {
    high: "x\ud800",
    low: "\udc00x",
    swapped: "\udc00\ud800",
    pair: "\ud83d\ude00",
    long: `${long}\ud800`,
  };
  const expected = {
    high: "x\ufffd",
    low: "\ufffdx",
    swapped: "\ufffd\ufffd",
    pair: "\ud83d\ude00",
    long: `${long}\ufffd`,
  };
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

test("an attribute that is not a string is sent as JSON, bytes as Latin-1, and null is left out", async () => {
  // `?key=a&key=b` and `?key[a]=1`, as frameworks parse them; no client can have its request refused by one.
  const given = { list: ["a", "b"], object: { a: "1" }, id: 42, large: 2n ** 64n, no: undefined, none: null };
  const bytes = { buffer: Buffer.from("ad\xe4", "latin1"), array: new TextEncoder().encode("ada") };
  const expected = { list: '["a","b"]', object: '{"a":"1"}', id: "42", large: "18446744073709551616" };
  assert.deepEqual(await sentFor({ ...given, ...bytes }), { ...expected, buffer: "ad\xe4", array: "ada" });
});

test("a value that all requests would share as one string is an error", async () => {
  const odd = {
    Promise: Promise.resolve("ada"),
    Map: new Map([["a", 1]]),
    Function: () => "ada",
    Symbol: Symbol("ada"),
  };
  for (const [kind, value] of Object.entries(odd)) {
    await assert.rejects(
      sentFor({ user: value }),
      new RegExp(`a key or an attribute must be a string .*, got ${kind}`),
    );
    const gate = new Gate<null>(new Spillgate(), { limit: "5/minute", key: () => value as unknown as string });
    await assert.rejects(
      gate.decide(null, { peer: undefined, forwardedFor: undefined, method: "GET", target: "/", route: undefined }),
      TypeError,
    );
  }
});

/** What a middleware sends for the attributes that an application returns. */
async function sentFor(given: Record<string, unknown>): Promise<Record<string, unknown>> {
  let sent = "";
  const fetch: NonNullable<Options["fetch"]> = async (_url, request) => {
    sent = `${request?.body}`;
    return Response.json({ results: [{ allowed: true }] });
  };
  const gate = new Gate<null>(new Spillgate({ fetch }), { attributes: () => given });
  await gate.decide(null, {
    peer: "203.0.113.7",
    forwardedFor: undefined,
    method: "GET",
    target: "/",
    route: undefined,
  });
  const { ip: _ip, method: _method, path: _path, ...attributes } = JSON.parse(sent)[0].attributes;
  return attributes;
}

test("the key of a route is one string in all languages, and its outcome may take five minutes", async () => {
  const long = "a".repeat(5_000);
  const hash = createHash("sha256").update(long).digest("hex");
  const subjects = {
    "x\ud800": "x\ufffd",
    "\u2028": "\u2028",
    [long]: `${"a".repeat(1_024)}sha256:${hash}${"a".repeat(1_024)}`,
  };
  for (const [subject, sent] of Object.entries(subjects)) {
    let body = "";
    const fetch: NonNullable<Options["fetch"]> = async (_url, request) => {
      body = `${request?.body}`;
      return Response.json({ allowed: true });
    };
    const options = { limit: "1/day", name: "login", key: () => subject, countIf: () => true };
    const gate = new Gate<null>(new Spillgate({ fetch }), options);
    await gate.decide(null, { peer: undefined, forwardedFor: undefined, method: "GET", target: "/", route: undefined });
    const { key, ttl_ms } = JSON.parse(body);
    assert.equal(key, `["login","${sent}"]`);
    assert.equal(ttl_ms, 300_000);
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
  const paths = {
    "/%66iles/x%ff": "/files/x%ff",
    "/%e4%66/%66": "/%e4%66/f",
    "/100%/%66": "/100%25/f",
    "/%%36c": "/%256c",
  };
  for (const [target, path] of Object.entries(paths)) assert.equal(pathOf(target), path, target);
});
