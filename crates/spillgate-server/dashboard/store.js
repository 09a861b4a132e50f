// The store as this instance sees it: each shard, and counts since the start.

import { el, section } from './dom.js';
import { table } from './table.js';
import { duration, number, rate } from './words.js';

/** A panel of the shards and of facts about the store. */
export function storePanel(wide) {
  const shards = table({
    label: 'Shards', key: shard => shard.name,
    columns: [
      { label: 'Shard', className: 'name', show: nameOf },
      { label: 'State', show: stateOf },
      { label: 'Calls/s', className: 'n', show: shard => rate(shard.calls) },
      { label: 'p99', className: 'n', show: shard => (shard.p99_ns === null ? '–' : duration(shard.p99_ns / 1e9)) },
      { label: 'Failed/s', className: 'n', show: shard => rate(shard.failed) },
      { label: 'Not sent/s', className: 'n', show: shard => rate(shard.unsent) },
      { label: 'Clock skew', className: 'n', show: shard => `${number(shard.clock_ahead_us / 1000, 1)} ms` },
    ],
  });
  const list = el('dl', { className: 'facts' });
  return {
    element: section('Store', wide, shards.element, list),
    show(event) {
      const seconds = (event.point?.lasted_ms[0] ?? 1000) / 1000;
      shards.show(event.shards.map(shard => ({ ...shard, calls: shard.calls / seconds, failed: shard.failed / seconds, unsent: shard.unsent / seconds })), 'State is in the memory of this instance; no other instance shares it.');
      list.replaceChildren(...factsOf(event).map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));
    },
  };
}

function nameOf(shard) {
  return el('span', {}, shard.name, shard.trouble ? el('small', {}, shard.trouble) : null);
}

function stateOf(shard) {
  const state = !shard.asked ? 'breaker open' : shard.degraded ? 'unavailable' : 'answers';
  return el('span', { className: `pill ${shard.degraded ? 'bad' : 'good'}` }, state);
}

function factsOf({ facts, shards, store, rules, up_ms: up }) {
  const ofStore = shards.length
    ? [['Live instances', facts.live_instances], ['State losses', facts.state_losses], ['Clock steps', facts.clock_steps]]
    : [['Counters evicted', facts.evictions], ['Overflows', facts.overflows]];
  const counts = [['Rules', rules], ...ofStore, ['Unmatched requests', facts.unmatched]];
  return [['Store', store], ...counts.map(([name, count]) => [name, number(count)]), ['Up for', duration(up / 1000)]];
}
