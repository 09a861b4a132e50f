/** Eight groups of 16 bits; an IPv4 address is `::ffff:a.b.c.d`. */
type Address = readonly number[];

interface Network {
  groups: Address;
  bits: number;
}

/**
 * Finds the client: the rightmost hop of `X-Forwarded-For` that is no trusted proxy.
 *
 * All lines of the header are one list. A hop that is no address ends the walk at the proxy that reported it.
 * An IPv4-mapped address is the IPv4 one. An IPv6 client is its /64, which is what one home or one machine is given.
 */
export class ClientAddress {
  readonly #trusted: Network[];
  readonly #trustsUnix: boolean;
  readonly #peers = new Map<string, { address: Address | undefined; shown: string; trusted: boolean }>();

  /** Trusts these networks or addresses; `unix` trusts peers on a Unix socket, which have no address. */
  constructor(trustedProxies: readonly string[] = []) {
    this.#trustsUnix = trustedProxies.includes(UNIX);
    this.#trusted = trustedProxies.filter((text) => text !== UNIX).map(parseNetwork);
  }

  /**
   * Returns the value for the attribute `ip`. Requests from peers without an address are one subject, `unknown`.
   *
   * `forwardedFor`: the values of all `X-Forwarded-For` lines in their order, joined by commas.
   */
  attribute(peer: string | undefined, forwardedFor?: string | null): string {
    const known = this.#peer(peer ?? "");
    if (!known.trusted) return known.shown;
    let client = known.address;
    const hops = (forwardedFor ?? "").split(",");
    while (hops.length > 0) {
      const hop = (hops.pop() as string).trim();
      if (hop === "") continue;
      const address = parseHop(hop.length > 1 && hop.startsWith('"') && hop.endsWith('"') ? hop.slice(1, -1) : hop);
      if (address === undefined) break;
      client = address;
      if (!this.#trusts(address)) break;
    }
    return client === undefined ? UNKNOWN : show(client);
  }

  #peer(peer: string) {
    let known = this.#peers.get(peer);
    if (known === undefined) {
      const address = parseHop(peer);
      const trusted = address === undefined ? this.#trustsUnix : this.#trusts(address);
      known = { address, shown: address === undefined ? UNKNOWN : show(address), trusted };
      if (this.#peers.size >= PEERS_MAX) this.#peers.clear();
      this.#peers.set(peer, known);
    }
    return known;
  }

  #trusts(address: Address): boolean {
    return this.#trusted.some((network) => holds(network, address));
  }
}

function holds({ groups, bits }: Network, address: Address): boolean {
  if (isIPv4(groups) !== isIPv4(address)) return false;
  return groups.every((group, index) => {
    const length = Math.min(Math.max(bits - index * 16, 0), 16);
    const mask = (0xffff << (16 - length)) & 0xffff;
    return ((group ^ (address[index] as number)) & mask) === 0;
  });
}

function parseNetwork(text: string): Network {
  const [host = "", length, ...rest] = text.split("/");
  const groups = parseAddress(host);
  const family = host.includes(":") ? 128 : 32;
  const bits = length === undefined ? family : /^\d{1,3}$/.test(length) ? Number(length) : Infinity;
  if (groups === undefined || bits > family || rest.length > 0) {
    throw new TypeError(
      `${JSON.stringify(text)} is not a valid network; write one such as 10.0.0.0/8 or 2001:db8::/32, or an address`,
    );
  }
  return { groups, bits: family === 32 ? bits + 96 : bits };
}

/** `203.0.113.7`, `203.0.113.7:80`, `2001:db8::1`, `[2001:db8::1]:80`, `fe80::1%eth0`. */
function parseHop(hop: string): Address | undefined {
  let host = hop;
  let port: string | undefined;
  if (hop.startsWith("[")) {
    const end = hop.indexOf("]");
    const rest = hop.slice(end + 1);
    if (end < 0 || (rest !== "" && !rest.startsWith(":"))) return undefined;
    host = hop.slice(1, end);
    if (rest !== "") port = rest.slice(1);
  } else if (hop.indexOf(":") === hop.lastIndexOf(":") && hop.includes(":")) {
    [host, port] = hop.split(":") as [string, string];
  }
  if (port !== undefined && !/^(\d{1,5}|_[A-Za-z0-9._-]*)$/.test(port)) return undefined;
  if (port !== undefined && Number(port) > 65535) return undefined;
  if (host.includes(":")) host = host.split("%")[0] as string;
  return parseAddress(host);
}

function parseAddress(text: string): Address | undefined {
  if (!text.includes(":")) {
    const low = parseIPv4(text);
    return low && [0, 0, 0, 0, 0, 0xffff, ...low];
  }
  let rest = text;
  let low: number[] = [];
  if (text.includes(".")) {
    const at = text.lastIndexOf(":") + 1;
    const parsed = parseIPv4(text.slice(at));
    if (parsed === undefined) return undefined;
    low = parsed;
    rest = `${text.slice(0, at)}v4`;
  }
  const halves = rest.split("::");
  if (halves.length > 2) return undefined;
  const [head, tail] = halves.map((half) => (half === "" ? [] : half.split(":")));
  const groups: number[][] = [];
  for (const side of [head, tail]) {
    const parsed: number[] = [];
    for (const [index, group] of (side ?? []).entries()) {
      const isLast = index === (side ?? []).length - 1 && side === (tail ?? head);
      // Only after an IPv4 part is `v4` a mark of this function.
      if (group === "v4" && isLast && low.length > 0) parsed.push(...low);
      else if (/^[0-9a-fA-F]{1,4}$/.test(group)) parsed.push(parseInt(group, 16));
      else return undefined;
    }
    groups.push(parsed);
  }
  const [left, right] = groups as [number[], number[]];
  const missing = 8 - left.length - right.length;
  if (tail === undefined ? missing !== 0 : missing < 1) return undefined;
  return [...left, ...new Array<number>(missing).fill(0), ...right];
}

function parseIPv4(text: string): number[] | undefined {
  const parts = text.split(".");
  if (parts.length !== 4 || !parts.every((part) => /^(0|[1-9]\d{0,2})$/.test(part) && Number(part) < 256)) {
    return undefined;
  }
  const [a, b, c, d] = parts.map(Number) as [number, number, number, number];
  return [a * 256 + b, c * 256 + d];
}

function isIPv4(address: Address): boolean {
  return address[5] === 0xffff && address.slice(0, 5).every((group) => group === 0);
}

/** An IPv4 address, or the /64 of an IPv6 one. */
function show(address: Address): string {
  if (isIPv4(address)) {
    return address
      .slice(6)
      .map((group) => `${group >> 8}.${group & 255}`)
      .join(".");
  }
  // The last four groups are 0, and no longer row of zeros can stand before them.
  let end = 4;
  while (end > 0 && address[end - 1] === 0) end -= 1;
  const groups = address.slice(0, end).map((group) => group.toString(16));
  return `${groups.join(":")}::/64`;
}

const UNIX = "unix";
const UNKNOWN = "unknown";
const PEERS_MAX = 4_096;
