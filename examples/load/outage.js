// 500 checks a second for one user who may make 100, while `run` kills Redis and starts it again, empty. Each check is
// answered. The server decides alone meanwhile, and may allow a full bucket when it begins to, and another one when
// Redis is back without its data.
import { SECONDS, atRate, request, send } from "./check.js";

const most = 3 * 100 + 100 * (SECONDS + 1);

export const options = atRate(500, {
  allowed: [`count>=${50 * SECONDS}`, `count<=${most}`],
  by_store: ["count>0"],
  by_fallback: ["count>0"],
});

export default function () {
  send([request("outage", "100/second")]);
}
