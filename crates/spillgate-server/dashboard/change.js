// Changes: each is confirmed first, and can be undone afterwards.

import { confirmed } from './dialogs.js';
import { $, el } from './dom.js';
import { refresh } from './live.js';

const KEPT = 3, SHOWN_MS = 60000;

/**
 * Asks with `title` and `effect`, calls `act` with the reason that the operator gave, and reports `done` with a button that
 * calls `undo` with the version that `act` wrote: nothing newer may be undone. Without `undo` the question warns that there is none.
 */
export async function change({ title, effect, act, done, undo }) {
  const answer = await confirmed(title, undo ? effect : `${effect} This cannot be undone.`);
  if (!answer) return false;
  const succeeded = await attempt(() => act(answer.reason), done, undo && (written => undo('undone', written?.version)));
  await refresh().catch(() => {});
  return succeeded;
}

async function attempt(act, done, undo) {
  try {
    const answer = await act();
    report('good', `${typeof done === 'function' ? done(answer) : done} ${reach(answer)}`, undo && (() => undo(answer)));
    return true;
  } catch (problem) {
    report('bad', problem.message);
    return false;
  }
}

/** Says that a change is in force here only, if it is. */
function reach(answer) {
  return answer?.unsaved ? `In force here, and saved when the store is back: ${answer.unsaved}.` : '';
}

/** Shows the result of a change, with a button that undoes it. */
function report(level, text, undo) {
  const item = el('div', { className: `notice ${level}` }, el('p', {}, text.trim()));
  const button = (label, press) => {
    const made = el('button', { type: 'button', className: 'quiet' }, label);
    made.addEventListener('click', press);
    item.append(made);
  };
  if (undo) {
    button('Undo', async () => {
      item.remove();
      await attempt(undo, 'Undone.');
      await refresh().catch(() => {});
    });
  }
  button('Close', () => item.remove());
  $('changes').prepend(item);
  [...$('changes').children].slice(KEPT).forEach(old => old.remove());
  if (level === 'good') setTimeout(() => { if (!item.contains(document.activeElement)) item.remove(); }, SHOWN_MS);
}
