import type { Decision } from "./types.js";

/** The server did not answer in time, or not with an answer of Spillgate. */
export class Unavailable extends Error {
  override readonly name: string = "Unavailable";
}

/** The server answered that it did a call in part or not at all; the same call does the rest. */
export class Retryable extends Unavailable {}

/** The server answered that it has no room for a reservation. */
export class Overloaded extends Unavailable {}

/**
 * The server refused the request itself: bad input (400), a wrong token (401), a reservation while these
 * are off (403), an ended id (409). Nothing was charged.
 */
export class ProblemError extends Error {
  override readonly name = "ProblemError";
  readonly status: number;
  /** The problem details (RFC 9457). */
  readonly problem: Record<string, unknown>;

  constructor(status: number, problem: Record<string, unknown>) {
    // A value of another type may be one that no string can be made of, and a string may be as long as an answer.
    const reason = [problem["detail"], problem["title"]].find((value) => typeof value === "string");
    super(`${status}: ${(reason ?? "no reason given").slice(0, REASON_MAX)}`);
    this.status = status;
    this.problem = problem;
  }
}

/** The application gave a token that cannot be sent. Nothing was sent. */
export class TokenError extends Error {
  override readonly name = "TokenError";
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

const REASON_MAX = 1_000;
