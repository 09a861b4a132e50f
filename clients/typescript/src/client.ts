import { Batches } from "./batches.js";
import { Breaker, LOG_PAUSE_MS } from "./breaker.js";
import { Calls } from "./calls.js";
import { Clock } from "./clock.js";
import { Denied, Overloaded, ProblemError, type TokenError, Unavailable } from "./errors.js";
import { NoPlace, Queue } from "./queue.js";
import { Reservation } from "./reservation.js";
import { Transport } from "./transport.js";
import type { Call, CheckRequest, Cost, Decision, Logger, Options, Outcome, ReserveRequest } from "./types.js";
import { checkToWire, decisionOf, outcomeOf } from "./wire.js";

/**
 * Asks a Spillgate server. Make one and share it: the checks of one moment leave together, by at most 64 connections.
 *
 * A call never rejects because the server is slow or down: `onFailure` decides then. It rejects with a `ProblemError`
 * for a request that the server refuses, such as a wrong token, and with a `TokenError` for a token that cannot be sent.
 */
export class Spillgate {
  readonly #timeoutMs: number;
  readonly #onFailure: "allow" | "deny";
  readonly #observe: ((call: Call) => void) | undefined;
  readonly #logger: Logger;
  readonly #clock = new Clock();
  readonly #breaker: Breaker;
  readonly #queue: Queue;
  readonly #calls: Calls;
  readonly #batches: Batches;
  /** When the log last named each counter whose request the server refused. */
  readonly #refusedAt = new Map<string, number>();

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
    this.#timeoutMs = timeoutMs;
    this.#onFailure = onFailure;
    this.#observe = options.observe;
    this.#logger = careful(options.logger ?? console);
    this.#breaker = new Breaker(this.#logger, onFailure);
    this.#queue = new Queue(this.#clock, timeoutMs);
    const transport = new Transport(url.replace(/\/+$/, ""), options.token, options.fetch, this.#clock);
    this.#calls = new Calls(this.#queue, transport, this.#breaker, this.#logger);
    this.#batches = new Batches(this.#calls, timeoutMs);
  }

