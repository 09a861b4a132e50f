// Searches the record of the fleet's denials for the header: subjects of the last 48 hours with a value that contains the text.

import { ask } from './server.js';
import { rulePageOf } from './rules.js';
import { pageOf } from './subjects.js';
import { attributes, number, subject as text } from './words.js';

export const SHOWN = 8;
const SHORTEST = 2, PAUSE_MS = 300;

/** A search that calls `changed` whenever it has found more: `found` are pages { name, about, href }, and `note` is the progress. */
export function deniedSearch(changed) {
  // Each question has a number, so that a late answer to an earlier one is dropped.
  let latest = 0;
  const search = {
    found: [],
    note: '',
    /** Begins anew with another text. */
    async ask(query) {
      const question = ++latest, isLatest = () => question === latest;
      Object.assign(search, { found: [], note: '' });
      if (query.length < SHORTEST) return;
      search.note = 'Searching the denials of 48 hours…';
      const { part, fits } = partOf(query);
      for (let isComplete = false; !isComplete;) {
        await new Promise(done => setTimeout(done, PAUSE_MS));
        if (!isLatest()) return;
        try {
          const answer = await ask('GET', `admin/v1/denials?${new URLSearchParams({ since: '48h', like: part })}`);
          if (!isLatest()) return;
          isComplete = answer.unread_hours === 0;
          const entries = answer.entries.filter(fits);
          search.found = pagesOf(entries);
          search.note = noteOf(answer, search.found.length);
        } catch (problem) {
          if (!isLatest()) return;
          isComplete = true;
          search.note = `The denials are unknown: ${problem.message}`;
        }
        changed();
      }
    },
    /** Drops the answer that is awaited. */
    stop() {
      latest++;
    },
  };
  return search;
}

/** The text to search for, and whether a subject fits the query: `tenant=acme` searches for acme, and fits only a tenant. */
function partOf(query) {
  let given = {};
  try {
    given = attributes(query);
  } catch {
    // It is a part of a value.
  }
  const longest = Object.values(given).sort((one, other) => other.length - one.length)[0] ?? '';
  const contains = (value, part) => value?.toLowerCase().includes(part.toLowerCase());
  if (longest.length < SHORTEST) return { part: query, fits: () => true };
  return { part: longest, fits: ({ subject }) => Object.entries(given).every(([name, part]) => contains(subject[name], part)) };
}

/** A page for each subject, whichever of its limits denied. A value that was cut has no page, so its rule has to do. */
function pagesOf(entries) {
  const pages = new Map();
  for (const { rule, subject, whole, denied } of entries) {
    const href = whole ? pageOf(rule, subject) : rulePageOf(rule), name = text(subject) + (whole ? '' : '…');
    if (!pages.has(href)) pages.set(href, { name, about: `denied ${number(denied)} ${denied === 1 ? 'time' : 'times'} by ${rule}`, href });
  }
  return [...pages.values()];
}

function noteOf({ recording, left_out: leftOut, unread_hours: unread }, found) {
  if (unread) return `${number(unread)} ${unread === 1 ? 'hour' : 'hours'} of denials not read yet…`;
  const more = leftOut + Math.max(0, found - SHOWN);
  if (more) return `${number(more)} more were denied. Type more of the value, or the whole subject, such as tenant=acme.`;
  if (found) return '';
  return recording ? 'No denial of such a subject was recorded in the last 48 hours.' : 'This instance records no denials: see store.denials.';
}
