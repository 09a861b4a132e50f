// Requests to the server.

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

/**
 * Sends a request, and returns the JSON of the answer, with the `version` of a change. With `seen`, a change is refused unless it
 * replaces this version.
 */
export async function ask(method, path, body, seen) {
  const only = seen ? { 'If-Match': seen } : {};
  const response = await checked(await fetch(path, { method, headers: { ...headers(), ...only }, body: body && JSON.stringify(body) }));
  return { ...await response.json(), version: response.headers.get('ETag') };
}

const lists = new Map();

/** Returns a list. It may be large, so the server sends it again only if it has changed. */
export async function list(path) {
  const known = lists.get(path), unless = known ? { 'If-None-Match': known.tag } : {};
  const response = await fetch(path, { headers: { ...headers(), ...unless }, cache: 'no-store' });
  if (response.status === 304) return known.list;
  const fresh = await (await checked(response)).json();
  lists.set(path, { tag: response.headers.get('ETag'), list: fresh });
  return fresh;
}

/** The query of a rule's subject: `rule=api&attr.tenant=acme`, and `more` parameters. */
export function subjectQuery(rule, attributes, more = {}) {
  const query = new URLSearchParams({ rule, ...more });
  for (const [name, value] of Object.entries(attributes)) query.set(`attr.${name}`, value);
  return query;
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
