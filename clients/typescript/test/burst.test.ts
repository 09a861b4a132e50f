// Bursts on the real frameworks, whose handlers block the event loop: the limit is exact, and the server decides each check.
import assert from "node:assert/strict";
import type { ChildProcess } from "node:child_process";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { setImmediate as tick } from "node:timers/promises";
import { Worker } from "node:worker_threads";

import { Spillgate } from "spillgate";

import { burst, startApp } from "./burst.js";
import { pause, Server } from "./server.js";

const quiet = { warn() {} };
const LIMIT = 150;
const POLICY = `[[rule]]\nname = "api"\nkey = ["ip"]\nlimits = ["${LIMIT}/day"]\n`;

async function running(context: TestContext, framework: string, milliseconds: number) {
  const server = await Server.start(POLICY, { token: null });
  let app: ChildProcess | undefined;
  context.after(async () => {
    app?.kill();
    await server.close();
  });
  const started = await startApp(framework, server.url, milliseconds);
  app = started[0];
  return { server, address: started[1] };
}

for (const framework of ["express", "fastify", "hono"]) {
  for (const milliseconds of [0, 1, 4]) {
    test(`${framework}: a burst is limited exactly although each handler takes ${milliseconds} ms`, async (context) => {
      const { address } = await running(context, framework, milliseconds);
      const { admitted, denied, withoutServer, errors } = await burst(address, 300);
      assert.deepEqual(
        { admitted, denied, withoutServer, errors },
        { admitted: LIMIT, denied: 150, withoutServer: 0, errors: {} },
      );
    });
  }

  test(`${framework}: every tenth request that is malformed or too long changes nothing for the others`, async (context) => {
    const { address } = await running(context, framework, 0);
    const { admitted, denied, odd, withoutServer } = await burst(address, 1_000, 10);
    // Half of the odd ones are too long, and limited as the others are. The server refuses the rest: `onFailure` decides.
    assert.deepEqual(
      { admitted, denied, odd, withoutServer },
      { admitted: LIMIT, denied: 800, odd: { 200: 50 }, withoutServer: 0 },
    );
  });

  test(`${framework}: without a server a burst is admitted, and limited exactly once the server is back`, async (context) => {
    const { server, address } = await running(context, framework, 1);
    await server.hang();
    assert.equal((await burst(address, 300)).admitted, 300);
    server.goOn();
    // The next call after this tries the server.
    await pause(150);
    await burst(address, 1);
    const before = (await burst(address, 1)).withoutServer;
    const { denied, withoutServer } = await burst(address, 300);
    assert.equal(withoutServer, before, "each check has an answer");
    assert.ok(denied >= 150, `${denied}`);
  });
}

/** A server in a thread of its own, so that it answers while the test blocks its own loop. */
async function serving(context: TestContext) {
  const program = `
    const { parentPort, workerData } = require("node:worker_threads");
    const [DELAY, ANSWERED] = [0, 1];
    const server = require("node:http").createServer((request, response) => {
      let body = "";
      request.on("data", (bytes) => (body += bytes));
      const answer = () => {
        const results = JSON.parse(body).map(() => ({ allowed: true, source: "store" }));
        response.end(JSON.stringify({ results }), () => Atomics.add(workerData, ANSWERED, 1));
      };
      request.on("end", () => setTimeout(answer, Atomics.load(workerData, DELAY)));
    });
    server.listen(0, "127.0.0.1", () => parentPort.postMessage(server.address().port));`;
  const shared = new Int32Array(new SharedArrayBuffer(8));
  const worker = new Worker(program, { eval: true, workerData: shared });
  context.after(() => worker.terminate());
  const port = await new Promise((resolve) => worker.once("message", resolve));
  const url = `http://127.0.0.1:${port}`;
  // Opens a connection, which all clients of a process share.
  await new Spillgate({ url, timeoutMs: 20_000 }).check({});
  return {
    url,
    setDelay: (ms: number) => Atomics.store(shared, 0, ms),
    answered: () => Atomics.load(shared, 1),
  };
}

test("an answer that is in the socket is read before the time-out decides", async (context) => {
  const server = await serving(context);
  server.setDelay(20);
  for (let tries = 0; tries < 100; tries += 1) {
    const answered = server.answered();
    const start = performance.now();
    const checked = new Spillgate({ url: server.url, logger: quiet, timeoutMs: 15 }).check({});
    for (let turn = 0; turn < 3; turn += 1) await tick();
    // On a busy machine the time may have passed while the loop could read; then this try shows nothing.
    const isInTime = performance.now() - start < 10;
    const end = performance.now() + 2_000;
    while (server.answered() === answered && performance.now() < end);
    block(50);
    const { source } = await checked;
    if (!isInTime || server.answered() === answered) continue;
    assert.equal(source, "store");
    return;
  }
  assert.fail("the machine is too busy for this test");
});

test("time in which the loop is blocked is not the server's", async (context) => {
  const server = await serving(context);
  server.setDelay(600);
  let isDone = false as boolean;
  const checked = new Spillgate({ url: server.url, timeoutMs: 300 }).check({}).finally(() => {
    isDone = true;
  });
  // Between two blocks the loop reads for a moment.
  while (!isDone) {
    block(250);
    await pause(0);
  }
  assert.equal((await checked).source, "store");
});

test("a slow server decides as long as it answers within the time-out", async (context) => {
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (bytes) => (body += bytes));
    request.on("end", () => {
      const results = (JSON.parse(body) as object[]).map(() => ({ allowed: false }));
      setTimeout(() => response.end(JSON.stringify({ results })), 200);
    });
  });
  context.after(() => server.close());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = new Spillgate({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, timeoutMs: 5_000 });
  const decided = await Promise.all(Array.from({ length: 5_000 }, () => client.check({})));
  assert.ok(decided.every(({ allowed }) => !allowed));
});

function block(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}
