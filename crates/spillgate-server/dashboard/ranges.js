// The bar above the charts: whose history, the range, the time under the cursor with the events near it, and the list of events.

import { onCursor } from './chart.js';
import { el, section, write } from './dom.js';
import { hasFleet, isOfFleet, look, ranges, view, writeView } from './history.js';
import { clockOf, day, moment, zone } from './words.js';

const SHOWN = 10;

/** One of several, as buttons side by side. */
function choice(name, legend, pick) {
  const set = el('fieldset', {}, el('legend', { className: 'hidden' }, legend));
  let before = '';
  return {
    element: set,
    show(options, chosen) {
      const now = JSON.stringify([options, chosen]);
      if (now === before) return;
      before = now;
      const labels = options.map(([value, label]) => {
        const input = el('input', { type: 'radio', name, value, checked: value === chosen });
        input.addEventListener('change', () => pick(value));
        return el('label', {}, input, el('span', {}, label));
      });
      const focused = set.contains(document.activeElement) ? document.activeElement.value : null;
      set.replaceChildren(set.firstChild, ...labels);
      set.querySelector(`input[value='${focused}']`)?.focus();
    },
  };
}

/** A choice of fleet or instance and of ranges, a button that holds the view, and a line that shows the time under the cursor. */
export function rangeBar() {
  writeView();
  const whose = choice('of', 'Whose history', of => look({ of })), range = choice('range', 'Range', range => look({ range }));
  function showChoices() {
    whose.element.hidden = !hasFleet();
    whose.show([['fleet', 'Fleet'], ['instance', 'This instance']], isOfFleet() ? 'fleet' : 'instance');
    range.show(ranges().map(([name, { label }]) => [name, label]), view.range);
  }
  showChoices();
  const readout = el('p', { className: 'readout' });
  const hold = el('button', { type: 'button', className: 'quiet' }, 'Hold');
  hold.addEventListener('click', () => look(view.until === null ? { until: history.to } : { until: null, at: null }));
  let history = { points: [], events: [], span: 900 }, pointed = view.at;
  const show = at => {
    pointed = at;
    const near = at === null ? [] : history.events.filter(event => Math.abs(event.at - at) <= history.span / 120);
    const time = at === null ? `up to ${history.to ? moment(history.to) : 'now'}, ${zone()}` : `${day(at)} ${clockOf(history.points.find(point => point.at === at) ?? { at, seconds: 0 })}`;
    hold.setAttribute('aria-pressed', String(view.until !== null));
    write(hold, view.until === null ? 'Hold' : 'Back to now');
    hold.title = view.until === null ? 'Stop the charts here; the address then shows this time to others' : '';
    write(readout, [time, ...near.map(event => event.text)].join(' · '));
  };
  const stop = onCursor(show);
  return {
    element: el('div', { className: 'range' }, whose.element, range.element, hold, readout),
    show(next) {
      history = next;
      showChoices();
      show(pointed);
    },
    close: stop,
  };
}

/** The events of a history, the newest first. */
export function eventList(heading, wide) {
  const list = el('ol', { className: 'events' });
  const more = el('button', { type: 'button', className: 'quiet more', hidden: true });
  let before = '', shown = SHOWN, last = { events: [] };
  const made = {
    element: section(heading, wide, list, more),
    show(history) {
      last = history;
      const { events } = history, newest = events.slice(-shown).reverse(), now = JSON.stringify([newest, history.problem]);
      more.hidden = events.length <= shown;
      write(more, `Show ${events.length - newest.length} earlier`);
      if (now === before) return;
      before = now;
      const items = newest.map(event => {
        const time = el('button', { type: 'button', className: 'link', title: 'Show this time on the charts' }, moment(event.at));
        time.addEventListener('click', () => look({ until: last.to, at: event.at }));
        return el('li', { className: event.kind }, time, el('span', {}, event.text));
      });
      const none = el('li', { className: 'note' }, history.problem ? 'Unknown until the store answers.' : 'No event in this time: no reload, no change by an operator, no outage. A longer range shows more.');
      list.replaceChildren(...(items.length ? items : [none]));
    },
  };
  more.addEventListener('click', () => {
    shown = Infinity;
    made.show(last);
  });
  return made;
}
