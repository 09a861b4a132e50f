import { parse } from "node:url";

import type { Spillgate } from "./client.js";
import { denial, fieldsOf } from "./denial.js";
import { Gate, methodsOf, type Route } from "./gate.js";
import { addBeforeHead, type Connection, forwardedFor, type NodeResponse, whenEnded } from "./node-http.js";
import type { RateLimitOptions } from "./options.js";
import type { Decision } from "./types.js";

/** What the middleware needs of Express's request; Connect's and Node's own have it too. */
export interface ExpressRequest {
  method?: string | undefined;
  url?: string | undefined;
  originalUrl?: string;
  /** The path of the request at which the router is mounted. */
  baseUrl?: string;
  params?: unknown;
  route?: unknown;
  headers: Record<string, string | string[] | undefined>;
  socket: Connection;
  /** The decision, for handlers. */
  spillgate?: Decision;
}

/** What the middleware needs of Express's response; Connect's and Node's own have it too. */
export interface ExpressResponse extends NodeResponse {
  end(body?: string): unknown;
}

/**
 * Express middleware, for `app.use` and for a route: answers denied requests itself; adds the header fields of the
 * decision to all others.
 *
 * The rules see the attributes `ip`, `method` and `path`, and those that `attributes` returns. Permits of
 * concurrency limits end with the response.
 */
export function rateLimit<R extends ExpressRequest = ExpressRequest>(
  client: Spillgate,
  options: RateLimitOptions<R> = {},
) {
  const gate = new Gate(client, options);
  return (request: R, response: ExpressResponse, next: (error?: unknown) => void): void => {
    gate
      .decide(request, {
        peer: request.socket.remoteAddress,
        forwardedFor: forwardedFor(request.headers),
        method: request.method ?? "GET",
        target: asRouted(request.originalUrl ?? request.url ?? "/"),
        route: routeOf(request),
      })
      .then((decision) => {
        if (decision === undefined) return true;
        request.spillgate = decision;
        if (decision.receipt !== undefined) {
          whenEnded(response, request.socket, (status) => gate.end(decision, status));
        }
        if (decision.allowed) {
          addBeforeHead(response, fieldsOf(decision));
          return true;
        }
        const { status, headers, body } = denial(decision);
        response.statusCode = status;
        for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
        response.end(body);
        return false;
      })
      // An error of the handler is the application's: `next` is not called again with it.
      .then((goesOn) => {
        if (goesOn) next();
      }, next);
  };
}

/** The route at which the middleware stands. With `app.use` there is none yet: all below its path is one route. */
function routeOf({ baseUrl, params, route }: ExpressRequest): Route | undefined {
  if (baseUrl === undefined) return undefined;
  // Express tells the path that was requested, not the one of `app.use`. Its case is the client's choice.
  const mount = baseUrl.toLowerCase();
  if (typeof route === "object" && route !== null) {
    const { path, methods = {} } = route as { path?: unknown; methods?: Record<string, unknown> };
    // `app.all` gives the route every method that Node knows, and `route.all` the method `_all`.
    const isAll = methods["_all"] !== undefined || methods["connect"] !== undefined;
    const own = isAll ? "ALL" : methodsOf(Object.keys(methods));
    return { methods: own, template: `${mount}${path}`, counted: `${firstMountOf(route, mount)}${path}` };
  }
  // The parameters of the path of `app.use`, whose values are the client's choice.
  const names = Object.keys(params ?? {});
  const counted = names.length === 0 ? mount : `/:${names.join("/:")}`;
  return mount === "" ? undefined : { methods: "ALL", template: `${mount}/*`, counted: `${counted}/*` };
}

/**
 * The path at which the router of a route is mounted: the first one of its requests. One with a parameter, such as
 * `/:language`, has as many paths as clients invent, and each of them must not be a counter.
 */
function firstMountOf(route: object, mount: string): string {
  const first = mounts.get(route) ?? mount;
  mounts.set(route, first);
  return first;
}

const mounts = new WeakMap<object, string>();

/**
 * The target as Express and Connect read it: one in absolute form or with a fragment by `url.parse`, which makes `\` a `/`
 * and takes `//user@host` for a host.
 */
function asRouted(target: string): string {
  if (target.startsWith("/") && !/[\s#]/.test(target)) return target;
  try {
    return parse(target).pathname ?? "/";
  } catch {
    // They refuse it, too.
    return target;
  }
}
