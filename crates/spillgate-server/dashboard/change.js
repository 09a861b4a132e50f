// Changes: each is confirmed first, and can be undone afterwards.

import { confirmed } from './dialogs.js';
import { $, el } from './dom.js';
import { refresh } from './live.js';

const KEPT = 3, SHOWN_MS = 60000;

/**
 * Asks with `title`, `effect` and the elements of `check`, calls `act` with the reason that the operator gave, and reports `done`
 * with a button that calls `undo` with the version that `act` wrote: nothing newer may be undone. Without `undo` the question warns
 * that there is none. `typed` is a name that the operator must type.
 */
export async function change({ title, effect, check, typed, act, done, undo }) {
  const question = { title, effect: undo ? effect : `${effect} This cannot be undone.`, check, typed, isFinal: !undo };
  const answer = await confirmed(question);
  if (!answer) return;
  const name = title.slice(0, -1);
  await attempt(() => act(answer.reason), done, undo && { name, act: written => undo('undo of the change before', written?.version) });
}

/** Makes a change or undoes one, and shows the result on every panel at once. */
async function attempt(act, done, undo) {
  try {
    const answer = await act();
    report('good', `${typeof done === 'function' ? done(answer) : done} ${reach(answer)}`, undo && { ...undo, act: () => undo.act(answer) });
  } catch (problem) {
    report('bad', problem.message);
  }
  await refresh().catch(() => {});
  document.dispatchEvent(new Event('changed'));
}

/** Says that a change is in force here only, if it is. */
function reach(answer) {
  return answer?.unsaved ? `In force here, and saved when the store is back: ${answer.unsaved}.` : '';
}

/** Shows the result of a change, with a button that names the change and undoes it. */
function report(level, text, undo) {
  const item = el('div', { className: `notice ${level}` }, el('p', {}, text.trim()));
  const button = (label, press) => {
    const made = el('button', { type: 'button', className: 'quiet' }, label);
    made.addEventListener('click', press);
    item.append(made);
  };
  if (undo) {
    button(`Undo: ${undo.name}`, () => {
      item.remove();
      attempt(undo.act, `Undone: ${undo.name}.`);
    });
  }
  button('Close', () => item.remove());
  $('changes').prepend(item);
  [...$('changes').children].slice(KEPT).forEach(old => old.remove());
  if (level === 'good') setTimeout(() => { if (!item.contains(document.activeElement)) item.remove(); }, SHOWN_MS);
}
