// Loads the history of a chosen range again and again, and turns its columns into points.

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

const KEPT = 'spillgate-range';
const watchers = new Set();
let chosen = RANGES.has(localStorage.getItem(KEPT)) ? localStorage.getItem(KEPT) : '15m';

export const range = () => chosen;

export function choose(name) {
  chosen = name;
  localStorage.setItem(KEPT, name);
  watchers.forEach(load => load());
}

/** Calls `show` with the history of all rules (null) or of one, until it is closed. */
export function watchHistory(rule, show) {
  let timer, closed = false;
  async function load() {
    clearTimeout(timer);
    const asked = chosen, query = new URLSearchParams({ range: asked });
    if (rule !== null) query.set('rule', rule);
    try {
      const answer = await ask('GET', `admin/v1/history?${query}`);
      if (!closed && asked === chosen) show(read(answer));
    } catch {
      // The stream of events reports a lost connection.
    }
    clearTimeout(timer);
    if (!closed) timer = setTimeout(load, RANGES.get(chosen).every);
  }
  watchers.add(load);
  load();
  return () => {
    closed = true;
    clearTimeout(timer);
    watchers.delete(load);
  };
}

/** Points with rates per second and times in seconds, the oldest first. */
function read(answer) {
  const { instance, decisions } = answer;
  const points = answer.at_ms.map((at, i) => {
    const seconds = answer.lasted_ms[i] / 1000;
    const point = { at: at / 1000, seconds };
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
  return { points, events, kept: answer.kept, keptSince, span: RANGES.get(answer.range).seconds };
}
