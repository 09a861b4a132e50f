// Requests to the server, and a parser for its metrics.

const KEPT = 'spillgate-token';

/** An error answer of the server. Its message is for people. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: text => sessionStorage.setItem(KEPT, text),
  forget: () => sessionStorage.removeItem(KEPT),
};

function headers() {
  const known = token.get();
  return known ? { Authorization: `Bearer ${known}` } : {};
}

async function checked(response) {
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.detail ?? `the server answered ${response.status}`);
}

/** Sends a request, and returns the JSON of the answer. */
export async function ask(method, path, body) {
  const response = await fetch(path, { method, headers: headers(), body: body && JSON.stringify(body) });
  return (await checked(response)).json();
}

/** Calls `handle` with each event until the stream ends. EventSource cannot send a token, so this parses the stream. */
export async function follow(path, handle, signal) {
  const response = await checked(await fetch(path, { headers: headers(), signal }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      const data = event.split('\n').filter(line => line.startsWith('data: ')).map(line => line.slice(6));
      if (data.length) handle(JSON.parse(data.join('\n')));
    }
  }
}

/** Parses metrics in the text format of Prometheus. */
export function metrics(text) {
  const found = new Map();
  for (const line of text.split('\n')) {
    const parts = /^spillgate_(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    const labels = {};
    for (const [, label, value] of (parts[2] ?? '').matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)) {
      labels[label] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    }
    const value = parts[3] === '+Inf' ? Infinity : Number(parts[3]);
    if (!found.has(parts[1])) found.set(parts[1], []);
    found.get(parts[1]).push({ labels, value });
  }
  return {
    all: name => found.get(name) ?? [],
    /** The sum of the series with these labels. */
    sum(name, labels = {}) {
      const fits = sample => Object.entries(labels).every(([label, value]) => sample.labels[label] === value);
      return (found.get(name) ?? []).filter(fits).reduce((sum, { value }) => sum + value, 0);
    },
    /** The counts of a histogram by bound, summed over all series with these labels. */
    histogram(name, labels = {}) {
      const counts = new Map();
      for (const sample of found.get(`${name}_bucket`) ?? []) {
        if (!Object.entries(labels).every(([label, value]) => sample.labels[label] === value)) continue;
        const bound = sample.labels.le === '+Inf' ? Infinity : Number(sample.labels.le);
        counts.set(bound, (counts.get(bound) ?? 0) + sample.value);
      }
      return counts;
    },
  };
}

/** The quantile `part` of the values between two states of a histogram; undefined if there are none. */
export function quantile(part, before, now) {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const counts = bounds.map(bound => now.get(bound) - (before.get(bound) ?? 0));
  const all = counts[counts.length - 1];
  if (!(all > 0)) return undefined;
  const place = counts.findIndex(count => count >= part * all);
  const low = place ? bounds[place - 1] : 0;
  if (bounds[place] === Infinity) return low;
  const below = place ? counts[place - 1] : 0;
  return low + (bounds[place] - low) * (part * all - below) / Math.max(counts[place] - below, 1e-9);
}
