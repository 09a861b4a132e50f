// Lists of subjects with bars, as `top` counts them.

import { el } from './dom.js';
import { number, subject as text } from './words.js';

/** The address of the page of a subject. */
export function pageOf(rule, attributes) {
  const query = new URLSearchParams(rule ? { rule } : {});
  for (const [name, value] of Object.entries(attributes)) query.set(`attr.${name}`, value);
  return `#/subject?${query}`;
}

/** A list that shows the heaviest of `subjects` ({ rule, subject, whole, count, unit }). */
export function ranking(none) {
  const list = el('ol', { className: 'top' });
  let before = '';
  return {
    element: list,
    show(subjects) {
      const now = JSON.stringify(subjects);
      if (now === before || list.contains(document.activeElement)) return;
      before = now;
      if (!subjects.length) return list.replaceChildren(el('li', { className: 'note' }, none));
      // Counts in different units are not comparable, so each bar is relative to the largest count in its unit.
      const most = unit => Math.max(...subjects.filter(other => other.unit === unit).map(other => other.count));
      list.replaceChildren(...subjects.map(({ rule, subject, whole, count, unit }) => {
        const fill = el('span', { className: 'fill' });
        fill.style.width = `${Math.max(2, count / most(unit) * 100)}%`;
        const name = text(subject) + (whole ? '' : '…');
        const link = rule && whole ? el('a', { href: pageOf(rule, subject) }, name) : name;
        return el('li', {}, fill, el('span', { className: 'subject' }, link, ' ', el('small', {}, rule ?? 'inline limit')),
          el('span', { className: 'count' }, number(count), ' ', el('small', {}, unit)));
      }));
    },
  };
}

/** The subjects of a list of `top`, over all its rules, the heaviest first. */
export function heaviest(top, list, most) {
  const unitOf = rule => (list === 'most_denied' ? 'denials' : rule.unit);
  const all = top.rules.flatMap(rule => rule[list].map(one => ({ ...one, rule: rule.rule, unit: unitOf(rule) })));
  return all.sort((a, b) => b.count - a.count).slice(0, most);
}
