// Median latency of the middlewares, beside a plain keep-alive POST of the same bytes to the same server.
// Usage: npm run build && SPILLGATE_BIN=PATH npm run bench [-- ROUNDS]
import { Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

import { Server } from "../test/server.js";

const POLICY = '[[rule]]\nname = "api"\nkey = ["ip"]\nlimits = ["1000000/second"]\n';
const BODY = '{"attributes":{"ip":"203.0.113.7","method":"GET","path":"/login"},"headers":"ietf"}';

const rounds = Number(process.argv[2] ?? 5_000);
const server = await Server.start(POLICY, { token: null });
try {
  const client = new Spillgate({ url: server.url, onFailure: "deny", timeoutMs: 5_000 });
  const socket = { remoteAddress: "203.0.113.7" };
  const passes = (status: number) => {
    if (status !== 200) throw new Error("the request was denied");
  };

  const plain = async () => {
    const response = await fetch(`${server.url}/v1/check`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: BODY,
    });
    passes(response.status);
    await response.text();
  };

  const express = expressLimit(client);
  const viaExpress = () =>
    new Promise<void>((resolve, reject) => {
      const response = {
        statusCode: 200,
        hasHeader: () => false,
        setHeader: () => {},
        writeHead: () => {},
        end: () => reject(new Error("the request was denied")),
        closed: false,
        once: () => {},
      };
      express({ method: "GET", url: "/login", headers: {}, socket }, response, () => {
        response.writeHead();
        resolve();
      });
    });

  const hook = fastifyLimit(client);
  const viaFastify = async () => {
    const raw = { statusCode: 200, closed: false, once() {}, hasHeader: () => false, setHeader() {}, writeHead() {} };
    const request = {
      method: "GET",
      url: "/login",
      originalUrl: "/login",
      headers: {},
      socket,
      routeOptions: { url: "/login" },
    };
    const reply = { raw, code: passes, headers: () => reply, send: passes };
    await hook(request as never, reply as never);
    raw.writeHead();
  };

  const hono = honoLimit(client);
  const viaHono = async () => {
    const context = {
      req: { method: "GET", url: "http://app.test/login", header: () => undefined },
      env: { incoming: { socket } },
      res: new Response("ok"),
      set: () => {},
    };
    passes(((await hono(context, async () => {})) ?? context.res).status);
  };

  const calls = { plain, Express: viaExpress, Fastify: viaFastify, Hono: viaHono };
  const took = Object.fromEntries(Object.keys(calls).map((name) => [name, [] as number[]]));
  for (let round = -500; round < rounds; round += 1) {
    for (const [name, call] of Object.entries(calls)) {
      const start = performance.now();
      await call();
      if (round >= 0) took[name]?.push(performance.now() - start);
    }
  }
  const median = (name: string) => (took[name] ?? []).sort((a, b) => a - b)[Math.floor(rounds / 2)] as number;
  console.log("| middleware | plain `fetch`, µs | middleware, µs | ratio |");
  console.log("|---|---|---|---|");
  for (const name of ["Express", "Fastify", "Hono"]) {
    const [base, ours] = [median("plain"), median(name)];
    console.log(`| ${name} | ${(base * 1e3).toFixed(0)} | ${(ours * 1e3).toFixed(0)} | ${(ours / base).toFixed(2)} |`);
  }
} finally {
  await server.close();
}
