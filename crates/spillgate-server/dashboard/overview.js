// The first page: figures of this instance, its history, its store, and its heaviest subjects.

import { chart } from './chart.js';
import { el, section, write } from './dom.js';
import { REASONS, SOURCES, look, watchHistory } from './history.js';
import { live } from './live.js';
import { eventList, rangeBar } from './ranges.js';
import { rulePageOf } from './rules.js';
import { storePanel } from './store.js';
import { heaviest, ranking } from './subjects.js';
import { duration, number, rate } from './words.js';

const LISTED = 6;

/** The series of a chart, labelled by their names. */
export const named = names => names.map(name => ({ name, label: name.replaceAll('-', ' ') }));

export function overviewPage(place) {
  const figures = figuresOf();
  const range = rangeBar();
  const plots = {
    requests: plot('Requests per second', 'less', {
      kind: 'stack', format: rate, none: 'No request in this time. Send one to the HTTP API: POST /v1/check.',
      series: [{ name: 'allowed', label: 'allowed' }, { name: 'denied', label: 'denied' }],
    }),
    reasons: plot('Denials by reason', 'half', {
      kind: 'stack', format: rate, none: 'No rule has denied anything in this time.', series: named(REASONS),
    }),
    latency: plot('Time of a decision', 'less', {
      kind: 'lines', format: duration, none: 'No decision was timed in this time.',
      series: [{ name: 'p50', label: 'p50' }, { name: 'p99', label: 'p99' }, { name: 'store-p99', label: 'store, p99' }],
    }),
    sources: plot('Decisions by source', 'more', { kind: 'stack', format: rate, none: 'No rule has decided anything in this time.', series: named(SOURCES) }),
    calls: plot('Calls to the store per second', 'less', {
      kind: 'stack', format: rate, none: 'No call to a store in this time.',
      series: [{ name: 'answered', label: 'answered' }, { name: 'failed', label: 'failed' }, { name: 'unsent', label: 'not sent' }],
    }),
  };
  const store = storePanel('more');
  const events = eventList('Events', 'full');
  const rules = ranking('No rule has denied anything in this time.');
  const denied = ranking('No denials in the last minute.'), consumers = ranking('No use in the last minute.');
  place.append(figures.element, range.element, plots.requests.element, section('Denials by rule', 'quarter', rules.element),
    section('Most denials in the last minute', 'third', denied.element), plots.reasons.element,
    section('Most use in the last minute', 'half', consumers.element), events.element,
    plots.latency.element, plots.sources.element, plots.calls.element, store.element);
  const stop = watchHistory(null, history => {
    [range, events, ...Object.values(plots)].forEach(one => one.show(history));
    rules.show(history.rules.filter(one => one.denied).slice(0, LISTED).map(itemOf));
  });
  return {
    title: 'Overview',
    update() {
      if (!live.event) return;
      figures.show(live.event);
      store.show(live.event);
      denied.show(heaviest(live.event.top, 'most_denied', LISTED));
      consumers.show(heaviest(live.event.top, 'consumers', LISTED));
    },
    close() {
      stop();
      range.close();
      Object.values(plots).forEach(one => one.close());
    },
  };
}

/** The denials of a rule as an item of a ranking. */
function itemOf({ rule, allowed, denied }) {
  const part = `${number(denied / (allowed + denied) * 100)} % denied`;
  const isShadow = live.rules.find(one => one.name === rule)?.mode.in_force === 'shadow';
  return { name: rule ?? 'all other rules', href: rule && rulePageOf(rule), about: isShadow ? 'in shadow, so allowed' : part, count: denied };
}

/** A section with a chart. A click on it holds the view, with a mark at that time. */
export function plot(heading, wide, options) {
  const place = el('div');
  let to = null;
  const drawn = chart(place, { label: heading, pick: at => look({ until: to, at }), ...options });
  const show = history => {
    ({ to } = history);
    drawn.show(history);
  };
  return { ...drawn, show, element: section(heading, wide, place) };
}

/** A figure with its label and unit. */
export function figure(label, unit) {
  const value = el('b', {}, '–'), note = el('span', {}, unit);
  return { value, note, element: el('div', {}, el('h2', {}, label), el('p', {}, value, note)) };
}

/** The figures of the last second. */
function figuresOf() {
  const all = figure('Requests', 'per second'), denied = figure('Denied', 'of requests');
  const p50 = figure('p50', 'of a decision'), p99 = figure('p99', 'of a decision');
  const others = el('p', { className: 'note' }), fleet = el('p', { className: 'note' });
  const figures = [all, denied, p50, p99].map(one => one.element);
  return {
    element: el('section', { className: 'figures', 'aria-label': 'This instance, now' }, ...figures, others, fleet),
    show({ point, facts, fleet: load, shards }) {
      const more = facts.live_instances - 1;
      write(others, !shards.length ? 'These figures are of this instance, which shares its limits with no other.'
        : `These figures are of this instance. ${more > 0 ? `${number(more)} more ${more > 1 ? 'instances are' : 'instance is'} expected on the store and ${more > 1 ? 'share' : 'shares'} its limits; each has a dashboard of its own.` : 'No other instance is on the store.'}`);
      write(fleet, more > 0 ? fleetOf(load, facts.live_instances) : '');
      if (!point) return;
      const seconds = point.lasted_ms[0] / 1000, { requests, p50_ns: half, p99_ns: most } = point.instance;
      const denials = requests.denied[0] / seconds, sum = denials + requests.allowed[0] / seconds;
      write(all.value, rate(sum));
      write(denied.value, sum ? `${number(denials / sum * 100, 1)} %` : '–');
      write(denied.note, sum ? `${rate(denials)} per second` : 'of requests');
      write(p50.value, half[0] === null ? '–' : duration(half[0] / 1e9));
      write(p99.value, most[0] === null ? '–' : duration(most[0] / 1e9));
    },
  };
}

/** The decisions of the fleet, by the instances that are on the store now. */
function fleetOf(load, expected) {
  if (!load) return 'Fleet: unknown until the store answers.';
  const { instances, allowed, denied } = load, requests = allowed + denied;
  const part = requests ? `, ${number(denied / requests * 100, 1)} % of them denied` : '';
  const by = instances < expected ? `${number(instances)} of ${number(expected)}` : `all ${number(instances)}`;
  return `Fleet, last minute: ${number(requests)} requests${part}, by ${by} instances.`;
}
