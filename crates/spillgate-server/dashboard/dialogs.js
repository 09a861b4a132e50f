// The two dialogs: a question about a change, and the request for a token.

import { $ } from './dom.js';
import { token } from './server.js';

/** The answer to the last question. There is one dialog, and its close event comes late, so the next question waits for it. */
let lastAnswer = Promise.resolve();

/**
 * Asks the operator about a change. Returns { reason } if the answer is yes, else null. `check` returns elements that show the
 * effect; if it fails, the dialog shows the problem and there is nothing to confirm. `typed` must be typed before Confirm can be
 * pressed. If the change is final, the focus is on Cancel.
 */
export function confirmed({ title, effect, check, typed, isFinal }) {
  lastAnswer = lastAnswer.then(async () => {
    const dialog = $('confirm'), yes = $('confirm-yes'), no = $('confirm-no');
    const { reason, name } = dialog.querySelector('form').elements;
    let facts = [], problem = '';
    try {
      facts = await check?.() ?? [];
    } catch (error) {
      problem = error.message;
    }
    $('confirm-title').textContent = title;
    $('confirm-text').textContent = effect;
    $('confirm-facts').replaceChildren(...facts);
    $('confirm-problem').textContent = problem;
    $('confirm-name').hidden = !typed;
    $('confirm-name').firstChild.textContent = `Type ${typed} to confirm`;
    name.value = reason.value = '';
    name.oninput = () => { yes.disabled = Boolean(problem || (typed && name.value !== typed)); };
    name.oninput();
    dialog.returnValue = 'no';
    // Only Confirm submits the form, so that Enter in the reason confirms.
    no.onclick = () => dialog.close('no');
    dialog.showModal();
    (isFinal || problem ? no : yes).focus();
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
      // The line of the file has the name and the role before it.
      token.set(form.elements.token.value.trim().replace(/^[^:]*:(operator|viewer):/, ''));
      entered();
    };
  });
}
