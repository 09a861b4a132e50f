// Wall-clock times along the axis of a chart.

import { clock, day } from './words.js';

const STEPS = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];
const APART = 76;

/** The times that get a label between two instants, on a chart of so many pixels: [{ at, text, date }]. */
export function ticks(from, to, pixels) {
  const step = STEPS.find(step => (to - from) / step <= pixels / APART) ?? STEPS.at(-1);
  // Whole hours of the browser's zone, not of UTC.
  const zone = -new Date(to * 1000).getTimezoneOffset() * 60;
  const found = [];
  let date = null;
  for (let at = Math.ceil((from + zone) / step) * step - zone; at <= to; at += step) {
    const today = day(at);
    found.push({ at, text: clock(at, step < 60), date: today === date ? '' : today });
    date = today;
  }
  return found;
}

/** The next round number above a value, so that the scale changes rarely. */
export function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].map(step => step * power).find(round => round >= value * 1.05) ?? 20 * power;
}
