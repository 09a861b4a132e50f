// One subject: the decision that its next request would get, the state of each limit, and what an operator can change.

import { LASTING, overrideOf, refund, removeOverride, reset, setOverride } from './actions.js';
import { el, labelled, section, select, write } from './dom.js';
import { live } from './live.js';
import { forOperators } from './role.js';
import { bar, rulePageOf } from './rules.js';
import { ask, subjectQuery } from './server.js';
import { attributes, author, duration, limitsOf, number, subject as text } from './words.js';

const EVERY_MS = 2000;

export function subjectPage(place, query) {
  const rule = query.get('rule'), known = {};
  for (const [name, value] of query) if (name.startsWith('attr.')) known[name.slice(5)] = value;
  const explain = explainPanel(known, rule ? 'half' : 'full');
  const state = rule ? statePanel(rule, known) : null;
  place.append(...[state?.element, explain.element].filter(Boolean));
  if (Object.keys(known).length) explain.ask();
  return {
    title: rule ? text(known) : 'Explain',
    update: () => state?.update(),
    close: () => state?.close(),
  };
}

/** A form that explains the decision on a request with these attributes. */
function explainPanel(known, wide) {
  const named = el('input', { name: 'attributes', placeholder: 'tenant=acme user=ann', spellcheck: false, value: Object.keys(known).length ? text(known) : '' });
  const domain = el('input', { name: 'domain', placeholder: 'default', spellcheck: false, size: 8 });
  const cost = el('input', { name: 'cost', inputMode: 'numeric', placeholder: '1', size: 4 });
  const answer = el('div', { className: 'explained', role: 'status' }, el('p', { className: 'note' },
    'Shows the decision that a request would get, the reason, and until when. Nothing is charged. Name every attribute that the rules match on.'));
  const form = el('form', { autocomplete: 'off' }, labelled('Attributes', named, 'grow'), labelled('Domain', domain), labelled('Cost', cost), el('button', {}, 'Explain'));
  async function explain() {
    try {
      const query = new URLSearchParams();
      for (const [name, value] of Object.entries(attributes(named.value))) query.set(`attr.${name}`, value);
      if (domain.value) query.set('domain', domain.value);
      if (cost.value) query.set('cost', cost.value);
      answer.replaceChildren(...explained(await ask('GET', `admin/v1/explain?${query}`)));
    } catch (problem) {
      answer.replaceChildren(el('p', { className: 'result bad' }, problem.message));
    }
  }
  form.addEventListener('submit', event => {
    event.preventDefault();
    explain();
  });
  return { element: section('The next request', wide, form, answer), ask: explain };
}

function explained(answer) {
  const limits = answer.limits.map(limit => el('li', {}, limit.sentence, limit.raise ? el('small', {}, limit.raise.sentence) : null));
  const others = answer.rules.filter(rule => !rule.matched)
    .map(rule => el('li', {}, el('a', { href: rulePageOf(rule.name) }, rule.name), ' does not match', el('small', {}, rule.why)));
  const decision = el('p', { className: `decision ${answer.allowed ? 'good' : 'bad'}` }, answer.sentence);
  return [decision, el('ul', {}, ...limits, ...others)];
}

