// One check by an inline limit, and its counts: what the scenarios of this folder share.
import http from "k6/http";
import { Counter } from "k6/metrics";
import { check } from "k6";

const allowed = new Counter("allowed");
const denied = new Counter("denied");
const bySource = {
  store: new Counter("by_store"),
  "denial-cache": new Counter("by_denial_cache"),
  fallback: new Counter("by_fallback"),
};

export const SECONDS = Number(__ENV.SECONDS || 20);

// Options of a scenario that makes `rate` iterations a second however slow the answers are. `thresholds` are its own.
export function atRate(rate, thresholds) {
  const scenario = {
    executor: "constant-arrival-rate",
    rate,
    timeUnit: "1s",
    duration: `${SECONDS}s`,
    preAllocatedVUs: 50,
    maxVUs: 500,
  };
  return {
    scenarios: { load: scenario },
    thresholds: { checks: ["rate==1"], ...thresholds },
    summaryTrendStats: ["med", "p(99)", "p(99.9)", "max"],
    batch: 400,
    batchPerHost: 400,
  };
}

export function request(user, quota) {
  const body = JSON.stringify({ key: `user:${user}`, limit: { quota } });
  return { method: "POST", url: `${__ENV.URL}/v1/check`, body };
}

export function send(requests) {
  for (const answer of http.batch(requests)) {
    const decision = answer.status === 200 ? answer.json() : {};
    check(decision, { "a decision": (decision) => typeof decision.allowed === "boolean" });
    (decision.allowed ? allowed : denied).add(1);
    if (bySource[decision.source]) bySource[decision.source].add(1);
  }
}
