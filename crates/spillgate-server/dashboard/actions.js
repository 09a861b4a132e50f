// What an operator can change: modes, overrides, blocks, and the state of a subject.

import { change } from './change.js';
import { el } from './dom.js';
import { live } from './live.js';
import { ask, subjectQuery } from './server.js';
import { duration, isNetwork, number, quota, subject as shown } from './words.js';

/** The times that a change can last: [seconds, label]. */
export const LASTING = [['900', '15 minutes'], ['3600', '1 hour'], ['86400', '1 day'], ['', 'no end']];
const EFFECTS = {
  off: 'The rule limits no request', shadow: 'The rule counts and denies nothing', enforce: 'The rule denies requests over its limits',
};

const pathOf = rule => `admin/v1/rules/${rule.split('/').map(encodeURIComponent).join('/')}/mode`;

const until = seconds => (seconds ? { expires_at: new Date(Date.now() + seconds * 1000).toISOString() } : {});

/** The reason as a field of a body or a parameter of a query; none if it is empty. */
const because = reason => (reason ? { reason } : {});

const lasting = seconds => {
  const chosen = LASTING.find(([value]) => Number(value) === seconds);
  return seconds ? `for ${chosen?.[1] ?? duration(seconds)}` : 'until it is set back';
};

/** Ignores a 404: there was nothing to remove. */
function gone(problem) {
  if (problem.status !== 404) throw problem;
  return {};
}

/** Sets the mode of a rule. */
export function setMode(rule, mode, seconds = 0) {
  const before = rule.mode, path = pathOf(rule.name);
  const clear = (reason, seen) => ask('DELETE', `${path}?${new URLSearchParams(because(reason))}`, undefined, seen).catch(gone);
  const isWritten = mode === before.written;
  return change({
    title: `Set ${rule.name} to ${mode}?`,
    effect: `${EFFECTS[mode]}, on every instance, ${isWritten ? 'as the policy file has it' : lasting(seconds)}.`,
    act: reason => (isWritten ? clear(reason) : ask('PUT', path, { mode, ...until(seconds), ...because(reason) })),
    done: `${rule.name} is set to ${mode}.`,
    undo: (reason, seen) => (before.runtime ? ask('PUT', path, { mode: before.runtime, ...ending(before), ...because(reason) }, seen) : clear(reason, seen)),
  });
}

/** The end of a mode or an override that is listed. */
const ending = one => (one.expires_at ? { expires_at: one.expires_at } : {});

/** Writes an override as it is listed. */
const put = (one, reason, seen) => ask('PUT', 'admin/v1/overrides', {
  rule: one.rule, subject: one.subject, limits: one.limits, ...ending(one), ...because(reason),
}, seen);

const remove = (rule, subject, reason, seen) => ask('DELETE', `admin/v1/overrides?${subjectQuery(rule, subject, because(reason))}`, undefined, seen);

/** The subjects of an override as text. */
const named = (rule, subject) => (Object.keys(subject).length ? shown(subject) : `every subject of ${rule}`);

/** The override of exactly this subject in a list, if there is one. */
function overrideOf(rule, subject, overrides) {
  const sorted = subject => shown(Object.fromEntries(Object.entries(subject).sort()));
  return overrides.find(one => one.rule === rule && sorted(one.subject) === sorted(subject));
}

/** A limit as the API takes it, of a text such as `10/second burst 200`. Without a burst, the rule's keeps its ratio to the rate. */
function written(limit) {
  const [, quota, burst] = /^(.*?)(?:\s+burst\s+(\d+))?$/.exec(limit);
  return burst ? { quota, burst: Number(burst) } : quota;
}

/** Sets other limits for a subject. */
export function setOverride(rule, subject, limits, seconds) {
  let before, set;
  const isBlock = limits.length === 1 && limits[0] === 'block';
  const cover = coverOf({ rule, subject });
  const effect = isBlock ? 'denies all requests' : `limits ${cover ? 'each subject' : 'it'} to ${limits.join(', ')}`;
  return change({
    title: `${isBlock ? 'Block' : 'Set other limits for'} ${named(rule, subject)}?`,
    effect: `${rule} ${effect}, on every instance, ${lasting(seconds)}.${cover && ` This override ${cover}.`}`,
    check: () => preview({ rule, subject, limits: limits.map(written) }),
    async act(reason) {
      before = live.overrides;
      set = await ask('PUT', 'admin/v1/overrides', { rule, subject, limits: limits.map(written), ...until(seconds), ...because(reason) });
      return set;
    },
    // The server answers with the subjects that the override covers: an IPv6 address becomes its /64.
    done: answer => `${named(rule, answer.subject)} is ${isBlock ? 'blocked' : `limited to ${limits.join(', ')}`} by ${rule}.${answer.note ? ` Note: ${answer.note}.` : ''}`,
    undo(reason, seen) {
      const replaced = overrideOf(rule, set.subject, before);
      return replaced ? put(replaced, reason, seen) : remove(rule, set.subject, reason, seen).catch(gone);
    },
  });
}

