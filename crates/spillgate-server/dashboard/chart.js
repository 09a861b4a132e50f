// Charts as SVG: stacked areas for shares of a whole, lines for values that do not add up. A cursor shows the same time on
// all charts.

import { ceiling, ticks } from './axis.js';
import { el } from './dom.js';
import { clock, clockOf } from './words.js';

const NS = 'http://www.w3.org/2000/svg';
const TALL = 190, LEFT = 50, RIGHT = 8, TOP = 16, BOTTOM = 32;

const charts = new Set();
const readers = new Set();
let pointed = null, kept = null;
const cursor = () => pointed ?? kept;

/** Shows a time on all charts; null shows the one that is kept, or the latest. */
export function pointAt(at) {
  pointed = at;
  charts.forEach(draw => draw());
  readers.forEach(read => read(cursor()));
}

/** Shows a time on all charts as long as no other one is pointed at. */
export function keepAt(at) {
  kept = at;
  pointAt(null);
}

/** Calls `read` with the time under the cursor, or null. Returns a function that ends it. */
export function onCursor(read) {
  readers.add(read);
  return () => readers.delete(read);
}

/**
 * A chart in `place` of `series` ({name, label}); `format` writes a value, `none` is shown without any. A series without a value
 * above 0 is left out. `pick` is called with a time that is clicked.
 */
