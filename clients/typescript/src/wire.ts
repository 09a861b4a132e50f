/** The JSON of the HTTP API: the only place that knows its names of fields. */
import { Unavailable } from "./errors.js";
import type { CheckRequest, Decision, Limit, Outcome, Reason, ReserveRequest, Source } from "./types.js";
import { acceptable, acceptableValues } from "./values.js";

/** Fields that it does not know stay, so that the server refuses a misspelled one. */
export async function checkToWire({ waitMs, ttlMs, limit, ...rest }: ReserveRequest): Promise<Record<string, unknown>> {
  const wire: Record<string, unknown> = { ...rest };
  if (isObject(rest.attributes)) wire["attributes"] = await acceptableValues(rest.attributes);
  if (typeof rest.key === "string") wire["key"] = await acceptable(rest.key);
  if (isObject(limit)) {
    const { timeZone, maxHold, ...others } = limit as NonNullable<CheckRequest["limit"]>;
    wire["limit"] = { ...others, time_zone: timeZone, max_hold: maxHold };
  } else if (limit !== undefined) {
    wire["limit"] = limit;
  }
  if (waitMs !== undefined) wire["wait_ms"] = waitMs;
  if (ttlMs !== undefined) wire["ttl_ms"] = ttlMs;
  return wire;
}

/** Throws `Unavailable` if the answer is no decision. Fields that it does not know are left out. */
export function decisionOf(answer: unknown, unused = unusedOf(answer)): Decision {
  if (!isObject(answer)) throw notSpillgate();
  const field = new Fields(answer);
  const receipt = field.optional("receipt", isString);
  const headers = field.optional("headers", isStrings);
  const denial = denialOf(answer["denial"]);
  return {
    ...numbersOf(field),
    degraded: field.optional("degraded", isBoolean) ?? false,
    matched: field.optional("matched", isBoolean) ?? false,
    limits: (field.optional("limits", Array.isArray) ?? []).map(limitOf),
    unused,
    ...(receipt !== null && { receipt }),
    ...(headers !== null && { headers: sendableFields(headers) }),
    ...(denial !== undefined && { denial }),
  };
}

function limitOf(answer: unknown): Limit {
  if (!isObject(answer)) throw notSpillgate();
  const field = new Fields(answer);
  const shadow = field.optional("shadow", isBoolean) ?? false;
  return { ...numbersOf(field), unit: field.optional("unit", isString), shadow };
}

/** What a decision and each of its limits have. */
function numbersOf(field: Fields) {
  return {
    allowed: field.boolean("allowed"),
    reason: field.optional("reason", isString) as Reason | null,
    rule: field.optional("rule", isString),
    limit: field.optional("limit", isString),
    capacity: field.optional("capacity", isNumber),
    remaining: field.optional("remaining", isNumber),
    retryAfterMs: field.optional("retry_after_ms", isNumber),
    resetAfterMs: field.optional("reset_after_ms", isNumber),
    source: field.optional("source", isString) as Source | null,
  };
}

/** Returns the results of a batch, each as the server sent it. */
export function resultsOf(answer: unknown, length: number): unknown[] {
  const results = isObject(answer) ? answer["results"] : undefined;
  if (!Array.isArray(results) || results.length !== length) throw notSpillgate();
  return results;
}

/** Returns the sentences about unused names. They only inform, so with a wrong type, or too many, they count as absent. */
export function unusedOf(answer: unknown): readonly string[] {
  const unused = isObject(answer) ? answer["unused"] : undefined;
  const isKnown = Array.isArray(unused) && unused.length <= UNUSED_MAX && unused.every(isString);
  // Frozen, because the checks of a batch share it.
  return Object.freeze(isKnown ? unused : []);
}

export function outcomeOf(answer: unknown): Outcome {
  const result = isObject(answer) ? answer["result"] : undefined;
  if (typeof result !== "string") throw notSpillgate();
  return result as Outcome;
}

export function notSpillgate(): Unavailable {
  return new Unavailable("the answer is not one of Spillgate: does the URL lead there?");
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Reads fields of a type. A field of another type shows that the answer is not one of Spillgate. */
class Fields {
  readonly #object: Record<string, unknown>;

  constructor(object: Record<string, unknown>) {
    this.#object = object;
  }

  optional<T>(name: string, is: (value: unknown) => value is T): T | null {
    const value = this.#object[name] ?? null;
    if (value !== null && !is(value)) throw notSpillgate();
    return value;
  }

  boolean(name: string): boolean {
    const value = this.#object[name];
    if (typeof value !== "boolean") throw notSpillgate();
    return value;
  }
}

const isString = (value: unknown): value is string => typeof value === "string";
const isNumber = (value: unknown): value is number => typeof value === "number" && value >= 0;
const isBoolean = (value: unknown): value is boolean => typeof value === "boolean";
const isStrings = (value: unknown): value is Record<string, string> =>
  isObject(value) && Object.values(value).every(isString);

/** A response that no server could send counts as absent. */
function denialOf(denial: unknown): { status: number; body: string } | undefined {
  if (!isObject(denial)) return undefined;
  const { status, body } = denial;
  if (!Number.isInteger(status) || (status as number) < 200 || (status as number) > 599) return undefined;
  return typeof body === "string" ? { status: status as number, body } : undefined;
}

/** Leaves out fields that HTTP does not allow, and those that belong to the connection of the application itself. */
function sendableFields(headers: Record<string, string>): Record<string, string> {
  const isSendable = ([name, value]: [string, string]) =>
    /^[!#$%&'*+.^_`|~\w-]+$/.test(name) && /^[\t\x20-\x7e\x80-\xff]*$/.test(value) && !OF_CONNECTION.has(name);
  const named = Object.entries(headers).map(([name, value]): [string, string] => [name.toLowerCase(), value]);
  return Object.fromEntries(named.filter(isSendable));
}

/** How many sentences about unused names an answer may have. The server sends 16 at most. */
export const UNUSED_MAX = 64;

const OF_CONNECTION = new Set([
  "connection",
  "content-length",
  "keep-alive",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);
