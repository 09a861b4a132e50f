import type { Clock } from "./clock.js";
import { Unavailable } from "./errors.js";

interface Waiting {
  admit(): void;
  fail(error: Unavailable): void;
}

/** Which calls a call waits with: those with a wait may have only half of all places. */
export type Kind = "call" | "wait";

/**
 * Gives each call a place, of which there are as many as connections.
 *
 * A call that waits here fails once the server has answered nothing for one time-out, and after ten in any case. That is
 * not counted as a failure of the server.
 */
export class Queue {
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  readonly #free: Record<Kind, number> = { call: PLACES, wait: PLACES_WITH_WAIT };
  // A set keeps the order of insertion, and lets a call leave from the middle.
  readonly #waiting: Record<Kind, Set<Waiting>> = { call: new Set(), wait: new Set() };
  #answeredAt = 0;

  constructor(clock: Clock, timeoutMs: number) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
  }

  /** Takes a place within `boundMs`, by default ten time-outs. The caller leaves it at the end of the call. */
  enter(kind: Kind = "call", boundMs = WAITS_MAX * this.#timeoutMs): Promise<void> {
    return new Promise((resolve, reject) => {
      const since = this.#clock.now;
      let cancel = () => {};
      const waiting: Waiting = {
        admit: () => {
          cancel();
          resolve();
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

  leave(kind: Kind = "call"): void {
    if (kind === "wait") this.#free.wait += 1;
    this.#free.call += 1;
    this.#admit();
  }

  /** The server has answered, so it is not silent. */
  answered(): void {
    this.#answeredAt = this.#clock.now;
  }

  /** Ends all that wait. */
  fail(error: Unavailable): void {
    for (const set of Object.values(this.#waiting)) for (const waiting of set) waiting.fail(error);
  }

  /** Lets those pass for which there is a place: first the others, since a wait can wait. */
  #admit(): void {
    while (this.#free.call > 0) {
      const kind = this.#waiting.call.size > 0 ? "call" : "wait";
      const [first] = this.#waiting[kind];
      if (first === undefined || (kind === "wait" && this.#free.wait === 0)) return;
      this.#waiting[kind].delete(first);
      if (kind === "wait") this.#free.wait -= 1;
      this.#free.call -= 1;
      first.admit();
    }
  }
}

/** A call waited too long for a place, while the server answered others. */
export class NoPlace extends Unavailable {}

const PLACES = 64;
// A wait lasts up to a minute. So calls without one always find a place.
const PLACES_WITH_WAIT = PLACES / 2;
const WAITS_MAX = 10;
