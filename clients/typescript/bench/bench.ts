// CPU time of the middlewares for each request, beside a plain keep-alive POST of the same check to the same server. CPU time
// depends less than latency on what else the machine does.
// Usage: npm run build && SPILLGATE_BIN=PATH npm run bench [-- ROUNDS]
import { Spillgate } from "spillgate";
import { rateLimit as expressLimit } from "spillgate/express";
import { rateLimit as fastifyLimit } from "spillgate/fastify";
import { rateLimit as honoLimit } from "spillgate/hono";

import { Server } from "../test/server.js";

const POLICY = '[[rule]]\nname = "api"\nkey = ["ip"]\nlimits = ["1000000/second"]\n';
const BODY = '{"attributes":{"ip":"203.0.113.7","method":"GET","path":"/login"},"headers":"ietf"}';

const TOGETHER = 100;
const microseconds = (from: NodeJS.CpuUsage, to: NodeJS.CpuUsage) => to.user + to.system - from.user - from.system;
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

  const calls: Record<string, () => Promise<unknown>> = {
    plain,
    Express: viaExpress,
    Fastify: viaFastify,
    Hono: viaHono,
  };
  const spent: Record<string, [alone: number, together: number]> = {};
  for (const [name, call] of Object.entries(calls)) {
    const together = () => Promise.all(Array.from({ length: TOGETHER }, call));
    // Compiles and opens connections.
    for (let round = 0; round < rounds / 4; round += 1) await call();
    await together();
    const start = process.cpuUsage();
    for (let round = 0; round < rounds; round += 1) await call();
    const middle = process.cpuUsage();
    for (let round = 0; round < rounds; round += TOGETHER) await together();
    spent[name] = [
      microseconds(start, middle) / rounds,
      microseconds(middle, process.cpuUsage()) / (Math.ceil(rounds / TOGETHER) * TOGETHER),
    ];
  }
  console.log(`| | alone, µs | ${TOGETHER} at once, µs |`);
  console.log("|---|---|---|");
  for (const [name, times] of Object.entries(spent)) {
    console.log(`| ${name} | ${times.map((time) => time.toFixed(0)).join(" | ")} |`);
  }
} finally {
  await server.close();
}
