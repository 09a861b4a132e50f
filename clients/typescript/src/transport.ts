import type { Clock } from "./clock.js";
import { Overloaded, ProblemError, Retryable, TokenError, Unavailable } from "./errors.js";
import { isObject } from "./wire.js";

interface Answer {
  status: number;
  text: string;
}

/** Sends calls by `fetch`, and bounds the time and the size of each answer by itself. */
export class Transport {
  readonly #url: string;
  readonly #token: string | (() => string) | undefined;
  readonly #fetch: typeof fetch;
  readonly #clock: Clock;

  constructor(
    url: string,
    token: string | (() => string) | undefined,
    fetcher: typeof fetch | undefined,
    clock: Clock,
  ) {
    this.#url = url;
    this.#token = typeof token === "string" ? sendable(token) : token;
    // The runtime's `fetch` at the time of the call, as instrumentation may replace it.
    this.#fetch = fetcher ?? ((...request) => fetch(...request));
    this.#clock = clock;
  }

  /** Returns the JSON of an answer with status 200. Rejects with a `ProblemError`, a `TokenError` or an `Unavailable`. */
  async post(path: string, body: string, timeoutMs: number): Promise<unknown> {
    const headers: Record<string, string> = { "content-type": "application/json" };
    const token = this.#bearer();
    if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
    const { status, text } = await this.#exchange(
      path,
      { method: "POST", headers, body, redirect: "manual" },
      timeoutMs,
    );
    const answer = parsed(text);
    if (status === 200 && answer !== undefined) return answer;
    throw failureOf(status, answer);
  }

  #bearer(): string | undefined {
    if (typeof this.#token !== "function") return this.#token;
    let token: unknown;
    try {
      token = this.#token();
    } catch (error) {
      throw new TokenError(`the token function failed: ${messageOf(error)}`, { cause: error });
    }
    return sendable(token);
  }

  /** Ends in time whatever `fetch` does: on Node 20 and 22 a signal does not always end a body that stalls. */
  #exchange(path: string, request: RequestInit, timeoutMs: number): Promise<Answer> {
    const abort = new AbortController();
    return new Promise((resolve, reject) => {
      let isOver = false;
      let body: ReadableStreamDefaultReader<Uint8Array> | undefined;
      const closeConnection = () => {
        abort.abort();
        body?.cancel().catch(() => {});
      };
      const fail = (error: Unavailable) => {
        isOver = true;
        cancel();
        closeConnection();
        reject(error);
      };
      const cancel = this.#clock.after(timeoutMs, () => fail(new Unavailable("the server did not answer in time")));
      const run = async () => {
        const response = await this.#fetch(this.#url + path, { ...request, signal: abort.signal });
        const { status } = response;
        body = response.body?.getReader();
        const isComplete = !isOver && isRead(status);
        const text = isComplete ? await readAll(body) : "";
        if (!isComplete) closeConnection();
        cancel();
        resolve({ status, text });
      };
      run().catch((error) => {
        if (!isOver) fail(new Unavailable(messageOf(error), { cause: error }));
      });
    });
  }
}

/** The error for an answer, or for the `error` of an item in a batch. `problem` may be anything. */
export function failureOf(status: number, problem: unknown): ProblemError | Unavailable {
  // A web server or a proxy in front of Spillgate answers with pages, so only problem details are an answer.
  if (isObject(problem) && !isNestedDeeply(problem)) {
    const isProblem = typeof problem["title"] === "string" && status >= 400 && status < 500 && status !== 408;
    if (isProblem) return new ProblemError(status, problem);
    if (status === 503 && problem["reason"] === "overloaded") return new Overloaded("the server is overloaded");
    if (status === 503 && problem["retryable"] === true) return new Retryable("the server could not do the whole call");
  }
  return new Unavailable(`the answer (status ${status}) is not one of Spillgate: does the URL lead there?`);
}

function isRead(status: number): boolean {
  return status === 200 || status === 503 || (status >= 400 && status < 500);
}

async function readAll(body: ReadableStreamDefaultReader<Uint8Array> | undefined): Promise<string> {
  // Not the text of bad bytes, but an error.
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let text = "";
  let bytes = 0;
  for (;;) {
    const { done, value } = (await body?.read()) ?? { done: true, value: undefined };
    if (done || value === undefined) return text + decoder.decode();
    bytes += value.length;
    if (bytes > ANSWER_MAX) throw new Unavailable("the answer is larger than 16 MiB");
    text += decoder.decode(value, { stream: true });
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Whether an application could not even write this value to its log: `JSON.stringify` recurses. */
function isNestedDeeply(value: unknown, depth = 0): boolean {
  if (typeof value !== "object" || value === null) return false;
  return depth === DEPTH_MAX || Object.values(value).some((inner) => isNestedDeeply(inner, depth + 1));
}

/** The token as it is sent. Files end with a newline, so white space around it is cut off. */
function sendable(token: unknown): string {
  if (typeof token !== "string") throw new TokenError(`the token must be a string, got ${typeof token}`);
  const trimmed = token.trim();
  // The message never has the token itself, since it is a secret.
  if (!/^[!-~]+$/.test(trimmed))
    throw new TokenError("the token must have visible ASCII characters only, and at least one");
  return trimmed;
}

function messageOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  return cause instanceof Error ? cause.message : String(cause);
}

const ANSWER_MAX = 16 * 1024 * 1024;
const DEPTH_MAX = 16;