/** The limits before and after an override, as the server checks it. */
async function preview(override) {
  const { before, after, notes } = await ask('PUT', 'admin/v1/overrides', { ...override, dry_run: true });
  const cell = (label, content) => el('td', { 'data-label': label }, content);
  const rows = after.map((limit, i) => el('tr', {}, cell('Limit', `${override.rule}/${limit.limit}`), cell('Now', size(before[i])), cell('After', size(limit))));
  const heads = ['Limit', 'Now', 'After'].map(label => el('th', {}, label));
  const limits = el('table', {}, el('thead', {}, el('tr', {}, ...heads)), el('tbody', {}, ...rows));
  return [limits, ...notes.map(note => el('p', { className: 'note' }, `Note: ${note}.`))];
}

/** A limit with its capacity: `40/second burst 80, capacity 80`. */
function size({ quota, unit, capacity }) {
  if (capacity === null) return quota;
  return capacity === 0 ? 'blocked' : `${quota}, capacity ${number(capacity)}${unit === 'requests' ? '' : ` ${unit}`}`;
}

/** The subjects that an override covers besides a known one, as text; empty if it covers one subject. */
export function coverOf({ rule, subject }, known = {}) {
  const key = live.rules.find(one => one.name === rule)?.key ?? [];
  const network = Object.values(subject).find(isNetwork);
  const besides = shown(known) === shown(subject) || !Object.keys(known).length ? '' : `, not only ${shown(known)}`;
  if (!Object.keys(subject).length) return key.length ? `covers every subject of ${rule}${besides}` : '';
  if (network) return `covers every address in ${network}${besides}`;
  return key.every(name => name in subject) ? '' : `covers every subject with ${shown(subject)}${besides}`;
}

/** Removes an override, here from the page of the subject `known`. */
export function removeOverride(one, known) {
  const isBlock = one.limits.every(limit => limit.quota === 'block'), cover = coverOf(one, known);
  const what = isBlock ? `the block of ${named(one.rule, one.subject)}` : `the limits ${one.limits.map(quota).join(', ')} for ${named(one.rule, one.subject)}`;
  return change({
    title: `Remove ${what} in ${one.rule}?`,
    effect: `${cover ? `This override ${cover}. ` : ''}Without it, the limits of ${one.rule} or those of a wider override apply again, on every instance.`,
    act: reason => remove(one.rule, one.subject, reason),
    done: `Removed: ${what} in ${one.rule}.`,
    undo: (reason, seen) => put(one, reason, seen),
  });
}

/**
 * The amount that every limit in a unit received by a refund: all of it, or the part until the limit was full. Compares the
 * state before with the answer.
 */
function refunded(amount, unit, before, answer) {
  const parts = answer.limits.filter(one => one.unit === unit && one.remaining === one.capacity && one.capacity !== null)
    .map(one => one.capacity - (before.limits.find(other => other.limit === one.limit)?.remaining ?? 0));
  return Math.min(amount, ...parts);
}

/** Refunds an amount of a unit to a subject. Undo charges only what every limit received, since a charge has no bound. */
export function refund(rule, subject, amount, unit) {
  let back = 0;
  const post = (what, reason) => ask('POST', 'admin/v1/state', { rule, subject, ...what, ...because(reason) });
  return change({
    title: `Refund ${amount} ${unit} to ${shown(subject)}?`,
    effect: `Each limit of ${rule} in ${unit} gets up to ${amount} back.`,
    async act(reason) {
      const before = await ask('GET', `admin/v1/state?${subjectQuery(rule, subject)}`);
      const answer = await post({ refund: { [unit]: amount } }, reason);
      back = refunded(amount, unit, before, answer);
      return answer;
    },
    done: `${amount} ${unit} are refunded to ${shown(subject)}.`,
    undo(reason) {
      if (!back) throw new Error(`Not undone: a limit of ${rule} in ${unit} was full before the refund, and a charge would take from it too.`);
      return post({ charge: { [unit]: back } }, reason);
    },
  });
}

/** Resets the counters of a subject. */
export function reset(rule, subject) {
  return change({
    title: `Reset ${shown(subject)}?`,
    effect: `The limits of ${rule} begin unused for it.`,
    act: reason => ask('DELETE', `admin/v1/state?${subjectQuery(rule, subject, because(reason))}`),
    done: `The counters of ${rule} for ${shown(subject)} are reset.`,
  });
}

/** Resets the counters of a rule for all subjects. */
export function resetRule(rule) {
  return change({
    title: `Reset all subjects of ${rule}?`,
    typed: rule,
    effect: 'Each subject begins with unused limits, on every instance.',
    act: reason => ask('DELETE', `admin/v1/state?${new URLSearchParams({ rule, all: 'true', ...because(reason) })}`),
    done: `All counters of ${rule} are reset.`,
  });
}
