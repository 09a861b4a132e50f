// The dashboard: follows the server's events, and connects them with the panels.

import { chart } from './chart.js';
import { Problem, ask, follow, metrics, quantile, token } from './server.js';
import { duration, number, rate } from './words.js';
import { askForToken, el, fill, operate } from './panels.js';

const SPAN = 180, SILENCE_MS = 4000;
const $ = id => document.getElementById(id);

const charts = {
  decisions: chart($('chart-decisions'), {
    kind: 'stack', span: SPAN, format: rate,
    series: [{ name: 'allowed', label: 'allowed' }, { name: 'denied', label: 'denied' }],
  }),
  sources: chart($('chart-sources'), {
    kind: 'stack', span: SPAN, format: rate,
    series: [
      { name: 'store', label: 'store' }, { name: 'lease', label: 'lease' }, { name: 'denial-cache', label: 'denial cache' },
      { name: 'fallback', label: 'fallback' }, { name: 'outage-policy', label: 'outage policy' },
    ],
  }),
  latency: chart($('chart-latency'), {
    kind: 'lines', span: SPAN, format: duration,
    series: [{ name: 'p50', label: 'p50' }, { name: 'p99', label: 'p99' }, { name: 'store-p99', label: 'store, p99' }],
  }),
};

const state = { before: null, rules: [], overrides: [], rates: new Map(), top: null, eventAt: 0, lost: null };

/** Shows an event, with the rates since the one before it. */
function show(event) {
  state.eventAt = performance.now();
  state.lost = null;
  const now = { at: event.at_ms / 1000, metrics: metrics(event.metrics), event };
  const { before } = state;
  if (before && now.at < before.at) state.before = null;
  state.before = now;
  state.top = event.top;
  if (before && now.at > before.at) figures(before, now);
  store(before, now);
  fill.top(event.top);
  fill.rules(state);
  status(now);
}

function figures(before, now) {
  const seconds = now.at - before.at;
  const grown = (name, labels) => Math.max(0, now.metrics.sum(name, labels) - before.metrics.sum(name, labels)) / seconds;
  const decisions = { at: now.at }, sources = { at: now.at };
  for (const decision of ['allowed', 'denied']) decisions[decision] = grown('decisions_total', { decision });
  for (const source of ['store', 'lease', 'denial-cache', 'fallback', 'outage-policy']) sources[source] = grown('decisions_total', { source });
  const histogram = name => [before.metrics.histogram(name), now.metrics.histogram(name)];
  const latency = { at: now.at, p50: quantile(0.5, ...histogram('decision_seconds')), p99: quantile(0.99, ...histogram('decision_seconds')) };
  const storeTime = quantile(0.99, ...histogram('store_seconds'));
  if (storeTime !== undefined) latency['store-p99'] = storeTime;
  charts.decisions.add(decisions);
  charts.sources.add(sources);
  charts.latency.add(latency);
  const { denied } = decisions, all = decisions.allowed + denied;
  $('now-rate').textContent = rate(all);
  $('now-denied').textContent = all ? `${number(denied / all * 100, 1)} %` : '–';
  $('now-denied-rate').textContent = all ? `${rate(denied)} per second` : 'of decisions';
  $('now-p50').textContent = latency.p50 === undefined ? '–' : duration(latency.p50);
  $('now-p99').textContent = latency.p99 === undefined ? '–' : duration(latency.p99);
  state.rates = rates(before, now, seconds);
}

/** By rule: how many decisions a second allowed, denied, and left little of the limit. */
function rates(before, now, seconds) {
  const of = new Map();
  const add = (name, pick, sign, data) => {
    for (const { labels, value } of data.metrics.all(name)) {
      if (!of.has(labels.rule)) of.set(labels.rule, { allowed: 0, denied: 0, near: 0 });
      of.get(labels.rule)[pick(labels)] += sign * value / seconds;
    }
  };
  for (const [sign, data] of [[-1, before], [1, now]]) {
    add('decisions_total', labels => labels.decision, sign, data);
    add('near_limit_total', () => 'near', sign, data);
  }
  return of;
}

