// All rules: searched, filtered by mode, sorted by any column.

import { el, labelled, section, select } from './dom.js';
import { live, ratesOf, useOf } from './live.js';
import { table } from './table.js';
import { author, byKey, number, quota, rate } from './words.js';

const MODES = [['', 'any mode'], ['enforce', 'enforce'], ['shadow', 'shadow'], ['off', 'off']];

/** The address of the page of a rule. */
export const rulePageOf = name => `#/rule?${new URLSearchParams({ name })}`;

export function rulesPage(place, query) {
  const search = el('input', { type: 'search', name: 'search', placeholder: 'name, domain, key or limit', spellcheck: false, value: query.get('search') ?? '' });
  const mode = select('mode', MODES, query.get('mode') ?? '');
  const count = el('p', { className: 'note', role: 'status' });
  const rules = table({
    label: 'Rules', key: rule => rule.name,
    columns: columns(),
  });
  const form = el('form', { className: 'filter', role: 'search' }, labelled('Search', search, 'grow'), labelled('Mode', mode));
  form.addEventListener('submit', event => event.preventDefault());
  place.append(section('Rules', 'full', form, count, rules.element));

  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = live.rules.filter(rule => (!mode.value || rule.mode.in_force === mode.value) && words.every(word => textOf(rule).includes(word)));
    count.textContent = `${number(found.length)} of ${number(live.rules.length)} rules. Rates are of this instance.`;
    rules.show(found, live.rules.length ? 'No rule fits the search and the mode.' : 'The policy has no rules: every request without an inline limit is allowed. Write a [[rule]] in a file and start with --config FILE.');
  }
  form.addEventListener('input', update);
  return { title: 'Rules', update, close() {} };
}

const textOf = rule => [rule.name, rule.domain, ...rule.key, ...rule.limits.map(quota)].join(' ').toLowerCase();

function columns() {
  const share = rule => { const { allowed, near } = ratesOf(rule.name); return allowed > 0 ? Math.min(1, near / allowed) : undefined; };
  return [
    { label: 'Rule', className: 'name', value: rule => rule.name, state: rule => `${rule.domain} ${rule.key}`, show: nameOf },
    { label: 'Limits', show: rule => rule.limits.map(quota).join(', ') },
    { label: 'Allowed/s', className: 'n', value: rule => ratesOf(rule.name).allowed, show: rule => rate(ratesOf(rule.name).allowed) },
    { label: 'Denied/s', className: 'n', value: rule => ratesOf(rule.name).denied, show: deniedBy },
    { label: 'Near the limit', className: 'n', value: rule => share(rule) ?? -1, show: rule => (share(rule) === undefined ? '–' : `${number(share(rule) * 100)} %`) },
    { label: 'Heaviest subject uses', className: 'u', value: rule => useOf(rule) ?? -1, show: rule => bar(useOf(rule)) },
    { label: 'On outage', value: rule => rule.on_outage, show: rule => rule.on_outage },
    { label: 'Mode', value: rule => rule.mode.in_force, state: rule => JSON.stringify(rule.mode), show: modeOf },
  ];
}

/** The denials of a rule per second; in shadow it denies nothing, and shows what it would have denied. */
function deniedBy({ name }) {
  const { denied, wouldDeny } = ratesOf(name);
  return wouldDeny ? `${rate(denied)} (would deny ${rate(wouldDeny)})` : rate(denied);
}

function nameOf(rule) {
  const about = rule.domain === 'default' ? byKey(rule) : `${rule.domain} · ${byKey(rule)}`;
  return el('span', {}, el('a', { href: rulePageOf(rule.name) }, rule.name), el('small', {}, about));
}

/** The mode of a rule, with the operator that set it and the reason. */
export function modeOf({ mode }) {
  const level = { enforce: '', shadow: 'warn', off: 'bad' }[mode.in_force];
  const set = mode.runtime ? `set ${author(mode) || 'by an operator'}` : '';
  return el('span', {}, el('span', { className: `pill ${level}` }, mode.in_force), set ? el('small', {}, set) : null);
}

/** A bar for a part of a whole. */
export function bar(part) {
  const fill = el('i');
  fill.style.width = `${Math.round((part ?? 0) * 100)}%`;
  return el('span', { className: part >= 0.9 ? 'bar high' : 'bar' }, el('span', {}, fill), el('span', {}, part === undefined ? '–' : `${number(part * 100)} %`));
}
