// Compiled only: what the documents allow has a type.

import express, { type Request } from "express";
import Fastify, { type FastifyRequest } from "fastify";
import type { Context } from "hono";
import { Hono } from "hono";
import { Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

const client = new Spillgate();

export const apps = [
  express().use(
    expressLimit(client, {
      attributes: ({ url, headers }) => (url === "/healthz" ? null : { key: headers["x-key"], no: undefined, id: 42 }),
    }),
    expressLimit(client, {
      attributes: (request: Request) => ({ tenant: request.params["tenant"], tags: request.query["tag"] }),
      cost: (request: Request) => (request.accepts("html") ? 1 : 2),
    }),
  ),
  Fastify()
    .addHook(
      "onRequest",
      fastifyLimit(client, {
        attributes: (request) =>
          request.url === "/healthz" ? null : { key: request.headers["x-key"], ip: request.ip },
        cost: (request) => (request.method === "GET" ? 1 : 2),
      }),
    )
    .addHook(
      "preHandler",
      fastifyLimit(client, {
        attributes: (request: FastifyRequest) => ({ route: request.routeOptions.url, params: request.params }),
        cost: (request: FastifyRequest) => (request.hostname === "api.test" ? 1 : 2),
      }),
    )
    .get("/users/:id", { onRequest: fastifyLimit(client, { limit: "5/minute", path: "route" }) }, async () => "ok")
    .post<{ Body: { email: string } }>(
      "/login",
      {
        preHandler: fastifyLimit(client, {
          limit: "5/minute",
          key: ({ body }: FastifyRequest<{ Body: { email: string } }>) => body.email,
        }),
      },
      async () => "ok",
    ),
  express().post(
    "/login",
    expressLimit(client, { limit: { quota: "5/minute", burst: 5 }, key: (request: Request) => request.get("x-key") }),
    (_request, response) => void response.send("ok"),
  ),
  new Hono().post(
    "/login",
    honoLimit(client, {
      limit: "5/minute",
      key: (context: Context) => context.req.header("x-key"),
      countIf: (status) => status === 401,
    }),
    (context) => context.text("ok"),
  ),
  new Hono().use(
    honoLimit(client, { attributes: (context) => ({ key: context.req.header("x-key") }) }),
    honoLimit(client, { attributes: (context: Context) => ({ tags: context.req.queries("tag") }) }),
  ),
];

export const inline = () =>
  client.check({
    attributes: { tenant: 42, user: "ada" },
    limit: { quota: "5", burst: 10, algorithm: "concurrency", timeZone: "Europe/Berlin", maxHold: "30s" },
  });
