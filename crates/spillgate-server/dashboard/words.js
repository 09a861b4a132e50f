// Formats numbers, times and subjects for people.

/** A number with thin spaces between thousands and at most `digits` decimals. */
export function number(value, digits = 0) {
  // Adding 0 makes 0 of -0.
  return (Number(value.toFixed(digits)) + 0).toLocaleString('en', { maximumFractionDigits: digits }).replaceAll(',', '\u2009');
}

/** A number per second, shortened. */
export function rate(value) {
  if (value >= 1e6) return `${number(value / 1e6, 2)} M`;
  if (value >= 1e5) return `${number(value / 1e3, 0)} k`;
  if (value >= 1e4) return `${number(value / 1e3, 1)} k`;
  return number(value, value < 1 ? 2 : value < 10 ? 1 : 0);
}

/** Seconds, in a fitting unit. */
export function duration(seconds) {
  if (seconds === 0) return '0';
  if (seconds < 1e-6) return `${number(seconds * 1e9)} ns`;
  if (seconds < 1e-3) return `${number(seconds * 1e6, seconds < 1e-5 ? 1 : 0)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3, seconds < 1e-2 ? 1 : 0)} ms`;
  if (seconds < 120) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${number(Math.floor(seconds / 60))} min`;
  if (seconds < 172800) return `${number(Math.floor(seconds / 3600))} h`;
  return `${number(Math.floor(seconds / 86400))} days`;
}

const time = { hour: '2-digit', minute: '2-digit' };

/** The time of day of seconds since 1970, in the browser's zone: 02:10, or 02:10:07. */
export function clock(at, withSeconds = true) {
  return new Date(at * 1000).toLocaleTimeString('en-GB', withSeconds ? { ...time, second: '2-digit' } : time);
}

/** Their date: 25 Nov. */
export const day = at => new Date(at * 1000).toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });

/** The time of a point: a minute is named by its beginning, as everywhere else, and a second by its end. */
export const clockOf = ({ at, seconds }) => (isMinute(seconds) ? clock(at - seconds, false) : clock(at));

/** Whether a point of so many seconds is that of a minute. */
export const isMinute = seconds => seconds > 50;

/** Date and time of day: 25 Nov 02:10:07. */
export const moment = at => `${day(at)} ${clock(at)}`;

/** The name of the browser's time zone. */
export function zone() {
  const parts = new Intl.DateTimeFormat('en-GB', { timeZoneName: 'short' }).formatToParts(new Date());
  return parts.find(part => part.type === 'timeZoneName')?.value ?? 'local time';
}

/** A subject as text: `tenant=acme user="ann b"`. */
export function subject(attributes) {
  const shown = Object.entries(attributes).map(([name, value]) => `${name}=${/[\s"]/.test(value) ? JSON.stringify(value) : value}`);
  return shown.join(' ') || 'all requests';
}

/** Whether the value of an attribute is a network. */
export const isNetwork = value => /^[\da-f.:]+\/\d+$/i.test(value);

/** Parses attributes such as `tenant=acme user="ann b"`. Throws an error with the problem and the fix. */
export function attributes(text) {
  const found = {};
  const rest = text.replace(/([^\s=]+)=("(?:\\.|[^"\\])*"|\S*)/g, (_, name, value) => {
    found[name] = value.startsWith('"') ? JSON.parse(value) : value;
    return '';
  });
  if (rest.trim()) throw new Error(`${JSON.stringify(rest.trim())} is not a valid attribute; write name=value`);
  return found;
}

/** A limit as text: `5/minute`, `5/minute burst 9` or `9/hour tokens`. */
export const quota = ({ quota, burst, unit }) => [quota, burst && `burst ${burst}`, unit !== 'requests' && unit].filter(Boolean).join(' ');

/** The limits of an override as text: `5/minute, 9/hour tokens`, or `blocked`. */
export const limitsOf = ({ limits }) => limits.map(limit => (limit.quota === 'block' ? 'blocked' : quota(limit))).join(', ');

/** The key of a rule as text. */
export const byKey = rule => (rule.key.length ? `by ${rule.key.join(' and ')}` : 'one counter for all');

/** The actor and the reason of a change, as text: `by ann: incident 4711`. */
export const author = ({ actor, reason }) => [actor && `by ${actor}`, reason].filter(Boolean).join(': ');

/** The time until an instant, as text. */
export function ends(at) {
  if (!at) return 'no end';
  const seconds = (new Date(at) - Date.now()) / 1000;
  return seconds > 0 ? `in ${duration(seconds)}` : 'now';
}
