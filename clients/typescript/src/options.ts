import type { Cost, InlineLimit } from "./types.js";
import { isObject } from "./wire.js";

/**
 * Settings of a middleware; `R` is the framework's request.
 *
 * The functions have the types of methods, so that they may take a type with more than `R`, such as `FastifyRequest`.
 */
export interface RateLimitOptions<R> {
  /**
   * More attributes of a request than `ip`, `method` and `path`; `null` leaves the request unlimited. An attribute that is
   * `undefined` or `null` is left out, bytes are read as Latin-1, and another value that is not a string becomes JSON.
   */
  attributes?(request: R): Record<string, unknown> | null;
  /** `route` makes the attribute `path` the framework's template of the route, such as `/users/:id`, where it is known. */
  path?: "request" | "route";
  /** A limit of the middleware's own, such as `5/minute`, instead of the rules of the policy. */
  limit?: string | InlineLimit;
  /** With `limit`: who is limited, by default the client's address. `undefined` and `null` leave the request unlimited. */
  key?(request: R): string | number | null | undefined;
  /** With `limit`: the name of its counter, by default the methods and the template of the route: `POST /users/:id`. */
  name?: string;
  /** Whether a response with this status counts, for limits of failed logins: `(status) => status === 401`. */
  countIf?(status: number): boolean;
  /** The cost of a request, 1 if absent. */
  cost?: Cost | { of(request: R): Cost }["of"];
  /** The domain of the rules, and of the counters of `limit`. */
  domain?: string;
  /** The style of the header fields, by default `ietf`. */
  headers?: "ietf" | "draft-7" | "draft-6" | "legacy" | "none";
  /** Networks of proxies that may set `X-Forwarded-For`. */
  trustedProxies?: readonly string[];
}

/** Throws a `TypeError` for a mistake that would otherwise show at a request only, or leave all of them unlimited. */
export function checkOptions<R>(client: unknown, options: RateLimitOptions<R>): void {
  if (typeof (client as { check?: unknown } | undefined)?.check !== "function") {
    const got = isObject(client) ? `an object with ${Object.keys(client).join(", ")}` : String(client);
    throw new TypeError(`rateLimit needs a client: rateLimit(client, { limit: "5/minute" }), got ${got}`);
  }
  for (const [name, value] of Object.entries(options)) {
    const values = OPTIONS[name];
    if (values === undefined) {
      throw new TypeError(`rateLimit has no option ${name}; it has ${Object.keys(OPTIONS).join(", ")}`);
    }
    if (value !== undefined && values.length > 0 && !values.includes(value)) {
      throw new TypeError(`${name} must be one of ${values.join(", ")}, got ${JSON.stringify(value)}`);
    }
  }
  const { limit, key, name, attributes } = options;
  if (limit !== undefined && !isObject(limit) && !(typeof limit === "string" && LIMIT.test(limit))) {
    const valid = '"5/minute", "1_000/30s", "unlimited" or "block"';
    throw new TypeError(`limit must be such as ${valid}, or an object, got ${JSON.stringify(limit)}`);
  }
  if (limit === undefined && (key !== undefined || name !== undefined)) {
    throw new TypeError('key and name belong to a limit: add one, such as limit: "5/minute"');
  }
  if (limit !== undefined && attributes !== undefined) {
    throw new TypeError("attributes are for the rules of the policy: with limit, name the subject by key");
  }
}

/** The options, and the values of those that have only these. */
const OPTIONS: Record<string, readonly unknown[]> = {
  attributes: [],
  path: ["request", "route"],
  limit: [],
  key: [],
  name: [],
  countIf: [],
  cost: [],
  domain: [],
  headers: ["ietf", "draft-7", "draft-6", "legacy", "none"],
  trustedProxies: [],
};

// A limit as a string, as the server reads it.
const COUNT = "\\d+(?:_\\d+)*";
const PERIOD = `second|minute|hour|day|week|month|year|(?:${COUNT})?(?:ms|s|m|h|d)`;
const LIMIT = new RegExp(`^(?:unlimited|block|${COUNT}/(?:${PERIOD}))$`);
