import type { Spillgate } from "./client.js";
import { denial, fieldsOf } from "./denial.js";
import { Gate, methodsOf, type Route } from "./gate.js";
import { addBeforeHead, type Connection, forwardedFor, type NodeResponse, whenEnded } from "./node-http.js";
import type { RateLimitOptions } from "./options.js";
import type { Decision } from "./types.js";

/**
 * Fastify's request, as the functions of the options get it. Where they need more of it, they may name Fastify's own type:
 * `(request: FastifyRequest) => ..`.
 */
export interface FastifyRequestLike {
  method: string;
  url: string;
  originalUrl: string;
  headers: Record<string, string | string[] | undefined>;
  // biome-ignore lint/suspicious/noExplicitAny: the application knows it, and Express has no other type for it either.
  body: any;
  params: unknown;
  query: unknown;
  ip: string;
  socket: Connection;
  routeOptions: { method?: string | string[]; url?: string | undefined };
}

interface ReplyLike {
  raw: NodeResponse;
  code(status: number): ReplyLike;
  headers(fields: Record<string, string>): ReplyLike;
  send(body: string): unknown;
}

/**
 * Fastify hook: answers denied requests itself; adds the header fields of the decision to all others.
 *
 * `app.addHook("onRequest", rateLimit(client))` limits all routes of an instance, and the option `onRequest` of a route
 * limits that one. As `preHandler` it comes after the body was read, so `key` and `attributes` may use it.
 *
 * The rules see the attributes `ip`, `method` and `path`, and those that `attributes` returns. The decision is
 * `request.spillgate`. Permits of concurrency limits end with the response.
 */
export function rateLimit(client: Spillgate, options: RateLimitOptions<FastifyRequestLike> = {}) {
  const gate = new Gate(client, options);
  return async (request: FastifyRequestLike, reply: ReplyLike): Promise<unknown> => {
    const decision = await gate.decide(request, {
      peer: request.socket.remoteAddress,
      forwardedFor: forwardedFor(request.headers),
      method: request.method,
      target: request.originalUrl,
      route: routeOf(request),
    });
    if (decision === undefined) return undefined;
    (request as { spillgate?: Decision }).spillgate = decision;
    // Fastify's hooks miss a client that leaves once its body is read, and hijacked replies such as WebSockets.
    if (decision.receipt !== undefined) {
      whenEnded(reply.raw, request.socket, (status) => gate.end(decision, status));
    }
    if (decision.allowed) {
      addBeforeHead(reply.raw, fieldsOf(decision));
      return undefined;
    }
    const { status, headers, body } = denial(decision);
    reply.code(status).headers(headers).send(body);
    return reply;
  };
}

function routeOf({ routeOptions: { method = "ALL", url } }: FastifyRequestLike): Route | undefined {
  // A request that no route takes has none.
  if (url === undefined) return undefined;
  const all = [method].flat();
  // Fastify adds a route for HEAD to each one that has GET, and shows no other methods there.
  const methods = all.includes("GET") || all.includes("HEAD") ? "GET" : methodsOf(all);
  // The route `/` of a plugin with a prefix becomes two, with a slash at the end and without.
  return { methods, template: url, counted: url.replace(/(.)\/$/, "$1") };
}
