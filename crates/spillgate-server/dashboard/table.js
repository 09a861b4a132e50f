// Tables that sort by their columns, keep their rows between updates, and grow instead of ending at a number.

import { el, write } from './dom.js';
import { number } from './words.js';

const STEP = 100;

/**
 * A table. Each column has { label, show(item) } and may have { className, value(item) to sort by, state(item) }: a cell with
 * a state is only made again when its state changes, so that a button in it keeps the focus.
 */
export function table({ label, columns, key }) {
  const body = el('tbody'), rows = new Map();
  const more = el('button', { type: 'button', className: 'quiet more', hidden: true });
  let items = [], empty = '', shown = STEP, order = null;
  const heads = columns.map((column, place) => {
    if (!column.value) return el('th', { className: column.className ?? '' }, column.label);
    const button = el('button', { type: 'button', className: 'sort' }, column.label);
    button.addEventListener('click', () => {
      order = { place, down: order?.place === place ? !order.down : ['n', 'u'].includes(column.className) };
      draw(true);
    });
    return el('th', { className: column.className ?? '' }, button);
  });
  more.addEventListener('click', () => {
    shown += STEP;
    draw(true);
  });

  function sorted() {
    heads.forEach((head, place) => {
      if (columns[place].value) head.setAttribute('aria-sort', order?.place !== place ? 'none' : order.down ? 'descending' : 'ascending');
    });
    if (!order) return items;
    const { value } = columns[order.place], sign = order.down ? -1 : 1;
    const compare = (a, b) => (typeof a === 'number' ? a - b : String(a).localeCompare(String(b)));
    return [...items].sort((a, b) => sign * compare(value(a), value(b)));
  }

  function rowOf(item) {
    const name = key(item);
    if (!rows.has(name)) {
      const cells = columns.map(column => el('td', { className: column.className ?? '', 'data-label': column.label }));
      rows.set(name, el('tr', { 'data-key': name }, ...cells));
    }
    const row = rows.get(name);
    columns.forEach((column, place) => {
      const cell = row.cells[place], state = column.state?.(item);
      if (state !== undefined && cell.dataset.state === state) return;
      if (state !== undefined) cell.dataset.state = state;
      const content = column.show(item);
      if (typeof content === 'string') write(cell, content);
      else cell.replaceChildren(content);
    });
    return row;
  }

  function draw(moves) {
    const visible = sorted().slice(0, shown).map(rowOf);
    // Rows do not move under the hands of an operator who is about to press a button in one of them.
    const stays = !moves && body.contains(document.activeElement) && visible.length === body.rows.length;
    if (!stays) {
      const none = el('tr', {}, el('td', { className: 'empty', colSpan: columns.length }, empty));
      const focus = document.activeElement;
      body.replaceChildren(...(visible.length ? visible : [none]));
      if (body.contains(focus)) focus.focus();
    }
    const left = items.length - visible.length;
    more.hidden = left <= 0;
    write(more, `Show ${number(Math.min(STEP, left))} more of ${number(left)}`);
  }

  const head = el('thead', {}, el('tr', {}, ...heads));
  const scroll = el('div', { className: 'scroll', tabIndex: 0, role: 'region', 'aria-label': label }, el('table', {}, head, body));
  return {
    element: el('div', {}, scroll, more),
    /** Shows items; without any, a text. */
    show(next, ifNone) {
      [items, empty] = [next, ifNone];
      const known = new Set(items.map(key));
      for (const name of rows.keys()) if (!known.has(name)) rows.delete(name);
      draw(false);
    },
  };
}
