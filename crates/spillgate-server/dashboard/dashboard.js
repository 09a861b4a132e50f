// The dashboard: follows the server's events, and shows the page that the address names.

import { askForToken } from './dialogs.js';
import { $, write } from './dom.js';
import { fleetPage } from './fleet.js';
import { takeView } from './history.js';
import { live, onChange, refresh, take } from './live.js';
import { overridesPage } from './overrides.js';
import { overviewPage } from './overview.js';
import { learnRole } from './role.js';
import { rulePage } from './rule.js';
import { rulesPage } from './rules.js';
import { search } from './search.js';
import { Problem, follow, token } from './server.js';
import { showStatus, word } from './status.js';
import { subjectPage } from './subject.js';

const SILENCE_MS = 4000, REFRESH_MS = 3000, MANY_RULES = 1000;

/** By name: the page, and its entry in the navigation. */
const PAGES = new Map([
  ['overview', [overviewPage, 'overview']], ['rules', [rulesPage, 'rules']], ['rule', [rulePage, 'rules']],
  ['overrides', [overridesPage, 'overrides']], ['subject', [subjectPage, 'subject']], ['fleet', [fleetPage, 'fleet']],
]);

let page = null, eventAt = 0, lostAt = null;

/** Opens the page of the address: `#/rule?name=api`. */
function open() {
  if (location.hash && !location.hash.startsWith('#/')) return;
  const [path, query] = location.hash.slice(2).split('?');
  const [make, entry] = PAGES.get(path || 'overview') ?? PAGES.get('overview');
  page?.close();
  takeView(new URLSearchParams(query));
  $('main').replaceChildren();
  page = make($('main'), new URLSearchParams(query));
  document.title = `${page.title} · Spillgate`;
  for (const link of $('nav').children) {
    if (link.dataset.page === entry) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  onChange(page.update);
  page.update();
}

document.addEventListener('changed', () => page.changed?.());
addEventListener('hashchange', () => {
  open();
  scrollTo(0, 0);
  $('main').focus({ preventScroll: true });
});

function show(event) {
  eventAt = performance.now();
  lostAt = null;
  showStatus(event);
  // In memory there is no fleet.
  $('fleet').hidden = !event.shards.length;
  write($('about'), `${event.version} · ${location.host}`);
  take(event);
}

function lose(why) {
  lostAt ??= performance.now();
  const seconds = Math.round((performance.now() - lostAt) / 1000);
  word('bad', 'no connection', `No connection to the server${seconds ? ` for ${seconds} s` : ''}: ${why}. The figures are old; trying again.`);
}

async function keepFollowing() {
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    const abort = new AbortController();
    const watch = setInterval(() => { if (performance.now() - eventAt > SILENCE_MS) abort.abort(); }, 1000);
    eventAt = performance.now();
    try {
      await Promise.all([learnRole(), refresh()]);
      await follow('admin/v1/events', event => { pause = 500; show(event); }, abort.signal);
      lose('the server ended the stream');
    } catch (problem) {
      if (problem instanceof Problem && problem.status === 401) {
        const was = token.get();
        token.forget();
        word('warn', 'token needed');
        await askForToken(was ? 'The token is wrong.' : '');
        pause = 250;
        continue;
      }
      if (problem instanceof Problem) lose(problem.message);
      else lose(abort.signal.aborted ? 'the server does not answer' : 'the server cannot be reached');
    } finally {
      clearInterval(watch);
    }
    await new Promise(done => setTimeout(done, pause));
  }
}

/** Loads the rules again and again; many of them less often. */
function keepFresh() {
  const pause = live.rules.length > MANY_RULES ? 5 * REFRESH_MS : REFRESH_MS;
  setTimeout(async () => {
    if (lostAt === null && live.loaded) await refresh().catch(() => {});
    keepFresh();
  }, pause);
}

open();
search();
keepFollowing();
keepFresh();