export function chart(place, { label, series, kind, format, none, pick }) {
  place.classList.add('chart');
  const svg = node('svg', { role: 'img', tabindex: 0 });
  const values = new Map();
  const legend = el('ul', { className: 'legend' });
  for (const { name, label } of series) {
    const value = el('b'), entry = el('li', {}, el('i', { className: name }), label, value);
    values.set(name, value);
    legend.append(entry);
  }
  place.replaceChildren(svg, legend);
  let points = [], runs = [], shown = [], view = null, scale = null;

  /** Draws the curves: after new points and a new size. */
  function paint() {
    const wide = Math.max(place.clientWidth, 200), tall = svg.clientHeight || TALL;
    if (!view) return;
    const { to, span, began, events } = view, from = to - span;
    shown = series.filter(({ name }) => points.some(point => point[name]));
    series.forEach((one, i) => { legend.children[i].hidden = !shown.includes(one); });
    const top = ceiling(Math.max(0, ...points.map(point => height(point))));
    const x = at => LEFT + Math.max(0, at - from) / span * (wide - LEFT - RIGHT);
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
    if (began.at > from) parts.unshift(...shade(x(Math.min(began.at, to)), tall, began.text));
    if (!shown.length) parts.push(text(view.none ?? none, { class: 'none', x: (LEFT + wide) / 2, y: tall / 2 - 8, 'text-anchor': 'middle' }));
    else parts.push(...(kind === 'stack' ? areas(x, y) : lines(x, y)));
    for (const event of events.filter(event => event.at >= from && event.at <= to)) parts.push(mark(event, x(event.at), tall));
    svg.replaceChildren(...parts, node('g', { class: 'pointer' }));
    draw();
  }

  const height = point => (kind === 'stack'
    ? shown.reduce((sum, { name }) => sum + (point[name] ?? 0), 0)
    : Math.max(0, ...shown.map(({ name }) => point[name] ?? 0)));

  /** The ends of a point's interval: the first point is drawn from its beginning. */
  const along = points => points.flatMap((point, i) => (i ? [[point.at, point]] : [[point.at - point.seconds, point], [point.at, point]]));

  function areas(x, y) {
    const paths = runs.map(along), floors = paths.map(path => path.map(() => 0));
    return shown.map(({ name }) => {
      const d = paths.map((path, run) => {
        const floor = floors[run];
        const down = path.map(([at], i) => `${x(at).toFixed(1)} ${y(floor[i]).toFixed(1)}`).reverse();
        path.forEach(([, point], i) => { floor[i] += point[name] ?? 0; });
        const up = path.map(([at], i) => `${x(at).toFixed(1)} ${y(floor[i]).toFixed(1)}`);
        return `M${up.concat(down).join('L')}Z`;
      });
      return node('path', { class: `area ${name}`, d: d.join('') });
    });
  }

  function lines(x, y) {
    return shown.map(({ name }) => {
      const known = runs.flatMap(run => split(run, point => point[name] !== undefined, () => true));
      const d = known.map(run => along(run).map(([at, point], i) => `${i ? 'L' : 'M'}${x(at).toFixed(1)} ${y(point[name]).toFixed(1)}`).join(''));
      return node('path', { class: `line ${name}`, d: d.join('') });
    });
  }

  /** Draws the cursor, and the values at its time. */
  function draw() {
    if (!scale) return;
    const { tall, wide, x } = scale;
    const time = cursor(), point = time === null ? points.at(-1) : nearest(points, time);
    const pointer = svg.querySelector('.pointer');
    pointer?.replaceChildren();
    if (time !== null && point && pointer) {
      const at = x(point.at), anchor = at > wide - 60 ? 'end' : at < LEFT + 30 ? 'start' : 'middle';
      pointer.append(node('line', { class: 'cursor', x1: at, x2: at, y1: TOP, y2: tall - BOTTOM }), text(clockOf(point), { class: 'time', x: at, y: TOP - 4, 'text-anchor': anchor }));
    }
    for (const { name } of series) {
      const value = point?.[name];
      values.get(name).textContent = value === undefined ? '–' : format(value);
    }
    const read = shown.map(({ name, label }) => `${label} ${values.get(name).textContent}`).join(', ');
    svg.setAttribute('aria-label', `${label}${point ? ` at ${clockOf(point)}` : ''}: ${read || (view?.none ?? none)}`);
  }

  const under = event => {
    const part = (event.clientX - svg.getBoundingClientRect().left - LEFT) / (scale.wide - LEFT - RIGHT);
    return nearest(points, scale.from + part * view.span).at;
  };
  svg.addEventListener('pointermove', event => { if (points.length) pointAt(under(event)); });
  svg.addEventListener('click', event => { if (points.length) pick(under(event)); });
  svg.addEventListener('pointerleave', () => pointAt(null));
  svg.addEventListener('blur', () => pointAt(null));
  svg.addEventListener('keydown', event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === 'Escape') pointAt(null);
    if (event.key === 'Enter' && cursor() !== null) pick(cursor());
    if (step === undefined || !points.length) return;
    event.preventDefault();
    const at = points.indexOf(nearest(points, cursor() ?? points.at(-1).at));
    pointAt(points[Math.min(points.length - 1, Math.max(0, at + step))].at);
  });
  const resized = new ResizeObserver(paint);
  resized.observe(place);
  charts.add(draw);
  return {
    /** Shows a history. */
    show(history) {
      view = history;
      points = history.points.filter(({ at }) => at > history.to - history.span);
      runs = split(points, point => point.allowed !== undefined, point => point.follows);
      paint();
    },
    close() {
      resized.disconnect();
      charts.delete(draw);
    },
  };
}

/** The runs of points that are known, each of which follows on the one before it. */
function split(points, isKnown, follows) {
  const runs = [];
  let run = null;
  for (const point of points) {
    if (!isKnown(point)) run = null;
    else if (run && follows(point)) run.push(point);
    else runs.push(run = [point]);
  }
  return runs;
}

/** The time before the first point that there can be: before the start of an instance, or not recorded of a fleet. */
function shade(end, tall, before) {
  const wide = end - LEFT, label = text(before, { class: 'before', x: LEFT + wide / 2, y: tall / 2 - 4, 'text-anchor': 'middle' });
  return [node('rect', { class: 'before', x: LEFT, y: TOP, width: wide, height: tall - TOP - BOTTOM }), wide > 110 ? label : ''];
}

/** The point whose interval contains a time, else the nearest one. */
function nearest(points, at) {
  return points.find(point => point.at - point.seconds < at && at <= point.at) ?? points.reduce((best, point) => (!best || Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best), null);
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
