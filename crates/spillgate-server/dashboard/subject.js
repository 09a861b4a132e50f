// One subject: the state of each limit, the overrides that cover it, the decision that its next request would get, its denials of
// the last 48 hours, and what an operator can change.

import { LASTING, coverOf, refund, removeOverride, reset, setOverride } from './actions.js';
import { el, labelled, section, select, write } from './dom.js';
import { live } from './live.js';
import { forOperators } from './role.js';
import { bar, rulePageOf } from './rules.js';
import { ask, subjectQuery } from './server.js';
import { timelinePanel } from './timeline.js';
import { attributes, author, clock, duration, ends, isNetwork, limitsOf, number, subject as text } from './words.js';

const EVERY_MS = 2000;

export function subjectPage(place, query) {
  const rule = query.get('rule'), known = {};
  for (const [name, value] of query) if (name.startsWith('attr.')) known[name.slice(5)] = value;
  const explain = explainPanel(rule, known), state = rule ? statePanel(rule, known) : null;
  const isOneSubject = () => !findRule(rule) || isOne(findRule(rule), known);
  const timeline = rule ? timelinePanel(rule, known, isOneSubject) : null;
  place.append(...[state?.element, explain.element, timeline?.element].filter(Boolean));
  return {
    title: rule ? text(known) : 'Explain',
    update() {
      explain.update();
      state?.update();
      timeline?.update();
    },
    changed() {
      explain.ask();
      state?.load();
    },
    close() {
      state?.close();
      timeline?.close();
    },
  };
}

const findRule = name => live.rules.find(one => one.name === name);

/** Whether a subject has a value for each key attribute, and no network, so that it has counters. */
const isOne = (rule, known) => rule.key.every(name => name in known && !isNetwork(known[name]));

/** A form that explains the decision on a request with these attributes, and with those that the rule's `match` needs. */
function explainPanel(rule, known) {
  const named = el('input', { name: 'attributes', placeholder: 'tenant=acme user=ann', spellcheck: false, value: Object.keys(known).length ? text(known) : '' });
  const domain = el('input', { name: 'domain', placeholder: 'default', spellcheck: false, size: 8 });
  const cost = el('input', { name: 'cost', inputMode: 'numeric', placeholder: '1', size: 4 });
  const answer = el('div', { className: 'explained', role: 'status' }, el('p', { className: 'note' },
    'Shows the decision that a request would get, the reason, and until when. Nothing is charged. Name every attribute that the rules match on.'));
  const form = el('form', { autocomplete: 'off' }, labelled('Attributes', named, 'grow'), labelled('Domain', domain), labelled('Cost', cost), el('button', {}, 'Explain'));
  let isFilled = false;
  async function explain() {
    if (!named.value) return;
    try {
      const query = new URLSearchParams();
      for (const [name, value] of Object.entries(attributes(named.value))) query.set(`attr.${name}`, value);
      if (domain.value) query.set('domain', domain.value);
      if (cost.value) query.set('cost', cost.value);
      answer.replaceChildren(...explained(await ask('GET', `admin/v1/explain?${query}`), rule));
    } catch (problem) {
      answer.replaceChildren(el('p', { className: 'result bad' }, problem.message));
    }
  }
  form.addEventListener('submit', event => {
    event.preventDefault();
    explain();
  });
  return {
    element: section('The next request', rule ? 'half' : 'full', form, answer),
    ask: explain,
    /** Fills the form in once, as soon as the rules are loaded. */
    update() {
      if (isFilled || !live.loaded) return;
      isFilled = true;
      const found = findRule(rule);
      if (!found) return explain();
      const needed = Object.entries(found.match).map(([name, { example }]) => [name, example]).filter(([, example]) => example !== null);
      named.value = text({ ...Object.fromEntries(needed), ...known });
      if (found.domain !== 'default') domain.value = found.domain;
      if (isOne(found, known)) explain();
    },
  };
}

/** The decision in words. It is green only if a limit that is enforced has allowed it. */
function explained(answer, rule) {
  const own = answer.rules.find(one => one.name === rule && !one.matched);
  const isMatched = answer.rules.some(one => one.matched), isLimited = answer.limits.some(limit => !limit.shadow);
  const level = !answer.allowed ? 'bad' : isMatched && isLimited ? 'good' : '';
  const sentence = isMatched ? answer.sentence : 'No rule matches this request, so nothing limits it.';
  const limits = answer.limits.map(limit => el('li', {}, limit.sentence, limit.raise ? el('small', {}, limit.raise.sentence) : null));
  const fromFile = answer.rules.filter(one => one.overridden === 'file')
    .map(one => el('li', {}, `An override in the policy file has set the limits of ${one.name} for this subject. Only a change of the file removes it.`));
  const others = answer.rules.filter(one => !one.matched && one !== own)
    .map(one => el('li', {}, el('a', { href: rulePageOf(one.name) }, one.name), ' does not match', el('small', {}, one.why)));
  const domains = answer.other_domains.map(other => el('li', {}, el('a', { href: rulePageOf(other.rule) }, other.rule), ` would match in the domain ${other.domain}`));
  return [
    own ? el('p', { className: 'decision' }, `${rule} does not match this request: ${own.why}.`) : null,
    el('p', { className: `decision ${level}` }, sentence),
    ...answer.unused.map(sentence => el('p', { className: 'note' }, sentence)),
    el('ul', {}, ...limits, ...fromFile, ...domains),
    others.length ? el('details', {}, el('summary', {}, others.length > 1 ? `${others.length} rules do not match` : '1 rule does not match'), el('ul', {}, ...others)) : null,
    el('p', { className: 'note' }, `As of ${clock(Date.now() / 1000)}. Nothing was charged.`),
  ].filter(Boolean);
}

