// Sends a burst of concurrent requests to an application in another process.
// Usage: node burst.js FRAMEWORK REQUESTS MILLISECONDS [ODD]
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { Agent, get } from "node:http";
import { fileURLToPath } from "node:url";

export interface Burst {
  admitted: number;
  denied: number;
  /** Requests that the server refuses, or that are longer than it takes. */
  odd: Record<number, number>;
  withoutServer: number;
  errors: Record<string, number>;
}

/** Starts the application, and returns it with its address. */
export async function startApp(framework: string, url: string, milliseconds: number): Promise<[ChildProcess, string]> {
  const program = fileURLToPath(new URL("burst-app.js", import.meta.url));
  const stdio = ["ignore", "pipe", "inherit"] as const;
  const app = spawn(process.execPath, [program, framework, url, `${milliseconds}`], { stdio: [...stdio] });
  const [port] = await once(app.stdout as NodeJS.EventEmitter, "data");
  return [app, `http://127.0.0.1:${Number(port)}`];
}

export async function burst(address: string, requests: number, oddEvery = 0): Promise<Burst> {
  const agent = new Agent({ maxSockets: Number.POSITIVE_INFINITY });
  const statusOf = (path: string) =>
    new Promise<number>((resolve, reject) => {
      get(`${address}${path}`, { agent }, (response) => {
        response.resume();
        response.once("end", () => resolve(response.statusCode ?? 0));
      }).once("error", reject);
    });
  const statuses = await Promise.all(
    Array.from({ length: requests }, async (_, index) => {
      const isOdd = oddEvery > 0 && index % oddEvery === 0;
      const status = await statusOf(isOdd ? `/?odd=${1 + index / oddEvery}` : "/");
      return { status, isRefused: isOdd && (1 + index / oddEvery) % 2 === 0 };
    }),
  );
  agent.destroy();
  const counts = (await (await fetch(`${address}/counts`)).json()) as Pick<Burst, "withoutServer" | "errors">;
  const wellFormed = statuses.filter(({ isRefused }) => !isRefused);
  const odd: Record<number, number> = {};
  for (const { status, isRefused } of statuses) if (isRefused) odd[status] = (odd[status] ?? 0) + 1;
  return {
    admitted: wellFormed.filter(({ status }) => status === 200).length,
    denied: wellFormed.filter(({ status }) => status === 429).length,
    odd,
    ...counts,
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { Server } = await import("./server.js");
  const [framework = "", requests, milliseconds, odd] = process.argv.slice(2);
  const policy = '[[rule]]\nname = "api"\nkey = ["ip"]\nlimits = ["150/hour"]\n';
  const server = await Server.start(policy, { token: null });
  const [app, address] = await startApp(framework, server.url, Number(milliseconds));
  const start = performance.now();
  console.log(
    framework,
    requests,
    milliseconds,
    JSON.stringify(await burst(address, Number(requests), Number(odd ?? 0))),
    `${((performance.now() - start) / 1e3).toFixed(1)} s`,
  );
  app.kill();
  await server.close();
}
