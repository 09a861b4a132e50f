// Charts as SVG: stacked areas for shares of a whole, lines for values that do not add up. A cursor shows the same time on
// all charts.

import { ceiling, ticks } from './axis.js';
import { el } from './dom.js';
import { clock } from './words.js';

const NS = 'http://www.w3.org/2000/svg';
const TALL = 190, LEFT = 50, RIGHT = 8, TOP = 16, BOTTOM = 32;

const charts = new Set();
const readers = new Set();
let cursor = null;

/** Shows a time on all charts; null shows the latest. */
export function pointAt(at) {
  cursor = at;
  charts.forEach(draw => draw());
  readers.forEach(read => read(at));
}

/** Calls `read` with the time under the cursor, or null. Returns a function that ends it. */
export function onCursor(read) {
  readers.add(read);
  return () => readers.delete(read);
}

/** A chart in `place` of `series` ({name, label}); `format` writes a value, `none` is shown without any. */
export function chart(place, { label, series, kind, format, none }) {
  place.classList.add('chart');
  const svg = node('svg', { role: 'img', tabindex: 0 });
  const values = new Map();
  const legend = el('ul', { className: 'legend' }, ...series.map(({ name, label }) => {
    const value = el('b');
    values.set(name, value);
    return el('li', {}, el('i', { className: name }), label, value);
  }));
  place.replaceChildren(svg, legend);
  let points = [], span = 900, events = [], scale = null;

  /** Draws the curves: after new points and a new size. */
  function paint() {
    const wide = Math.max(place.clientWidth, 200), tall = svg.clientHeight || TALL;
    const to = points.at(-1)?.at ?? Date.now() / 1000, from = to - span;
    const top = ceiling(Math.max(0, ...points.map(point => height(point))));
    const x = at => LEFT + (at - from) / span * (wide - LEFT - RIGHT);
    const y = value => tall - BOTTOM - value / top * (tall - TOP - BOTTOM);
    scale = { wide, tall, from, to, x };
    svg.setAttribute('viewBox', `0 0 ${wide} ${tall}`);
    const parts = [0, 0.5, 1].flatMap(part => [
      node('line', { class: 'grid', x1: LEFT, x2: wide - RIGHT, y1: y(top * part), y2: y(top * part) }),
      text(format(top * part), { x: LEFT - 6, y: y(top * part) + 4, 'text-anchor': 'end' }),
    ]);
    for (const { at, text: time, date } of ticks(from, to, wide - LEFT - RIGHT)) {
      const anchor = x(at) > wide - 30 ? 'end' : x(at) < LEFT + 12 ? 'start' : 'middle';
      parts.push(text(time, { x: x(at), y: tall - 17, 'text-anchor': anchor }));
      if (date) parts.push(text(date, { x: x(at), y: tall - 4, 'text-anchor': anchor }));
    }
    const isEmpty = !points.some(point => series.some(({ name }) => point[name]));
    if (isEmpty && none) parts.push(text(none, { class: 'none', x: (LEFT + wide) / 2, y: tall / 2 - 8, 'text-anchor': 'middle' }));
    else parts.push(...(kind === 'stack' ? areas(x, y) : lines(x, y)));
    for (const event of events.filter(event => event.at >= from && event.at <= to)) parts.push(mark(event, x(event.at), tall));
    svg.replaceChildren(...parts, node('g', { class: 'pointer' }));
    draw();
  }

  const height = point => (kind === 'stack'
    ? series.reduce((sum, { name }) => sum + (point[name] ?? 0), 0)
    : Math.max(0, ...series.map(({ name }) => point[name] ?? 0)));

  /** The ends of a point's interval: the first point is drawn from its beginning. */
  const along = points => points.flatMap((point, i) => (i ? [[point.at, point]] : [[point.at - point.seconds, point], [point.at, point]]));

  function areas(x, y) {
    const path = along(points), floor = path.map(() => 0), drawn = [];
    for (const { name } of series) {
      const low = floor.slice();
      path.forEach(([, point], i) => { floor[i] += point[name] ?? 0; });
      if (!points.some(point => point[name])) continue;
      const up = path.map(([at], i) => `${x(at).toFixed(1)} ${y(floor[i]).toFixed(1)}`);
      const down = path.map(([at], i) => `${x(at).toFixed(1)} ${y(low[i]).toFixed(1)}`).reverse();
      drawn.push(node('path', { class: `area ${name}`, d: `M${up.concat(down).join('L')}Z` }));
    }
    return drawn;
  }

  function lines(x, y) {
    return series.map(({ name }) => {
      const known = along(points.filter(point => point[name] !== undefined));
      const d = known.map(([at, point], i) => `${i ? 'L' : 'M'}${x(at).toFixed(1)} ${y(point[name]).toFixed(1)}`);
      return d.length ? node('path', { class: `line ${name}`, d: d.join('') }) : null;
    }).filter(Boolean);
  }

  /** Draws the cursor, and the values at its time. */
  function draw() {
    if (!scale) return;
    const { tall, wide, x } = scale;
    const point = cursor === null ? points.at(-1) : nearest(points, cursor);
    const pointer = svg.querySelector('.pointer');
    pointer?.replaceChildren();
    if (cursor !== null && point && pointer) {
      const at = x(point.at), anchor = at > wide - 60 ? 'end' : at < LEFT + 30 ? 'start' : 'middle';
      pointer.append(node('line', { class: 'cursor', x1: at, x2: at, y1: TOP, y2: tall - BOTTOM }), text(clock(point.at), { class: 'time', x: at, y: TOP - 4, 'text-anchor': anchor }));
    }
    for (const { name } of series) {
      const value = point?.[name];
      values.get(name).textContent = value === undefined ? '–' : format(value);
    }
    const shown = series.map(({ name, label }) => `${label} ${values.get(name).textContent}`).join(', ');
    svg.setAttribute('aria-label', `${label}${point ? ` at ${clock(point.at)}` : ''}: ${shown}`);
  }

  svg.addEventListener('pointermove', event => {
    if (!scale || !points.length) return;
    const part = (event.clientX - svg.getBoundingClientRect().left - LEFT) / (scale.wide - LEFT - RIGHT);
    pointAt(nearest(points, scale.from + part * span).at);
  });
  svg.addEventListener('pointerleave', () => pointAt(null));
  svg.addEventListener('blur', () => pointAt(null));
  svg.addEventListener('keydown', event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === 'Escape') pointAt(null);
    if (step === undefined || !points.length) return;
    event.preventDefault();
    const at = points.indexOf(nearest(points, cursor ?? points.at(-1).at));
    pointAt(points[Math.min(points.length - 1, Math.max(0, at + step))].at);
  });
  const resized = new ResizeObserver(paint);
  resized.observe(place);
  charts.add(draw);
  return {
    /** Shows a history. */
    show(history) {
      ({ points, span, events } = history);
      paint();
    },
    close() {
      resized.disconnect();
      charts.delete(draw);
    },
  };
}

function nearest(points, at) {
  return points.reduce((best, point) => (!best || Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best), null);
}

/** A line for an event, with its text as a tooltip. */
function mark(event, x, tall) {
  const line = node('line', { x1: x, x2: x, y1: TOP, y2: tall - BOTTOM });
  const head = node('path', { d: `M${x - 4} ${TOP - 5}L${x + 4} ${TOP - 5}L${x} ${TOP + 2}Z` });
  const title = node('title', {});
  title.textContent = `${clock(event.at)} ${event.text}`;
  const group = node('g', { class: `event ${event.kind}` });
  group.append(title, line, head);
  return group;
}

function node(name, attributes) {
  const made = document.createElementNS(NS, name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

function text(content, attributes) {
  const made = node('text', attributes);
  made.textContent = content;
  return made;
}
