import { ClientAddress } from "./address.js";
import type { Spillgate } from "./client.js";
import { ProblemError, TokenError } from "./errors.js";
import { pathOf } from "./target.js";
import type { CheckRequest, Cost, Decision, InlineLimit } from "./types.js";

/**
 * Settings of a middleware; `R` is the framework's request.
 *
 * The functions have the types of methods, so that they may take a type with more than `R`, such as `FastifyRequest`.
 */
export interface RateLimitOptions<R> {
  /**
   * More attributes of a request than `ip`, `method` and `path`; `null` leaves the request unlimited. An attribute that is
   * `undefined` or `null` is left out; another value that is not a string becomes JSON.
   */
  attributes?(request: R): Record<string, unknown> | null;
  /** `route` makes the attribute `path` the framework's template of the route, such as `/users/:id`, where it is known. */
  path?: "request" | "route";
  /** A limit of the middleware's own, such as `5/minute`, instead of the rules of the policy. */
  limit?: string | InlineLimit;
  /** With `limit`: who is limited, by default the client's address. `undefined` and `null` leave the request unlimited. */
  key?(request: R): string | number | null | undefined;
  /** With `limit`: the name of its counter, by default the method and the template of the route: `POST /users/:id`. */
  name?: string;
  /** Whether a response with this status counts, for limits of failed logins: `(status) => status === 401`. */
  countIf?(status: number): boolean;
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
  /** `undefined` where the framework does not know it. */
  route: Route | undefined;
}

/** The framework's own words for a route: no request of a stranger may choose between two of them for one handler. */
export interface Route {
  method: string;
  template: string;
}

/** Decides requests for a middleware. */
export class Gate<R> {
  readonly #client: Spillgate;
  readonly #options: RateLimitOptions<R>;
  readonly #address: ClientAddress;
  readonly #limit: InlineLimit | undefined;

  constructor(client: Spillgate, options: RateLimitOptions<R>) {
    const { limit, key, name, attributes } = options;
    if (limit === undefined && (key !== undefined || name !== undefined)) {
      throw new TypeError('key and name belong to a limit: add one, such as limit: "5/minute"');
    }
    if (limit !== undefined && attributes !== undefined) {
      throw new TypeError("attributes are for the rules of the policy: with limit, name the subject by key");
    }
    this.#client = client;
    this.#options = options;
    this.#address = new ClientAddress(options.trustedProxies);
    this.#limit = typeof limit === "string" ? { quota: limit } : limit;
  }

  /** Returns `undefined` for a request that is to stay unlimited. */
  async decide(request: R, seen: Seen): Promise<Decision | undefined> {
    const { cost, domain, headers, countIf } = this.#options;
    const limited =
      this.#limit === undefined ? this.#byRules(request, seen) : this.#byLimit(request, seen, this.#limit);
    if (limited === undefined) return undefined;
    const check: CheckRequest = { ...limited, headers: headers ?? "ietf" };
    if (cost !== undefined) check.cost = typeof cost === "function" ? cost(request) : cost;
    if (domain !== undefined) check.domain = domain;
    try {
      // A reservation, so that attempts at the same time cannot exceed the limit before their outcomes are known.
      return countIf === undefined ? await this.#client.check(check) : (await this.#client.reserve(check)).decision;
    } catch (error) {
      if (error instanceof ProblemError || error instanceof TokenError) return this.#client.withoutServer(error);
      throw error;
    }
  }

  /**
   * Ends what an allowed request holds, once its response has ended: its permits, or a charge that does not count.
   * `status` is `undefined` if the response never began; then the charge stays, since leaving early must not be free.
   */
  end({ receipt }: Decision, status: number | undefined): void {
    if (receipt === undefined) return;
    const { countIf } = this.#options;
    const isFree = countIf !== undefined && status !== undefined && !countIf(status);
    // Without an end, `max_hold` and the time of the reservation end it.
    (isFree ? this.#client.cancel(receipt) : this.#client.release(receipt)).catch(() => {});
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

  #byLimit(request: R, seen: Seen, limit: InlineLimit): CheckRequest | undefined {
    const { key, name } = this.#options;
    const subject = key === undefined ? this.#address.attribute(seen.peer, seen.forwardedFor) : key(request);
    if (subject === undefined || subject === null) return undefined;
    const route = seen.route ?? { method: "ALL", template: "*" };
    return { key: JSON.stringify([name ?? `${route.method} ${route.template}`, `${subject}`]), limit };
  }
}

/** Makes any value a string: a query such as `?key=a&key=b` gives an array, which the server would refuse. */
function stringOf(value: unknown): string {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
