import { ClientAddress } from "./address.js";
import type { Spillgate } from "./client.js";
import { type CheckRequest, type Cost, type Decision, ProblemError, type Reason } from "./decision.js";

/**
 * Settings of a middleware; `R` is the framework's request.
 *
 * The functions have the types of methods, so that they may take a type with more than `R`, such as `FastifyRequest`.
 */
export interface RateLimitOptions<R> {
  /**
   * More attributes of a request than `ip`, `method` and `path`; `null` leaves the request unlimited. An attribute that is
   * `undefined` or `null` is left out; another value that is no string becomes JSON.
   */
  attributes?(request: R): Record<string, unknown> | null;
  /** The cost of a request, 1 if absent. */
  cost?: Cost | { of(request: R): Cost }["of"];
  /** The domain of the rules. */
  domain?: string;
  /** The style of the header fields: `ietf` (default), `draft-7`, `draft-6`, `legacy`, `none`. */
  headers?: string;
  /** Networks of proxies that may set `X-Forwarded-For`. */
  trustedProxies?: readonly string[];
}

/** What a framework knows of a request. */
export interface Seen {
  peer: string | undefined;
  forwardedFor: string | null | undefined;
  method: string;
  /** As sent: escaped, with or without the query. */
  target: string;
}

export interface Denial {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** Decides requests for a middleware. */
export class Gate<R> {
  readonly #client: Spillgate;
  readonly #options: RateLimitOptions<R>;
  readonly #address: ClientAddress;

  constructor(client: Spillgate, options: RateLimitOptions<R>) {
    this.#client = client;
    this.#options = options;
    this.#address = new ClientAddress(options.trustedProxies);
  }

  /** Returns `undefined` for a request that is to stay unlimited. */
  async decide(request: R, seen: Seen): Promise<Decision | undefined> {
    const { attributes, cost, domain, headers } = this.#options;
    const more = attributes?.(request);
    if (more === null) return undefined;
    const ip = this.#address.attribute(seen.peer, seen.forwardedFor);
    const all: Record<string, string> = { ip, method: seen.method, path: pathOf(seen.target) };
    for (const [name, given] of Object.entries(more ?? {})) {
      if (given !== undefined && given !== null) all[name] = textOf(given);
    }
    for (const name in all) {
      const value = all[name] as string;
      if (value.length > VALUE_MAX / 3 || LONE_SURROGATE.test(value)) all[name] = await acceptable(value);
    }
    const check: CheckRequest = { attributes: all, headers: headers ?? "ietf" };
    if (cost !== undefined) check.cost = typeof cost === "function" ? cost(request) : cost;
    if (domain !== undefined) check.domain = domain;
    try {
      return await this.#client.check(check);
    } catch (error) {
      if (!(error instanceof ProblemError)) throw error;
      return this.#client.withoutServer(error);
    }
  }

