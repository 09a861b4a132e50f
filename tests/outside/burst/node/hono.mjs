import { createAdaptorServer } from "@hono/node-server";
import { Hono } from "hono";
import { rateLimit } from "spillgate/hono";
import { attributesOf, client, counts, listen, sourceOf, spendHalf } from "./shared.mjs";

const app = new Hono();
app.use(async (context, next) => {
  spendHalf(context.req.url);
  await next();
});
app.use(rateLimit(client, { attributes: (context) => attributesOf(context.req.url) }));
app.get("/counts", (context) => context.text(counts()));
app.get("/work", (context) => {
  spendHalf(context.req.url);
  return context.text(sourceOf(context.get("spillgate")));
});
listen(createAdaptorServer(app));
