import type { Spillgate } from "./client.js";
import { denial, fieldsOf } from "./denial.js";
import { Gate, type Route } from "./gate.js";
import { type Connection, type NodeResponse, whenEnded } from "./node-http.js";
import type { RateLimitOptions } from "./options.js";

/** What the middleware needs of Hono's context. */
export interface HonoContext {
  req: { method: string; url: string; header(name: string): string | undefined };
  res: Response;
  env: unknown;
  set(name: never, value: never): void;
}

export interface HonoRateLimitOptions<C extends HonoContext = HonoContext> extends RateLimitOptions<C> {
  /** The address of the peer, where the runtime is not Node, Bun or Deno: `(c) => c.req.header("cf-connecting-ip")`. */
  peer?: (context: C) => string | undefined;
}

/**
 * Hono middleware, for `app.use` and for a route: answers denied requests itself; adds the header fields of the decision to all others.
 *
 * The rules see the attributes `ip`, `method` and `path`, and those that `attributes` returns. The decision is
 * `c.get("spillgate")`. Permits of concurrency limits end with the response: on Node when it closes, elsewhere with its
 * body.
 */
export function rateLimit<C extends HonoContext = HonoContext>(
  client: Spillgate,
  options: HonoRateLimitOptions<C> = {},
) {
  const { peer = peerOf, ...others } = options;
  const gate = new Gate<C>(client, others);
  // biome-ignore lint/suspicious/noConfusingVoidType: Hono's own type of middlewares.
  return async (context: C, next: () => Promise<void>): Promise<Response | void> => {
    const url = context.req.url;
    const decision = await gate.decide(context, {
      peer: peer(context),
      forwardedFor: context.req.header("x-forwarded-for"),
      method: context.req.method,
      target: url.slice(url.indexOf("/", url.indexOf("//") + 2)),
      route: routeOf(context),
    });
    if (decision === undefined) return next();
    (context.set as (name: string, value: unknown) => void)("spillgate", decision);
    if (!decision.allowed) {
      const { status, headers, body } = denial(decision);
      const hasBody = context.req.method !== "HEAD" && !WITHOUT_BODY.includes(status);
      return new Response(hasBody ? body : null, { status, headers });
    }
    let endsWithBody = decision.receipt !== undefined;
    const { incoming, outgoing } = environmentOf(context);
    if (endsWithBody && outgoing !== undefined && incoming?.socket !== undefined) {
      // Node's server does not read the body for a client that has gone.
      whenEnded(outgoing, incoming.socket, (status) => gate.end(decision, status));
      endsWithBody = false;
    }
    try {
      await next();
    } catch (error) {
      if (endsWithBody) gate.end(decision, undefined);
      throw error;
    }
    if (endsWithBody) {
      const { body, status } = context.res;
      // Hono drops the body of an answer to HEAD.
      if (body === null || context.req.method === "HEAD") gate.end(decision, status);
      else
        context.res = new Response(
          withEnd(body, () => gate.end(decision, status)),
          context.res,
        );
    }
    // A response to an upgrade can neither be changed nor be made anew.
    if (context.res.status === 101) return;
    const fields = Object.entries(fieldsOf(decision));
    // An inner layer stands nearer to the work: its fields stay.
    if (fields.some(([name]) => context.res.headers.has(name))) return;
    try {
      for (const [name, value] of fields) context.res.headers.set(name, value);
    } catch {
      // A response from `fetch` has fields that cannot be changed.
      context.res = new Response(context.res.body, context.res);
      for (const [name, value] of fields) context.res.headers.set(name, value);
    }
  };
}

/** The same body, which calls `end` after its last chunk, or when its reader or its source gives up. */
function withEnd(body: ReadableStream<Uint8Array>, end: () => void): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (!done) return controller.enqueue(value);
          controller.close();
        } catch (error) {
          controller.error(error);
        }
        end();
      },
      async cancel(reason) {
        end();
        await reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
}

interface Environment {
  /** `@hono/node-server` */
  incoming?: { socket?: Connection };
  outgoing?: NodeResponse;
  /** Bun: the server, which knows the address of a request. */
  requestIP?: (request: unknown) => { address?: string } | null;
  server?: { requestIP?: (request: unknown) => { address?: string } | null };
  /** Deno */
  remoteAddr?: { hostname?: string };
}

/** The route that handles the request: that of the middleware itself, or the first one behind `app.use`. */
function routeOf(context: HonoContext): Route | undefined {
  const { matchedRoutes = [], routeIndex = 0 } = context.req as Matched;
  const behind = matchedRoutes.slice(routeIndex);
  // `app.use` and `app.all` have the method ALL.
  const route = behind.find(({ method }) => method !== "ALL") ?? behind.at(-1);
  return route && { methods: route.method, template: route.path };
}

interface Matched {
  matchedRoutes?: readonly { method: string; path: string }[];
  routeIndex?: number;
}

function environmentOf(context: HonoContext): Environment {
  return (context.env ?? {}) as Environment;
}

function peerOf(context: HonoContext): string | undefined {
  const env = environmentOf(context);
  const bun = env.requestIP ? env : env.server;
  return (
    env.incoming?.socket?.remoteAddress ??
    env.remoteAddr?.hostname ??
    bun?.requestIP?.((context.req as { raw?: unknown }).raw)?.address
  );
}

// `Response` refuses a body with these.
const WITHOUT_BODY = [204, 205, 304];
