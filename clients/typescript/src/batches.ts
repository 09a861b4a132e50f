import type { Calls } from "./calls.js";
import { afterReading } from "./clock.js";
import { ProblemError, Unavailable } from "./errors.js";
import { failureOf } from "./transport.js";
import type { Decision } from "./types.js";
import { decisionOf, isObject, notSpillgate, resultsOf, unusedOf } from "./wire.js";

/** Sends checks in batches: those of one tick leave together at its end, and those that find no place gather. */
export class Batches {
  readonly #calls: Calls;
  readonly #timeoutMs: number;
  /** Takes further checks until it is full or sent. */
  #open: Batch | undefined;

  constructor(calls: Calls, timeoutMs: number) {
    this.#calls = calls;
    this.#timeoutMs = timeoutMs;
  }

  /** Decides one check, given as JSON. */
  check(json: string): Promise<Decision> {
    const bytes = bytesOf(json);
    if (bytes > BYTES_MAX) {
      const detail = `the check has ${bytes} bytes, at most ${BYTES_MAX} fit in a batch`;
      return Promise.reject(new ProblemError(413, { title: "Payload Too Large", status: 413, detail }));
    }
    return new Promise((resolve, reject) => this.#batchFor(bytes).items.push({ json, resolve, reject }));
  }

  /** Decides all checks in batches of their own, one after the other. An item that has no decision has an error. */
  async checkAll(checks: readonly string[]): Promise<(Decision | Error)[]> {
    const results: (Decision | Error)[] = [];
    for (const batch of batchesOf(checks)) {
      try {
        results.push(...(await this.#send(() => batch)));
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error;
        results.push(...batch.map(() => error));
      }
    }
    return results;
  }

  #batchFor(bytes: number): Batch {
    // A comma or a bracket before each item.
    const size = bytes + 1;
    if (this.#open !== undefined && this.#open.items.length < CHECKS_MAX && this.#open.bytes + size <= BYTES_MAX) {
      this.#open.bytes += size;
      return this.#open;
    }
    const batch: Batch = { items: [], bytes: size + 1 };
    this.#open = batch;
    afterReading(() => this.#leave(batch));
    return batch;
  }

  async #leave(batch: Batch): Promise<void> {
    const close = () => {
      if (this.#open === batch) this.#open = undefined;
      return batch.items.map(({ json }) => json);
    };
    try {
      const results = await this.#send(close);
      batch.items.forEach(({ resolve, reject }, index) => {
        const result = results[index] as Decision | Error;
        if (result instanceof Error) reject(result);
        else resolve(result);
      });
    } catch (error) {
      close();
      for (const { reject } of batch.items) reject(error);
    }
  }

  #send(close: () => readonly string[]): Promise<(Decision | Error)[]> {
    let checks: readonly string[] = [];
    const body = () => {
      checks = close();
      return `[${checks.join(",")}]`;
    };
    const read = (answer: unknown) => {
      const unused = unusedOf(answer);
      return resultsOf(answer, checks.length).map((item) => resultOf(item, unused));
    };
    return this.#calls.send("batch", "/v1/check/batch", body, this.#timeoutMs, read);
  }
}

interface Batch {
  items: { json: string; resolve(decision: Decision): void; reject(error: unknown): void }[];
  bytes: number;
}

/** Throws if the item is neither a decision nor a problem: then the answer is not one of Spillgate. */
function resultOf(item: unknown, unused: readonly string[]): Decision | Error {
  const problem = isObject(item) ? item["error"] : undefined;
  if (problem === undefined) return decisionOf(item, unused);
  if (!isObject(problem) || typeof problem["title"] !== "string") throw notSpillgate();
  return failureOf(Number(problem["status"]), problem);
}

function batchesOf(checks: readonly string[]): string[][] {
  const batches: string[][] = [];
  let room = 0;
  for (const check of checks) {
    const size = bytesOf(check) + 1;
    const last = batches.at(-1);
    if (last === undefined || last.length === CHECKS_MAX || size > room) {
      batches.push([check]);
      room = BYTES_MAX - 1 - size;
    } else {
      last.push(check);
      room -= size;
    }
  }
  return batches;
}

function bytesOf(text: string): number {
  // Almost all checks are ASCII, which needs no copy.
  return /^[\0-\x7f]*$/.test(text) ? text.length : new TextEncoder().encode(text).length;
}

// The server reads more. But a batch is answered as a whole, so one that is smaller is answered sooner on a busy machine.
const CHECKS_MAX = 250;
const BYTES_MAX = 512 * 1024;
