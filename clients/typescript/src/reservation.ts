import type { Spillgate } from "./client.js";
import { ProblemError } from "./errors.js";
import type { Cost, Decision, Outcome } from "./types.js";

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
