// The two dialogs: a question about a change, and the request for a token.

import { $ } from './dom.js';
import { token } from './server.js';

/** The answer to the last question. There is one dialog, and its close event comes late, so the next question waits for it. */
let lastAnswer = Promise.resolve();

/** Asks the operator about a change. Returns { reason } if the answer is yes, else null. */
export function confirmed(title, text) {
  lastAnswer = lastAnswer.then(() => {
    const dialog = $('confirm'), reason = dialog.querySelector('input');
    $('confirm-title').textContent = title;
    $('confirm-text').textContent = text;
    reason.value = '';
    dialog.returnValue = 'no';
    // Only Confirm submits the form, so that Enter in the reason confirms.
    $('confirm-no').onclick = () => dialog.close('no');
    dialog.showModal();
    const answer = () => (dialog.returnValue === 'yes' ? { reason: reason.value.trim() } : null);
    return new Promise(answered => dialog.addEventListener('close', () => answered(answer()), { once: true }));
  });
  return lastAnswer;
}

/** Asks the operator for a token, and waits until one is entered. */
export function askForToken(complaint) {
  const dialog = $('ask'), form = $('token');
  $('token-result').className = 'result bad';
  $('token-result').textContent = complaint;
  form.elements.token.value = '';
  if (!dialog.open) dialog.showModal();
  return new Promise(entered => {
    dialog.oncancel = event => event.preventDefault();
    form.onsubmit = () => {
      token.set(form.elements.token.value.trim());
      entered();
    };
  });
}
