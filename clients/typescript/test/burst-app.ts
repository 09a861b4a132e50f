// An application behind the middleware, as a process of its own: each request takes CPU before and behind the limiter.
// Usage: node burst-app.js FRAMEWORK URL-OF-SPILLGATE MILLISECONDS
import type { AddressInfo } from "node:net";

import { serve } from "@hono/node-server";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

const [framework, url = "", milliseconds] = process.argv.slice(2);
const half = Number(milliseconds) / 2;

/** What the test asks for at the end of a burst. */
const counts = { withoutServer: 0, observed: 0, errors: {} as Record<string, number> };
const client = new Spillgate({
  url,
  observe: ({ decisions }) => {
    counts.observed += 1;
    for (const { source, error } of decisions) {
      if (source !== "client") continue;
      counts.withoutServer += 1;
      const message = error?.message ?? "";
      counts.errors[message] = (counts.errors[message] ?? 0) + 1;
    }
  },
});

function work(): void {
  const end = performance.now() + half;
  while (performance.now() < end);
}

/** Every tenth request has an attribute that the server refuses, or one that is too long. */
function attributes(target: string) {
  const number = Number(new URL(target, "http://app.test").searchParams.get("odd") ?? 0);
  if (number === 0) return {};
  return number % 2 === 0 ? { ["name".repeat(30)]: "refused" } : { long: "x".repeat(100_000) };
}

const backlog = 8_192;
const host = "127.0.0.1";
const listening = (address: AddressInfo) => console.log(address.port);

if (framework === "express") {
  const app = express();
  app.get("/counts", (_request, response) => void response.json(counts));
  app.use((_request, _response, next) => {
    work();
    next();
  });
  app.use(expressLimit(client, { attributes: (request) => attributes(request.url ?? "") }));
  app.get("/", (_request, response) => {
    work();
    response.send("ok");
  });
  const server = app.listen({ port: 0, host, backlog }, () => listening(server.address() as AddressInfo));
} else if (framework === "fastify") {
  const app = Fastify();
  app.get("/counts", async () => counts);
  app.register(async (limited) => {
    limited.addHook("onRequest", async () => work());
    limited.addHook("onRequest", fastifyLimit(client, { attributes: ({ url }) => attributes(url) }));
    limited.get("/", async () => {
      work();
      return "ok";
    });
  });
  await app.listen({ port: 0, host, backlog });
  listening(app.server.address() as AddressInfo);
} else {
  const app = new Hono();
  app.get("/counts", (context) => context.json(counts));
  app.use((_context, next) => {
    work();
    return next();
  });
  app.use(honoLimit(client, { attributes: (context) => attributes(context.req.url) }));
  app.get("/", (context) => {
    work();
    return context.text("ok");
  });
  serve({ fetch: app.fetch, port: 0, hostname: host }, listening);
}
