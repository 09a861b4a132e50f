// The bar above the charts: the range, the time under the cursor with the events near it, and the list of events.

import { onCursor, pointAt } from './chart.js';
import { el, section, write } from './dom.js';
import { RANGES, choose, range } from './history.js';
import { moment, zone } from './words.js';

const SHOWN = 10;

/** A choice of ranges, and a line that shows the time under the cursor. */
export function rangeBar() {
  const choices = [...RANGES].map(([name, { label }]) => {
    const input = el('input', { type: 'radio', name: 'range', value: name, checked: name === range() });
    input.addEventListener('change', () => choose(name));
    return el('label', {}, input, el('span', {}, label));
  });
  const readout = el('p', { className: 'readout' });
  let history = { points: [], events: [], span: 900 }, pointed = null;
  const show = at => {
    pointed = at;
    const near = at === null ? [] : history.events.filter(event => Math.abs(event.at - at) <= history.span / 120);
    const last = history.points.at(-1);
    const time = at === null ? `up to ${last ? moment(last.at) : 'now'}, ${zone()}` : moment(at);
    write(readout, [time, ...near.map(event => event.text)].join(' · '));
  };
  const stop = onCursor(show);
  return {
    element: el('div', { className: 'range' }, el('fieldset', {}, el('legend', { className: 'hidden' }, 'Range'), ...choices), readout),
    show(next) {
      history = next;
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
      const { events } = history, newest = events.slice(-shown).reverse(), now = JSON.stringify(newest);
      more.hidden = events.length <= shown;
      write(more, `Show ${events.length - newest.length} earlier`);
      if (now === before) return;
      before = now;
      const items = newest.map(event => {
        const time = el('button', { type: 'button', className: 'link', title: 'Show this time on the charts' }, moment(event.at));
        time.addEventListener('click', () => pointAt(event.at));
        return el('li', { className: event.kind }, time, el('span', {}, event.text));
      });
      const none = el('li', { className: 'note' }, 'No event in this time: no reload, no change by an operator, no outage. A longer range shows more.');
      list.replaceChildren(...(items.length ? items : [none]));
    },
  };
  more.addEventListener('click', () => {
    shown = Infinity;
    made.show(last);
  });
  return made;
}
