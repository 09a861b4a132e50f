// Charts as SVG: stacked areas for shares of a whole, lines for values that do not add up.

const NS = 'http://www.w3.org/2000/svg';
const TALL = 190, LEFT = 46, RIGHT = 6, TOP = 8, BOTTOM = 20;

/** A chart in `place` of `series` ({name, label}), over the last `span` seconds; `format` writes a value. */
export function chart(place, { series, span, kind, format }) {
  const svg = node('svg', { role: 'img' });
  const legend = document.createElement('ul');
  legend.className = 'legend';
  const values = new Map();
  for (const { name, label } of series) {
    const item = document.createElement('li');
    const mark = document.createElement('i');
    mark.className = name;
    const value = document.createElement('b');
    item.append(mark, label, value);
    legend.append(item);
    values.set(name, value);
  }
  place.append(svg, legend);
  let samples = [], pointed = null;

  function draw() {
    const wide = Math.max(place.clientWidth, 200);
    const tall = svg.clientHeight || TALL;
    svg.setAttribute('viewBox', `0 0 ${wide} ${tall}`);
    const now = samples.length ? samples[samples.length - 1].at : 0;
    const x = at => wide - RIGHT - (now - at) / span * (wide - LEFT - RIGHT);
    const shown = samples.filter(sample => sample.at >= now - span);
    const heights = shown.map(sample => kind === 'stack'
      ? series.reduce((sum, { name }) => sum + (sample[name] ?? 0), 0)
      : Math.max(0, ...series.map(({ name }) => sample[name] ?? 0)));
    const top = ceiling(Math.max(0, ...heights));
    const y = value => tall - BOTTOM - value / top * (tall - TOP - BOTTOM);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const line = y(top * part);
      parts.push(node('line', { class: 'grid', x1: LEFT, x2: wide - RIGHT, y1: line, y2: line }));
      parts.push(text(format(top * part), { x: LEFT - 6, y: line + 4, 'text-anchor': 'end' }));
    }
    for (let minutes = 0; minutes * 60 <= span; minutes += 1) {
      const at = now - minutes * 60;
      const label = minutes ? `−${minutes} min` : 'now';
      const anchor = minutes * 60 === span ? 'start' : minutes ? 'middle' : 'end';
      parts.push(text(label, { x: x(at), y: tall - 4, 'text-anchor': anchor }));
    }
    const floor = shown.map(() => 0);
    for (const { name } of series) {
      if (kind === 'stack') {
        const low = floor.slice();
        shown.forEach((sample, i) => { floor[i] += sample[name] ?? 0; });
        if (!shown.some(sample => sample[name])) continue;
        const up = shown.map((sample, i) => `${x(sample.at)} ${y(floor[i])}`);
        const down = shown.map((sample, i) => `${x(sample.at)} ${y(low[i])}`).reverse();
        parts.push(node('path', { class: `area ${name}`, d: `M${up.concat(down).join('L')}Z` }));
      } else {
        const known = shown.filter(sample => sample[name] !== undefined);
        const d = known.map((sample, i) => `${i ? 'L' : 'M'}${x(sample.at)} ${y(sample[name])}`);
        if (known.length > 1) parts.push(node('path', { class: `line ${name}`, d: d.join('') }));
      }
    }
    const at = pointed === null ? null : now - (wide - RIGHT - pointed) / (wide - LEFT - RIGHT) * span;
    const sample = at === null ? shown[shown.length - 1] : nearest(shown, at);
    if (at !== null && sample) {
      parts.push(node('line', { class: 'cursor', x1: x(sample.at), x2: x(sample.at), y1: TOP, y2: tall - BOTTOM }));
    }
    for (const { name } of series) {
      const value = sample?.[name];
      values.get(name).textContent = value === undefined ? '–' : format(value);
    }
    svg.replaceChildren(...parts);
    svg.setAttribute('aria-label', series.map(({ name, label }) => `${label} ${values.get(name).textContent}`).join(', '));
  }

  svg.addEventListener('pointermove', event => {
    pointed = event.clientX - svg.getBoundingClientRect().left;
    draw();
  });
  svg.addEventListener('pointerleave', () => { pointed = null; draw(); });
  new ResizeObserver(draw).observe(place);
  return {
    /** Adds a sample ({at, name: value}). */
    add(sample) {
      samples = samples.filter(old => old.at >= sample.at - 2 * span && old.at < sample.at);
      samples.push(sample);
      draw();
    },
  };
}

function nearest(samples, at) {
  return samples.reduce((best, sample) => !best || Math.abs(sample.at - at) < Math.abs(best.at - at) ? sample : best, null);
}

/** The next round number above a value, so that the scale changes rarely. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].map(step => step * power).find(round => round >= value * 1.05) ?? 20 * power;
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
