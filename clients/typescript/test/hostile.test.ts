// Servers that are not Spillgate, or answer as no server should: each call ends in time, with an outcome that is documented.
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { type TestContext, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { type Decision, ProblemError, Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

import { pause } from "./server.js";

const quiet = { warn() {} };
// Far above the time-out and far below the 300 s of the runtime, for a machine that is busy with something else.
const BOUND_MS = 20_000;

/** Waits for a request, then lets `answer` write to its socket. */
async function hostile(context: TestContext, answer: (socket: Socket) => void) {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    // What the client closes early is an error here.
    socket.on("error", () => {});
    socket.on("close", () => sockets.delete(socket));
    let request = "";
    socket.on("data", (bytes) => {
      request += bytes;
      const [head = "", body = ""] = request.split("\r\n\r\n");
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
      if (!request.includes("\r\n\r\n") || body.length < length) return;
      request = "";
      answer(socket);
    });
  });
  context.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, sockets };
}

const head = (status: string, ...fields: string[]) => `${[`HTTP/1.1 ${status}`, ...fields].join("\r\n")}\r\n\r\n`;

/** A complete answer. */
function sends(status: string, body: string | Buffer, ...fields: string[]) {
  return (socket: Socket) => {
    socket.write(head(status, `Content-Length: ${Buffer.byteLength(body)}`, ...fields));
    socket.write(body);
  };
}

const json = (value: unknown) => sends("200 OK", JSON.stringify(value));
const item = (fields: object) => json({ results: [{ allowed: true, ...fields }] });
const nested = (depth: number) => `${"[".repeat(depth)}${"]".repeat(depth)}`;

function endless(chunk: string) {
  return (socket: Socket) => {
    const write = () => {
      while (socket.writable && socket.write(chunk));
    };
    socket.on("drain", write);
    write();
  };
}

/** What the client takes for no answer: `onFailure` decides. */
const unanswered: Record<string, (socket: Socket) => void> = {
  "a negative chunk size": (socket) => socket.write(`${head("200 OK", "Transfer-Encoding: chunked")}-6\r\nabc\r\n`),
  "a chunk size beyond all integers": (socket) =>
    socket.write(`${head("200 OK", "Transfer-Encoding: chunked")}${"f".repeat(40)}\r\nabc\r\n`),
  "endless header lines": (socket) => {
    socket.write("HTTP/1.1 200 OK\r\n");
    endless(`X-A: ${"a".repeat(1_000)}\r\n`)(socket);
  },
  "endless interim answers": endless("HTTP/1.1 102 Processing\r\n\r\n"),
  "a head that stalls": (socket) => socket.write("HTTP/1.1 200 OK\r\nContent-"),
  "a body that stalls": (socket) => socket.write(`${head("200 OK", "Content-Length: 1000")}{"results":[`),
  "a reset in the body": (socket) => {
    socket.write(`${head("200 OK", "Content-Length: 1000")}{"results":[`, () => socket.resetAndDestroy());
  },
  "an end in the body": (socket) => socket.end(`${head("200 OK", "Content-Length: 1000")}{"results":[`),
  "101": (socket) => socket.write(head("101 Switching Protocols", "Connection: upgrade", "Upgrade: websocket")),
  "103, and nothing else": (socket) => socket.write(head("103 Early Hints")),
  "204": (socket) => socket.write(head("204 No Content")),
  "301 to itself": sends("301 Moved Permanently", "", "Location: /v1/check/batch"),
  "307 to itself": sends("307 Temporary Redirect", "", "Location: /v1/check/batch"),
  "404 with a page": sends("404 Not Found", "<html>no such page</html>", "Content-Type: text/html"),
  "400 with a list": sends("400 Bad Request", "[]"),
  "400 without a title": sends("400 Bad Request", '{"status":400,"title":5}'),
  "408 with a problem": sends("408 Request Timeout", '{"status":408,"title":"Request Timeout"}'),
  "401 nested deeply": sends("401 Unauthorized", `{"title":"x","a":${nested(100_000)}}`),
  "500 with a problem": sends("500 Internal Server Error", '{"status":500,"title":"x"}'),
  "503 with a page": sends("503 Service Unavailable", "busy"),
  "200 with a page": sends("200 OK", "<html>welcome</html>", "Content-Type: text/html"),
  "an empty body": sends("200 OK", ""),
  "JSON nested deeply": sends("200 OK", nested(100_000)),
  "bytes that are not UTF-8": sends("200 OK", Buffer.from('{"results":[{"allowed":true,"rule":"\xff"}]}', "latin1")),
  "a content length that is negative": (socket) => socket.write(head("200 OK", "Content-Length: -6")),
  "a content length beyond all integers": (socket) =>
    socket.write(head("200 OK", `Content-Length: ${"9".repeat(400)}`)),
  "two content lengths": (socket) => socket.write(`${head("200 OK", "Content-Length: 2", "Content-Length: 3")}{}}`),
  "bytes that are no HTTP": (socket) => socket.write("\0\x01\x02\r\n\r\n"),
  "too few results": json({ results: [] }),
  "too many results": json({ results: [{ allowed: true }, { allowed: true }] }),
  "results that are no list": json({ results: { allowed: true } }),
  "an item that is null": json({ results: [null] }),
  "an item that is a list": json({ results: [[]] }),
  "an item without allowed": json({ results: [{}] }),
  "an error that is a string": json({ results: [{ error: "no" }] }),
  "an error without a title": json({ results: [{ error: { status: 400 } }] }),
  "an error with the status x": json({ results: [{ error: { status: "x", title: "x" } }] }),
  "limits that are a string": item({ limits: "none" }),
  "a limit that is null": item({ limits: [null] }),
  "a limit without allowed": item({ limits: [{ rule: "a" }] }),
  "header fields that are a list": item({ headers: ["a"] }),
  "a header field that is a number": item({ headers: { a: 1 } }),
};
for (const field of ["reason", "rule", "limit", "source", "receipt"])
  unanswered[`${field} of a wrong type`] = item({ [field]: 5 });
