// Checks the RESP API with ioredis. Arguments: the port of an open API, the port of one with a password, the
// password. Fails if any answer differs.

import assert from "node:assert/strict";
import Redis from "ioredis";

const [openPort, guardedPort, password] = process.argv.slice(2);

const client = new Redis(Number(openPort), { connectionName: "story" });
assert.equal(await client.ping(), "PONG");
const ask = ["CL.THROTTLE", "io", "2", "1", "60"];
assert.deepEqual(await client.call(...ask), [0, 3, 2, -1, 60]);
const answers = await client.pipeline([
  ["call", ...ask],
  ["call", ...ask],
  ["call", ...ask],
]).exec();
assert.deepEqual(answers.map(([error, answer]) => error ?? answer), [
  [0, 3, 1, -1, 120],
  [0, 3, 0, -1, 180],
  [1, 3, 0, 60, 180],
]);
assert.deepEqual(await client.call("SG.CHECK", "web", "1", "ip", "203.0.113.7"), [1, -1, 0, -1, null, null]);
await assert.rejects(client.call("CL.THROTTLE", "io", "2", "1", "0"), /period: '0'/);
await client.quit();

const guarded = new Redis(Number(guardedPort), { password });
assert.deepEqual(await guarded.call("CL.THROTTLE", "io", "0", "1", "60"), [0, 1, 0, -1, 60]);
await guarded.quit();