function store(before, now) {
  const seconds = before ? now.at - before.at : 0;
  const shards = now.event.shards.map(shard => {
    const labels = { shard: shard.name };
    const grown = name => (seconds > 0 ? (now.metrics.sum(name, labels) - before.metrics.sum(name, labels)) / seconds : 0);
    const times = data => data.metrics.histogram('store_seconds', labels);
    return {
      ...shard,
      degraded: now.metrics.sum('degraded', labels) > 0,
      open: now.metrics.sum('breaker_open', labels) > 0,
      skew: now.metrics.sum('clock_skew_seconds', labels),
      errors: now.metrics.sum('store_errors_total', labels),
      calls: grown('store_seconds_count'),
      p99: before ? quantile(0.99, times(before), times(now)) : undefined,
    };
  });
  const sum = name => now.metrics.sum(name);
  const cache = result => now.metrics.sum('cache_lookups_total', { cache: 'denial', result });
  const asked = cache('hit') + cache('miss');
  const facts = [['Store', now.event.store], ['Rules', number(now.event.rules)]];
  if (shards.length) {
    facts.push(['Instances', number(sum('live_instances'))]);
    const differ = differing(now);
    if (differ.length) facts.push(['Differing', differ.join(', ')]);
    facts.push(['Denial cache', asked ? `${number(cache('hit') / asked * 100, 1)} % hits` : 'unused']);
    facts.push(['State losses', number(sum('state_losses_total'))], ['Clock steps', number(sum('clock_steps_total'))]);
  } else {
    facts.push(['Counters evicted', number(sum('evictions_total'))], ['Overflows', number(sum('overflows_total'))]);
  }
  facts.push(['Unmatched', number(sum('unmatched_total'))], ['Up for', duration(event_age(now.event))]);
  fill.shards(shards);
  fill.facts(facts);
}

const PARTS = { secret: 'key secret', ring: 'ring', schema: 'schema' };

/** The numbers of live instances that differ from this one, by the part that differs. */
function differing(now) {
  const parts = now.metrics.all('instance_mismatch').filter(({ value }) => value > 0);
  return parts.map(({ labels, value }) => `${number(value)} with another ${PARTS[labels.part]}`);
}

const event_age = event => event.up_ms / 1000;

function status(now) {
  const away = now.event.shards.filter(shard => now.metrics.sum('degraded', { shard: shard.name }) > 0);
  $('about').textContent = `${now.event.version} · ${location.host}`;
  const differ = differing(now);
  if (!away.length && differ.length) {
    return report('bad', 'unsafe', `Live instances on this store differ from this one: ${differ.join(', ')}. They keep separate counters, and each limit is admitted more than once.`);
  }
  const warning = now.event.warning ?? '';
  if (!away.length) return warning ? report('warn', 'policy', warning) : report('good', 'healthy', '');
  const names = away.map(shard => shard.name).join(', ');
  report('warn', 'degraded', `Degraded: ${names} ${away.length > 1 ? 'are' : 'is'} unavailable. Each rule's on_outage decides for ${away.length > 1 ? 'their' : 'its'} subjects, and no request waits. ${warning}`.trim());
}

function report(level, word, banner) {
  $('status').className = `pill ${level}`;
  $('status').textContent = word;
  const place = $('banner');
  if (place.textContent !== banner) place.textContent = banner;
  place.hidden = !banner;
  place.className = level;
}

function lose(why) {
  state.lost ??= performance.now();
  const seconds = Math.round((performance.now() - state.lost) / 1000);
  report('bad', 'no connection', `No connection to the server${seconds ? ` for ${seconds} s` : ''}: ${why}. The figures are old; trying again.`);
}

/** Loads rules and overrides. Called after each change, and every few seconds. */
async function refresh() {
  const [rules, overrides] = await Promise.all([ask('GET', 'admin/v1/rules'), ask('GET', 'admin/v1/overrides')]);
  state.rules = rules.rules;
  state.overrides = overrides.overrides;
  fill.rules(state);
  fill.overrides(state);
  fill.choices(state);
}

async function keepFollowing() {
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    const abort = new AbortController();
    const watch = setInterval(() => { if (performance.now() - state.eventAt > SILENCE_MS) abort.abort(); }, 1000);
    state.eventAt = performance.now();
    try {
      await refresh();
      await follow('admin/v1/events', event => { pause = 500; show(event); }, abort.signal);
      lose('the server ended the stream');
    } catch (problem) {
      if (problem instanceof Problem && problem.status === 401) {
        const was = token.get();
        token.forget();
        report('warn', 'token needed', '');
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

setInterval(() => { if (state.lost === null) refresh().catch(() => {}); }, 3000);
operate({ refresh, state, el });
keepFollowing();
