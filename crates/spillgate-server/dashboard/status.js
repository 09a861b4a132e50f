// The status of this instance: one word in the header, and the conditions that need attention with their next step.

import { $, el, write } from './dom.js';
import { duration, moment } from './words.js';

const CLASSES = { ok: 'good', note: 'good', warning: 'warn', critical: 'bad' };
const PLACES = { 'rule-off': '#/rules?mode=off', 'rule-shadow': '#/rules?mode=shadow', 'nothing-enforced': '#/rules', fallback: '#/rules', 'no-rules': '#/rules' };

const AT_ONCE = 2;

let shown = '';

/** Shows the status of an event. */
export function showStatus({ status, at_ms: now }) {
  word(CLASSES[status.level], status.word);
  const list = $('conditions'), items = status.conditions;
  list.hidden = !items.length;
  // Only the ages change every second: the rest is not made again, so that links keep the focus.
  const key = JSON.stringify(items.map(({ level, text, next }) => [level, text, next]));
  if (key !== shown) list.replaceChildren(...folded(items));
  shown = key;
  const ages = list.querySelectorAll('.age');
  [...urgent(items), ...others(items)].forEach(({ since_ms: since }, i) => write(ages[i], since === null ? '' : age(since, now)));
}

/** The conditions that are shown at once. */
const urgent = items => items.filter(({ level }) => level !== 'note').slice(0, AT_ONCE);
const others = items => items.filter(item => !urgent(items).includes(item));

function folded(items) {
  const rest = others(items), notes = rest.filter(({ level }) => level === 'note').length, more = rest.length - notes;
  const label = [more && `${more} more`, notes && `${notes} ${notes > 1 ? 'notes' : 'note'}`].filter(Boolean).join(', ');
  const fold = rest.length ? el('li', { className: 'fold' }, el('details', {}, el('summary', {}, label), el('ul', {}, ...rest.map(condition)))) : null;
  return [...urgent(items).map(condition), fold].filter(Boolean);
}

/** Shows a word and, if there is one, a sentence in place of the conditions. */
export function word(level, text, sentence = '') {
  $('status').className = `pill ${level}`;
  write($('status'), text);
  const banner = $('banner');
  write(banner, sentence);
  banner.hidden = !sentence;
}

function condition({ level, kind, text, next }) {
  const place = PLACES[kind];
  const link = place ? el('a', { href: place }, 'Show the rules') : null;
  return el('li', { className: CLASSES[level] }, el('p', {}, el('b', {}, plain(text)), ' ', el('span', { className: 'age' })), el('p', {}, `Next: ${plain(next)}. `, link));
}

/** Without the marks around code, which only a terminal needs. */
const plain = text => text.replaceAll('`', '');

const age = (since, now) => `for ${duration(Math.max(1, Math.round((now - since) / 1000)))}, since ${moment(since / 1000)}`;
