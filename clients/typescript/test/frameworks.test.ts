// The examples of README.md, behind the real frameworks.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, type TestContext, test } from "node:test";

import type { Express } from "express";
import type { FastifyInstance } from "fastify";
import type { Hono } from "hono";

import { Server } from "./server.js";

const POLICY = `
[[rule]]
name = "login"
match = { path = "/login" }
key = ["ip"]
limits = ["5/minute"]
`;

let server: Server;
before(async () => {
  server = await Server.start(POLICY, { token: null });
  process.env["SPILLGATE_URL"] = server.url;
});
after(() => server.close());

/** Taken from README.md by `extract.mjs`. */
async function example<T>(name: string): Promise<T> {
  return (await import(`./examples/${name}.mjs`)).app as T;
}

/** Five logins pass, the sixth is denied, and so much is in the header fields. */
async function isLimited(send: () => Promise<Response>, policies: string[]): Promise<void> {
  for (const remaining of [4, 3, 2, 1, 0]) {
    const response = await send();
    assert.deepEqual([response.status, await response.text()], [200, "ok"]);
    assert.match(response.headers.get("ratelimit") ?? "", new RegExp(`r=${remaining};`));
  }
  const denied = await send();
  assert.equal(denied.status, 429);
  assert.match(denied.headers.get("content-type") ?? "", /^application\/problem\+json/);
  assert.ok(Number(denied.headers.get("retry-after")) > 0);
  assert.deepEqual(((await denied.json()) as Record<string, unknown>)["violated-policies"], policies);
}

async function listening(context: TestContext, app: Express): Promise<string> {
  const http = createServer(app);
  context.after(() => {
    http.closeAllConnections();
    http.close();
  });
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
}

for (const [name, policies] of [
  ["express", []],
  ["rules", ["login"]],
] as const) {
  test(`the example ${name} limits logins`, async (context) => {
    const url = await listening(context, await example<Express>(name));
    await isLimited(() => fetch(`${url}/login`), [...policies]);
    if (name === "rules") assert.equal((await fetch(`${url}/healthz`)).headers.get("ratelimit"), null);
  });
}

test("the example fastify limits logins by address, and resets by email", async (context) => {
  const app = await example<FastifyInstance>("fastify");
  context.after(() => app.close());
  await isLimited(async () => {
    const { statusCode, headers, body } = await app.inject({ url: "/login", remoteAddress: "127.2.0.1" });
    const fields = Object.entries(headers).map(([name, value]) => [name, `${value}`] as [string, string]);
    return new Response(body, { status: statusCode, headers: fields });
  }, []);
  const reset = async (email: string) =>
    (await app.inject({ method: "POST", url: "/reset", payload: { email } })).statusCode;
  const emails = ["ada@x.test", "Ada@x.test", "ada@x.test", "ADA@x.test", "bob@x.test"];
  const statuses = [];
  for (const email of emails) statuses.push(await reset(email));
  assert.deepEqual(statuses, [200, 200, 200, 429, 200]);
  for (const payload of [{}, { email: {} }, undefined]) {
    const response = await app.inject({ method: "POST", url: "/reset", ...(payload && { payload }) });
    assert.equal(response.statusCode, 400, JSON.stringify(payload));
  }
});

test("the example hono limits logins", async () => {
  const app = await example<Hono>("hono");
  const environment = { incoming: { socket: { remoteAddress: "127.2.0.2" } } };
  await isLimited(async () => app.request("/login", {}, environment), []);
});

test("the example failures counts wrong passwords only", async (context) => {
  const url = await listening(context, await example<Express>("failures"));
  const login = async (password: string) =>
    (await fetch(`${url}/login`, { method: "POST", headers: { "x-password": password } })).status;
  const statuses = [];
  // The refund of a good login may arrive after the next attempt, so that there is never more than one.
  for (const password of ["secret", "a", "b", "c", "d", "e", "f", "secret"]) statuses.push(await login(password));
  assert.deepEqual(statuses, [200, 401, 401, 401, 401, 401, 429, 429]);
});

test("the examples check and model run", async (context) => {
  const log = context.mock.method(console, "log", () => {});
  await example("check");
  await example("model");
  assert.deepEqual(
    log.mock.calls.map(({ arguments: [line] }) => line),
    ["Hello!"],
  );
});