/** The state of a rule's limits for a subject, with the changes that an operator can make. */
function statePanel(rule, known) {
  const list = el('ul', { className: 'states' }), result = el('p', { className: 'result bad', role: 'alert' });
  // What is wrong with an entered amount; `result`, written anew every other second, is about the state.
  const mistake = el('p', { className: 'note result bad', role: 'alert' });
  const override = el('p', { className: 'note' });
  const lasting = select('for', LASTING, '3600'), limits = el('input', { name: 'limits', required: true, spellcheck: false, size: 24 });
  const amount = el('input', { name: 'amount', inputMode: 'numeric', required: true, value: '1', size: 5 }), unit = select('unit', [], '');
  const find = () => live.rules.find(one => one.name === rule);
  const after = done => done.then(load);
  const button = (label, press, className = 'quiet') => {
    const made = el('button', { type: 'button', className }, label);
    made.addEventListener('click', press);
    return made;
  };
  const block = button('Block', () => after(setOverride(rule, known, ['block'], Number(lasting.value))));
  const remove = button('Remove the override', () => after(removeOverride(overrideOf(rule, known))));
  const other = el('form', { className: 'limits' }, labelled('Limits', limits), el('button', {}, 'Set limits'));
  other.addEventListener('submit', event => {
    event.preventDefault();
    after(setOverride(rule, known, limits.value.split(',').map(limit => limit.trim()), Number(lasting.value)));
  });
  const back = el('form', { className: 'refund' }, labelled('Refund', amount), labelled('Unit', unit), el('button', {}, 'Refund'));
  back.addEventListener('submit', event => {
    event.preventDefault();
    write(mistake, /^[1-9]\d*$/.test(amount.value) ? '' : `${amount.value} is no whole number above 0`);
    if (!mistake.textContent) after(refund(rule, known, Number(amount.value), unit.value));
  });
  const actions = el('div', { className: 'actions' }, labelled('For', lasting), block, remove, other, back, button('Reset', () => after(reset(rule, known))));
  let closed = false, timer;
  async function load() {
    clearTimeout(timer);
    try {
      const state = await ask('GET', `admin/v1/state?${subjectQuery(rule, known)}`);
      list.replaceChildren(...state.limits.map(limit => stateOf(limit)));
      propose(state.limits);
      write(result, '');
    } catch (problem) {
      write(result, problem.message);
    }
    clearTimeout(timer);
    if (!closed) timer = setTimeout(load, EVERY_MS);
  }
  let proposed = '';
  /** Proposes twice the limits in force, and of a limit that blocks twice the rule's, until the operator types others. */
  function propose(inForce) {
    const quotas = inForce.map(({ quota }, place) => (quota === 'block' ? find()?.limits[place]?.quota ?? '' : quota));
    const next = quotas.map(twice).join(', ');
    if (limits.value === proposed) limits.value = next;
    proposed = next;
  }
  load();
  const heading = el('h2', { className: 'title' }, text(known));
  const of = el('p', { className: 'note' }, 'Limits of ', el('a', { href: rulePageOf(rule) }, rule), ' for this subject');
  return {
    element: el('section', { className: 'half head', 'aria-label': text(known) }, heading, of, list, result, override, forOperators(actions), mistake),
    update() {
      const found = find(), set = overrideOf(rule, known);
      remove.hidden = !set;
      write(override, set ? `Override: ${limitsOf(set)}${author(set) && `, set ${author(set)}`}.` : '');
      const units = [...new Set(found?.limits.map(limit => limit.unit))];
      if (units.join() !== [...unit.options].map(option => option.value).join()) unit.replaceChildren(...units.map(name => el('option', { value: name }, name)));
    },
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}

/** Twice a quota and its burst. The rest of the text, such as a time zone, is inherited from the rule. */
function twice(quota) {
  const [kept] = /^\S*( burst \d+)?/.exec(quota);
  return kept.replace(/^\d+|\d+$/g, count => String(Number(count) * 2));
}

/** A line about one limit: the part that is used, and the waits. */
function stateOf(limit) {
  const used = limit.capacity ? (limit.capacity - (limit.remaining ?? 0)) / limit.capacity : undefined;
  const known = limit.remaining === null ? 'no numbers: the limit blocks, is unlimited, or the store did not answer'
    : `${number(limit.remaining)} of ${number(limit.capacity)} ${limit.unit} left`;
  const waits = [
    limit.retry_after_ms ? `room again in ${duration(limit.retry_after_ms / 1000)}` : null,
    limit.reset_after_ms ? `unused again in ${duration(limit.reset_after_ms / 1000)}` : null,
  ].filter(Boolean).join(', ');
  return el('li', {}, el('b', {}, `${limit.rule}/${limit.limit}`), limit.reason ? el('span', { className: 'pill bad' }, limit.reason) : null,
    bar(limit.remaining === null ? undefined : used), el('small', {}, [known, waits].filter(Boolean).join(' · ')));
}