for (const field of ["capacity", "remaining", "retry_after_ms", "reset_after_ms"]) {
  unanswered[`${field} of a wrong type`] = item({ [field]: "5" });
  unanswered[`a negative ${field}`] = item({ [field]: -5 });
}
for (const field of ["allowed", "degraded", "matched"])
  unanswered[`${field} of a wrong type`] = item({ [field]: "true" });

for (const [name, answer] of Object.entries(unanswered)) {
  test(`onFailure decides over ${name}`, { timeout: BOUND_MS }, async (context) => {
    const { url } = await hostile(context, answer);
    const client = new Spillgate({ url, logger: quiet, timeoutMs: 100 });
    const { allowed, source, error } = await client.check({});
    assert.deepEqual([allowed, source, error?.name], [true, "client", "Unavailable"]);
    assert.equal(await client.settle("AQAB", 1), "unavailable");
    const { decision } = await client.reserve({});
    assert.equal(decision.source, "client");
    assert.equal((await client.check({ waitMs: 1 })).source, "client");
  });
}

test("a body that stalls ends in time after a garbage collection, and its connection closes", {
  timeout: BOUND_MS,
}, async (context) => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const { url, sockets } = await hostile(context, unanswered["a body that stalls"] as (socket: Socket) => void);
  const checked = new Spillgate({ url, logger: quiet, timeoutMs: 500 }).check({});
  for (let turn = 0; turn < 10; turn += 1) {
    await pause(20);
    collect();
  }
  assert.equal((await checked).source, "client");
  while (sockets.size > 0) await pause(10);
});

test("no more than 16 MiB of an answer are read", { timeout: BOUND_MS }, async (context) => {
  const bodies = {
    "without an end": "Connection: close",
    "with a length": `Content-Length: ${2 ** 40}`,
    "in chunks": "Transfer-Encoding: chunked",
  };
  for (const [name, field] of Object.entries(bodies)) {
    let sent = 0;
    const { url, sockets } = await hostile(context, (socket) => {
      socket.on("close", () => (sent = socket.bytesWritten));
      socket.write(head("200 OK", field));
      endless(`10000\r\n${"a".repeat(65_536)}\r\n`)(socket);
    });
    const { source, error } = await new Spillgate({ url, logger: quiet, timeoutMs: BOUND_MS }).check({});
    assert.deepEqual([source, error?.message], ["client", "the answer is larger than 16 MiB"], name);
    while (sockets.size > 0) await pause(10);
    // What is above 16 MiB is in the buffers of both sockets.
    assert.ok(sent < 64 * 1024 * 1024, `${name}: ${sent}`);
  }
});

