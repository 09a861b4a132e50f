// The panels: their content, and the actions of operators.

import { Problem, ask, token } from './server.js';
import { attributes, duration, number, rate, subject } from './words.js';

const $ = id => document.getElementById(id);

/** An element with properties and children. Text is never parsed as markup. */
export function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) {
    if (property.startsWith('data-') || property.startsWith('aria-')) made.setAttribute(property, value);
    else made[property] = value;
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

const cell = (label, content, className = '') => el('td', { className, 'data-label': label }, content);

function rows(id, all, none, columns) {
  const body = $(id).tBodies[0];
  body.replaceChildren(...(all.length ? all : [el('tr', {}, el('td', { className: 'empty', colSpan: columns }, none))]));
}

export const fill = {
  shards(shards) {
    rows('shards', shards.map(shard => {
      const state = shard.open ? 'breaker open' : shard.degraded ? 'unavailable' : 'answers';
      const pill = el('span', { className: `pill ${shard.degraded || shard.open ? 'bad' : 'good'}` }, state);
      const name = el('td', { className: 'name' }, shard.name, shard.trouble ? el('small', {}, shard.trouble) : null);
      return el('tr', {}, name, cell('State', pill), cell('Calls/s', rate(Math.max(0, shard.calls)), 'n'),
        cell('p99', shard.p99 === undefined ? '–' : duration(shard.p99), 'n'), cell('Errors', number(shard.errors), 'n'),
        cell('Clock skew', `${number(shard.skew * 1000, 1)} ms`, 'n'));
    }), 'State is in the memory of this instance; no other instance shares it.', 6);
  },

  facts(facts) {
    $('facts').replaceChildren(...facts.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));
  },

  rules({ rules, rates, top }) {
    const body = $('rules').tBodies[0];
    if (body.contains(document.activeElement)) return updateRates(body, rates, top, rules);
    rows('rules', rules.slice(0, RULES_MAX).map(rule => {
      const row = el('tr', { 'data-rule': rule.name });
      const name = el('td', { className: 'name' }, rule.name, el('small', {}, rule.domain === 'default' ? byKey(rule) : `${rule.domain} · ${byKey(rule)}`));
      const limits = rule.limits.map(quota).join(', ');
      row.append(name, cell('Limits', limits), cell('Allowed/s', '–', 'n'), cell('Denied/s', '–', 'n'),
        cell('Near the limit', '–', 'n'), cell('Heaviest subject uses', bar()), cell('Mode', modeOf(rule)));
      return row;
    }), 'The policy has no rules: everything without a limit of its own is allowed.', 7);
    $('rules-note').textContent = rules.length > RULES_MAX ? `${number(rules.length - RULES_MAX)} rules more are not shown.` : '';
    updateRates(body, rates, top, rules);
  },

  top(top) {
    const of = pick => top.rules.flatMap(rule => rule[pick].map(subject => ({ ...subject, rule: rule.rule, unit: rule.unit })))
      .sort((a, b) => b.count - a.count).slice(0, 8);
    ranking($('top-denied'), of('most_denied'), 'No denials in the last minute.', () => 'times');
    ranking($('top-consumers'), of('consumers'), 'No use in the last minute.', ({ unit }) => unit);
  },

  overrides({ overrides }) {
    const body = $('overrides').tBodies[0];
    if (body.contains(document.activeElement)) return;
    rows('overrides', overrides.map(override => {
      const limits = override.limits.map(limit => limit.quota).join(', ');
      const back = el('button', { type: 'button', className: 'quiet' }, 'Remove');
      back.setAttribute('aria-label', `Remove the override of ${override.rule} for ${subject(override.subject)}`);
      back.dataset.rule = override.rule;
      back.dataset.subject = JSON.stringify(override.subject);
      const why = override.not_in_force ?? (override.pending_shards.length ? `not yet on ${override.pending_shards.join(', ')}` : null);
      const name = el('td', { className: 'name' }, override.rule, why ? el('small', {}, why) : null);
      return el('tr', {}, name, cell('Subject', subject(override.subject)), cell('Limits', limits === 'block' ? 'blocked' : limits),
        cell('Ends', ends(override.expires_at)), cell('', back));
    }), 'None is set. The policy file holds.', 5);
  },

  choices({ rules }) {
    const choice = $('override').elements.rule;
    const names = rules.map(rule => rule.name);
    if (names.join('\n') === [...choice.options].map(option => option.value).join('\n')) return;
    choice.replaceChildren(...names.map(name => el('option', { value: name }, name)));
    hint(rules);
  },
};

