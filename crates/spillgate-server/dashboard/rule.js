// One rule: its limits, rates, history, subjects and overrides, and what an operator can change about it.

import { LASTING, resetRule, setMode } from './actions.js';
import { el, labelled, section, select, write } from './dom.js';
import { REASONS, WOULD_DENY, view, watchHistory } from './history.js';
import { live, ratesOf } from './live.js';
import { overrideForm, overrideTable } from './overrides.js';
import { named, plot } from './overview.js';
import { eventList, rangeBar } from './ranges.js';
import { forOperators } from './role.js';
import { modeOf } from './rules.js';
import { ask } from './server.js';
import { heaviest, ranking } from './subjects.js';
import { byKey, duration, moment, quota, rate } from './words.js';

const TOP_EVERY_MS = 3000;

export function rulePage(place, query) {
  const name = query.get('name') ?? '', find = () => live.rules.find(rule => rule.name === name);
  const head = headOf(name, find), range = rangeBar();
  const note = el('p', { className: 'note full', role: 'status' });
  const plots = [
    plot('Decisions per second', 'half', {
      kind: 'stack', format: rate, none: 'This rule has decided nothing in this time.', series: [{ name: 'allowed', label: 'allowed' }, { name: WOULD_DENY, label: 'would be denied, in shadow' }, { name: 'denied', label: 'denied' }],
    }),
    plot('Denials by reason', 'half', {
      kind: 'stack', format: rate, none: 'This rule has denied nothing in this time.', series: named(REASONS),
    }),
  ];
  const events = eventList('Events', 'full'), overrides = overrideTable();
  const denied = ranking('No denials in the last minute.'), consumers = ranking('No use in the last minute.');
  const form = overrideForm(find);
  place.append(head.element, range.element, note, ...plots.map(one => one.element),
    section('Most denials in the last minute, on this instance', 'half', denied.element), section('Most use in the last minute, on this instance', 'half', consumers.element),
    section('Overrides of this rule', 'full', overrides.element, form.element), events.element);
  const stop = watchHistory(name, history => {
    const isPast = view.until !== null && view.until < Date.now() / 1000 - 60;
    write(note, [missing(history), isPast ? 'The charts and events are of the past; the rates above and the lists of subjects are of now.' : ''].filter(Boolean).join(' '));
    [range, events, ...plots].forEach(one => one.show(history));
  });
  const loadTop = () => ask('GET', `admin/v1/top?${new URLSearchParams({ rule: name, n: 20 })}`).then(top => {
    denied.show(heaviest(top, 'most_denied', 20));
    consumers.show(heaviest(top, 'consumers', 20));
  }, () => {});
  const timer = setInterval(loadTop, TOP_EVERY_MS);
  loadTop();
  return {
    title: name,
    update() {
      head.update();
      form.update();
      overrides.show(live.overrides.filter(one => one.rule === name), 'None is set: the limits above apply to every subject.');
    },
    changed: loadTop,
    close() {
      stop();
      clearInterval(timer);
      range.close();
      plots.forEach(one => one.close());
    },
  };
}

/** Name, limits, rates and mode. */
function headOf(name, find) {
  const about = el('p', { className: 'note' }), mode = el('span'), rates = el('p', { className: 'rates' });
  const limits = el('ul', { className: 'limits' });
  const lasting = select('lasting', LASTING, '3600');
  const buttons = ['enforce', 'shadow', 'off'].map(mode => {
    const button = el('button', { type: 'button', className: 'quiet', value: mode }, mode.charAt(0).toUpperCase() + mode.slice(1));
    button.addEventListener('click', () => setMode(find(), mode, Number(lasting.value)));
    return button;
  });
  const reset = el('button', { type: 'button', className: 'quiet' }, 'Reset all subjects');
  reset.addEventListener('click', () => resetRule(name));
  const actions = el('div', { className: 'actions', role: 'group', 'aria-label': `Mode of ${name}` }, ...buttons, labelled('For', lasting), reset);
  let shown = '';
  return {
    element: el('section', { className: 'full head', 'aria-label': name }, el('h2', { className: 'title' }, name, ' ', mode), about, limits, rates, forOperators(actions)),
    update() {
      const rule = find();
      actions.hidden = !rule;
      if (!rule) {
        shown = '';
        [mode, rates, limits].forEach(one => one.replaceChildren());
        return write(about, live.loaded ? 'The policy has no rule with this name any more. Its past is below.' : '');
      }
      write(about, `Domain ${rule.domain} · ${byKey(rule)} · on_outage ${rule.on_outage}${rule.anchor ? ` · anchored by ${rule.anchor.join(' and ')}` : ''}`);
      const { allowed, denied, wouldDeny } = ratesOf(name), would = wouldDeny ? `, ${rate(wouldDeny)} would be denied` : '';
      write(rates, `${rate(allowed)} allowed and ${rate(denied)} denied per second${would}, on this instance`);
      const now = JSON.stringify([rule.mode, rule.limits]);
      if (now === shown) return;
      shown = now;
      mode.replaceChildren(modeOf(rule));
      buttons.forEach(button => button.setAttribute('aria-pressed', String(button.value === rule.mode.in_force)));
      limits.replaceChildren(...rule.limits.map(limit => el('li', {}, el('b', {}, quota(limit)), ` ${limit.algorithm}${limit.window_ms ? `, full again after ${duration(limit.window_ms / 1000)}` : ''}`)));
    },
  };
}

/** The points that the history of a rule lacks, as a sentence. */
function missing({ of, kept, keptSince, points, problem }) {
  if (problem) return `The history of the fleet is unknown: ${problem}.`;
  if (!kept && of === 'fleet') return 'The fleet has no history of this rule alone: in each hour it records 64 rules, and this one is in the sums of the overview. Choose This instance to see its own.';
  if (!kept) return 'This rule is not among the 64 busiest, so its past is only in the sums of the overview. Its rates are right.';
  if (keptSince === null || !points.length || keptSince <= points[0].at) return '';
  return `This rule is among the 64 busiest since ${moment(keptSince)}. Its earlier decisions are only in the sums of the overview.`;
}
