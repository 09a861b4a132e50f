// The view of the charts, which the address names, and the history that it shows, of this instance or of the fleet, loaded
// again and again as points.

import { keepAt } from './chart.js';
import { live } from './live.js';
import { ask } from './server.js';

/** By name: label, seconds, and the time between two loads. */
export const RANGES = new Map([
  ['3m', { label: '3 min', seconds: 180, every: 1000 }],
  ['15m', { label: '15 min', seconds: 900, every: 2000 }],
  ['1h', { label: '1 h', seconds: 3600, every: 10000 }],
  ['24h', { label: '24 h', seconds: 86400, every: 30000 }],
  ['48h', { label: '48 h', seconds: 172800, every: 60000 }],
]);
/** Each instance adds its minutes to the history of the fleet, so it has no shorter range than this. */
const SHORTEST_OF_FLEET = '15m', FLEET_EVERY_MS = 10000;
export const REASONS = ['limit-exceeded', 'cost-exceeds-limit', 'blocked', 'store-unavailable', 'overloaded'];
export const WOULD_DENY = 'would-deny';
export const SOURCES = ['store', 'lease', 'denial-cache', 'fallback', 'outage-policy', 'none'];

/**
 * Whose history, `fleet` or `instance`; null as long as neither was chosen. The range; for a view that stands still also its end,
 * and the time that is marked on the charts, in seconds since 1970.
 */
export const view = { of: null, range: '15m', until: null, at: null };

/** Whether there is a fleet: in memory an instance is alone. */
export const hasFleet = () => Boolean(live.event?.shards.length);

/** Whether the fleet is shown: if it was chosen, and without a choice if it has several instances. */
export const isOfFleet = () => hasFleet() && (view.of === null ? Boolean(live.several) : view.of === 'fleet');

/** The ranges that can be chosen. */
export const ranges = () => [...RANGES].filter(([, { seconds }]) => !isOfFleet() || seconds >= RANGES.get(SHORTEST_OF_FLEET).seconds);

const watchers = new Set();

const written = at => new Date(at * 1000).toISOString().replace('.000', '');
const parsed = text => (Number.isNaN(Date.parse(text ?? '')) ? null : Date.parse(text) / 1000);

/** Takes the view over from the query of an address. Without a range in it, the view stays. */
export function takeView(query) {
  if (['fleet', 'instance'].includes(query.get('of'))) view.of = query.get('of');
  if (!RANGES.has(query.get('range'))) return;
  Object.assign(view, { range: query.get('range'), until: parsed(query.get('until')), at: parsed(query.get('at')) });
}

/** Writes the view into the address, so that a link to it shows the same. */
export function writeView() {
  const [path, rest] = (location.hash || '#/').split('?'), query = new URLSearchParams(rest);
  query.set('range', view.range);
  if (view.of) query.set('of', view.of);
  for (const name of ['until', 'at']) {
    if (view[name] === null) query.delete(name);
    else query.set(name, written(view[name]));
  }
  // Colons are legal here, and a time is easier to read with them.
  history.replaceState(null, '', `${path}?${String(query).replaceAll('%3A', ':')}`);
  keepAt(view.at);
}

/** Changes the view: `{ of }`, `{ range }`, `{ until, at }`. */
export function look(changes) {
  Object.assign(view, changes);
  if (!ranges().some(([name]) => name === view.range)) view.range = SHORTEST_OF_FLEET;
  writeView();
  watchers.forEach(load => load());
}

