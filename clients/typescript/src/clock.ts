interface Alarm {
  at: number;
  ring: () => void;
}

/**
 * Counts the time in which this process was able to read from its sockets.
 *
 * Time is counted in slices by one timer. A slice counts its own length however late the timer fires, because an event
 * loop that was blocked for a second could not have read an answer either. The clock stands still without alarms.
 */
export class Clock {
  readonly #alarms = new Set<Alarm>();
  #now = 0;
  #sliceBegan = 0;
  #isRunning = false;

  /** Milliseconds, in steps of a slice. */
  get now(): number {
    return this.#now;
  }

  /** Calls `ring` once this time has passed, and returns what cancels it. */
  after(ms: number, ring: () => void): () => void {
    if (!this.#isRunning) this.#beginSlice();
    // The part of the slice that has passed already is not this alarm's time.
    const passed = Math.min(performance.now() - this.#sliceBegan, SLICE_MS);
    const alarm = { at: this.#now + passed + ms, ring };
    this.#alarms.add(alarm);
    return () => this.#alarms.delete(alarm);
  }

  #beginSlice(): void {
    this.#isRunning = true;
    this.#sliceBegan = performance.now();
    setTimeout(() => this.#endSlice(), SLICE_MS);
  }

  #endSlice(): void {
    this.#now += SLICE_MS;
    this.#isRunning = false;
    if (this.#alarms.size === 0) return;
    const now = this.#now;
    const due = [...this.#alarms].filter(({ at }) => at <= now);
    // Node runs timers before it reads from its sockets, and immediates after that. So an answer that is in the socket
    // is read before the alarm rings, and cancels it.
    if (due.length > 0) {
      afterReading(() => {
        for (const alarm of due) if (this.#alarms.delete(alarm)) alarm.ring();
      });
    }
    this.#beginSlice();
  }
}

/** Calls `run` after the event loop has read what is in its sockets: at the end of the tick. */
export const afterReading: (run: () => void) => void =
  (globalThis as { setImmediate?: (run: () => void) => void }).setImmediate ?? ((run) => void setTimeout(run, 0));

const SLICE_MS = 25;
