// 300 checks at once, each second, for one user who may make 100 a second. At most the capacity of the bucket and what
// it refilled meanwhile is allowed, however the checks arrive.
import { SECONDS, atRate, request, send } from "./check.js";

const most = 100 + 100 * (SECONDS + 1);

export const options = atRate(1, {
  allowed: [`count>=${100 * (SECONDS - 1)}`, `count<=${most}`],
  denied: [`count>=${100 * (SECONDS - 1)}`],
});

export default function () {
  send(Array.from({ length: 300 }, () => request("burst", "100/second")));
}
