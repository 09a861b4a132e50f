import type { Spillgate } from "./client.js";
import type { Decision } from "./decision.js";
import { Gate, type RateLimitOptions, denial, fieldsOf } from "./middleware.js";

/** What the middleware needs of Express's request; Connect's and Node's own have it too. */
export interface ExpressRequest {
  method?: string | undefined;
  url?: string | undefined;
  originalUrl?: string;
  headers: Record<string, string | string[] | undefined>;
  socket: { remoteAddress?: string | undefined };
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
        target: request.originalUrl ?? request.url ?? "/",
      })
      .then((decision) => {
        if (decision === undefined) return next();
        request.spillgate = decision;
        if (decision.allowed) {
          if (decision.receipt !== undefined) {
            if (response.closed) gate.release(decision);
            else response.once("close", () => gate.release(decision));
          }
          addBeforeHead(response, fieldsOf(decision));
          return next();
        }
        const { status, headers, body } = denial(decision);
        response.statusCode = status;
        for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
        response.end(body);
      })
      .catch(next);
  };
}

/** Adds fields when the head is written, unless the application wrote one of them: an inner layer stands nearer to the work. */
function addBeforeHead(response: ExpressResponse, fields: Record<string, string>): void {
  const names = Object.keys(fields);
  if (names.length === 0) return;
  const writeHead = response.writeHead;
  response.writeHead = function (...head: unknown[]) {
    response.writeHead = writeHead;
    if (!names.some((name) => response.hasHeader(name))) {
      for (const name of names) response.setHeader(name, fields[name] as string);
    }
    return writeHead.apply(response, head);
  };
}
