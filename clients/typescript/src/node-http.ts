/** What the middlewares for servers of Node share. */

/** A connection. One that is simulated, as by adapters for serverless functions, may have no events. */
export interface Connection {
  remoteAddress?: string | undefined;
  readonly destroyed?: boolean;
  once?(event: "close", listener: () => void): unknown;
}

/** A response. */
export interface NodeResponse {
  statusCode: number;
  readonly headersSent?: boolean;
  readonly closed?: boolean;
  once(event: "close", listener: () => void): unknown;
  hasHeader(name: string): boolean;
  setHeader(name: string, value: string): unknown;
  // biome-ignore lint/suspicious/noExplicitAny: Node's method has overloads, which no other type fits.
  writeHead(...head: any[]): any;
}

type HeaderFields = Record<string, string | string[] | undefined>;

/** All lines of the header field as one list. */
export function forwardedFor(headers: HeaderFields): string | undefined {
  const lines = headers["x-forwarded-for"];
  // Node joins the lines by commas.
  return Array.isArray(lines) ? lines.join(",") : lines;
}

/** Calls `end` once, when the response has ended or its connection has, with the status if the response began. */
export function whenEnded(
  response: Pick<NodeResponse, "closed" | "headersSent" | "once" | "statusCode">,
  connection: Connection,
  end: (status: number | undefined) => void,
): void {
  const endNow = () => end(response.headersSent ? response.statusCode : undefined);
  if (response.closed || connection.destroyed) {
    endNow();
    return;
  }
  const ends = endsOf(connection);
  const endOnce = () => {
    if (ends.delete(endOnce)) endNow();
  };
  ends.add(endOnce);
  response.once("close", endOnce);
}

/** What to call when the connection ends: a pipelined response whose turn never comes has no `close` of its own. */
function endsOf(connection: Connection): Set<() => void> {
  let ends = openOn.get(connection);
  if (ends === undefined) {
    const added = new Set<() => void>();
    ends = added;
    openOn.set(connection, added);
    // One listener for all its responses, since Node warns of many.
    connection.once?.("close", () => {
      for (const end of added) end();
    });
  }
  return ends;
}

const openOn = new WeakMap<Connection, Set<() => void>>();

/** Adds fields when the head is written, unless the application wrote one of them: an inner layer stands nearer to the work. */
export function addBeforeHead(response: NodeResponse, fields: Record<string, string>): void {
  const names = Object.keys(fields);
  if (names.length === 0) return;
  const writeHead = response.writeHead;
  response.writeHead = (...head: unknown[]) => {
    response.writeHead = writeHead;
    const at = head.findIndex((argument) => typeof argument === "object" && argument !== null);
    let given = head[at] ?? {};
    // An array has names and values in turns, or pairs of them.
    if (Array.isArray(given) && Array.isArray(given[0])) given = given.flat();
    const own = Array.isArray(given) ? given.filter((_, index) => index % 2 === 0) : Object.keys(given);
    const isOwn = (name: string) => response.hasHeader(name) || own.some((given) => `${given}`.toLowerCase() === name);
    if (!names.some(isOwn)) {
      // Once a field is set, Node keeps only the last of an array's repeated fields, such as `Set-Cookie`.
      if (Array.isArray(given)) head[at] = [...given, ...Object.entries(fields).flat()];
      else for (const name of names) response.setHeader(name, fields[name] as string);
    }
    return writeHead.apply(response, head);
  };
}
