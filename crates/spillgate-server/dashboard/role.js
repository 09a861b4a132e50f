// The role of the token: a viewer may only read, so the pages hide the controls that change something.

import { el } from './dom.js';
import { ask, token } from './server.js';

/** Learns the role from the server, and shows the pages accordingly. */
export async function learnRole() {
  const { role } = await ask('GET', 'admin/v1/whoami');
  document.body.classList.toggle('viewer', role === 'viewer');
}

/** Wraps controls that change something. A viewer sees the reason why they are missing. */
export function forOperators(...controls) {
  const other = el('button', { type: 'button', className: 'link' }, 'Use another token');
  other.addEventListener('click', () => {
    token.forget();
    location.reload();
  });
  return el('div', {},
    el('div', { className: 'for-operators' }, ...controls),
    el('p', { className: 'note for-viewers' }, 'Your token may only read. A change needs the token of an operator. ', other));
}