/** Calls `show` with the history of all rules (null) or of one, until it is closed. */
export function watchHistory(rule, show) {
  let timer, closed = false;
  async function load() {
    clearTimeout(timer);
    if (!ranges().some(([name]) => name === view.range)) {
      view.range = SHORTEST_OF_FLEET;
      writeView();
    }
    const { range, until } = view, of = isOfFleet() ? 'fleet' : 'instance', query = new URLSearchParams({ range, of });
    if (until !== null) query.set('until', written(until));
    if (rule !== null) query.set('rule', rule);
    try {
      const answer = await ask('GET', `admin/v1/history?${query}`);
      if (!closed && range === view.range && until === view.until && of === (isOfFleet() ? 'fleet' : 'instance')) show(read(answer, until));
    } catch (problem) {
      // The stream of events reports a lost connection. Only the store can refuse the history of the fleet.
      if (!closed && of === 'fleet' && problem.status === 503) show(unknown(problem.message));
    }
    clearTimeout(timer);
    const { every } = RANGES.get(view.range);
    if (!closed) timer = setTimeout(load, isOfFleet() ? Math.max(every, FLEET_EVERY_MS) : every);
  }
  watchers.add(load);
  document.addEventListener('changed', load);
  // Whether there is a fleet is known with the first event.
  if (live.event) load();
  else addEventListener('first-event', load, { once: true });
  return () => {
    closed = true;
    clearTimeout(timer);
    watchers.delete(load);
    removeEventListener('first-event', load);
    document.removeEventListener('changed', load);
  };
}

/** Points with rates per second and times in seconds, the oldest first. */
function read(answer, until) {
  const { totals, decisions } = answer, step = answer.step_ms / 1000, isFleet = answer.of === 'fleet';
  // A minute that no instance has recorded is missing. An instance is sampled a little late now and then.
  const slack = isFleet ? 0.5 : 1.5;
  let end = -Infinity;
  const points = answer.at_ms.map((at, i) => {
    const seconds = answer.lasted_ms[i] / 1000;
    const point = { at: at / 1000, seconds };
    // The instance did not run, or its machine slept. Points of a second may follow on those of a minute.
    const isLate = seconds > 2.5 * step && Math.abs(seconds - 60) > 15;
    point.follows = !isLate && point.at - seconds - end < slack * step;
    end = point.at;
    if (isLate) return point;
    const add = (name, values) => { point[name] = values[i] / seconds; };
    const addTime = (name, values) => { if (values[i] !== null) point[name] = values[i] / 1e9; };
    for (const result of [...REASONS, WOULD_DENY]) add(result, decisions[result]);
    if (!totals) {
      add('allowed', decisions.allowed);
      point.denied = REASONS.reduce((sum, reason) => sum + point[reason], 0);
      return point;
    }
    for (const name of ['allowed', 'denied', 'unmatched']) add(name, totals.requests[name]);
    for (const source of SOURCES) add(source, totals.sources[source]);
    addTime('p50', totals.p50_ns);
    addTime('p99', totals.p99_ns);
    if (!totals.store) return point;
    for (const name of ['calls', 'failed', 'unsent']) add(name, totals.store[name]);
    point.answered = Math.max(0, point.calls - point.failed);
    addTime('store-p99', totals.store.p99_ns);
    return point;
  });
  const events = answer.events.map(event => ({ ...event, at: event.at_ms / 1000 }));
  const keptSince = answer.kept_since_ms === null ? null : answer.kept_since_ms / 1000;
  const to = until ?? points.at(-1)?.at ?? Date.now() / 1000;
  const own = live.event ? (live.event.at_ms - live.event.up_ms) / 1000 : null;
  const began = isFleet ? { at: points.length ? points[0].at - points[0].seconds : to, text: 'not recorded' } : { at: own, text: 'before the start' };
  const none = !answer.kept ? 'Not recorded for this rule.' : isFleet ? 'Nothing in this time. The last two minutes are not recorded yet.' : null;
  return { of: answer.of, none, points, events, rules: answer.rules ?? [], kept: answer.kept, keptSince, began, to, span: RANGES.get(answer.range).seconds };
}

/** A history of the fleet that the store does not give. */
function unknown(problem) {
  const to = view.until ?? Date.now() / 1000;
  return { of: 'fleet', points: [], events: [], rules: [], kept: true, keptSince: null, began: { at: to, text: '' }, none: 'Unknown until the store answers.', to, span: RANGES.get(view.range).seconds, problem };
}
