/** Why a decision denies. */
export type Reason = "limit-exceeded" | "cost-exceeds-limit" | "blocked" | "store-unavailable" | "overloaded";

/** Where a decision comes from. `client`: the server did not answer, and `onFailure` decided. */
export type Source = "store" | "lease" | "denial-cache" | "fallback" | "outage-policy" | "client";

/** A number of requests, or an amount for each unit: `{ requests: 1, tokens: 900 }`. */
export type Cost = number | Record<string, number>;

/** A limit that a check brings itself: `{ quota: "5/minute" }`. */
export interface InlineLimit {
  quota: string;
  burst?: number;
  algorithm?: string;
  timeZone?: string;
  maxHold?: string;
}

/** A check: the attributes that the rules match, or a key with the limit that it brings. */
export interface CheckRequest {
  domain?: string;
  /** What the rules match and limit by. */
  attributes?: Record<string, string | number>;
  /** 1 if absent; 0 only looks. */
  cost?: Cost;
  /** Milliseconds that the server may wait for room, at most 60,000; they add to the time-out. Below 0 is 0. */
  waitMs?: number;
  /** `true` or a style, such as `"draft-7"`, for response header fields in the answer. */
  headers?: boolean | string;
  /** The subject of `limit`, instead of `attributes`. */
  key?: string;
  limit?: InlineLimit;
}

/** A check whose estimated cost is settled later. */
export interface ReserveRequest extends CheckRequest {
  /** How long the estimate may stay unsettled: a minute if absent, at most 24 hours. */
  ttlMs?: number;
}

/** One limit of one rule in an answer. Unknown values are `null`. */
export interface Limit {
  rule: string | null;
  limit: string | null;
  unit: string | null;
  capacity: number | null;
  remaining: number | null;
  retryAfterMs: number | null;
  resetAfterMs: number | null;
  allowed: boolean;
  reason: Reason | null;
  source: Source | null;
  /** Whether the rule only observes: its denial denies nothing. */
  shadow: boolean;
}

/** The answer to a check. Unknown values are `null`. */
export interface Decision {
  allowed: boolean;
  reason: Reason | null;
  /** The rule and the limit whose numbers these are. */
  rule: string | null;
  limit: string | null;
  capacity: number | null;
  remaining: number | null;
  /** Milliseconds until the same request can be allowed; `null` if no wait helps or none is known. */
  retryAfterMs: number | null;
  resetAfterMs: number | null;
  source: Source | null;
  /** Whether the decision was made without the store. */
  degraded: boolean;
  /** Whether a rule matched. `false` too if `source` is `client`. */
  matched: boolean;
  receipt?: string;
  headers?: Record<string, string>;
  /** The response that the rule sets for its denials, if it sets one and `headers` was asked for. */
  denial?: { status: number; body: string };
  limits: Limit[];
  /**
   * A sentence for each attribute or unit that no rule uses, such as a misspelled one. Checks that left in one batch
   * share it.
   */
  unused: readonly string[];
  /** Why the server's answer is missing, if `source` is `client`. */
  error?: Error;
}

/** How a call on a receipt ended. `unavailable`: the server did not answer; the estimate stays charged. */
export type Outcome = "done" | "repeated" | "expired" | "unknown" | "unavailable";

/** One call, for metrics. */
export interface Call {
  operation: string;
  milliseconds: number;
  decisions: readonly Decision[];
  error?: Error;
}

/** Where the client writes its few lines, all of them as warnings: `console`, or a logger with the same method. */
export interface Logger {
  warn(message: string): void;
}

/** Settings of a client. */
export interface Options {
  /** Where the server listens: `http://127.0.0.1:8080`. */
  url?: string;
  /** The bearer token, or a function that returns it. White space around it is cut off. */
  token?: string | (() => string);
  /** Milliseconds for which the server may be silent until `onFailure` decides: 300. It answers an overload after 250. */
  timeoutMs?: number;
  /** `allow` (fail open, the default) or `deny` (fail closed) if the server does not answer. */
  onFailure?: "allow" | "deny";
  /** Called after each call, for metrics. */
  observe?: (call: Call) => void;
  /** `console` if absent. */
  logger?: Logger;
  /** Another `fetch`, such as one with a proxy. */
  fetch?: typeof fetch;
}
