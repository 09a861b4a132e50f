import {
  type CheckRequest,
  type Cost,
  type Decision,
  Denied,
  type Outcome,
  ProblemError,
  type ReserveRequest,
  Unavailable,
} from "./decision.js";

export interface Options {
  /** Where the server listens: `http://127.0.0.1:8080`. */
  url?: string;
  /** The bearer token, or a function that returns it. */
  token?: string | (() => string);
  /** Milliseconds until `onFailure` decides: 300. The server answers an overload after 250. */
  timeoutMs?: number;
  /** `allow` (fail open, the default) or `deny` (fail closed) if the server does not answer. */
  onFailure?: "allow" | "deny";
  /** Called after each call, for metrics. */
  observe?: (call: Call) => void;
  /** Another `fetch`, such as one with a proxy or a bounded pool. */
  fetch?: typeof fetch;
}

/** One call, for metrics. */
export interface Call {
  operation: string;
  milliseconds: number;
  decisions: readonly Decision[];
  error?: Error;
}

/**
 * Asks a Spillgate server. Make one and share it: its calls share the connections that `fetch` keeps open.
 *
 * A call never rejects because the server is slow or away: `onFailure` decides then. It rejects with a `ProblemError`
 * for a request that the server refuses, such as a wrong token.
 */
export class Spillgate {
  readonly #url: string;
  readonly #token: string | (() => string) | undefined;
  readonly #timeoutMs: number;
  readonly #onFailure: "allow" | "deny";
  readonly #observe: ((call: Call) => void) | undefined;
  readonly #fetch: typeof fetch;
  #failures = 0;
  #retryAt = 0;
  #isRefused = false;

  constructor(options: Options = {}) {
    const url = options.url ?? "http://127.0.0.1:8080";
    if (!/^https?:\/\/[^/]/.test(url)) {
      throw new TypeError(`url must be http://HOST:PORT or https://HOST:PORT, got ${JSON.stringify(url)}`);
    }
    const timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    if (!(timeoutMs > 0)) throw new RangeError(`timeoutMs must be above 0, got ${timeoutMs}`);
    const onFailure = options.onFailure ?? "allow";
    if (onFailure !== "allow" && onFailure !== "deny") {
      throw new TypeError(`onFailure must be "allow" or "deny", got ${JSON.stringify(onFailure)}`);
    }
    this.#url = url.replace(/\/+$/, "");
    this.#token = options.token;
    this.#timeoutMs = timeoutMs;
    this.#onFailure = onFailure;
    this.#observe = options.observe;
    this.#fetch = options.fetch ?? ((...request) => fetch(...request));
  }

  /** Decides one request by the rules of the policy, or a key by the limit that it brings. */
  async check(request: CheckRequest): Promise<Decision> {
    // A late caller gives a negative wait, which is none. The server takes whole milliseconds only.
    const wait = Math.round(Math.min(Math.max(request.wait_ms || 0, 0), WAIT_MAX_MS));
    const body = request.wait_ms === undefined ? request : { ...request, wait_ms: wait };
    return this.#decide("check", body, this.#timeoutMs + wait, 1);
  }

