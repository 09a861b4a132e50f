/**
 * The path, unescaped as routers do, so that no spelling of a path escapes its rule.
 *
 * An escaped `/`, `?`, `#` or `%` stays escaped: it belongs to its segment, and plain it would divide or cut the path.
 */
export function pathOf(target: string): string {
  // Routers leave out the scheme and the authority of an absolute target.
  const local = target.startsWith("/") ? target : target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "");
  const end = local.search(/[?#]/);
  const path = (end < 0 ? local : local.slice(0, end)) || "/";
  // A `%` that begins no escape is escaped, so that it begins none with what follows it: `%%36c` is not `%6c`.
  return path.replace(/(?:%[0-9a-f]{2})+|%/gi, (escapes) => {
    if (escapes === "%") return "%25";
    try {
      return decodeURIComponent(escapes.replace(/%(?=2f|3f|23|25)/gi, "%25"));
    } catch {
      return escapes;
    }
  });
}
