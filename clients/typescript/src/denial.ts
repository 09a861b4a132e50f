import type { Decision } from "./types.js";

/** The response to a denied request. */
export interface Denial {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** The response that the rule sets, else problem details (RFC 9457). */
export function denial(decision: Decision): Denial {
  if (decision.denial !== undefined) return { ...decision.denial, headers: fieldsOf(decision) };
  const status = statusOf(decision);
  const body = { ...problemOf(decision, status), "violated-policies": violatedPolicies(decision) };
  const headers = { "content-type": "application/problem+json", ...fieldsOf(decision) };
  return { status, headers, body: JSON.stringify(body) };
}

/** The header fields for the response: the server's, or for a denial without the server when to come back. */
export function fieldsOf(decision: Decision): Record<string, string> {
  if (decision.source === "client" && !decision.allowed) return { "retry-after": "1" };
  return decision.headers ?? {};
}

/** The limits that deny: the rule's name, or `rule/limit` where the rule has several. */
function violatedPolicies({ limits }: Decision): string[] {
  const isAlone = (rule: string | null) => limits.filter((limit) => limit.rule === rule).length === 1;
  return limits
    .filter((limit) => !limit.allowed && !limit.shadow && limit.rule !== null)
    .map((limit) => (isAlone(limit.rule) ? `${limit.rule}` : `${limit.rule}/${limit.limit}`));
}

function statusOf({ reason }: Decision): 403 | 429 | 503 {
  if (reason === "blocked") return 403;
  return reason === "limit-exceeded" || reason === "cost-exceeds-limit" ? 429 : 503;
}

function problemOf(decision: Decision, status: 403 | 429 | 503) {
  const [kind, title] =
    status === 503
      ? ["temporary-reduced-capacity", "Temporarily reduced capacity"]
      : ["quota-exceeded", "Quota exceeded"];
  return { type: `${PROBLEMS}${kind}`, title, status, detail: detailOf(decision) };
}

function detailOf({ reason, headers }: Decision): string {
  const seconds = headers?.["retry-after"];
  if (reason === "limit-exceeded" && seconds !== undefined) return `Try again in ${seconds} s.`;
  return DETAILS.get(reason ?? "") ?? "The rate limiter cannot reach its store.";
}

const DETAILS = new Map([
  ["limit-exceeded", "The limit has no room at the moment."],
  ["cost-exceeds-limit", "The cost is larger than the limit can ever hold."],
  ["blocked", "Requests like this one are blocked."],
  ["overloaded", "The rate limiter is overloaded."],
]);
const PROBLEMS = "https://iana.org/assignments/http-problem-types#";
