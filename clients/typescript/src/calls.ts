import type { Breaker } from "./breaker.js";
import { Overloaded, ProblemError, Retryable, Unavailable } from "./errors.js";
import type { Kind, Queue } from "./queue.js";
import type { Transport } from "./transport.js";

/** Sends each call once there is a place for it, and counts answers and failures of the server. */
export class Calls {
  readonly #queue: Queue;
  readonly #transport: Transport;
  readonly #breaker: Breaker;

  constructor(queue: Queue, transport: Transport, breaker: Breaker) {
    this.#queue = queue;
    this.#transport = transport;
    this.#breaker = breaker;
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
      const answer = read(await this.#transport.post(path, body(), timeoutMs));
      this.#answered();
      return answer;
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

  #failed(answers: number, error: Unavailable): void {
    const wasOpen = this.#breaker.isOpen;
    this.#breaker.failed(answers, error);
    // While the breaker is open, calls do not wait.
    if (this.#breaker.isOpen && !wasOpen) this.#queue.fail(error);
  }
}
