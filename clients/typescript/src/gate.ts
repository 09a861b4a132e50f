import { ClientAddress } from "./address.js";
import type { Spillgate } from "./client.js";
import { ProblemError, TokenError } from "./errors.js";
import { checkOptions, type RateLimitOptions } from "./options.js";
import { pathOf } from "./target.js";
import type { CheckRequest, Decision, InlineLimit } from "./types.js";
import { acceptable } from "./values.js";

/** What a framework knows of a request. */
export interface Seen {
  peer: string | undefined;
  forwardedFor: string | null | undefined;
  method: string;
  /** As sent: escaped, with or without the query. */
  target: string;
  /** `undefined` where the framework does not know it. */
  route: Route | undefined;
}

/** A route as it was registered: nothing of it comes from a request, or a stranger could choose a counter. */
export interface Route {
  /** Its methods, as `methodsOf` joins them. */
  methods: string;
  template: string;
  /** The template in the name of the counter, if it is another one. */
  counted?: string;
}

/** One name for a set of methods. `HEAD` is a part of `GET`, since frameworks answer it by the handler of `GET`. */
export function methodsOf(registered: readonly string[]): string {
  const methods = registered.map((method) => method.toUpperCase());
  const own = methods.filter((method) => method !== "HEAD" || !methods.includes("GET"));
  return own.sort().join(",");
}

/** Decides requests for a middleware. */
export class Gate<R> {
  readonly #client: Spillgate;
  readonly #options: RateLimitOptions<R>;
  readonly #address: ClientAddress;
  readonly #limit: InlineLimit | undefined;
  #hasWarned = false;

  constructor(client: Spillgate, options: RateLimitOptions<R>) {
    checkOptions(client, options);
    const { limit } = options;
    this.#client = client;
    this.#options = options;
    this.#address = new ClientAddress(options.trustedProxies);
    this.#limit = typeof limit === "string" ? { quota: limit } : limit;
  }

  /** Returns `undefined` for a request that is to stay unlimited. */
  async decide(request: R, seen: Seen): Promise<Decision | undefined> {
    const { cost, domain, headers, countIf } = this.#options;
    const limited =
      this.#limit === undefined ? this.#byRules(request, seen) : await this.#byLimit(request, seen, this.#limit);
    if (limited === undefined) return undefined;
    const check: CheckRequest = { ...limited, headers: headers ?? "ietf" };
    if (cost !== undefined) check.cost = typeof cost === "function" ? cost(request) : cost;
    if (domain !== undefined) check.domain = domain;
    try {
      // A reservation, so that attempts at the same time cannot exceed the limit before their outcomes are known.
      if (countIf === undefined) return await this.#client.check(check);
      return (await this.#client.reserve({ ...check, ttlMs: RESERVED_MS })).decision;
    } catch (error) {
      if (error instanceof ProblemError || error instanceof TokenError) {
        return this.#client.decideRefused(error, this.#counter(seen));
      }
      throw error;
    }
  }

  /**
   * Ends what an allowed request holds, once its response has ended: its permits, or a charge that does not count.
   * `status` is `undefined` if the response never began; then the charge stays, since leaving early must not be free.
   */
  end({ receipt }: Decision, status: number | undefined): void {
    if (receipt === undefined) return;
    // Without an end, `max_hold` and the time of the reservation end it.
    const ended = this.#counts(status) ? this.#client.release(receipt) : this.#client.cancel(receipt);
    ended.catch(() => {});
  }

  #counts(status: number | undefined): boolean {
    const { countIf } = this.#options;
    if (countIf === undefined || status === undefined) return true;
    try {
      return countIf(status);
    } catch (error) {
      // The response has ended, so no handler could catch it: as an event's error it would end the process.
      if (!this.#hasWarned) console.warn(`countIf of Spillgate's rateLimit failed, so responses count: ${error}`);
      this.#hasWarned = true;
      return true;
    }
  }

  #byRules(request: R, seen: Seen): CheckRequest | undefined {
    const more = this.#options.attributes?.(request);
    if (more === null) return undefined;
    const ip = this.#address.attribute(seen.peer, seen.forwardedFor);
    const template = this.#options.path === "route" ? seen.route?.template : undefined;
    const attributes: Record<string, string> = { ip, method: seen.method, path: template ?? pathOf(seen.target) };
    for (const [name, value] of Object.entries(more ?? {})) {
      if (value !== undefined && value !== null) attributes[name] = stringOf(value);
    }
    return { attributes };
  }

  async #byLimit(request: R, seen: Seen, limit: InlineLimit): Promise<CheckRequest | undefined> {
    const { key } = this.#options;
    const subject = key === undefined ? this.#address.attribute(seen.peer, seen.forwardedFor) : key(request);
    if (subject === undefined || subject === null) return undefined;
    // A long subject must not push the name out of the key, and has one key in all languages.
    const bounded = await acceptable(stringOf(subject));
    return { key: JSON.stringify([this.#counter(seen), bounded]), limit };
  }

  /** The name of the counter of `limit`, and of the request in the log. */
  #counter({ route }: Seen): string {
    const { methods, template, counted = template } = route ?? { methods: "ALL", template: "*" };
    return this.#options.name ?? `${methods} ${counted}`;
  }
}

/** How long a response may take whose status decides whether it counts. Then it stays charged. */
const RESERVED_MS = 300_000;

/** Makes a value a string: a query such as `?key=a&key=b` gives an array, which the server would refuse. */
function stringOf(value: unknown): string {
  if (typeof value === "string") return value;
  if (value instanceof Uint8Array) return Array.from(value, (byte) => String.fromCharCode(byte)).join("");
  if (typeof value === "number" || typeof value === "bigint") return String(value);
  const json = JSON.stringify(value);
  const kind = Object.prototype.toString.call(value);
  // A promise or a map is `{}` as JSON, so all requests would have one subject. No request can contain one.
  if (json === undefined || (json === "{}" && kind !== "[object Object]")) {
    throw new TypeError(
      `a key or an attribute must be a string or a value that JSON can have, got ${kind.slice(8, -1)}`,
    );
  }
  return json;
}