  /** Decides up to 1,000 requests in one call, each by itself. The decisions have the order of the requests. */
  async checkBatch(requests: readonly CheckRequest[]): Promise<Decision[]> {
    return this.#observed("check_batch", async () => {
      try {
        return await this.#call("/v1/check/batch", requests, this.#timeoutMs, 1, (answer) => {
          const results = isObject(answer) ? answer["results"] : undefined;
          if (!Array.isArray(results) || results.length !== requests.length) throw notSpillgate();
          return results.map(decision);
        });
      } catch (error) {
        const ours = this.withoutServer(unavailable(error));
        return requests.map(() => ({ ...ours }));
      }
    });
  }

  /**
   * Checks, and waits `retry_after_ms` after each denial. Returns the last decision: allowed, or a denial whose wait is
   * unknown or ends after `deadlineMs`.
   *
   * For permits use `check` with `wait_ms`: `retry_after_ms` is the latest time at which a permit becomes free.
   */
  async acquire(request: CheckRequest, { deadlineMs }: { deadlineMs: number }): Promise<Decision> {
    const deadline = performance.now() + deadlineMs;
    for (;;) {
      const decided = await this.check(request);
      // A little more than nothing, so that callers cannot spin.
      const wait = Math.max(decided.retry_after_ms ?? Infinity, 1);
      // `>=`: without a `retry_after_ms` the wait is infinite, as `deadlineMs` may be.
      if (decided.allowed || performance.now() + wait >= deadline) return decided;
      await pause(wait);
    }
  }

  /** Charges an estimate, to be settled with the true cost. */
  async reserve(request: ReserveRequest): Promise<Reservation> {
    // The id makes it safe to repeat the call: it charges once.
    const body = { ttl_ms: RESERVE_MS, ...request, id: crypto.randomUUID() };
    return new Reservation(this, await this.#decide("reserve", body, this.#timeoutMs, TRIES));
  }

  /**
   * Reserves, and runs the work. If it throws, the reservation is cancelled. If it returns without a call to `settle`
   * or `cancel`, the estimate stays charged and the permits end. A call that the server refuses does not count. Rejects
   * with `Denied` if the reservation is denied.
   */
  async withReservation<T>(request: ReserveRequest, work: (job: Reservation) => Promise<T> | T): Promise<T> {
    const job = await this.reserve(request);
    if (!job.allowed) throw new Denied(job.decision);
    let result: T;
    try {
      result = await work(job);
    } catch (error) {
      // The work's own error matters more. Without an end the estimate stays charged.
      if (!job.isEnded) await job.cancel().catch(() => {});
      throw error;
    }
    if (!job.isEnded) await job.release();
    return result;
  }

  /** Replaces a reservation's estimate by the true cost. */
  async settle(receipt: string, cost: Cost): Promise<Outcome> {
    return this.#end("settle", { receipt, cost });
  }

  /** Refunds a reservation. */
  async cancel(receipt: string): Promise<Outcome> {
    return this.#end("cancel", { receipt });
  }

  /** Ends the permits of a reservation or of a check; the estimate stays charged. */
  async release(receipt: string): Promise<Outcome> {
    return this.#end("release", { receipt });
  }

  /** Lets a reservation and its permits last for `ttlMs` milliseconds from now. */
  async renew(receipt: string, ttlMs: number): Promise<Outcome> {
    return this.#end("renew", { receipt, ttl_ms: ttlMs });
  }

  /** The decision of a middleware over a request that the server refuses or leaves unanswered. */
  withoutServer(error: Error): Decision {
    if (error instanceof ProblemError && !this.#isRefused) {
      this.#isRefused = true;
      console.warn(`Spillgate refuses a request, and onFailure "${this.#onFailure}" decides: ${error.message}`);
    }
    const allowed = this.#onFailure === "allow";
    const reason = allowed ? null : "store-unavailable";
    return { ...WITHOUT_LIMIT, allowed, reason, source: "client", limits: [], error };
  }

  async #decide(operation: "check" | "reserve", body: CheckRequest, timeoutMs: number, tries: number): Promise<Decision> {
    const [decided] = await this.#observed(operation, async () => {
      try {
        return [await this.#call(`/v1/${operation}`, body, timeoutMs, tries, decision)];
      } catch (error) {
        return [this.withoutServer(unavailable(error))];
      }
    });
    return decided as Decision;
  }

  async #end(operation: string, body: object): Promise<Outcome> {
    const start = performance.now();
    let failure: Error | undefined;
    try {
      return await this.#call(`/v1/${operation}`, body, this.#timeoutMs, TRIES, outcome);
    } catch (error) {
      failure = error as Error;
      unavailable(error);
      return "unavailable";
    } finally {
      this.#report(operation, start, [], failure);
    }
  }

  async #observed(operation: string, decide: () => Promise<Decision[]>): Promise<Decision[]> {
    const start = performance.now();
    try {
      const decisions = await decide();
      this.#report(operation, start, decisions, decisions[0]?.error);
      return decisions;
    } catch (error) {
      this.#report(operation, start, [], error as Error);
      throw error;
    }
  }

  #report(operation: string, start: number, decisions: readonly Decision[], error: Error | undefined): void {
    if (this.#observe === undefined) return;
    try {
      this.#observe({ operation, milliseconds: performance.now() - start, decisions, ...(error && { error }) });
    } catch (thrown) {
      console.warn("the observe hook of Spillgate failed:", thrown);
    }
  }

  /** Calls that change nothing when repeated have several tries within the time-out. */
  async #call<T>(
    path: string,
    body: unknown,
    timeoutMs: number,
    tries: number,
    read: (answer: unknown) => T,
  ): Promise<T> {
    const deadline = performance.now() + timeoutMs;
    const message = JSON.stringify(body);
    for (;;) {
      this.#checkHealth();
      tries -= 1;
      try {
        const answer = read(await this.#post(path, message, deadline - performance.now()));
        this.#succeeded();
        return answer;
      } catch (error) {
        if (error instanceof ProblemError) {
          this.#failures = 0;
          throw error;
        }
        if (error instanceof Retryable) this.#failures = 0;
        else this.#failed(unavailable(error));
        const isTripped = this.#failures >= TRIPS_AFTER;
        if (tries <= 0 || isTripped || performance.now() + PAUSE_MS >= deadline) throw error;
        await pause(PAUSE_MS);
      }
    }
  }

  async #post(path: string, body: string, timeoutMs: number): Promise<unknown> {
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (this.#token !== undefined) {
      headers["authorization"] = `Bearer ${typeof this.#token === "function" ? this.#token() : this.#token}`;
    }
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), Math.min(Math.max(timeoutMs, 0), TIMER_MAX_MS));
    let status: number;
    let text: string;
    try {
      const request = { method: "POST", headers, body, signal: abort.signal, redirect: "error" as const };
      const response = await this.#fetch(this.#url + path, request);
      status = response.status;
      text = await response.text();
    } catch (error) {
      if (abort.signal.aborted) throw new Unavailable("the server did not answer in time");
      throw new Unavailable(causeOf(error), { cause: error });
    } finally {
      clearTimeout(timer);
    }
    let answer: unknown;
    try {
      answer = JSON.parse(text);
    } catch {
      answer = undefined;
    }
    if (status === 200 && answer !== undefined) return answer;
    const problem = isObject(answer) ? answer : {};
    if (status >= 400 && status < 500 && status !== 408) throw new ProblemError(status, problem);
    // A load balancer also answers 503, but with neither field: then the server is silent.
    if (status === 503 && problem["reason"] === "overloaded") {
      return { ...WITHOUT_LIMIT, allowed: false, reason: "overloaded", source: "outage-policy", limits: [] };
    }
    const Kind = status === 503 && problem["retryable"] === true ? Retryable : Unavailable;
    throw new Kind(`the server answered ${status}: ${problem["detail"] ?? "no JSON"}`);
  }

  /** After three failures in a row one call a second tries again; the others do not wait. */
  #checkHealth(): void {
    if (this.#failures < TRIPS_AFTER) return;
    const now = performance.now();
    if (now < this.#retryAt) {
      throw new Unavailable("the server did not answer the last calls; one call a second tries again");
    }
    this.#retryAt = now + RETRY_MS;
  }

  #succeeded(): void {
    if (this.#failures > 0 || this.#isRefused) console.info("Spillgate answers again");
    this.#failures = 0;
    this.#isRefused = false;
  }

  #failed(error: Error): void {
    if (this.#failures === 0) {
      console.warn(`Spillgate does not answer (${error.message}): onFailure "${this.#onFailure}" decides`);
    }
    this.#failures += 1;
    if (this.#failures === TRIPS_AFTER) this.#retryAt = performance.now() + RETRY_MS;
  }
}

