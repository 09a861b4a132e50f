// Finds networks by an address in them: 10.0.0.0/8 by 10.1.2.3.

/** Whether one of the values in the text of a subject is a network with this address or network. */
export function covers(subject, word) {
  const asked = network(word);
  return asked !== null && subject.split(/[\s=]+/).map(network).some(one => one !== null && has(one, asked));
}

function has(one, other) {
  const rest = BigInt(one.length - one.prefix);
  return one.length === other.length && one.prefix <= other.prefix && one.bits >> rest === other.bits >> rest;
}

/** Parses an address or a network: the number of its address, the length in bits, and the prefix. Null if it is neither. */
function network(text) {
  const [address, prefix, ...more] = text.split('/');
  const groups = address.includes(':') ? ipv6(address) : ipv4(address);
  if (!groups || more.length) return null;
  const size = groups.length === 4 ? 8 : 16, length = size * groups.length;
  const bits = groups.reduce((sum, group) => (sum << BigInt(size)) + BigInt(group), 0n);
  return /^\d{1,3}$/.test(prefix ?? '0') ? { bits, length, prefix: Math.min(Number(prefix ?? length), length) } : null;
}

function ipv4(text) {
  const groups = text.split('.');
  return groups.length === 4 && groups.every(group => /^\d{1,3}$/.test(group) && group < 256) ? groups.map(Number) : null;
}

/** The groups of an IPv6 address, or of the IPv4 address within it. */
function ipv6(text) {
  // Other characters could end the address within the URL.
  if (!/^[\da-f:.]+$/i.test(text)) return null;
  const host = URL.parse?.(`ws://[${text}]`)?.hostname;
  if (!host) return null;
  const [head, tail] = host.slice(1, -1).split('::').map(part => (part ? part.split(':') : []));
  const groups = [...head, ...Array(tail ? 8 - head.length - tail.length : 0).fill('0'), ...tail ?? []].map(group => parseInt(group, 16));
  const isMapped = groups.slice(0, 5).every(group => !group) && groups[5] === 0xffff;
  return isMapped ? groups.slice(6).flatMap(group => [group >> 8, group & 255]) : groups;
}
