// Overrides and blocks that operators set: all of them, searched, with their ends.

import { LASTING, removeOverride, setOverride } from './actions.js';
import { covers } from './addresses.js';
import { el, labelled, section, select, write } from './dom.js';
import { live } from './live.js';
import { forOperators } from './role.js';
import { rulePageOf } from './rules.js';
import { pageOf } from './subjects.js';
import { table } from './table.js';
import { attributes, author, ends, limitsOf, moment, number, quota, subject as text } from './words.js';

export function overridesPage(place) {
  const search = el('input', { type: 'search', name: 'search', placeholder: 'rule, subject, limit, actor or reason', spellcheck: false });
  const filter = el('form', { className: 'filter', role: 'search' }, labelled('Search', search, 'grow'));
  filter.addEventListener('submit', event => event.preventDefault());
  const count = el('p', { className: 'note', role: 'status' });
  const list = overrideTable();
  const rule = select('rule', [], '');
  const form = overrideForm(() => live.rules.find(one => one.name === rule.value));
  form.form.prepend(labelled('Rule', rule));
  place.append(section('Set an override', 'full', form.element), section('Overrides', 'full', filter, count, list.element));

  function update() {
    const names = live.rules.map(one => one.name);
    if (names.join('\n') !== [...rule.options].map(option => option.value).join('\n')) {
      const chosen = rule.value;
      rule.replaceChildren(...names.map(name => el('option', { value: name }, name)));
      if (names.includes(chosen)) rule.value = chosen;
    }
    form.update();
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (one, word) => `${one.rule} ${text(one.subject)} ${one.limits.map(quota).join(' ')} ${author(one)}`.toLowerCase().includes(word) || covers(text(one.subject), word);
    const found = live.overrides.filter(one => words.every(word => has(one, word)));
    write(count, live.overrides.length ? `${number(found.length)} of ${number(live.overrides.length)} overrides.` : '');
    list.show(found, live.overrides.length ? 'No override fits the search.' : 'None is set: the policy file decides. Set one above, or on the page of a subject.');
  }
  filter.addEventListener('input', update);
  rule.addEventListener('change', update);
  return { title: 'Overrides', update, close() {} };
}

/** A form that sets an override of the rule that `find` returns. */
export function overrideForm(find) {
  const subject = el('input', { name: 'subject', spellcheck: false });
  const limits = el('input', { name: 'limits', required: true, spellcheck: false, placeholder: '10/minute, or block' });
  const lasting = select('for', LASTING, '3600');
  const result = el('p', { className: 'result bad', role: 'alert' }), of = labelled('Subject', subject, 'grow');
  const form = el('form', { className: 'override', autocomplete: 'off' }, of, labelled('Limit, or block', limits, 'grow'), labelled('For', lasting), el('button', {}, 'Set'));
  form.addEventListener('submit', async event => {
    event.preventDefault();
    write(result, '');
    try {
      await setOverride(find().name, attributes(subject.value), limits.value.split(',').map(limit => limit.trim()), Number(lasting.value));
    } catch (problem) {
      write(result, problem.message);
    }
  });
  return {
    element: forOperators(form, result),
    form,
    update() {
      const rule = find();
      form.hidden = !rule;
      if (!rule) return;
      // A rule without a key has one counter for all requests.
      of.hidden = !rule.key.length;
      if (of.hidden) subject.value = '';
      subject.placeholder = `${rule.key.map(name => `${name}=…`).join(' ')}; empty: every subject`;
    },
  };
}

/** A table of overrides, with a button to remove each. */
export function overrideTable() {
  return table({
    label: 'Overrides in force', key: one => `${one.rule} ${text(one.subject)}`,
    columns: [
      { label: 'Rule', className: 'name', value: one => one.rule, state: one => `${one.rule} ${why(one)}`, show: ruleOf },
      { label: 'Subject', value: one => text(one.subject), state: one => text(one.subject), show: subjectOf },
      { label: 'Limits', show: limitsOf },
      { label: 'Set', value: one => one.written_at, state: one => one.written_at, show: setting },
      { label: 'Ends', value: one => one.expires_at ?? '~', show: one => ends(one.expires_at) },
      { label: 'Change', className: 'for-operators', state: one => JSON.stringify(one), show: removal },
    ],
  });
}

/** The reason for which an override is not in force everywhere, if there is one. */
function why(one) {
  return one.not_in_force ?? (one.saved ? '' : 'in force here, and saved when the store is back');
}

function ruleOf(one) {
  const reason = why(one);
  return el('span', {}, el('a', { href: rulePageOf(one.rule) }, one.rule), reason ? el('small', {}, reason) : null);
}

function subjectOf(one) {
  if (!Object.keys(one.subject).length) return 'every subject';
  return el('a', { href: pageOf(one.rule, one.subject) }, text(one.subject));
}

function setting(one) {
  return el('span', {}, moment(new Date(one.written_at) / 1000), el('small', {}, author(one)));
}

function removal(one) {
  const button = el('button', { type: 'button', className: 'quiet', 'aria-label': `Remove the override of ${one.rule} for ${text(one.subject)}` }, 'Remove');
  button.addEventListener('click', () => removeOverride(one));
  return button;
}
