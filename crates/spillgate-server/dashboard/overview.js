// The first page: figures and history of the fleet or of this instance, the store, and the heaviest subjects.

import { chart } from './chart.js';
import { el, section, write } from './dom.js';
import { REASONS, SOURCES, isOfFleet, look, view, watchHistory } from './history.js';
import { live } from './live.js';
import { eventList, rangeBar } from './ranges.js';
import { rulePageOf } from './rules.js';
import { ask } from './server.js';
import { storePanel } from './store.js';
import { heaviest, limitOf, pageOf, ranking } from './subjects.js';
import { duration, number, rate, subject as text } from './words.js';

const LISTED = 6, DENIALS_EVERY_MS = 10000, MINUTE = 60;

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
  const deniedHere = section('Most denials in the last minute', 'third', denied.element), deniedOf = el('p', { className: 'note' }), ofFleet = deniedByFleet();
  deniedHere.append(deniedOf);
  const used = section('Most use in the last minute, on this instance', 'half', consumers.element);
  const note = el('p', { className: 'note full', role: 'status' });
  place.append(figures.element, range.element, note, plots.requests.element, section('Denials by rule', 'quarter', rules.element),
    deniedHere, ofFleet.element, plots.reasons.element,
    used, events.element,
    plots.latency.element, plots.sources.element, plots.calls.element, store.element);
  let shown = { points: [] };
  const isPast = () => view.until !== null && view.until < Date.now() / 1000 - 60;
  const stop = watchHistory(null, history => {
    shown = history;
    [range, events, ...Object.values(plots)].forEach(one => one.show(history));
    const hidden = history.rules.filter(one => !one.denied && one.would_deny);
    const denying = history.rules.filter(one => one.denied).sort((one, other) => other.denied - one.denied);
    rules.show([...denying, ...hidden].slice(0, LISTED).map(itemOf), history.none ?? undefined);
    write(note, history.problem ? `The history of the fleet is unknown: ${history.problem}. This instance still has its own: choose This instance.` : isPast() ? 'The charts and the denials by rule are of the past. The figures above and the store are of now.' : '');
    // The calls are those of one instance.
    plots.calls.element.hidden = history.of === 'fleet';
    show();
  });
  function show() {
    if (!live.event) return;
    figures.show(live.event, shown);
    // What happens now would be taken for a part of the past that is shown.
    const isHeld = view.until !== null;
    ofFleet.element.hidden = isHeld || !isOfFleet() || !ofFleet.isKnown();
    deniedHere.hidden = used.hidden = isHeld;
    write(deniedOf, isOfFleet() ? 'On this instance. The fleet has recorded it two minutes later.' : '');
  }
  return {
    title: 'Overview',
    update() {
      if (!live.event) return;
      show();
      store.show(live.event);
      denied.show(heaviest(live.event.top, 'most_denied', LISTED));
      consumers.show(heaviest(live.event.top, 'consumers', LISTED));
    },
    close() {
      stop();
      ofFleet.close();
      range.close();
      Object.values(plots).forEach(one => one.close());
    },
  };
}

/** The denials of a rule as an item of a ranking. */
function itemOf({ rule, allowed, denied, would_deny: wouldDeny }) {
  const part = `${number(denied / (allowed + denied + wouldDeny) * 100)} % denied`;
  return { name: rule ?? 'all other rules', href: rule && rulePageOf(rule), about: denied ? part : 'would be denied: the rule is in shadow', count: denied || wouldDeny };
}

/** The most denied subjects of the fleet, if its denials are recorded. */
function deniedByFleet() {
  const list = ranking('No denial was recorded in this hour and the last.'), element = section('Most denied, this hour and the last', 'third', list.element);
  let isKnown = false, timer;
  async function load() {
    if (isOfFleet()) {
      // Without an answer the list of this instance is shown.
      const found = await ask('GET', 'admin/v1/denials?since=1h').catch(() => null);
      isKnown = Boolean(found?.recording);
      if (isKnown) {
        list.show(found.entries.slice(0, LISTED).map(({ rule, limit, subject, whole, denied }) => ({
          name: text(subject) + (whole ? '' : '…'), href: whole ? pageOf(rule, subject) : null, about: `${rule}, ${limitOf(rule, limit)}`, count: denied,
        })));
      }
    }
    timer = setTimeout(load, live.event ? DENIALS_EVERY_MS : 500);
  }
  load();
  return { element, isKnown: () => isKnown, close: () => clearTimeout(timer) };
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

/** The figures of now: of an instance those of the last second, of the fleet those of the last minute. */
function figuresOf() {
  const all = figure('Requests', 'per second'), denied = figure('Denied', 'of requests');
  const p50 = figure('p50', 'of a decision'), p99 = figure('p99', 'of a decision');
  const note = el('p', { className: 'note' });
  const element = el('section', { className: 'figures' }, ...[all, denied, p50, p99].map(one => one.element), note);
  const times = (half, most) => [[p50, half], [p99, most]].forEach(([one, time]) => write(one.value, time === undefined ? '–' : duration(time)));
  function rates(allowed, denials) {
    const sum = allowed + denials;
    write(all.value, rate(sum));
    write(denied.value, sum ? `${number(denials / sum * 100, 1)} %` : '–');
    write(denied.note, sum ? `${rate(denials)} per second` : 'of requests');
  }
  function ofFleet({ fleet, facts }, { points }) {
    write(note, aboutFleet(fleet, facts.live_instances));
    if (fleet) rates(fleet.allowed / MINUTE, fleet.denied / MINUTE);
    else {
      [all, denied].forEach(one => write(one.value, '–'));
      write(denied.note, 'of requests');
    }
    const last = fleet && view.until === null ? points.at(-1) : null;
    times(last?.p50, last?.p99);
  }
  function ofInstance({ point, facts, shards }) {
    write(note, aboutInstance(facts.live_instances - 1, !shards.length));
    if (!point) return;
    const seconds = point.lasted_ms[0] / 1000, { requests, p50_ns: [half], p99_ns: [most] } = point.totals;
    rates(requests.allowed[0] / seconds, requests.denied[0] / seconds);
    times(...[half, most].map(ns => (ns === null ? undefined : ns / 1e9)));
  }
  return {
    element,
    show(event, history) {
      element.setAttribute('aria-label', isOfFleet() ? 'The fleet, last minute' : 'This instance, now');
      if (isOfFleet()) ofFleet(event, history);
      else ofInstance(event);
    },
  };
}

function aboutFleet(load, expected) {
  if (!load) return 'These figures are of the fleet, and unknown until the store answers.';
  const { instances } = load, by = instances < expected ? `${number(instances)} of ${number(expected)} instances` : instances > 1 ? `all ${number(instances)} instances` : 'the only instance';
  return `These figures are of the last minute of ${by}, and the charts end one or two minutes ago. The lists of use and the store are of this instance.`;
}

function aboutInstance(others, isAlone) {
  if (isAlone) return 'These figures are of this instance, which shares its limits with no other.';
  if (others <= 0) return 'These figures are of this instance. No other instance is on the store.';
  return `These figures are of this instance. ${number(others)} more ${others > 1 ? 'instances are' : 'instance is'} expected on the store and ${others > 1 ? 'share' : 'shares'} its limits.`;
}
