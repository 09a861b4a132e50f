import { parse } from "node:url";

import type { Spillgate } from "./client.js";
import type { Decision } from "./decision.js";
import { type Connection, Gate, type RateLimitOptions, denial, fieldsOf, whenEnded } from "./middleware.js";

/** What the middleware needs of Express's request; Connect's and Node's own have it too. */
export interface ExpressRequest {
  method?: string | undefined;
  url?: string | undefined;
  originalUrl?: string;
  headers: Record<string, string | string[] | undefined>;
  socket: Connection;
  /** The decision, for handlers. */
  spillgate?: Decision;
}

/** What the middleware needs of Express's response; Connect's and Node's own have it too. */
export interface ExpressResponse {
  statusCode: number;
  hasHeader(name: string): boolean;
  setHeader(name: string, value: string): unknown;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  writeHead(...head: any[]): any;
  end(body?: string): unknown;
  readonly closed: boolean;
  once(event: "close", listener: () => void): unknown;
}

/**
 * Express middleware: answers denied requests itself; adds the header fields of the decision to all others.
 *
 * The rules see the attributes `ip`, `method` and `path`, and those that `attributes` returns. Permits of
 * concurrency limits end with the response.
 */
export function rateLimit<R extends ExpressRequest = ExpressRequest>(client: Spillgate, options: RateLimitOptions<R> = {}) {
  const gate = new Gate(client, options);
  return (request: R, response: ExpressResponse, next: (error?: unknown) => void): void => {
    const forwardedFor = request.headers["x-forwarded-for"];
    gate
      .decide(request, {
        peer: request.socket.remoteAddress,
        // Node joins the lines by commas.
        forwardedFor: Array.isArray(forwardedFor) ? forwardedFor.join(",") : forwardedFor,
        method: request.method ?? "GET",
        target: asRouted(request.originalUrl ?? request.url ?? "/"),
      })
      .then((decision) => {
        if (decision === undefined) return true;
        request.spillgate = decision;
        if (decision.receipt !== undefined) whenEnded(response, request.socket, () => gate.release(decision));
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

/** Adds fields when the head is written, unless the application wrote one of them: an inner layer stands nearer to the work. */
function addBeforeHead(response: ExpressResponse, fields: Record<string, string>): void {
  const names = Object.keys(fields);
  if (names.length === 0) return;
  const writeHead = response.writeHead;
  response.writeHead = function (...head: unknown[]) {
    response.writeHead = writeHead;
    const at = head.findIndex((argument) => typeof argument === "object" && argument !== null);
    let given = head[at] ?? {};
    // An array has names and values in turns, or pairs of them.
    if (Array.isArray(given) && Array.isArray(given[0])) given = given.flat();
    const own = Array.isArray(given) ? given.filter((_, index) => index % 2 === 0) : Object.keys(given);
    const isOwn = (name: string) => response.hasHeader(name) || own.some((given) => `${given}`.toLowerCase() === name);
    if (!names.some(isOwn)) {
      // Once a field is set, Node keeps only the last of an array's repeated fields, such as `Set-Cookie`.
      if (Array.isArray(given)) head[at] = [...given, ...Object.entries(fields).flat()];
      else for (const name of names) response.setHeader(name, fields[name] as string);
    }
    return writeHead.apply(response, head);
  };
}