  /** Ends the permits of a request whose response has ended. Without a release, `max_hold` ends them. */
  release(decision: Decision | null | undefined): void {
    if (decision?.receipt !== undefined) this.#client.release(decision.receipt).catch(() => {});
  }
}

/** A connection on Node. One that is simulated, as by adapters for serverless functions, may have no events. */
export interface Connection {
  remoteAddress?: string | undefined;
  readonly destroyed?: boolean;
  once?(event: "close", listener: () => void): unknown;
}

/** A response on Node. */
export interface Closing {
  readonly closed?: boolean;
  once(event: "close", listener: () => void): unknown;
}

/** Calls `end` once: when the response has ended, or its connection has. */
export function whenEnded(response: Closing, connection: Connection, end: () => void): void {
  if (response.closed || connection.destroyed) return end();
  const ends = endsOf(connection);
  const endOnce = () => {
    if (ends.delete(endOnce)) end();
  };
  ends.add(endOnce);
  response.once("close", endOnce);
}

/** What to call when the connection ends: a pipelined response whose turn never comes has no `close` of its own. */
function endsOf(connection: Connection): Set<() => void> {
  let ends = openOn.get(connection);
  if (ends === undefined) {
    const added = (ends = new Set());
    openOn.set(connection, added);
    // One listener for all its responses, since Node warns of many.
    connection.once?.("close", () => added.forEach((end) => end()));
  }
  return ends;
}

const openOn = new WeakMap<Connection, Set<() => void>>();

/** The response to a denied request: that of the rule, else problem details (RFC 9457). */
export function denial(decision: Decision): Denial {
  if (decision.denial !== undefined) return { ...decision.denial, headers: fieldsOf(decision) };
  const status = statusOf(decision);
  const body = { ...problemOf(decision, status), "violated-policies": violatedPolicies(decision) };
  const headers = { "content-type": "application/problem+json", ...fieldsOf(decision) };
  return { status, headers, body: JSON.stringify(body) };
}

/** The header fields for the response: the server's, or for a denial without the server when to come back. */
export function fieldsOf(decision: Decision): Record<string, string> {
  if (decision.source === "client" && !decision.allowed) return { "retry-after": "1" };
  return decision.headers ?? NONE;
}

/** The limits that deny: the rule's name, or `rule/limit` where the rule has several. */
export function violatedPolicies({ limits }: Decision): string[] {
  const isAlone = (rule: string | null) => limits.filter((limit) => limit.rule === rule).length === 1;
  return limits
    .filter((limit) => !limit.allowed && !limit.shadow && limit.rule !== null)
    .map((limit) => (isAlone(limit.rule) ? `${limit.rule}` : `${limit.rule}/${limit.limit}`));
}

function statusOf({ reason }: Decision): 403 | 429 | 503 {
  if (reason === "blocked") return 403;
  return reason === "limit-exceeded" || reason === "cost-exceeds-limit" ? 429 : 503;
}

function problemOf(decision: Decision, status: 403 | 429 | 503) {
  const [kind, title] =
    status === 503
      ? ["temporary-reduced-capacity", "Temporarily reduced capacity"]
      : ["quota-exceeded", "Quota exceeded"];
  return { type: `${PROBLEMS}${kind}`, title, status, detail: detailOf(decision) };
}

function detailOf({ reason, headers }: Decision): string {
  const seconds = headers?.["retry-after"];
  if (reason === "limit-exceeded" && seconds !== undefined) return `Try again in ${seconds} s.`;
  return DETAILS[reason ?? "store-unavailable"];
}

/**
 * The path, unescaped as routers do, so that no spelling of a path escapes its rule.
 *
 * An escaped `/`, `?`, `#` or `%` stays escaped: it belongs to its segment, and plain it would divide or cut the path.
 */
export function pathOf(target: string): string {
  // Routers leave out the scheme and the authority of an absolute target.
  const local = target.startsWith("/") ? target : target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "");
  const end = local.search(/[?#]/);
  const path = (end < 0 ? local : local.slice(0, end)) || "/";
  // A `%` that begins no escape is escaped, so that it begins none with what follows it: `%%36c` is not `%6c`.
  return path.replace(/(?:%[0-9a-f]{2})+|%/gi, (escapes) => {
    if (escapes === "%") return "%25";
    try {
      return decodeURIComponent(escapes.replace(/%(?=2f|3f|23|25)/gi, "%25"));
    } catch {
      return escapes;
    }
  });
}

/** Makes any value text: a query such as `?key=a&key=b` gives an array, which the server would refuse. */
function textOf(value: unknown): string {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/**
 * Makes any text a value that the server accepts, so that no client can cause an error by its request.
 *
 * A long value keeps its beginning and its end, so that rules for a prefix or a suffix match. Its hash keeps it apart from
 * other values.
 */
async function acceptable(value: string): Promise<string> {
  // The encoder replaces lone surrogates, too.
  const bytes = new TextEncoder().encode(value);
  if (bytes.length <= VALUE_MAX) return value.replace(LONE_SURROGATES, "\ufffd");
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
  // A character that a cut divides is left out, as in the other clients. Without `ignoreBOM` a leading U+FEFF would be lost.
  const isWithin = (at: number) => ((bytes[at] as number) & 0xc0) === 0x80;
  let [end, start] = [KEPT, bytes.length - KEPT];
  while (isWithin(end)) end -= 1;
  while (isWithin(start)) start += 1;
  const text = new TextDecoder("utf-8", { ignoreBOM: true });
  return `${text.decode(bytes.subarray(0, end))}sha256:${hex}${text.decode(bytes.subarray(start))}`;
}

const DETAILS: Record<Reason, string> = {
  "limit-exceeded": "The limit has no room at the moment.",
  "cost-exceeds-limit": "The cost is larger than the limit can ever hold.",
  blocked: "Requests like this one are blocked.",
  "store-unavailable": "The rate limiter cannot reach its store.",
  overloaded: "The rate limiter is overloaded.",
};
const PROBLEMS = "https://iana.org/assignments/http-problem-types#";
const NONE: Record<string, string> = {};
const VALUE_MAX = 4_096;
/** Bytes that a longer value keeps at either end. */
const KEPT = 1_024;
// With the flag `u` a pair is one character, which does not match. `toWellFormed` is not in the library es2022.
const LONE_SURROGATE = /[\ud800-\udfff]/u;
const LONE_SURROGATES = new RegExp(LONE_SURROGATE, "gu");