/** The server answers that it did a call in part or not at all; the same call does the rest. */
class Retryable extends Unavailable {}

/** A charged estimate. */
export class Reservation {
  readonly #client: Spillgate;
  readonly decision: Decision;
  /** Whether `settle`, `cancel` or `release` was called, and the server did not refuse it. */
  isEnded = false;

  constructor(client: Spillgate, decision: Decision) {
    this.#client = client;
    this.decision = decision;
  }

  get allowed(): boolean {
    return this.decision.allowed;
  }

  /** Absent if denied, or if `onFailure` allowed it: then there is nothing to settle. */
  get receipt(): string | undefined {
    return this.decision.receipt;
  }

  /** Replaces the estimate by the true cost. */
  async settle(cost: Cost): Promise<Outcome> {
    return this.#end((receipt) => this.#client.settle(receipt, cost));
  }

  /** Refunds the estimate. */
  async cancel(): Promise<Outcome> {
    return this.#end((receipt) => this.#client.cancel(receipt));
  }

  /** Ends the permits and keeps the estimate charged. */
  async release(): Promise<Outcome> {
    return this.#end((receipt) => this.#client.release(receipt));
  }

  /** Lets it last for `ttlMs` milliseconds from now. */
  async renew(ttlMs: number): Promise<Outcome> {
    return this.receipt === undefined ? "unknown" : this.#client.renew(this.receipt, ttlMs);
  }

