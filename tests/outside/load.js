// 200 clients that each call again as soon as they are answered, for ten thousand users.
import http from "k6/http";
import { check } from "k6";

export const options = {
  vus: 200,
  duration: `${__ENV.SECONDS}s`,
  thresholds: { checks: ["rate==1"] },
  summaryTrendStats: ["med", "p(95)", "p(99)"],
};

export default function () {
  const user = Math.floor(Math.random() * 10000);
  const body = `{"key":"user:${user}","limit":{"quota":"100/second"}}`;
  const answer = http.post(`http://${__ENV.HTTP}/v1/check`, body);
  check(answer, { "a decision": (answer) => answer.status === 200 || answer.status === 429 });
}

export function handleSummary({ metrics }) {
  const { "p(95)": p95, "p(99)": p99, med } = metrics.http_req_duration.values;
  const ms = (time) => time.toFixed(2);
  const rate = Math.round(metrics.http_reqs.values.rate);
  const failed = metrics.checks.values.fails;
  return { stdout: `| k6, 200 clients | ${rate} | ${ms(med)} | ${ms(p95)} | ${ms(p99)} | ${failed} |\n` };
}
