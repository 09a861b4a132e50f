// The examples of README.md, behind the real frameworks.
import assert from "node:assert/strict";
import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";

import type { Express } from "express";
import type { FastifyInstance } from "fastify";
import type { Hono } from "hono";

import { conformance, Server } from "./server.js";

let server: Server;
before(async () => {
  server = await Server.start(conformance("policy.toml"), { token: null });
  process.env["SPILLGATE_URL"] = server.url;
});
after(() => server.close());

/** Compiled from README.md by `extract.mjs`. */
async function example<T>(name: string): Promise<T> {
  return (await import(`./examples/${name}.js`)).app as T;
}

/** Two logins pass, the third is denied, and so much is in the header fields. */
async function isLimited(send: () => Promise<Response>): Promise<void> {
  for (const remaining of [1, 0]) {
    const response = await send();
    assert.deepEqual([response.status, await response.text()], [200, "ok"]);
    assert.match(response.headers.get("ratelimit") ?? "", new RegExp(`r=${remaining};`));
  }
  const denied = await send();
  assert.equal(denied.status, 429);
  assert.match(denied.headers.get("content-type") ?? "", /^application\/problem\+json/);
  assert.ok(Number(denied.headers.get("retry-after")) > 1_790);
  assert.deepEqual(((await denied.json()) as Record<string, unknown>)["violated-policies"], ["login"]);
}

async function listening(app: HttpServer, host: string): Promise<number> {
  await new Promise<void>((resolve) => app.listen(0, host, resolve));
  return (app.address() as AddressInfo).port;
}

test("express", async () => {
  const app = await example<Express>("express");
  const http = createServer(app);
  const port = await listening(http, "127.0.0.1");
  await isLimited(() => fetch(`http://127.0.0.1:${port}/login`));
  http.closeAllConnections();
  http.close();
});

test("fastify", async () => {
  const app = await example<FastifyInstance>("fastify");
  app.get("/login", async () => "ok");
  // Another peer than that of Express.
  await isLimited(async () => {
    const { statusCode, headers, body } = await app.inject({ url: "/login", remoteAddress: "127.2.0.1" });
    const fields = Object.entries(headers).map(([name, value]) => [name, `${value}`] as [string, string]);
    return new Response(body, { status: statusCode, headers: fields });
  });
  await app.close();
});

test("hono", async () => {
  const app = await example<Hono>("hono");
  app.get("/login", (context) => context.text("ok"));
  const environment = { incoming: { socket: { remoteAddress: "127.2.0.2" } } };
  await isLimited(async () => app.request("/login", {}, environment));
});
