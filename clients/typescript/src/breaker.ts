import { Unavailable } from "./errors.js";
import type { Logger } from "./types.js";

/** Asks the server no more after three failures in a row, until a call that tries it again has an answer. */
export class Breaker {
  readonly #logger: Logger;
  readonly #onFailure: string;
  #failures = 0;
  #triedAt = 0;
  #isTrying = false;
  #loggedAt = Number.NEGATIVE_INFINITY;
  /** Whether the log shows that the server is down, so that its return is logged, too. */
  #isLogged = false;
  /** How many answers have arrived: a failure counts only if this has not changed since its call was sent. */
  answers = 0;

  constructor(logger: Logger, onFailure: string) {
    this.#logger = logger;
    this.#onFailure = onFailure;
  }

  get isOpen(): boolean {
    return this.#failures >= OPENS_AFTER;
  }

  /** Lets a call pass, and returns what the caller calls at its end. Throws while the breaker is open, except for one call at a time. */
  enter(): () => void {
    if (!this.isOpen) return doNothing;
    const now = performance.now();
    if (this.#isTrying || now - this.#triedAt < RETRY_MS) {
      throw new Unavailable("the server did not answer the last calls; one call at a time tries it again");
    }
    this.#triedAt = now;
    this.#isTrying = true;
    return () => {
      this.#isTrying = false;
    };
  }

  answered(): void {
    // A warning as well, because many loggers do not show less than that.
    if (this.#isLogged) this.#logger.warn("Spillgate answers again");
    this.#isLogged = false;
    this.#failures = 0;
    this.answers += 1;
  }

  /** Counts the failure of a call that was sent when there were so many `answers`. */
  failed(answers: number, error: Error): void {
    if (answers !== this.answers) return;
    this.#failures += 1;
    const now = performance.now();
    if (this.#failures === OPENS_AFTER) this.#triedAt = now;
    // A server that answers every second call must not fill the log. So an outage that begins within the pause is logged
    // by its first failure after the pause.
    if (this.#isLogged || now - this.#loggedAt < LOG_PAUSE_MS) return;
    this.#loggedAt = now;
    this.#isLogged = true;
    this.#logger.warn(`Spillgate does not answer (${error.message}): onFailure "${this.#onFailure}" decides`);
  }
}

const doNothing = () => {};
const OPENS_AFTER = 3;
const RETRY_MS = 100;
export const LOG_PAUSE_MS = 10_000;