  async #end(call: (receipt: string) => Promise<Outcome>): Promise<Outcome> {
    const wasEnded = this.isEnded;
    // Set before the answer: a settlement that the work does not await must not be followed by a release.
    this.isEnded = true;
    if (this.receipt === undefined) return "unknown";
    try {
      return await call(this.receipt);
    } catch (error) {
      // A call that the server refuses ends nothing, unless the reservation had ended before (409).
      if (!(error instanceof ProblemError && error.status === 409)) this.isEnded = wasEnded;
      throw error;
    }
  }
}

function decision(answer: unknown): Decision {
  if (!isObject(answer) || typeof answer["allowed"] !== "boolean") throw notSpillgate();
  return answer as unknown as Decision;
}

function outcome(answer: unknown): Outcome {
  const result = isObject(answer) ? answer["result"] : undefined;
  if (typeof result !== "string") throw notSpillgate();
  return result as Outcome;
}

/** Returns an `Unavailable` error, and throws any other. */
function unavailable(error: unknown): Unavailable {
  if (error instanceof Unavailable) return error;
  throw error;
}

function notSpillgate(): Unavailable {
  return new Unavailable("the answer is not one of Spillgate: does the URL lead there?");
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function causeOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  return cause instanceof Error ? cause.message : String(cause);
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, Math.min(ms, TIMER_MAX_MS)));
}

/** What a degraded decision has that names no limit. */
const WITHOUT_LIMIT = {
  rule: null,
  limit: null,
  capacity: null,
  remaining: null,
  retry_after_ms: null,
  reset_after_ms: null,
  degraded: true,
  matched: false,
};

// The server answers an overload after `store.overload_wait`, by default 250 ms. Its answer should come first.
const TIMEOUT_MS = 300;
const RESERVE_MS = 60_000;
const TRIES = 3;
const PAUSE_MS = 20;
const TRIPS_AFTER = 3;
const RETRY_MS = 1_000;
// The server refuses waits above 60 s. This bounds the time-out until then.
const WAIT_MAX_MS = 120_000;
// `setTimeout` takes a longer time as 1 ms.
const TIMER_MAX_MS = 2 ** 31 - 1;
