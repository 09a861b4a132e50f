// When a subject was denied in the last 48 hours, by each limit of its rule: a strip of hours, and a list with the same facts.

import { el, section, write } from './dom.js';
import { hasFleet } from './history.js';
import { live } from './live.js';
import { rulePageOf } from './rules.js';
import { ask, subjectQuery } from './server.js';
import { limitOf, rounded } from './subjects.js';
import { clock, day, number, zone } from './words.js';

const HOURS = 48, HOUR = 3600, MINUTE = 60, LISTED = 8, EVERY_MS = 30_000;
const RECORDED = 'An instance records the 20 most denied subjects of each rule and minute, up to two minutes later.';

const REASONS = {
  'limit-exceeded': 'the limit was used up', 'cost-exceeds-limit': 'one request cost more than the limit ever allows', blocked: 'the subject was blocked',
  'store-unavailable': 'the store did not answer, and the rule denies then', overloaded: 'the instance was overloaded',
};

/** A section with the denials of a rule's subject. `isOne` returns whether it names one subject, once the rules are loaded. */
export function timelinePanel(rule, known, isOne) {
  const limits = el('div'), note = el('p', { className: 'note' }, 'Loading the record.'), problem = el('p', { className: 'note result bad', role: 'alert' });
  let timer, closed = false, begun = false, before = '';
  async function load() {
    clearTimeout(timer);
    try {
      const found = await ask('GET', `admin/v1/denials?${subjectQuery(rule, known, { since: `${HOURS}h` })}`);
      write(problem, '');
      show(found);
    } catch (error) {
      write(problem, error.message);
      if (!before) write(note, '');
    }
    if (!closed) timer = setTimeout(load, EVERY_MS);
  }
  function show(found) {
    const now = JSON.stringify([found.entries, thisHour()]);
    write(note, noteOf(found));
    if (now === before || limits.contains(document.activeElement)) return;
    before = now;
    limits.replaceChildren(...found.entries.map(ofLimit));
  }
  return {
    element: section(`Denied in the last ${HOURS} hours`, 'full denials', limits, problem, note),
    update() {
      if (begun || !live.loaded) return;
      begun = true;
      if (isOne()) load();
      else write(note, 'This names several subjects, and each has a record of its own. Find one with the search in the header.');
    },
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}

/** What the record lacks. A subject without a record may have been denied, so it is never called allowed. */
function noteOf({ entries, recording, others }) {
  const uncounted = others ? `${number(others)} ${others === 1 ? 'denial' : 'denials'} of all subjects in these hours ${others === 1 ? 'was' : 'were'} not recorded by subject.` : '';
  const off = recording ? '' : 'This instance records no denials. To turn it on, set store.denials = "on"; on a store whose listeners other machines reach, also store.key_secret_file.';
  if (entries.length) return [`Times are in ${zone()}.`, off, uncounted].filter(Boolean).join(' ');
  return ['Not recorded: no denial of this subject until two minutes ago is in the record.', off || RECORDED, uncounted].filter(Boolean).join(' ');
}

/** The denials by one limit. */
function ofLimit({ rule, limit, reason, denied, allowed, hours }) {
  const each = hours.map(hour => ({ ...hour, at: Date.parse(hour.at) / 1000, minutes: hour.minutes.map(minute => Date.parse(minute) / 1000) }));
  const lines = each.toReversed().map(hour => ofHour(rule, hour)), older = lines.slice(LISTED);
  return el('article', { 'aria-label': `${rule}/${limit}` },
    el('h3', {}, `${rule}, ${limitOf(rule, limit)}`, el('span', { className: 'pill bad' }, reason)),
    el('p', { className: 'note' }, `Last reason: ${REASONS[reason] ?? reason}.`),
    el('p', {}, `${counts(denied, allowed)}${allowed === null ? '' : ' in the same minutes'}`),
    ...strip(each),
    el('ul', {}, ...lines.slice(0, LISTED)),
    older.length ? el('details', {}, el('summary', {}, `${older.length} earlier ${older.length === 1 ? 'hour' : 'hours'}`), el('ul', {}, ...older)) : null);
}

/** Both counts as text. The allowed requests are estimated from samples, so 0 may be a few. */
function counts(denied, allowed) {
  const estimate = { null: '', 0: ', hardly any allowed' }[allowed] ?? `, about ${rounded(allowed)} allowed`;
  return `${number(denied)} denied${estimate}`;
}

const thisHour = () => Math.floor(Date.now() / 1000 / HOUR) * HOUR;

/** A bar for each of the hours, as high as the denials of that hour, and the times below. */
function strip(hours) {
  const last = thisHour(), first = last - (HOURS - 1) * HOUR, most = Math.max(...hours.map(hour => hour.denied));
  const bars = Array.from({ length: HOURS }, (_, place) => {
    const hour = hours.find(one => one.at === first + place * HOUR), bar = el('i');
    if (!hour) return bar;
    bar.style.height = `${Math.max(10, hour.denied / most * 100)}%`;
    bar.title = `${hourOf(hour.at)}: ${counts(hour.denied, hour.allowed)}`;
    return bar;
  });
  const label = `Denied in ${hours.length} of ${HOURS} hours, most often in the hour from ${hourOf(hours.find(hour => hour.denied === most).at)}`;
  const times = [first, first + HOURS / 2 * HOUR].map(at => el('span', {}, hourOf(at)));
  return [el('div', { className: 'strip', role: 'img', 'aria-label': label }, ...bars), el('p', { className: 'strip-times', 'aria-hidden': 'true' }, ...times, el('span', {}, 'now'))];
}

const hourOf = at => `${day(at)} ${clock(at, false)}`;

/** A line about an hour. Each of its ranges of minutes links to the charts of that time. */
function ofHour(rule, { at, denied, allowed, minutes }) {
  const ranges = [];
  for (const minute of minutes) {
    if (minute - MINUTE === ranges.at(-1)?.last) ranges.at(-1).last = minute;
    else ranges.push({ first: minute, last: minute });
  }
  const links = ranges.map(({ first, last }) => el('a', { href: chartsAt(rule, first) }, first === last ? clock(first, false) : `${clock(first, false)}–${clock(last, false)}`));
  return el('li', {}, el('b', {}, hourOf(at)), el('span', {}, counts(denied, allowed)), el('span', { className: 'minutes' }, ...links));
}

/** The address of the charts of a rule that show a minute in their middle. A point of a chart is at the end of its minute. */
function chartsAt(rule, minute) {
  const written = at => new Date(Math.floor(at) * 1000).toISOString().replace('.000', '');
  const until = Math.min(minute + HOUR / 2, Date.now() / 1000);
  // This instance may not have run then.
  return `${rulePageOf(rule)}&range=1h${hasFleet() ? '&of=fleet' : ''}&until=${written(until)}&at=${written(minute + MINUTE)}`;
}
