// A small service on Express, with the limiter that LIMITER names.
import express from "express";

const app = express();
switch (process.env.LIMITER) {
  case "Spillgate": {
    const { Spillgate } = await import("spillgate");
    const { rateLimit } = await import("spillgate/express");
    app.use(rateLimit(new Spillgate({ url: process.env.SPILLGATE_URL })));
    break;
  }
  case "express-rate-limit": {
    const { rateLimit } = await import("express-rate-limit");
    const { RedisStore } = await import("rate-limit-redis");
    const { default: Redis } = await import("ioredis");
    const redis = new Redis(process.env.REDIS_URL);
    const store = new RedisStore({ sendCommand: (command, ...words) => redis.call(command, ...words) });
    app.use(rateLimit({ windowMs: 86_400_000, limit: 1_000_000_000, standardHeaders: "draft-8", legacyHeaders: false, store }));
    break;
  }
}
app.get("/", (request, response) => void response.send("ok"));
app.listen({ fd: Number(process.env.LISTEN_FD) });