test("a problem is one however odd its fields are", { timeout: BOUND_MS }, async (context) => {
  const odd = { title: "x", detail: { toString: 5 }, field: 7 };
  const { url } = await hostile(context, sends("400 Bad Request", JSON.stringify(odd)));
  const client = new Spillgate({ url, logger: quiet });
  await assert.rejects(client.check({}), ProblemError);
  const long = await hostile(context, sends("400 Bad Request", JSON.stringify({ title: "x".repeat(1_000_000) })));
  await assert.rejects(
    new Spillgate({ url: long.url, logger: quiet }).check({}),
    (error: Error) => error.message.length < 2_000,
  );
});

test("null counts as absent", { timeout: BOUND_MS }, async (context) => {
  const fields = ["reason", "rule", "limits", "headers", "denial", "receipt", "source", "degraded", "matched"];
  const { url } = await hostile(context, item(Object.fromEntries(fields.map((field) => [field, null]))));
  const { limits, degraded, error, ...decision } = await new Spillgate({ url, logger: quiet }).check({});
  assert.deepEqual([limits, degraded, error], [[], false, undefined]);
  for (const field of ["headers", "denial", "receipt"]) assert.ok(!(field in decision), field);
});

/** Answers of a middleware to a request whose denial is this. */
async function answersTo(context: TestContext, fields: object): Promise<Record<string, Response>> {
  const { url } = await hostile(context, json({ results: [{ allowed: false, reason: "blocked", ...fields }] }));
  const client = new Spillgate({ url, logger: quiet });
  const onExpress = express();
  onExpress.use(expressLimit(client));
  const server = onExpress.listen(0, "127.0.0.1");
  await once(server, "listening");
  const onFastify = Fastify();
  onFastify.addHook("onRequest", fastifyLimit(client));
  onFastify.get("/", async () => "ok");
  await onFastify.listen({ port: 0, host: "127.0.0.1" });
  const onHono = new Hono();
  onHono.use(honoLimit(client));
  context.after(() => Promise.all([onFastify.close(), server.close()]));
  const port = ({ address }: { address(): unknown }) => (address() as AddressInfo).port;
  return {
    express: await fetch(`http://127.0.0.1:${port({ address: () => server.address() })}/`),
    fastify: await fetch(`http://127.0.0.1:${port({ address: () => onFastify.server.address() })}/`),
    hono: await onHono.request("/"),
  };
}

test("a denial that no server could send counts as absent", { timeout: BOUND_MS }, async (context) => {
  const body = "no";
  const garbage = [99, 199, 600, 402.5, "402", "x", null, {}].map((status) => ({ status, body }));
  for (const denial of [...garbage, { status: 402 }, { status: 402, body: 5 }, "x", []]) {
    for (const [framework, { status }] of Object.entries(await answersTo(context, { denial }))) {
      assert.equal(status, 403, `${framework}: ${JSON.stringify(denial)}`);
    }
  }
});

test("a denial with a status that has no body is sent without one", { timeout: BOUND_MS }, async (context) => {
  for (const status of [204, 304]) {
    for (const [framework, response] of Object.entries(await answersTo(context, { denial: { status, body: "no" } }))) {
      assert.deepEqual([response.status, await response.text()], [status, ""], framework);
    }
  }
});

test("header fields that HTTP does not allow are left out", { timeout: BOUND_MS }, async (context) => {
  const bad = { "a b": "1", "": "1", "x\r\ny": "1", "x-line": "a\r\nX-Evil: 1", "x-null": "a\0", "x-wide": "\u20ac" };
  const ofConnection = { "Content-Length": "999", "transfer-encoding": "chunked", Trailer: "x", connection: "close" };
  const headers = { ...bad, ...ofConnection, "X-Good": "yes", __proto__: "x" };
  for (const [framework, response] of Object.entries(await answersTo(context, { headers }))) {
    assert.equal(response.status, 403, framework);
    assert.equal(response.headers.get("x-good"), "yes", framework);
    for (const name of ["x-line", "x-evil", "x-null", "x-wide", "trailer"])
      assert.equal(response.headers.get(name), null);
    assert.equal(((await response.json()) as Decision & { status: number }).status, 403, framework);
  }
});

test("a reason that no version knows denies with 503", { timeout: BOUND_MS }, async (context) => {
  for (const [framework, response] of Object.entries(await answersTo(context, { reason: "constructor" }))) {
    assert.equal(response.status, 503, framework);
    assert.equal(typeof ((await response.json()) as { detail: unknown }).detail, "string");
  }
});