function updateRates(body, rates, top, rules) {
  for (const row of body.rows) {
    const rule = rules.find(rule => rule.name === row.dataset.rule);
    if (!rule) continue;
    const of = rates.get(rule.name) ?? { allowed: 0, denied: 0, near: 0 };
    row.cells[2].textContent = rate(Math.max(0, of.allowed));
    row.cells[3].textContent = rate(Math.max(0, of.denied));
    row.cells[4].textContent = of.allowed > 0 ? `${number(Math.min(1, of.near / of.allowed) * 100, 0)} %` : '–';
    const used = utilisation(rule, top);
    const place = row.cells[5].firstChild;
    place.className = used >= 0.9 ? 'bar high' : 'bar';
    place.firstChild.firstChild.style.width = `${Math.round((used ?? 0) * 100)}%`;
    place.lastChild.textContent = used === undefined ? '–' : `${number(used * 100)} %`;
  }
}

/** The part of a rule's first limit that its heaviest subject used. */
function utilisation(rule, top) {
  const heaviest = top?.rules.find(of => of.rule === rule.name)?.consumers[0];
  const [limit] = rule.limits;
  if (!limit?.capacity || !limit.window_ms) return undefined;
  if (!heaviest) return 0;
  const passes = limit.capacity * Math.max(1, top.window_ms / limit.window_ms);
  return Math.min(1, heaviest.count / passes);
}

function bar() {
  return el('span', { className: 'bar' }, el('span', {}, el('i')), el('span', {}, '–'));
}

const byKey = rule => (rule.key.length ? `by ${rule.key.join(' and ')}` : 'one for all');

const quota = ({ quota, unit }) => (unit === 'requests' ? quota : `${quota} ${unit}`);

function ends(at) {
  if (!at) return 'never';
  const seconds = (new Date(at) - Date.now()) / 1000;
  return seconds > 0 ? `in ${duration(seconds)}` : 'now';
}

function modeOf(rule) {
  const choice = el('select', { value: rule.mode.in_force }, ...['enforce', 'shadow', 'off'].map(mode => el('option', { value: mode }, mode)));
  choice.value = rule.mode.in_force;
  choice.setAttribute('aria-label', `Mode of ${rule.name}`);
  choice.dataset.rule = rule.name;
  if (rule.mode.runtime) {
    choice.className = 'set';
    choice.title = `set while running; the policy file says ${rule.mode.written}`;
  }
  return choice;
}

function ranking(place, subjects, none, unit) {
  if (!subjects.length) return place.replaceChildren(el('li', { className: 'note' }, none));
  // Counts in different units are not comparable, so each bar is relative to the largest count in its unit.
  const most = item => Math.max(...subjects.filter(other => unit(other) === unit(item)).map(other => other.count));
  place.replaceChildren(...subjects.map(item => {
    const fillOf = el('span', { className: 'fill' });
    fillOf.style.width = `${Math.max(2, item.count / most(item) * 100)}%`;
    const name = el('span', { className: 'who' }, subject(item.subject) + (item.whole ? '' : '…'), ' ', el('small', {}, item.rule ?? 'inline limit'));
    return el('li', {}, fillOf, name, el('span', { className: 'count' }, number(item.count), ' ', el('small', {}, unit(item))));
  }));
}

