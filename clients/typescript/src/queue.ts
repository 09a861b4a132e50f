import type { Clock } from "./clock.js";
import { Unavailable } from "./errors.js";

interface Waiting {
  admit(): void;
  fail(error: Unavailable): void;
}

/**
 * Which calls a call waits with. Those with a wait may have only half of all places, since the server holds these. Two
 * batches may be under way, so that checks gather while the server is busy; one that takes half of the time-out no longer
 * counts, so that a stalled connection does not hold up the rest.
 */
export type Kind = "batch" | "call" | "wait";

/**
 * Gives each call a place, of which there are as many as connections.
 *
 * A call that waits here fails once the server has answered nothing for one time-out, and after ten in any case. That is
 * not counted as a failure of the server. The second is a flood of our own, which denies: `NoPlace`.
 */
export class Queue {
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  #places = PLACES;
  readonly #free: Record<Kind, number> = { batch: BATCHES, call: PLACES, wait: PLACES_WITH_WAIT };
  // A set keeps the order of insertion, and lets a call leave from the middle.
  readonly #waiting: Record<Kind, Set<Waiting>> = { batch: new Set(), call: new Set(), wait: new Set() };
  #answeredAt = 0;

  constructor(clock: Clock, timeoutMs: number) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
  }

  /** Takes a place within `boundMs`, by default ten time-outs. Resolves with what leaves it at the end of the call. */
  enter(kind: Kind, boundMs = WAITS_MAX * this.#timeoutMs): Promise<() => void> {
    return new Promise((resolve, reject) => {
      const since = this.#clock.now;
      let cancel = () => {};
      const waiting: Waiting = {
        admit: () => {
          cancel();
          resolve(this.#take(kind));
        },
        fail: (error) => {
          cancel();
          this.#waiting[kind].delete(waiting);
          reject(error);
        },
      };
      const look = () => {
        const now = this.#clock.now;
        const silentAt = Math.max(since, this.#answeredAt) + this.#timeoutMs;
        const endsAt = since + boundMs;
        if (now >= silentAt) return waiting.fail(new Unavailable("the server did not answer in time"));
        if (now >= endsAt) return waiting.fail(new NoPlace("the client had no free connection in time"));
        cancel = this.#clock.after(Math.min(silentAt, endsAt) - now, look);
      };
      this.#waiting[kind].add(waiting);
      this.#admit();
      if (this.#waiting[kind].has(waiting)) look();
    });
  }

  /** The server has answered, so it is not silent. */
  answered(): void {
    this.#answeredAt = this.#clock.now;
  }

  /** Ends all that wait. */
  fail(error: Unavailable): void {
    for (const set of Object.values(this.#waiting)) for (const waiting of set) waiting.fail(error);
  }

  /** Takes a free place of this kind, and returns what leaves it. */
  #take(kind: Kind): () => void {
    this.#places -= 1;
    this.#free[kind] -= 1;
    let counts = true;
    const countNoLonger = () => {
      if (counts) this.#free[kind] += 1;
      counts = false;
    };
    const slow = () => {
      countNoLonger();
      this.#admit();
    };
    const cancel = kind === "batch" ? this.#clock.after(this.#timeoutMs / 2, slow) : () => {};
    return () => {
      cancel();
      countNoLonger();
      this.#places += 1;
      this.#admit();
    };
  }

  /** Lets those pass for which there is a place: batches first, since they carry the most, and waits last. */
  #admit(): void {
    for (const kind of ["batch", "call", "wait"] as const) {
      for (const waiting of this.#waiting[kind]) {
        if (this.#places === 0 || this.#free[kind] === 0) break;
        this.#waiting[kind].delete(waiting);
        waiting.admit();
      }
    }
  }
}

/** A call waited too long for a place, while the server answered others. */
export class NoPlace extends Unavailable {}

const PLACES = 64;
const BATCHES = 2;
// A wait lasts up to a minute. So calls without one always find a place.
const PLACES_WITH_WAIT = PLACES / 2;
const WAITS_MAX = 10;
