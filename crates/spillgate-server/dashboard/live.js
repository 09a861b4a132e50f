// The state that all pages show: the last event of the stream, the rules and the overrides.

import { list } from './server.js';

const AVERAGED = 5;

export const live = {
  /** The last event; null before the first. */
  event: null,
  rules: [],
  overrides: [],
  /** Whether rules and overrides have been loaded. */
  loaded: false,
  /** Whether there were several instances when their number was first known; null before. */
  several: null,
};

let recent = [];
let listener = () => {};

/** Calls `update` after each change of the state. There is one listener: the page that is open. */
export const onChange = update => { listener = update; };

/** Takes over an event of the stream. */
export function take(event) {
  const isFirst = !live.event;
  live.event = event;
  live.several ??= event.fleet && event.fleet.instances > 1;
  const at = event.point?.at_ms[0];
  if (at !== undefined && at !== recent.at(-1)?.at) {
    recent.push({ at, seconds: event.point.lasted_ms[0] / 1000, rates: new Map(event.rates.map(rate => [rate.rule, rate])) });
    recent = recent.slice(-AVERAGED);
  }
  listener();
  if (isFirst) dispatchEvent(new Event('first-event'));
}

/** The decisions of a rule per second, over the last seconds. */
export function ratesOf(rule) {
  const seconds = recent.reduce((sum, one) => sum + one.seconds, 0) || 1;
  const sum = name => recent.reduce((sum, one) => sum + (one.rates.get(rule)?.[name] ?? 0), 0) / seconds;
  return { allowed: sum('allowed'), denied: sum('denied'), wouldDeny: sum('would_deny'), near: sum('near_limit') };
}

/** The part of a rule's first limit that its heaviest subject used; undefined if that is not known. */
export function useOf(rule) {
  const top = live.event?.top;
  const heaviest = top?.rules.find(one => one.rule === rule.name)?.consumers[0];
  const [limit] = rule.limits;
  if (!limit?.capacity || !limit.window_ms) return undefined;
  // A rule is not in the list if it had no use, or if uses are not counted: `top` is off, or there are too many rules.
  if (!heaviest) return top?.rules.length && !top.decisions_left_out ? 0 : undefined;
  return Math.min(1, heaviest.count / (limit.capacity * Math.max(1, top.window_ms / limit.window_ms)));
}

/** Loads rules and overrides. Called after each change, and every few seconds. */
export async function refresh() {
  const [rules, overrides] = await Promise.all([list('admin/v1/rules'), list('admin/v1/overrides')]);
  live.rules = rules.rules;
  live.overrides = overrides.overrides;
  live.loaded = true;
  listener();
}
