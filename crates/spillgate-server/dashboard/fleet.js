// The fleet: all live instances on the store, as any of them lists them. Those that are unlike most stand first.

import { el, section, write } from './dom.js';
import { live } from './live.js';
import { figure } from './overview.js';
import { ask } from './server.js';
import { table } from './table.js';
import { clock, duration, moment, number, rate } from './words.js';

const REFRESH_MS = 2000, EVENTS_EVERY_MS = 15000, LEFT_SHOWN = 3, MINUTE = 60;

export function fleetPage(place) {
  const totals = totalsOf(), note = el('p', { className: 'note' }), left = el('p', { className: 'note' }), problem = el('p', { className: 'result bad', role: 'alert', hidden: true });
  const rows = table({ label: 'Instances', key: ({ id }) => id, columns: columns() });
  place.append(totals.element, section('Instances', 'full', note, left, problem, rows.element));
  let timer = null, isClosed = false, shownAt = '', leftAt = -Infinity;

  async function load() {
    timer = 0;
    // Behind a load balancer each answer may be that of another instance, so nothing is compared with the one before.
    if (document.visibilityState === 'visible') await ask('GET', 'admin/v1/fleet').then(show, complain);
    if (performance.now() - leftAt > EVENTS_EVERY_MS) {
      leftAt = performance.now();
      ask('GET', 'admin/v1/history?range=1h&of=fleet').then(showLeft, () => {});
    }
    if (!isClosed) timer = setTimeout(load, REFRESH_MS);
  }

  /** The instances that stopped or were missed within the last hour: they are in no row any more. */
  function showLeft({ events }) {
    const gone = events.filter(({ kind }) => kind === 'gone' || kind === 'stop').slice(-LEFT_SHOWN).reverse();
    write(left, gone.length ? `Within the last hour: ${gone.map(({ at_ms: at, text }) => `${clock(at / 1000)} ${text}`).join(' · ')}` : '');
  }

  function show({ instances }) {
    const listed = compared(instances), own = instances.find(one => one.answered);
    shownAt = clock(Date.now() / 1000);
    write(note, `${own ? `${own.name} answered` : 'An instance that is not in the list answered'} at ${shownAt}. Counts are of the last minute.`);
    problem.hidden = true;
    totals.show(listed);
    rows.show(listed, 'No instance has reported itself in the last seconds.');
  }

  function complain({ message }) {
    write(problem, `The instances are unknown: ${message}. ${shownAt ? `The list is that of ${shownAt}; trying again.` : 'Trying again.'}`);
    problem.hidden = false;
  }

  return {
    title: 'Fleet',
    update() {
      if (live.event && timer === null) load();
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
    },
  };
}

/** The instances with their numbers of policies, and with marks in words: what sets each apart from most. The marked ones come first. */
function compared(instances) {
  // An instance with another schema reports itself in a format that cannot be read here.
  const readable = instances.filter(one => one.version);
  const policies = byFrequency(readable.map(one => one.policy)), versions = byFrequency(readable.map(one => one.version));
  const newest = Math.max(...readable.map(one => one.changes));
  const isOdd = part => {
    const differing = instances.filter(one => one.differs_in.includes(part)), isMost = 2 * differing.length > instances.length;
    // If most differ from the instance that answered, that one and those like it are the odd ones.
    return one => one.differs_in.includes(part) !== isMost;
  };
  const settings = ['secret', 'ring', 'schema'].map(part => [part, isOdd(part)]);
  const marksOf = one => {
    const marks = settings.filter(([, odd]) => odd(one)).map(([part]) => `another ${part}`);
    if (!one.version) return marks;
    if (one.degraded_since_ms !== null) marks.push('degraded');
    if (one.policy !== policies[0]) marks.push(`policy #${policies.indexOf(one.policy) + 1}`);
    if (one.version !== versions[0]) marks.push(`version ${one.version}`);
    if (one.changes < newest) marks.push('changes missing');
    return marks;
  };
  const listed = instances.map(one => ({ ...one, marks: marksOf(one), number: policies.indexOf(one.policy) + 1 }));
  return listed.sort((a, b) => b.marks.length - a.marks.length || a.name.localeCompare(b.name) || a.id.localeCompare(b.id));
}

/** The distinct values, the most frequent first. */
function byFrequency(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a.localeCompare(b));
}

function columns() {
  const known = show => one => (one.version ? show(one) : '–');
  const time = at => known(one => (at(one) === null ? '–' : moment(at(one) / 1000)));
  const perSecond = one => (one.allowed + one.denied) / MINUTE;
  return [
    { label: 'Instance', className: 'name', value: one => one.name, state: one => `${one.name} ${one.answered}`, show: nameOf },
    { label: 'Compared', value: one => -one.marks.length, state: one => one.marks.join(), show: marks },
    { label: 'Policy', className: 'n', value: one => one.number, show: known(one => `#${one.number}`) },
    { label: 'Policy loaded', value: one => one.policy_loaded_ms, show: time(one => one.policy_loaded_ms) },
    { label: 'Version', value: one => one.version, show: known(one => one.version) },
    { label: 'Up since', value: one => one.started_ms, show: time(one => one.started_ms) },
    { label: 'Decisions/s', className: 'n', value: perSecond, show: known(one => rate(perSecond(one))) },
    { label: 'Denied a minute', className: 'n', value: one => one.denied, show: known(one => number(one.denied)) },
    { label: 'p99', className: 'n', value: one => one.p99_us ?? -1, show: known(one => (one.p99_us === null ? '–' : duration(one.p99_us / 1e6))) },
    { label: 'Degraded since', value: one => one.degraded_since_ms ?? 0, show: time(one => one.degraded_since_ms) },
    { label: 'Changes', className: 'n', value: one => one.changes, show: known(one => number(one.changes)) },
  ];
}

const nameOf = one => el('span', {}, one.name || one.id, one.answered ? el('small', {}, 'answered') : null);

function marks(one) {
  const pill = mark => el('span', { className: `pill ${/^(degraded|another)/.test(mark) ? 'bad' : 'warn'}` }, mark);
  return el('span', { className: 'marks' }, ...(one.marks.length ? one.marks.map(pill) : ['like most']));
}

/** The figures of all instances together. */
function totalsOf() {
  const all = figure('Decisions', 'per second'), denied = figure('Denied', 'of decisions');
  const instances = figure('Instances', ''), degraded = figure('Degraded', 'instances');
  const figures = [all, denied, instances, degraded].map(one => one.element);
  return {
    element: el('section', { className: 'figures', 'aria-label': 'The fleet, last minute' }, ...figures),
    show(list) {
      const sum = count => list.reduce((sum, one) => sum + one[count], 0), denials = sum('denied'), decisions = denials + sum('allowed');
      const odd = list.filter(one => one.marks.length).length;
      write(all.value, rate(decisions / MINUTE));
      write(denied.value, decisions ? `${number(denials / decisions * 100, 1)} %` : '–');
      write(instances.value, number(list.length));
      write(instances.note, odd ? `${number(odd)} unlike most` : 'all alike');
      write(degraded.value, number(list.filter(one => one.degraded_since_ms !== null).length));
    },
  };
}
