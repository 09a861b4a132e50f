import Fastify from "fastify";
import { rateLimit } from "spillgate/fastify";
import { attributesOf, client, counts, listen, sourceOf, spendHalf } from "./shared.mjs";

const app = Fastify();
app.addHook("onRequest", async (request) => spendHalf(request.url));
app.addHook("onRequest", rateLimit(client, { attributes: (request) => attributesOf(request.originalUrl) }));
app.get("/counts", async () => counts());
app.get("/work", async (request) => {
  spendHalf(request.url);
  return sourceOf(request.spillgate);
});
await app.ready();
listen(app.server);