  /** Decides one request by the rules of the policy, or a key by the limit that it brings. */
  async check(request: CheckRequest): Promise<Decision> {
    const { waitMs: given = 0, ...plain } = request;
    // A late caller gives a negative wait, which is none. The server takes whole milliseconds only.
    const waitMs = Math.round(Math.min(Math.max(given || 0, 0), WAIT_MAX_MS));
    const [decided] = await this.#observed("check", async () => [
      await this.#decided(() => (waitMs > 0 ? this.#checkWaiting(plain, waitMs) : this.#check(plain))),
    ]);
    return decided as Decision;
  }

  /**
   * Decides requests by as few calls as possible, each by itself. The decisions have the order of the requests. Rejects with
   * the problem of the first request that has one, whose `field` names its index; the others were decided.
   */
  async checkBatch(requests: readonly CheckRequest[]): Promise<Decision[]> {
    return this.#observed("check_batch", async () => {
      const checks = await Promise.all(requests.map((request, index) => asJson(request).catch(throwAt(index))));
      let results: (Decision | Error)[];
      try {
        results = await this.#entered(() => this.#batches.checkAll(checks));
      } catch (error) {
        const decided = this.#withoutAnswer(error);
        return requests.map(() => ({ ...decided }));
      }
      return results.map((result, index) => {
        if (result instanceof ProblemError) return throwAt(index)(result);
        return result instanceof Error ? this.#withoutAnswer(result) : result;
      });
    });
  }

  /**
   * Checks, and waits `retryAfterMs` after each denial. Returns the last decision: allowed, or a denial whose wait is
   * unknown or ends after `deadlineMs`.
   *
   * For permits use `check` with `waitMs`: `retryAfterMs` is the latest time at which a permit becomes free.
   */
  async acquire(request: CheckRequest, { deadlineMs }: { deadlineMs: number }): Promise<Decision> {
    const deadline = performance.now() + deadlineMs;
    for (;;) {
      const decided = await this.check(request);
      // A little more than nothing, so that callers cannot spin.
      const wait = Math.max(decided.retryAfterMs ?? Number.POSITIVE_INFINITY, 1);
      // `>=`: without a `retryAfterMs` the wait is infinite, as `deadlineMs` may be.
      if (decided.allowed || performance.now() + wait >= deadline) return decided;
      await pause(wait);
    }
  }

  /** Charges an estimate, to be settled with the true cost. */
  async reserve(request: ReserveRequest): Promise<Reservation> {
    const [decided] = await this.#observed("reserve", async () => [
      await this.#decided(async () => {
        // The id makes it safe to repeat the call: it charges once.
        const body = await asJson({ ttlMs: RESERVE_MS, ...request }, { id: crypto.randomUUID() });
        return this.#repeated("/v1/reserve", body, decisionOf);
      }),
    ]);
    return new Reservation(this, decided as Decision);
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

  /**
   * What `onFailure` decides over a request whose check rejected. For middlewares, which must decide each request. The log
   * names each `counter` once in a while.
   */
  decideRefused(error: ProblemError | TokenError, counter: string): Decision {
    const now = performance.now();
    const loggedAt = this.#refusedAt.get(counter);
    const isDue = loggedAt === undefined ? this.#refusedAt.size < REFUSED_MAX : now - loggedAt >= LOG_PAUSE_MS;
    if (isDue) {
      this.#refusedAt.set(counter, now);
      const decides = `onFailure "${this.#onFailure}" decides`;
      this.#logger.warn(`Spillgate refuses a request (${error.message}) of ${JSON.stringify(counter)}: ${decides}`);
    }
    return this.#decideAlone(error);
  }

  #decideAlone(error: Error): Decision {
    const allowed = this.#onFailure === "allow";
    const reason = allowed ? null : "store-unavailable";
    return { ...WITHOUT_LIMIT, allowed, reason, source: "client", limits: [], error };
  }

  async #check(request: CheckRequest): Promise<Decision> {
    const json = await asJson(request);
    return this.#entered(() => this.#batches.check(json));
  }

  /** Asks by a call of its own, which lasts as long as the wait. */
  async #checkWaiting(request: CheckRequest, waitMs: number): Promise<Decision> {
    const start = performance.now();
    const wire = await checkToWire(request);
    const leftMs = () => Math.max(Math.round(waitMs - (performance.now() - start)), 0);
    const body = () => jsonOf({ ...wire, wait_ms: leftMs() });
    try {
      return await this.#entered(async () => {
        const leave = await this.#queue.enter("wait", waitMs);
        return this.#calls.sendFrom(leave, "/v1/check", body, this.#timeoutMs + leftMs(), decisionOf);
      });
    } catch (error) {
      // All calls that may carry a wait are taken: then the wait is over, and the server decides what is left.
      if (error instanceof NoPlace) return this.#check(request);
      throw error;
    }
  }

  /** Calls that change nothing when repeated have several tries within the time-out. */
  async #repeated<T>(path: string, body: string, read: (answer: unknown) => T): Promise<T> {
    let leftMs = this.#timeoutMs;
    for (let tries = TRIES; ; tries -= 1) {
      const start = this.#clock.now;
      try {
        return await this.#entered(() => this.#calls.send("call", path, () => body, leftMs, read));
      } catch (error) {
        leftMs -= this.#clock.now - start + PAUSE_MS;
        const isFinal = !(error instanceof Unavailable) || error instanceof Overloaded || this.#breaker.isOpen;
        if (isFinal || tries <= 1 || leftMs <= 0) throw error;
        await pause(PAUSE_MS);
      }
    }
  }

  async #end(operation: string, body: object): Promise<Outcome> {
    const start = performance.now();
    let failure: Error | undefined;
    try {
      return await this.#repeated(`/v1/${operation}`, jsonOf(body), outcomeOf);
    } catch (error) {
      failure = error as Error;
      if (error instanceof Unavailable) return "unavailable";
      throw error;
    } finally {
      this.#report(operation, start, [], failure);
    }
  }

  /** Makes the call, or throws at once while the breaker is open. */
  async #entered<T>(call: () => Promise<T>): Promise<T> {
    const leave = this.#breaker.enter();
    try {
      return await call();
    } finally {
      leave();
    }
  }

  async #decided(decide: () => Promise<Decision>): Promise<Decision> {
    try {
      return await decide();
    } catch (error) {
      return this.#withoutAnswer(error);
    }
  }

  #withoutAnswer(error: unknown): Decision {
    if (error instanceof Overloaded) {
      return { ...WITHOUT_LIMIT, allowed: false, reason: "overloaded", source: "outage-policy", limits: [] };
    }
    if (error instanceof NoPlace) {
      // A flood of calls is not an outage, and must not switch the limits off.
      return { ...WITHOUT_LIMIT, allowed: false, reason: "overloaded", source: "client", limits: [], error };
    }
    if (error instanceof Unavailable) return this.#decideAlone(error);
    throw error;
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
      this.#logger.warn(`the observe hook of Spillgate failed: ${thrown}`);
    }
  }
}

async function asJson(request: ReserveRequest, more: object = {}): Promise<string> {
  return jsonOf({ ...(await checkToWire(request)), ...more });
}

/** What JSON cannot carry, such as a bigint or a circle, is the application's mistake, and refused like the server's others. */
function jsonOf(body: object): string {
  try {
    return JSON.stringify(body);
  } catch (error) {
    const detail = `the request cannot be sent as JSON: ${(error as Error).message}`;
    throw new ProblemError(400, { title: "Bad Request", status: 400, detail });
  }
}

/** Names the index of the request that a problem is about. */
function throwAt(index: number): (error: unknown) => never {
  return (error) => {
    if (!(error instanceof ProblemError)) throw error;
    const field = error.problem["field"];
    throw new ProblemError(error.status, {
      ...error.problem,
      field: typeof field === "string" ? `[${index}].${field}` : `[${index}]`,
    });
  };
}

/** The same logger, whose own errors reach no caller. */
function careful(logger: Logger): Logger {
  return {
    warn(message) {
      try {
        logger.warn(message);
      } catch {
        // There is no other place to report it.
      }
    },
  };
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
  retryAfterMs: null,
  resetAfterMs: null,
  degraded: true,
  matched: false,
  unused: Object.freeze([]),
};

// The server answers an overload after `store.overload_wait`, by default 250 ms. Its answer should come first.
const TIMEOUT_MS = 300;
const RESERVE_MS = 60_000;
const TRIES = 3;
// How many counters the log names whose requests the server refuses.
const REFUSED_MAX = 64;
const PAUSE_MS = 20;
// The server refuses waits above 60 s. This bounds the time-out until then.
const WAIT_MAX_MS = 120_000;
// `setTimeout` takes a longer time as 1 ms.
const TIMER_MAX_MS = 2 ** 31 - 1;
