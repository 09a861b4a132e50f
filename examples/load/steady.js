// 1,000 checks a second, evenly spaced, for 1,000 users far below their limits: every check is allowed.
import { SECONDS, atRate, request, send } from "./check.js";

export const options = atRate(1000, { allowed: [`count>=${SECONDS * 900}`], denied: ["count==0"] });

export default function () {
  send([request(Math.floor(Math.random() * 1000), "100/second")]);
}
