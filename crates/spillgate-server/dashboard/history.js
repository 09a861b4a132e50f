// The view of the charts, which the address names, and the history that it shows, loaded again and again as points.

import { keepAt } from './chart.js';
import { live } from './live.js';
import { ask } from './server.js';

/** By name: label, seconds, and the time between two loads. */
export const RANGES = new Map([
  ['3m', { label: '3 min', seconds: 180, every: 1000 }],
  ['15m', { label: '15 min', seconds: 900, every: 2000 }],
  ['1h', { label: '1 h', seconds: 3600, every: 10000 }],
  ['24h', { label: '24 h', seconds: 86400, every: 30000 }],
]);
export const REASONS = ['limit-exceeded', 'cost-exceeds-limit', 'blocked', 'store-unavailable', 'overloaded'];
export const SOURCES = ['store', 'lease', 'denial-cache', 'fallback', 'outage-policy', 'none'];

/** The range; for a view that stands still also its end, and the time that is marked on the charts, in seconds since 1970. */
export const view = { range: '15m', until: null, at: null };

const watchers = new Set();

const written = at => new Date(at * 1000).toISOString().replace('.000', '');
const parsed = text => (Number.isNaN(Date.parse(text ?? '')) ? null : Date.parse(text) / 1000);

/** Takes the view over from the query of an address. Without a range in it, the view stays. */
export function takeView(query) {
  if (!RANGES.has(query.get('range'))) return;
  Object.assign(view, { range: query.get('range'), until: parsed(query.get('until')), at: parsed(query.get('at')) });
}

/** Writes the view into the address, so that a link to it shows the same. */
export function writeView() {
  const [path, rest] = (location.hash || '#/').split('?'), query = new URLSearchParams(rest);
  query.set('range', view.range);
  for (const name of ['until', 'at']) {
    if (view[name] === null) query.delete(name);
    else query.set(name, written(view[name]));
  }
  // Colons are legal here, and a time is easier to read with them.
  history.replaceState(null, '', `${path}?${String(query).replaceAll('%3A', ':')}`);
  keepAt(view.at);
}

/** Changes the view: `{ range }`, `{ until, at }`. */
export function look(changes) {
  Object.assign(view, changes);
  writeView();
  watchers.forEach(load => load());
}

/** Calls `show` with the history of all rules (null) or of one, until it is closed. */
export function watchHistory(rule, show) {
  let timer, closed = false;
  async function load() {
    clearTimeout(timer);
    const { range, until } = view, query = new URLSearchParams({ range });
    if (until !== null) query.set('until', written(until));
    if (rule !== null) query.set('rule', rule);
    try {
      const answer = await ask('GET', `admin/v1/history?${query}`);
      if (!closed && range === view.range && until === view.until) show(read(answer, until));
    } catch {
      // The stream of events reports a lost connection.
    }
    clearTimeout(timer);
    if (!closed) timer = setTimeout(load, RANGES.get(view.range).every);
  }
  watchers.add(load);
  document.addEventListener('changed', load);
  load();
  return () => {
    closed = true;
    clearTimeout(timer);
    watchers.delete(load);
    document.removeEventListener('changed', load);
  };
}

/** Points with rates per second and times in seconds, the oldest first. */
function read(answer, until) {
  const { instance, decisions } = answer, step = answer.step_ms / 1000;
  let end = -Infinity;
  const points = answer.at_ms.map((at, i) => {
    const seconds = answer.lasted_ms[i] / 1000;
    const point = { at: at / 1000, seconds };
    // The instance did not run, or its machine slept. Points of a second may follow on those of a minute.
    const isLate = seconds > 2.5 * step && Math.abs(seconds - 60) > 15;
    point.follows = !isLate && point.at - seconds - end < 1.5 * step;
    end = point.at;
    if (isLate) return point;
    const add = (name, values) => { point[name] = values[i] / seconds; };
    const addTime = (name, values) => { if (values[i] !== null) point[name] = values[i] / 1e9; };
    for (const reason of REASONS) add(reason, decisions[reason]);
    if (!instance) {
      add('allowed', decisions.allowed);
      point.denied = REASONS.reduce((sum, reason) => sum + point[reason], 0);
      return point;
    }
    for (const name of ['allowed', 'denied', 'unmatched']) add(name, instance.requests[name]);
    for (const source of SOURCES) add(source, instance.sources[source]);
    for (const name of ['calls', 'failed', 'unsent']) add(name, instance.store[name]);
    point.answered = Math.max(0, point.calls - point.failed);
    addTime('p50', instance.p50_ns);
    addTime('p99', instance.p99_ns);
    addTime('store-p99', instance.store.p99_ns);
    return point;
  });
  const events = answer.events.map(event => ({ ...event, at: event.at_ms / 1000 }));
  const keptSince = answer.kept_since_ms === null ? null : answer.kept_since_ms / 1000;
  const began = live.event ? (live.event.at_ms - live.event.up_ms) / 1000 : null;
  const to = until ?? points.at(-1)?.at ?? Date.now() / 1000;
  return { points, events, rules: answer.rules ?? [], kept: answer.kept, keptSince, began, to, span: RANGES.get(answer.range).seconds };
}
