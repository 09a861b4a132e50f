/** Makes any string a value that the server accepts, so that no request of a stranger becomes an error. */
export async function acceptable(value: string): Promise<string> {
  return needsChange(value) ? changed(value) : value;
}

/** Does so with the strings of an object. */
export async function acceptableValues(values: Record<string, unknown>): Promise<Record<string, unknown>> {
  const all: Record<string, unknown> = { ...values };
  for (const [name, value] of Object.entries(values)) {
    if (typeof value === "string" && needsChange(value)) all[name] = await changed(value);
  }
  return all;
}

function needsChange(value: string): boolean {
  return value.length > VALUE_MAX / 3 || LONE_SURROGATE.test(value);
}

/**
 * Shortens a long value, and replaces lone surrogates, which JSON cannot carry.
 *
 * A long value keeps its beginning and its end, so that rules for a prefix or a suffix match. Its hash keeps it apart from
 * other values.
 */
async function changed(value: string): Promise<string> {
  // The encoder replaces lone surrogates, too.
  const bytes = new TextEncoder().encode(value);
  if (bytes.length <= VALUE_MAX) return value.replace(LONE_SURROGATES, "\ufffd");
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
  // A character that a cut divides is left out, as in the other clients. Without `ignoreBOM` a leading U+FEFF would be lost.
  const isWithin = (at: number) => ((bytes[at] as number) & 0xc0) === 0x80;
  let [end, start] = [KEPT, bytes.length - KEPT];
  while (isWithin(end)) end -= 1;
  while (isWithin(start)) start += 1;
  const text = new TextDecoder("utf-8", { ignoreBOM: true });
  return `${text.decode(bytes.subarray(0, end))}sha256:${hex}${text.decode(bytes.subarray(start))}`;
}

const VALUE_MAX = 4_096;
/** Bytes that a longer value keeps at either end. */
const KEPT = 1_024;
// With the flag `u` a pair is one character, which does not match. `toWellFormed` is not in the library es2022.
const LONE_SURROGATE = /[\ud800-\udfff]/u;
const LONE_SURROGATES = new RegExp(LONE_SURROGATE, "gu");
