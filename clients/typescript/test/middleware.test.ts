// The middlewares on real connections, with a simulated server.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { createServer, Server as HttpServer, type RequestListener, ServerResponse } from "node:http";
import { constants, createServer as createHttp2Server, connect as http2 } from "node:http2";
import { type AddressInfo, connect, type Server as NetServer, type Socket } from "node:net";
import { text } from "node:stream/consumers";
import { type TestContext, test } from "node:test";

import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

// A release that does not come fails the test by this time-out.
const timeout = 10_000;

/** A server that allows each request, with a permit, and counts the releases. */
class Simulated extends EventEmitter {
  readonly paths: string[] = [];
  releases = 0;
  readonly client = new Spillgate({
    fetch: async (url, request) => {
      if (`${url}`.endsWith("/v1/release")) {
        this.releases += 1;
        this.emit("release");
        return Response.json({ result: "done" });
      }
      const checks = JSON.parse(`${request?.body}`) as { attributes: { path: string } }[];
      this.paths.push(...checks.map(({ attributes }) => attributes.path));
      const decision = { allowed: true, receipt: "AQAB", headers: { ratelimit: '"api";r=4' } };
      return Response.json({ results: checks.map(() => decision) });
    },
  });

  /** Waits for this number of releases, and that no other follows at once. */
  async released(times: number): Promise<void> {
    while (this.releases < times) await once(this, "release");
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(this.releases, times);
  }
}

