// The search in the header: rules, overrides by any part of their values, the subjects that this instance counts as busiest and as
// most denied, and below them those of the fleet's denials. Enter opens the page.

import { covers } from './addresses.js';
import { SHOWN, deniedSearch } from './denied.js';
import { $, el, write } from './dom.js';
import { live, refresh } from './live.js';
import { rulePageOf } from './rules.js';
import { heaviest, pageOf } from './subjects.js';
import { attributes, limitsOf, subject as text } from './words.js';

/** Lets the operator search from every page: `/` and Ctrl-K focus the field. */
export function search() {
  const field = $('search'), list = $('found');
  const denied = deniedSearch(render);
  let active = 0;
  const options = () => [...list.querySelectorAll('[role=option]')];

  function mark(place) {
    active = place;
    options().forEach((option, i) => option.setAttribute('aria-selected', String(i === place)));
    options()[place]?.scrollIntoView({ block: 'nearest' });
    if (options().length) field.setAttribute('aria-activedescendant', `found-${place}`);
    else field.removeAttribute('aria-activedescendant');
  }

  function show() {
    active = 0;
    denied.ask(field.value.trim());
    render();
    open(Boolean(field.value.trim()));
  }

  /** Lists what is found by now. Later answers add to the end, so the marked option stays. */
  function render() {
    const found = field.value.trim() ? find(field.value) : [], known = new Set(found.map(({ href }) => href));
    found.push(...denied.found.filter(({ href }) => !known.has(href)).slice(0, SHOWN));
    const note = words => el('li', { role: 'presentation', className: 'note' }, words);
    list.replaceChildren(...found.map(({ name, about, href }, i) => el('li', { id: `found-${i}`, role: 'option' }, el('a', { href, tabIndex: -1 }, name), el('small', {}, about))));
    if (!found.length) list.append(note('No rule, override or busy subject contains this.'));
    if (denied.note) list.append(note(denied.note));
    write($('found-note'), denied.note);
    mark(Math.min(active, Math.max(0, found.length - 1)));
  }

  function open(is) {
    list.hidden = !is;
    field.setAttribute('aria-expanded', String(is));
  }

  field.addEventListener('input', show);
  field.addEventListener('focus', () => {
    show();
    // An override of another operator may be seconds old.
    refresh().then(() => { if (document.activeElement === field) render(); }, () => {});
  });
  field.addEventListener('blur', () => {
    denied.stop();
    open(false);
  });
  // Without this a press on a link takes the focus from the field, which closes the list before the click.
  list.addEventListener('pointerdown', event => event.preventDefault());
  list.addEventListener('click', () => field.blur());
  field.form.addEventListener('submit', event => {
    event.preventDefault();
    const link = options()[active]?.querySelector('a');
    if (!link) return;
    field.value = '';
    field.blur();
    location.hash = link.hash;
  });
  field.addEventListener('keydown', event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], { length } = options();
    if (event.key === 'Escape') field.blur();
    if (!step || !length) return;
    event.preventDefault();
    mark((active + step + length) % length);
  });
  addEventListener('keydown', event => {
    const isTyping = event.target.closest('input, select, textarea'), isSlash = event.key === '/' && !isTyping;
    if (!isSlash && !(event.key === 'k' && (event.ctrlKey || event.metaKey))) return;
    if (document.querySelector('dialog[open]')) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}

/** The pages whose texts contain every word: { name, about, href }. */
function find(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const pages = new Map();
  for (const { searched, ...page } of [...rules(), ...overrides(), ...subjects(), ...named(query)]) {
    const known = `${page.name} ${page.about} ${searched ?? ''}`.toLowerCase();
    if (words.every(word => known.includes(word) || covers(page.name, word)) && !pages.has(page.href)) pages.set(page.href, page);
  }
  return [...pages.values()].slice(0, SHOWN);
}

const rules = () => live.rules.map(rule => ({ name: rule.name, about: 'rule', searched: rule.domain, href: rulePageOf(rule.name) }));

const overrides = () => live.overrides.map(one => ({
  name: Object.keys(one.subject).length ? text(one.subject) : `every subject of ${one.rule}`, about: `${limitsOf(one)} in ${one.rule}`, href: pageOf(one.rule, one.subject),
}));

function subjects() {
  const { top } = live.event ?? {};
  if (!top) return [];
  const all = [...heaviest(top, 'most_denied', Infinity), ...heaviest(top, 'consumers', Infinity)];
  return all.filter(({ href }) => href).map(({ name, about, href }) => ({ name, about: `subject of ${about}`, href }));
}

/** The subjects that the query names by all attributes of a rule's key, known or not. */
function named(query) {
  try {
    const given = attributes(query), names = Object.keys(given).sort().join();
    if (!names) return [];
    return live.rules.filter(rule => [...rule.key].sort().join() === names)
      .map(rule => ({ name: text(given), about: `subject of ${rule.name}`, searched: query, href: pageOf(rule.name, given) }));
  } catch {
    return [];
  }
}
