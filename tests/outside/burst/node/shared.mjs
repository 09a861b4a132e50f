// What the applications of Express, Fastify and Hono have in common.
import { Spillgate } from "spillgate";

// Decisions by their source, as the hook for metrics sees them: more than the handler, which sees no denial.
const decided = {};

export const client = new Spillgate({
  url: process.env.SPILLGATE_URL,
  onFailure: process.env.ON_FAILURE,
  observe: (call) => {
    for (const { source } of call.decisions) decided[source] = (decided[source] ?? 0) + 1;
  },
});

export const counts = () => JSON.stringify(decided);

/** The attributes of a request, or null for one that is not limited. */
export function attributesOf(target) {
  const { pathname, searchParams } = new URL(target, "http://localhost");
  if (pathname !== "/work") return null;
  const run = searchParams.get("run");
  switch (searchParams.get("kind")) {
    case "malformed":
      // The server refuses a name above 64 bytes.
      return { run, ["n".repeat(65)]: "" };
    case "long":
      return { run: run + "x".repeat(10_000) };
    default:
      return { run };
  }
}

/** The body of a response: where its decision comes from, and why not from the server. */
export function sourceOf({ source, error }) {
  return `source=${source} ${error ?? ""}`;
}

/** Computes for half of the CPU time that the request asks for. */
export function spendHalf(target) {
  const microseconds = Number(new URL(target, "http://localhost").searchParams.get("cpu")) / 2;
  const start = used();
  while (used() - start < microseconds);
}

function used() {
  const { user, system } = process.threadCpuUsage?.() ?? process.cpuUsage();
  return user + system;
}

/** Serves the socket on which the generator's connections wait. */
export function listen(server) {
  // The last of 5,000 requests wait for minutes on a busy machine, and by default Node resets them after one.
  server.headersTimeout = 0;
  server.requestTimeout = 0;
  // Beside a descriptor, Node takes the backlog from the second argument alone.
  server.listen({ fd: Number(process.env.LISTEN_FD) }, 8192);
}
