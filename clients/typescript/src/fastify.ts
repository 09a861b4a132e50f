import type { Spillgate } from "./client.js";
import type { Decision } from "./decision.js";
import { type Closing, type Connection, Gate, type RateLimitOptions, denial, fieldsOf, whenEnded } from "./middleware.js";

/**
 * Fastify's request, as `attributes` and `cost` get it. Where they need more of it, they may name Fastify's own type:
 * `(request: FastifyRequest) => ..`.
 */
export interface FastifyRequestLike {
  method: string;
  url: string;
  originalUrl: string;
  headers: Record<string, string | string[] | undefined>;
  params: unknown;
  query: unknown;
  ip: string;
  socket: Connection;
}

export interface FastifyRateLimitOptions extends RateLimitOptions<FastifyRequestLike> {
  client: Spillgate;
}

interface ReplyLike {
  raw: Closing;
  code(status: number): ReplyLike;
  headers(fields: Record<string, string>): ReplyLike;
  hasHeader(name: string): boolean;
  send(body: string): unknown;
}

interface InstanceLike {
  decorateRequest(name: string, value: null): unknown;
  addHook(name: "onRequest", hook: (request: never, reply: never) => Promise<unknown>): unknown;
  addHook(name: "onSend", hook: (request: never, reply: never, payload: unknown) => Promise<unknown>): unknown;
}

type WithDecision = FastifyRequestLike & { spillgate: Decision | null };

/**
 * Fastify plugin: answers denied requests itself; adds the header fields of the decision to all others.
 *
 * The rules see the attributes `ip`, `method` and `path`, and those that `attributes` returns. The decision is
 * `request.spillgate`. Permits of concurrency limits end with the response. The plugin holds for the instance that
 * registers it, and all inside.
 */
export async function rateLimit(instance: unknown, { client, ...options }: FastifyRateLimitOptions): Promise<void> {
  const fastify = instance as InstanceLike;
  const gate = new Gate(client, options);
  fastify.decorateRequest("spillgate", null);
  fastify.addHook("onRequest", async (request: WithDecision, reply: ReplyLike) => {
    const forwardedFor = request.headers["x-forwarded-for"];
    const decision = await gate.decide(request, {
      peer: request.socket.remoteAddress,
      // Node joins the lines by commas.
      forwardedFor: Array.isArray(forwardedFor) ? forwardedFor.join(",") : forwardedFor,
      method: request.method,
      target: request.originalUrl,
    });
    request.spillgate = decision ?? null;
    // Fastify's hooks miss a client that leaves once its body is read, and hijacked replies such as WebSockets.
    if (decision?.receipt !== undefined) whenEnded(reply.raw, request.socket, () => gate.release(decision));
    if (decision === undefined || decision.allowed) return undefined;
    const { status, headers, body } = denial(decision);
    reply.code(status).headers(headers).send(body);
    return reply;
  });
  fastify.addHook("onSend", async (request: WithDecision, reply: ReplyLike, payload: unknown) => {
    const fields = request.spillgate?.allowed ? fieldsOf(request.spillgate) : {};
    // An inner layer stands nearer to the work: its fields stay.
    if (!Object.keys(fields).some((name) => reply.hasHeader(name))) reply.headers(fields);
    return payload;
  });
}

// So that hooks hold outside of the plugin itself, and for messages of Fastify.
Object.assign(rateLimit, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "spillgate" });
