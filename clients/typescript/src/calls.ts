import type { Breaker } from "./breaker.js";
import { Overloaded, ProblemError, Retryable, Unavailable } from "./errors.js";
import type { Kind, Queue } from "./queue.js";
import type { Transport } from "./transport.js";
import type { Logger } from "./types.js";
import { UNUSED_MAX, unusedOf } from "./wire.js";

/** Sends each call once there is a place for it, counts answers and failures of the server, and logs unused names. */
export class Calls {
  readonly #queue: Queue;
  readonly #transport: Transport;
  readonly #breaker: Breaker;
  readonly #logger: Logger;
  /** The sentences about unused names that the log has, quoted. */
  readonly #unused = new Set<string>();

  constructor(queue: Queue, transport: Transport, breaker: Breaker, logger: Logger) {
    this.#queue = queue;
    this.#transport = transport;
    this.#breaker = breaker;
    this.#logger = logger;
  }

  /** Waits for a place, then posts `body()`, and returns what `read` makes of the answer. */
  async send<T>(
    kind: Kind,
    path: string,
    body: () => string,
    timeoutMs: number,
    read: (answer: unknown) => T,
  ): Promise<T> {
    const leave = await this.#queue.enter(kind);
    return this.sendFrom(leave, path, body, timeoutMs, read);
  }

  /** Sends from a place that the caller has entered, and leaves it. */
  async sendFrom<T>(
    leave: () => void,
    path: string,
    body: () => string,
    timeoutMs: number,
    read: (answer: unknown) => T,
  ): Promise<T> {
    const { answers } = this.#breaker;
    try {
      const answer = await this.#transport.post(path, body(), timeoutMs);
      const result = read(answer);
      this.#answered();
      for (const sentence of unusedOf(answer)) this.#noteUnused(quoted(sentence.slice(0, SENTENCE_MAX)));
      return result;
    } catch (error) {
      if (error instanceof ProblemError || error instanceof Retryable || error instanceof Overloaded) this.#answered();
      else if (error instanceof Unavailable) this.#failed(answers, error);
      throw error;
    } finally {
      leave();
    }
  }

  #answered(): void {
    this.#breaker.answered();
    this.#queue.answered();
  }

  /** Logs a sentence once. A unit that is misspelled limits nothing, without an error. */
  #noteUnused(sentence: string): void {
    if (this.#unused.has(sentence) || this.#unused.size >= UNUSED_MAX) return;
    this.#unused.add(sentence);
    this.#logger.warn(`Spillgate reports an unused name: ${sentence}`);
  }

  #failed(answers: number, error: Unavailable): void {
    const wasOpen = this.#breaker.isOpen;
    this.#breaker.failed(answers, error);
    // While the breaker is open, calls do not wait.
    if (this.#breaker.isOpen && !wasOpen) this.#queue.fail(error);
  }
}

/** A string of the server as the log can have it: on one line, and without characters that control a terminal. */
function quoted(text: string): string {
  // JSON escapes only those below U+0020, and lone surrogates.
  return JSON.stringify(text).replace(
    /[\p{Cc}\u2028\u2029]/gu,
    (control) => `\\u${control.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

// How much the log has of a sentence about an unused name.
const SENTENCE_MAX = 1_000;
