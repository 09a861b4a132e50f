import { createServer } from "node:http";
import express from "express";
import { rateLimit } from "spillgate/express";
import { attributesOf, client, counts, listen, sourceOf, spendHalf } from "./shared.mjs";

const app = express();
app.use((request, response, next) => {
  spendHalf(request.url);
  next();
});
app.use(rateLimit(client, { attributes: (request) => attributesOf(request.originalUrl) }));
app.get("/counts", (request, response) => void response.send(counts()));
app.get("/work", (request, response) => {
  spendHalf(request.url);
  response.send(sourceOf(request.spillgate));
});
listen(createServer(app));
