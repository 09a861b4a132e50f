// Starts the real server, of which the environment variable SPILLGATE_BIN has the path.
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const TOKEN = "0123456789abcdef0123456789abcdef";

export const conformance = (file: string) =>
  readFileSync(join(process.env["SPILLGATE_CONFORMANCE"] ?? "../conformance", file), "utf8");

export const hasRedis = spawnSync("redis-server", ["--version"]).status === 0;

/** A server on a free port, on memory or on a Redis of its own. */
export class Server {
  readonly url: string;
  readonly #folder: string;
  readonly #processes: ChildProcess[];

  private constructor(url: string, folder: string, processes: ChildProcess[]) {
    this.url = url;
    this.#folder = folder;
    this.#processes = processes;
  }

  static async start(policy: string, { redis = false, token = TOKEN as string | null } = {}): Promise<Server> {
    const folder = mkdtempSync(join(tmpdir(), "spillgate-"));
    const file = (name: string, text: string) => {
      writeFileSync(join(folder, name), text);
      return join(folder, name);
    };
    const flags = ["serve", "--config", file("limits.toml", policy), "--http", "127.0.0.1:0"];
    // The server takes SPILLGATE_ variables for settings.
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("SPILLGATE_")));
    for (const listener of ["GRPC__ADDRESS", "RESP__ADDRESS", "ADMIN"]) env[`SPILLGATE_SERVER__${listener}`] = "off";
    // A machine that is busy with something else is no outage of the store.
    env["SPILLGATE_STORE__TIMEOUT"] = "10s";
    if (token !== null) env["SPILLGATE_SERVER__DATA_TOKEN_FILE"] = file("token", token);
    const processes: ChildProcess[] = [];
    if (redis) {
      const socket = join(folder, "redis.sock");
      const settings = ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder];
      processes.push(spawn("redis-server", settings, { stdio: "ignore" }));
      await until(
        () => existsSync(socket),
        () => "redis-server does not start",
      );
      flags.push("--redis", `unix://${socket}`);
    }
    const log = file("log", "");
    const program = process.env["SPILLGATE_BIN"];
    if (program === undefined) throw new Error("SPILLGATE_BIN must have the path of the program spillgate");
    const child = spawn(program, flags, { stdio: ["ignore", "ignore", openSync(log, "w")], env });
    processes.push(child);
    const port = () => child.exitCode !== null || /HTTP on http:[^,]*:(\d+)/.exec(readFileSync(log, "utf8"))?.[1];
    const problem = () => `the server does not start: ${readFileSync(log, "utf8")}`;
    await until(port, problem);
    if (port() === true) {
      for (const process of processes) await end(process);
      throw new Error(problem());
    }
    return new Server(`http://127.0.0.1:${port()}`, folder, processes);
  }

  async hang(): Promise<void> {
    this.#processes.at(-1)?.kill("SIGSTOP");
    // Its threads stop a moment later.
    await pause(100);
  }

  goOn(): void {
    this.#processes.at(-1)?.kill("SIGCONT");
  }

  async stop(): Promise<void> {
    await end(this.#processes.at(-1));
  }

  async close(): Promise<void> {
    for (const process of this.#processes) await end(process);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function end(child: ChildProcess | undefined): Promise<void> {
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGKILL");
  await ended;
}

async function until(condition: () => unknown, problem: () => string): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(problem());
    await pause(20);
  }
}

export const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