/** Listens until the end of the test, and returns the port. */
async function listening(context: TestContext, server: NetServer): Promise<number> {
  context.after(() => {
    server.close();
    if (server instanceof HttpServer) server.closeAllConnections();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return (server.address() as AddressInfo).port;
}

async function sending(port: number, message: string): Promise<Socket> {
  const socket = connect(port, "127.0.0.1");
  await once(socket, "connect");
  socket.write(message);
  return socket;
}

const get = (target: string) => `GET ${target} HTTP/1.1\r\nHost: app.test\r\n\r\n`;

/** `node:http` behind the middleware. */
function limited(client: Spillgate, handler: RequestListener): RequestListener {
  const limit = expressLimit(client);
  return (request, response) => limit(request, response, () => handler(request, response));
}

test("express: an odd target is limited by the path that Express routes", { timeout }, async (context) => {
  const simulated = new Simulated();
  const app = express();
  app.use(expressLimit(simulated.client));
  app.use((request, response) => void response.send(request.path));
  const port = await listening(context, createServer(app));
  const logins = [
    "/login\\#",
    "//x@y/login#",
    "/\\x@y\\login?#",
    "http://h/login\\",
    "foo://h/login#x",
    "/login?a#\\b",
  ];
  const others = ["//x@y/login", "/login\\", "/log'in{#", "http://h;x/login", "http://h"];
  for (const target of [...logins, ...others]) {
    const socket = await sending(port, `GET ${target} HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n`);
    const [head = "", body = ""] = (await text(socket)).split("\r\n\r\n");
    assert.match(head, /^HTTP\/1\.1 200/, target);
    if (logins.includes(target)) assert.match(body, /^\/login\/?$/, target);
    assert.equal(simulated.paths.at(-1), decodeURI(body), target);
  }
});

test("node:http: permits of pipelined requests end with the connection", { timeout }, async (context) => {
  const simulated = new Simulated();
  // More than the listeners of which Node warns.
  const requests = 12;
  const warnings = context.mock.method(process, "emitWarning", () => {});
  let left = requests;
  const listener = limited(simulated.client, () => {
    left -= 1;
    if (left === 0) socket.destroy();
  });
  const port = await listening(context, createServer(listener));
  const socket = await sending(port, get("/slow").repeat(requests));
  await simulated.released(requests);
  assert.equal(warnings.mock.callCount(), 0);
});

test("node:http: the permit ends with the response on a connection that stays open", { timeout }, async (context) => {
  const simulated = new Simulated();
  const listener = limited(simulated.client, (_request, response) => void response.end());
  const port = await listening(context, createServer(listener));
  const socket = await sending(port, get("/one"));
  await simulated.released(1);
  socket.write(get("/two"));
  await simulated.released(2);
  socket.destroy();
});

test("node:http2: a permit ends with its stream", { timeout }, async (context) => {
  const simulated = new Simulated();
  const reached = new EventEmitter();
  const listener = limited(simulated.client, () => reached.emit("request")) as never;
  const session = http2(`http://127.0.0.1:${await listening(context, createHttp2Server(listener))}`);
  const stream = session.request({ ":path": "/slow" }).on("error", () => {});
  stream.end();
  await once(reached, "request");
  stream.close(constants.NGHTTP2_CANCEL);
  await simulated.released(1);
  session.close();
});

test("fastify: the permit ends when the client leaves after its body was read", { timeout }, async (context) => {
  const simulated = new Simulated();
  const app = Fastify({ forceCloseConnections: true });
  context.after(() => app.close());
  app.addHook("onRequest", fastifyLimit(simulated.client));
  const reached = new EventEmitter();
  app.post("/slow", () => {
    reached.emit("request");
    return new Promise(() => {});
  });
  await app.listen({ port: 0, host: "127.0.0.1" });
  const body = "Host: app.test\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
  const socket = await sending((app.server.address() as AddressInfo).port, `POST /slow HTTP/1.1\r\n${body}`);
  await once(reached, "request");
  socket.destroy();
  await simulated.released(1);
});

test("fastify: the permit of a WebSocket ends with its connection", { timeout }, async (context) => {
  const simulated = new Simulated();
  const app = Fastify({ forceCloseConnections: true });
  context.after(() => app.close());
  app.addHook("onRequest", fastifyLimit(simulated.client));
  app.get("/socket", (request, reply) => {
    reply.hijack();
    request.socket.write("HTTP/1.1 101 Switching Protocols\r\n\r\n");
  });
  // As `@fastify/websocket` does, and as WebSockets read.
  app.server.on("upgrade", (request, socket) => {
    const response = new ServerResponse(request);
    response.assignSocket(socket as Socket);
    app.routing(request, response);
    socket.on("end", () => socket.end()).resume();
  });
  await app.listen({ port: 0, host: "127.0.0.1" });
  const upgrade = "Host: app.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
  const socket = await sending((app.server.address() as AddressInfo).port, `GET /socket HTTP/1.1\r\n${upgrade}`);
  await once(socket, "data");
  await simulated.released(0);
  socket.destroy();
  await simulated.released(1);
});

test("fastify: the permit of an injected request ends with its response", { timeout }, async (context) => {
  const simulated = new Simulated();
  const app = Fastify();
  context.after(() => app.close());
  app.addHook("onRequest", fastifyLimit(simulated.client));
  app.get("/", async () => "ok");
  assert.equal((await app.inject("/")).body, "ok");
  await simulated.released(1);
});

test("hono on Node: the permit ends with the connection although no reader takes the body", { timeout }, async () => {
  const simulated = new Simulated();
  const app = new Hono();
  app.use(honoLimit(simulated.client));
  app.get("/", (context) => context.body(new ReadableStream()));
  // As `@hono/node-server` has them.
  const socket = Object.assign(new EventEmitter(), { remoteAddress: "203.0.113.7", destroyed: false });
  const outgoing = Object.assign(new EventEmitter(), { closed: false });
  await app.request("/", {}, { incoming: { socket }, outgoing });
  await simulated.released(0);
  socket.emit("close");
  outgoing.emit("close");
  await simulated.released(1);
});

test("hono: the response to an upgrade stays as it is", async () => {
  const simulated = new Simulated();
  // No `Response` of Node has this status.
  const response = Object.defineProperty(new Response(null), "status", { value: 101 });
  const context = { req: new Request("http://app.test/"), res: response, env: {}, set() {} };
  Object.assign(context.req, { header: () => undefined });
  await honoLimit(simulated.client)(context as never, async () => {});
  assert.equal(context.res, response);
  assert.deepEqual([...response.headers], []);
});

test("node:http: fields that are given to writeHead are kept", { timeout }, async (context) => {
  const { client } = new Simulated();
  const cookies = ["Set-Cookie", "a=1", "Set-Cookie", "b=2"];
  const heads: Record<string, unknown[]> = {
    "/array": [200, cookies],
    "/pairs": [
      200,
      "OK",
      [
        ["Set-Cookie", "a=1"],
        ["Set-Cookie", "b=2"],
      ],
    ],
    "/object": [200, { "Set-Cookie": ["a=1", "b=2"] }],
    "/own": [200, { RateLimit: "own" }],
    "/own-array": [200, "OK", [...cookies, "RateLimit", "own"]],
  };
  const handler: RequestListener = ({ url = "" }, response) => {
    response.writeHead(...(heads[url] as [number]));
    response.end();
  };
  const port = await listening(context, createServer(limited(client, handler)));
  for (const path in heads) {
    const { headers } = await fetch(`http://127.0.0.1:${port}${path}`);
    assert.equal(headers.get("ratelimit"), path.startsWith("/own") ? "own" : '"api";r=4', path);
    assert.deepEqual(headers.getSetCookie(), path === "/own" ? [] : ["a=1", "b=2"], path);
  }
  assert.equal(cookies.length, 4, "the application's array is as it was");
});

test("node:http: a handler that throws runs once, and its error is uncaught", { timeout }, async () => {
  const program = `
    import { Spillgate } from "spillgate";
    import { rateLimit } from "spillgate/express";
    const client = new Spillgate({ fetch: async () => Response.json({ results: [{ allowed: true }] }) });
    const request = { method: "GET", url: "/", headers: {}, socket: {} };
    rateLimit(client)(request, {}, () => {
      console.log("runs");
      throw new Error("the handler failed");
    });`;
  const ran = spawnSync(process.execPath, ["--input-type=module", "--eval", program], { encoding: "utf8" });
  assert.equal(ran.stdout, "runs\n");
  assert.match(ran.stderr, /the handler failed/);
  assert.equal(ran.status, 1);
});
