import type { Spillgate } from "./client.js";
import type { Decision } from "./decision.js";
import { Gate, type RateLimitOptions, denial, fieldsOf } from "./middleware.js";

/** What the plugin needs of Fastify's request. */
export interface FastifyRequestLike {
  method: string;
  originalUrl: string;
  headers: Record<string, string | string[] | undefined>;
  socket: { remoteAddress?: string | undefined };
}

export interface FastifyRateLimitOptions extends RateLimitOptions<FastifyRequestLike> {
  client: Spillgate;
}

interface ReplyLike {
  raw: { closed: boolean };
  code(status: number): ReplyLike;
  headers(fields: Record<string, string>): ReplyLike;
  hasHeader(name: string): boolean;
  send(body: string): unknown;
}

interface InstanceLike {
  decorateRequest(name: string, value: null): unknown;
  addHook(name: "onRequest" | "onResponse", hook: (request: never, reply: never) => Promise<unknown>): unknown;
  addHook(name: "onRequestAbort", hook: (request: never) => Promise<unknown>): unknown;
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
    // A client that went away during the check causes no other hook.
    if (reply.raw.closed) gate.release(decision);
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
  const release = async (request: WithDecision) => gate.release(request.spillgate);
  fastify.addHook("onResponse", release);
  fastify.addHook("onRequestAbort", release);
}

// So that hooks hold outside of the plugin itself, and for messages of Fastify.
Object.assign(rateLimit, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "spillgate" });