/** The state of a rule's limits for a subject, with the changes that an operator can make. */
function statePanel(rule, known) {
  const list = el('ul', { className: 'states' }), result = el('p', { className: 'result bad', role: 'alert' });
  // What is wrong with an entered amount; `result`, written anew every other second, is about the state.
  const mistake = el('p', { className: 'note result bad', role: 'alert' });
  const overrides = el('ul', { className: 'states' });
  const lasting = select('for', LASTING, '3600'), limits = el('input', { name: 'limits', required: true, spellcheck: false, size: 24 });
  const amount = el('input', { name: 'amount', inputMode: 'numeric', required: true, value: '1', size: 5 }), unit = select('unit', [], '');
  const button = (label, press) => {
    const made = el('button', { type: 'button', className: 'quiet' }, label);
    made.addEventListener('click', press);
    return made;
  };
  const block = button('Block', () => setOverride(rule, known, ['block'], Number(lasting.value)));
  const other = el('form', { className: 'limits' }, labelled('Limits', limits), el('button', {}, 'Set limits'));
  other.addEventListener('submit', event => {
    event.preventDefault();
    setOverride(rule, known, limits.value.split(',').map(limit => limit.trim()), Number(lasting.value));
  });
  const back = el('form', { className: 'refund' }, labelled('Refund', amount), labelled('Unit', unit), el('button', {}, 'Refund'));
  back.addEventListener('submit', event => {
    event.preventDefault();
    write(mistake, /^[1-9]\d*$/.test(amount.value) ? '' : `expected a whole number above 0, got ${JSON.stringify(amount.value)}`);
    if (!mistake.textContent) refund(rule, known, Number(amount.value), unit.value);
  });
  const restart = button('Reset', () => reset(rule, known));
  const actions = el('div', { className: 'actions' }, labelled('For', lasting), block, other, back, restart);
  let closed = false, timer, seen = null;
  async function load() {
    clearTimeout(timer);
    const found = findRule(rule);
    try {
      if (found && !isOne(found, known)) {
        write(result, '');
        list.replaceChildren(el('li', {}, 'This names several subjects, which have a counter each.'));
        propose(found.limits);
      } else {
        const state = await ask('GET', `admin/v1/state?${subjectQuery(rule, known)}`);
        list.replaceChildren(...state.limits.map(limit => stateOf(limit)));
        propose(state.limits);
        write(result, '');
      }
    } catch (problem) {
      write(result, problem.message);
    }
    clearTimeout(timer);
    if (!closed) timer = setTimeout(load, EVERY_MS);
  }
  let proposed = '';
  /** Proposes twice the limits in force, and of a limit that blocks twice the rule's, until the operator types others. */
  function propose(inForce) {
    const quotas = inForce.map(({ quota }, place) => (quota === 'block' ? findRule(rule)?.limits[place]?.quota ?? '' : quota));
    const next = quotas.map(twice).join(', ');
    if (limits.value === proposed) limits.value = next;
    proposed = next;
  }
  async function loadOverrides() {
    const found = await ask('GET', `admin/v1/overrides?${subjectQuery(rule, known)}`).catch(() => null);
    if (found && !closed) overrides.replaceChildren(...found.overrides.map((one, place) => overrideOf(one, known, place > 0)));
  }
  load();
  const heading = el('h2', { className: 'title' }, text(known));
  const of = el('p', { className: 'note' }, 'Limits of ', el('a', { href: rulePageOf(rule) }, rule), ' for this subject');
  return {
    element: el('section', { className: 'half head', 'aria-label': text(known) }, heading, of, overrides, list, result, forOperators(actions), mistake),
    load,
    update() {
      const found = findRule(rule);
      back.hidden = restart.hidden = Boolean(found && !isOne(found, known));
      const units = [...new Set(found?.limits.map(limit => limit.unit))];
      if (units.join() !== [...unit.options].map(option => option.value).join()) unit.replaceChildren(...units.map(name => el('option', { value: name }, name)));
      // The list is another object when it has changed.
      if (live.loaded && seen !== live.overrides) {
        seen = live.overrides;
        loadOverrides();
      }
    },
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}

/** An override that covers the subject, with a button that removes it. Only the narrowest is in force. */
function overrideOf(one, known, isHidden) {
  const isBlock = limitsOf(one) === 'blocked', cover = coverOf(one, known);
  const remove = el('button', { type: 'button', className: 'quiet for-operators' }, 'Remove');
  remove.addEventListener('click', () => removeOverride(one, known));
  const facts = [cover, author(one) && `set ${author(one)}`, one.expires_at ? `ends ${ends(one.expires_at)}` : 'no end', isHidden && 'replaced by the one above'];
  return el('li', {}, el('span', { className: `pill ${isBlock ? 'bad' : 'warn'}` }, isBlock ? 'blocked' : 'other limits'),
    el('b', {}, isBlock ? text(one.subject) : `${text(one.subject)}: ${limitsOf(one)}`), remove, el('small', {}, facts.filter(Boolean).join(' · ')));
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
