// HTTP and gRPC under load: every call is answered, and no more calls pass than the limit allows.
import grpc from "k6/net/grpc";
import http from "k6/http";
import { Counter } from "k6/metrics";
import { check } from "k6";

const LIMIT = 50;
const CALLS = 2000;
const scenario = (exec) => ({ executor: "shared-iterations", exec, vus: 20, iterations: CALLS, maxDuration: "120s" });
// k6 fails if a count differs.
const exactly = (count) => [`count==${count}`];

const passedHttp = new Counter("passed_http");
const passedGrpc = new Counter("passed_grpc");

export const options = {
  scenarios: { http: scenario("overHttp"), grpc: scenario("overGrpc") },
  thresholds: { checks: ["rate==1"], passed_http: exactly(LIMIT), passed_grpc: exactly(LIMIT) },
  summaryTrendStats: ["med", "p(99)", "max"],
};

export function overHttp() {
  const body = JSON.stringify({ domain: "web", attributes: { user: "http" } });
  const answer = http.post(`http://${__ENV.HTTP}/v1/check`, body);
  const decision = answer.status === 200 ? answer.json() : {};
  check(decision, { "HTTP answers with a decision": (decision) => typeof decision.allowed === "boolean" });
  if (decision.allowed) passedHttp.add(1);
}

const client = new grpc.Client();
let connected = false;

export function overGrpc() {
  if (!connected) {
    client.connect(__ENV.GRPC, { plaintext: true, reflect: true });
    connected = true;
  }
  const request = { domain: "web", descriptors: [{ entries: [{ key: "user", value: "grpc" }] }] };
  const answer = client.invoke("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", request);
  const code = answer.message && answer.message.overallCode;
  check(answer, { "gRPC answers with a code": (answer) => answer.status === grpc.StatusOK && ["OK", "OVER_LIMIT"].includes(code) });
  if (code === "OK") passedGrpc.add(1);
}
