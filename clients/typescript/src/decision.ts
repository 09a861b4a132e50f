/** Why a decision denies. */
export type Reason = "limit-exceeded" | "cost-exceeds-limit" | "blocked" | "store-unavailable" | "overloaded";

/** Where a decision comes from. `client`: the server did not answer, and `onFailure` decided. */
export type Source = "store" | "lease" | "denial-cache" | "fallback" | "outage-policy" | "client";

/** A number of requests, or an amount for each unit: `{ requests: 1, tokens: 900 }`. */
export type Cost = number | Record<string, number>;

/** One check, as the server reads it. */
export interface CheckRequest {
  domain?: string;
  /** What the rules match and limit by. */
  attributes?: Record<string, string | number>;
  /** 1 if absent; 0 only looks. */
  cost?: Cost;
  /** Milliseconds that the server may wait for room, at most 60,000; they add to the time-out. Below 0 is 0. */
  wait_ms?: number;
  /** `true` or a style, such as `"draft-7"`, for response header fields in the answer. */
  headers?: boolean | string;
  /** With `limit`: a key that brings its own limit. */
  key?: string;
  limit?: { quota: string; burst?: number; algorithm?: string; time_zone?: string; max_hold?: string };
}

/** A check whose estimated cost is settled later. */
export interface ReserveRequest extends CheckRequest {
  /** How long the estimate may stay unsettled: a minute if absent, at most 24 hours. */
  ttl_ms?: number;
}

/** One limit of one rule in an answer. Unknown values are `null`. */
export interface Limit {
  rule: string | null;
  limit: string | null;
  unit: string;
  capacity: number | null;
  remaining: number | null;
  retry_after_ms: number | null;
  reset_after_ms: number | null;
  allowed: boolean;
  reason: Reason | null;
  source: Source;
  shadow?: boolean;
}

/** One answer, with the server's field names. Unknown values are `null`. */
export interface Decision {
  allowed: boolean;
  reason: Reason | null;
  rule: string | null;
  limit: string | null;
  capacity: number | null;
  remaining: number | null;
  /** Milliseconds until the same request can be allowed; `null` if no wait helps or none is known. */
  retry_after_ms: number | null;
  reset_after_ms: number | null;
  source: Source;
  degraded: boolean;
  /** Whether a rule matched. `false` too if `source` is `client`. */
  matched: boolean;
  receipt?: string;
  headers?: Record<string, string>;
  /** The response that the rule sets for its denials, if it sets one and `headers` was asked for. */
  denial?: { status: number; body: string };
  limits: Limit[];
  /** Why the server's answer is missing, if `source` is `client`. */
  error?: Error;
}

/** How a call on a receipt ended. `unavailable`: the server did not answer; the estimate stays charged. */
export type Outcome = "done" | "repeated" | "expired" | "unknown" | "unavailable";

/** The server did not answer in time, or not with an answer. */
export class Unavailable extends Error {
  override readonly name = "Unavailable";
}

/** The server refused the request itself: bad input (400), a wrong token (401), an ended id (409). Nothing was charged. */
export class ProblemError extends Error {
  override readonly name = "ProblemError";
  readonly status: number;
  /** The problem details (RFC 9457). */
  readonly problem: Record<string, unknown>;

  constructor(status: number, problem: Record<string, unknown>) {
    super(`${status}: ${problem["detail"] ?? problem["title"] ?? "no reason given"}`);
    this.status = status;
    this.problem = problem;
  }
}

/** A reservation was denied, so its work did not start. */
export class Denied extends Error {
  override readonly name = "Denied";
  readonly decision: Decision;

  constructor(decision: Decision) {
    super(`denied: ${decision.reason}`);
    this.decision = decision;
  }
}
