// Limits at a route, and limits that count some outcomes only, on the real frameworks and the real server.
import assert from "node:assert/strict";
import { once } from "node:events";
import { request as send } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, type TestContext, test } from "node:test";

import { serve } from "@hono/node-server";
import express from "express";
import Fastify, { type FastifyRequest } from "fastify";
import { type Context, Hono } from "hono";
import { type Call, type InlineLimit, Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

import { pause, Server } from "./server.js";

const POLICY = `
[[rule]]
name = "user"
match = { path = "/users/:id" }
key = ["ip"]
limits = ["1/day"]
`;

let server: Server;
let client: Spillgate;
/** How many reservations of the middleware have ended. */
let ended = 0;
before(async () => {
  server = await Server.start(POLICY, { token: null });
  const observe = ({ operation }: Call) => {
    if (operation === "cancel" || operation === "release") ended += 1;
  };
  client = new Spillgate({ url: server.url, timeoutMs: 20_000, onFailure: "deny", observe });
});
after(() => server.close());

/** What the tests need of a limit; the frameworks' options differ in the type of the request only. */
interface Limits {
  limit?: string | InlineLimit;
  path?: "route";
  countIf?: (status: number) => boolean;
  byHeader?: boolean;
  name?: string;
}

type Routes = Record<string, Limits>;

/** Starts an application with these routes; one whose path begins with `*` has a limit for all requests. */
type Start = (routes: Routes) => Promise<{ port: number; close: () => unknown }>;

/** The status that a request asks for. */
const wanted = (value: string | string[] | undefined) => Number(value ?? 200);

const frameworks: Record<string, Start> = {
  async express(routes) {
    const app = express();
    for (const [route, { byHeader, ...limits }] of Object.entries(routes)) {
      const [method, path = ""] = route.split(" ");
      const limit = expressLimit(client, {
        ...limits,
        ...(byHeader && { key: ({ headers }) => headers["x-user"] as string }),
      });
      const answer: express.RequestHandler = (request, response) =>
        void response.status(wanted(request.headers["x-status"])).send("ok");
      if (method === "*") app.use(limit);
      else if (method === "ALL") app.all(path, limit, answer);
      else if (method === "GET") app.get(path, limit, answer);
      else app.post(path, limit, answer);
    }
    const http = app.listen(0, "127.0.0.1");
    await once(http, "listening");
    return { port: (http.address() as AddressInfo).port, close: () => http.closeAllConnections() ?? http.close() };
  },

  async fastify(routes) {
    const app = Fastify({ forceCloseConnections: true });
    for (const [route, { byHeader, ...limits }] of Object.entries(routes)) {
      const [method = "", path = ""] = route.split(" ");
      const limit = fastifyLimit(client, {
        ...limits,
        ...(byHeader && { key: ({ headers }: FastifyRequest) => headers["x-user"] as string }),
      });
      if (method === "*") app.addHook("onRequest", limit);
      else {
        app.route({
          method: method === "ALL" ? ["GET", "HEAD", "POST", "PUT"] : method,
          url: path,
          onRequest: limit,
          handler: async (request, reply) => reply.code(wanted(request.headers["x-status"])).send("ok"),
        });
      }
    }
    await app.listen({ port: 0, host: "127.0.0.1" });
    return { port: (app.server.address() as AddressInfo).port, close: () => app.close() };
  },

  async hono(routes) {
    const app = new Hono();
    for (const [route, { byHeader, ...limits }] of Object.entries(routes)) {
      const [method = "", path = ""] = route.split(" ");
      const limit = honoLimit(client, {
        ...limits,
        ...(byHeader && { key: (context: Context) => context.req.header("x-user") }),
      });
      const answer = (context: Context) => context.body("ok", wanted(context.req.header("x-status")) as 200);
      if (method === "*") app.use(limit);
      else if (method === "ALL") app.all(path, limit, answer);
      else app.on(method, path, limit, answer);
    }
    const http = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
    await once(http, "listening");
    return { port: (http.address() as AddressInfo).port, close: () => http.close() };
  },
};

let peers = 0;

for (const [framework, start] of Object.entries(frameworks)) {
  /** Sends requests from an address of their own, and returns the status of each. */
  const statuses = async (
    context: TestContext,
    routes: Routes,
    ...requests: (string | [string, Record<string, string>])[]
  ) => {
    const app = await start(routes);
    context.after(app.close);
    peers += 1;
    const statuses: number[] = [];
    for (const given of requests) {
      const [line, headers] = typeof given === "string" ? [given, {}] : given;
      const [method = "", path = ""] = line.split(" ");
      const before = ended;
      const localAddress = `127.3.${peers}.1`;
      const request = send({ host: "127.0.0.1", port: app.port, method, path, headers, localAddress, agent: false });
      request.end();
      const [response] = await once(request, "response");
      response.resume();
      await once(response, "end");
      statuses.push(response.statusCode);
      // The refund of a response that does not count leaves when the response has ended.
      if (routes[line]?.countIf === undefined || response.statusCode === 429) continue;
      while (ended === before) await pause(1);
    }
    return statuses;
  };

  test(`${framework}: each route has a counter of its own`, async (context) => {
    const routes = { "GET /a/:id": { limit: "1/day" }, "GET /b": { limit: { quota: "1/day" } } };
    const seen = await statuses(context, routes, "GET /a/1", "GET /a/2", "GET /b", "GET /b", "HEAD /b");
    assert.deepEqual(seen, [200, 429, 200, 429, 429]);
  });

  test(`${framework}: no method of a request gives it another counter of one handler`, async (context) => {
    const seen = await statuses(
      context,
      { "ALL /all": { limit: "1/day" } },
      "PUT /all",
      "GET /all",
      "POST /all",
      "HEAD /all",
    );
    assert.deepEqual(seen, [200, 429, 429, 429]);
  });

  test(`${framework}: a key names the subject, and none leaves the request unlimited`, async (context) => {
    const routes = { "GET /key": { limit: "1/day", byHeader: true } };
    const [a, b] = [{ "x-user": `a ${framework}` }, { "x-user": `b ${framework}` }];
    const seen = await statuses(
      context,
      routes,
      ["GET /key", a],
      ["GET /key", b],
      ["GET /key", a],
      "GET /key",
      "GET /key",
    );
    assert.deepEqual(seen, [200, 200, 429, 200, 200]);
  });

  test(`${framework}: routes with one name share a counter`, async (context) => {
    const limits = { limit: "1/day", name: `login ${framework}` };
    assert.deepEqual(
      await statuses(context, { "GET /v1": limits, "GET /v2": limits }, "GET /v1", "GET /v2"),
      [200, 429],
    );
  });

  test(`${framework}: the template of the route can be the path`, async (context) => {
    const routes = { "GET /users/:id": { path: "route" as const } };
    assert.deepEqual(await statuses(context, routes, "GET /users/1", "GET /users/2"), [200, 429]);
  });

  test(`${framework}: only the outcomes that count stay charged`, async (context) => {
    const routes = { "POST /login": { limit: "2/day", countIf: (status: number) => status === 401 } };
    const failed: [string, Record<string, string>] = ["POST /login", { "x-status": "401" }];
    const good = "POST /login";
    const seen = await statuses(context, routes, good, good, good, failed, good, failed, good);
    assert.deepEqual(seen, [200, 200, 200, 401, 200, 401, 429]);
  });

  test(`${framework}: a limit for all requests holds at each of them`, async (context) => {
    const routes = { "*": { limit: "1/day" }, "GET /x": { limit: "9/day" } };
    assert.deepEqual(await statuses(context, routes, "GET /x", "GET /x"), [200, 429]);
  });

  test(`${framework}: attempts at the same time cannot exceed a limit of failures`, async (context) => {
    const app = await start({
      "POST /login": { limit: "3/day", countIf: (status) => status === 401, name: `many ${framework}` },
    });
    context.after(app.close);
    const attempts = Array.from({ length: 50 }, async () => {
      const response = await fetch(`http://127.0.0.1:${app.port}/login`, {
        method: "POST",
        headers: { "x-status": "401" },
      });
      return response.status;
    });
    const seen = await Promise.all(attempts);
    assert.deepEqual(
      [seen.filter((status) => status === 401).length, seen.filter((status) => status === 429).length],
      [3, 47],
    );
  });
}

/** Sends requests to an application, and returns the status of each. */
async function statusesOf(context: TestContext, app: express.Express, ...requests: string[]): Promise<number[]> {
  const http = app.listen(0, "127.0.0.1");
  context.after(() => http.close());
  await once(http, "listening");
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const seen = [];
  for (const line of requests) {
    const [method = "", path = ""] = line.split(" ");
    seen.push((await fetch(url + path, { method })).status);
  }
  return seen;
}

const answerOk: express.RequestHandler = (_request, response) => void response.send("ok");

test("express: no value of a parameter in a mounted path gives a request another counter", async (context) => {
  const app = express();
  const router = express.Router();
  router.get("/parameter", expressLimit(client, { limit: "1/day" }), answerOk);
  app.use("/router/:language", router);
  app.use("/use/:language", expressLimit(client, { limit: "1/day" }), answerOk);
  const seen = await statusesOf(
    context,
    app,
    "GET /router/de/parameter",
    "GET /router/en/parameter",
    "GET /use/de",
    "GET /use/en/x",
  );
  assert.deepEqual(seen, [200, 429, 200, 429]);
});

test("express: the methods of one route share a counter, and two routes of one path do not", async (context) => {
  const app = express();
  const limit = expressLimit(client, { limit: "1/day" });
  app.route("/chained").get(limit, answerOk).post(limit, answerOk);
  app.get("/apart", limit, answerOk);
  app.post("/apart", limit, answerOk);
  const seen = await statusesOf(
    context,
    app,
    "GET /chained",
    "POST /chained",
    "HEAD /chained",
    "GET /apart",
    "POST /apart",
    "HEAD /apart",
  );
  assert.deepEqual(seen, [200, 429, 429, 200, 200, 429]);
});

test("fastify: HEAD and a slash at the end give a request no other counter", async (context) => {
  const app = Fastify();
  context.after(() => app.close());
  const onRequest = fastifyLimit(client, { limit: "1/day" });
  app.route({ method: ["GET", "POST"], url: "/both", onRequest, handler: async () => "ok" });
  app.register(async (plugin) => void plugin.get("/", { onRequest }, async () => "ok"), { prefix: "/plugin" });
  const seen = [];
  for (const [method, url] of [
    ["GET", "/both"],
    ["HEAD", "/both"],
    ["POST", "/both"],
    ["GET", "/plugin"],
    ["GET", "/plugin/"],
    ["HEAD", "/plugin/"],
  ] as const) {
    seen.push((await app.inject({ method, url })).statusCode);
  }
  assert.deepEqual(seen, [200, 429, 429, 200, 429, 429]);
});

test("a countIf that throws leaves the charge, and ends neither the process nor the response", async (context) => {
  const warn = context.mock.method(console, "warn", () => {});
  const countIf = () => {
    throw new Error("no such status");
  };
  const app = express();
  app.get("/throws", expressLimit(client, { limit: "1/day", countIf }), answerOk);
  assert.deepEqual(await statusesOf(context, app, "GET /throws", "GET /throws"), [200, 429]);
  assert.equal(warn.mock.callCount(), 1);
  assert.match(
    String(warn.mock.calls[0]?.arguments[0]),
    /countIf .* failed, so responses count: Error: no such status/,
  );
});

test("express: no spelling of a mounted path gives a request another counter", async (context) => {
  const app = express();
  const router = express.Router();
  router.get("/x", expressLimit(client, { limit: "1/day" }), (_request, response) => void response.send("ok"));
  app.use("/mounted", router);
  const http = app.listen(0, "127.0.0.1");
  context.after(() => http.close());
  await once(http, "listening");
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const seen = [];
  for (const path of ["/mounted/x", "/MOUNTED/x", "/Mounted/X", "/mounted/x/", "/mounted/x?y"]) {
    seen.push((await fetch(url + path)).status);
  }
  assert.deepEqual(seen, [200, 429, 429, 429, 429]);
});

test("a response that never began counts, since leaving early must not be free", async (context) => {
  const app = express();
  const limit = expressLimit(client, { limit: "1/day", countIf: () => false });
  app.get("/leaves", limit, (request) => void request.socket.destroy());
  const http = app.listen(0, "127.0.0.1");
  context.after(() => http.close());
  await once(http, "listening");
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}/leaves`;
  await assert.rejects(fetch(url));
  assert.equal((await fetch(url)).status, 429);
});

test("a limit that only the server can find wrong is logged once for each route", async () => {
  const lines: string[] = [];
  const refused = new Spillgate({ url: server.url, logger: { warn: (line: string) => lines.push(line) } });
  const limit = honoLimit(refused, { limit: "5/0s" });
  const app = new Hono();
  for (const path of ["/a", "/b/:id"]) app.get(path, limit, (context) => context.text("ok"));
  for (const path of ["/a", "/b/1", "/a", "/b/2"]) assert.equal((await app.request(path)).status, 200);
  assert.deepEqual(
    lines.map((line) => line.replace(/\(400: .*\)/, "(400)")),
    [
      'Spillgate refuses a request (400) of "GET /a": onFailure "allow" decides',
      'Spillgate refuses a request (400) of "GET /b/:id": onFailure "allow" decides',
    ],
  );
});

test("options that contradict each other are refused at once", () => {
  assert.throws(() => expressLimit(client, { key: () => "a" }), /key and name belong to a limit/);
  assert.throws(() => expressLimit(client, { limit: "1/day", attributes: () => ({}) }), /attributes are for the rules/);
});

test("a token that cannot be sent lets onFailure decide in a middleware, and is logged", async () => {
  const lines: string[] = [];
  const logger = { warn: (line: string) => lines.push(line) };
  const app = new Hono();
  app.use(
    honoLimit(new Spillgate({ url: server.url, token: () => "a\r\nb", onFailure: "deny", logger }), {
      peer: () => "::1",
    }),
  );
  assert.equal((await app.request("/")).status, 503);
  assert.match(
    lines.join(),
    /refuses a request \(the token must have visible ASCII .*\) of "ALL \/\*": onFailure "deny" decides/,
  );
});