/** Connects forms, buttons and selects with their actions. */
export function operate({ refresh, state }) {
  const said = (id, level, text) => {
    $(id).className = `said ${level}`;
    $(id).textContent = text;
  };
  const done = ({ pending_shards: pending }) => (pending.length ? `Done, but not yet on ${pending.map(({ shard }) => shard).join(', ')}.` : 'Done, everywhere.');
  const trying = async (id, act) => {
    try {
      said(id, 'good', await act());
    } catch (problem) {
      said(id, 'bad', problem instanceof Problem || problem instanceof Error ? problem.message : String(problem));
    }
    await refresh().catch(() => {});
  };

  $('override').addEventListener('submit', event => {
    event.preventDefault();
    const form = event.target.elements;
    trying('override-said', async () => {
      const body = { rule: form.rule.value, subject: attributes(form.subject.value), limits: form.limits.value.split(',').map(limit => limit.trim()) };
      const seconds = Number(form.for.value);
      if (seconds) body.expires_at = new Date(Date.now() + seconds * 1000).toISOString();
      return done(await ask('PUT', 'admin/v1/overrides', body));
    });
  });
  $('override').elements.rule.addEventListener('change', () => hint(state.rules));

  $('overrides').addEventListener('click', event => {
    const button = event.target.closest('button');
    if (!button) return;
    button.blur();
    trying('override-said', async () => {
      const query = new URLSearchParams({ rule: button.dataset.rule });
      for (const [name, value] of Object.entries(JSON.parse(button.dataset.subject))) query.set(`attr.${name}`, value);
      return done(await ask('DELETE', `admin/v1/overrides?${query}`));
    });
  });

  $('rules').addEventListener('change', async event => {
    const choice = event.target.closest('select');
    const rule = state.rules.find(rule => rule.name === choice?.dataset.rule);
    if (!rule) return;
    choice.blur();
    const mode = choice.value;
    const effects = { off: 'the rule limits no request', shadow: 'the rule counts and denies nothing', enforce: 'the rule denies requests over its limits' };
    if (!(await confirmed(`Set ${rule.name} to ${mode}?`, `On every instance, until it is set back: ${effects[mode]}.`))) {
      choice.value = rule.mode.in_force;
      return;
    }
    const path = `admin/v1/rules/${rule.name.split('/').map(encodeURIComponent).join('/')}/mode`;
    trying('rules-said', async () =>
      done(await (mode === rule.mode.written ? ask('DELETE', path).catch(gone) : ask('PUT', path, { mode }))));
  });

  $('explain').addEventListener('submit', async event => {
    event.preventDefault();
    const form = event.target.elements;
    try {
      const query = new URLSearchParams();
      for (const [name, value] of Object.entries(attributes(form.attributes.value))) query.set(`attr.${name}`, value);
      if (form.domain.value) query.set('domain', form.domain.value);
      if (form.cost.value) query.set('cost', form.cost.value);
      explained(await ask('GET', `admin/v1/explain?${query}`));
    } catch (problem) {
      $('explained').replaceChildren(el('p', { className: 'said bad' }, problem.message));
    }
  });
}

/** Ignores a 404: no mode was set at run time, so the file's mode is in force already. */
function gone(problem) {
  if (problem.status !== 404) throw problem;
  return { pending_shards: [] };
}

function explained(answer) {
  const limits = answer.limits.map(limit => el('li', {}, limit.sentence, limit.raise ? el('small', {}, limit.raise.sentence) : null));
  const rules = answer.rules.filter(rule => !rule.matched).slice(0, 6)
    .map(rule => el('li', {}, `${rule.name} does not match`, el('small', {}, rule.why)));
  const decision = el('p', { className: `decision ${answer.allowed ? 'allowed' : 'denied'}` }, answer.sentence);
  $('explained').replaceChildren(decision, el('ul', {}, ...limits, ...rules));
}

function hint(rules) {
  const form = $('override').elements;
  const rule = rules.find(rule => rule.name === form.rule.value);
  if (rule) form.subject.placeholder = rule.key.map(name => `${name}=…`).join(' ');
}

/** The answer to the last question. There is one dialog, and its close event comes after it is closed, so the next question waits for that event. */
let lastAnswer = Promise.resolve();

function confirmed(title, text) {
  lastAnswer = lastAnswer.then(() => {
    const dialog = $('confirm');
    $('confirm-title').textContent = title;
    $('confirm-text').textContent = text;
    dialog.returnValue = 'no';
    dialog.showModal();
    return new Promise(answered => dialog.addEventListener('close', () => answered(dialog.returnValue === 'yes'), { once: true }));
  });
  return lastAnswer;
}

/** Asks the operator for a token, and waits until one is entered. */
export function askForToken(complaint) {
  const dialog = $('ask'), form = $('token');
  $('token-said').className = 'said bad';
  $('token-said').textContent = complaint;
  form.elements.token.value = '';
  if (!dialog.open) dialog.showModal();
  return new Promise(written => {
    dialog.oncancel = event => event.preventDefault();
    form.onsubmit = () => {
      token.set(form.elements.token.value.trim());
      written();
    };
  });
}

const RULES_MAX = 100;
