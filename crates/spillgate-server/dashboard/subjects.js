// Lists of subjects with bars, as `top` counts them.

import { el } from './dom.js';
import { live } from './live.js';
import { number, quota, subject as text } from './words.js';

/** The address of the page of a subject. */
export function pageOf(rule, attributes) {
  const query = new URLSearchParams(rule ? { rule } : {});
  for (const [name, value] of Object.entries(attributes)) query.set(`attr.${name}`, value);
  return `#/subject?${query}`;
}

/** A limit in words: by its name, or without one by its quota. */
export function limitOf(rule, limit) {
  const known = live.rules.find(one => one.name === rule)?.limits[limit];
  return known ? quota(known) : /^\d+$/.test(limit) ? `limit ${Number(limit) + 1}` : limit;
}

/** A list with bars of items { name, href, about, count, unit, isEstimate }. */
export function ranking(none) {
  const list = el('ol', { className: 'top' });
  let before = '';
  return {
    element: list,
    /** Shows items; without any, a text. */
    show(items, ifNone = none) {
      const now = JSON.stringify([items, ifNone]);
      if (now === before || list.contains(document.activeElement)) return;
      before = now;
      if (!items.length) return list.replaceChildren(el('li', { className: 'note' }, ifNone));
      // Counts in different units are not comparable, so each bar is relative to the largest count in its unit.
      const most = unit => Math.max(...items.filter(other => other.unit === unit).map(other => other.count));
      list.replaceChildren(...items.map(({ name, href, about, count, unit, isEstimate }) => {
        const fill = el('span', { className: 'fill' });
        fill.style.width = `${Math.max(2, count / most(unit) * 100)}%`;
        const link = href ? el('a', { href }, name) : el('span', {}, name);
        return el('li', {}, fill, el('span', { className: 'subject' }, link, el('small', {}, about)),
          el('span', { className: 'count' }, isEstimate ? el('small', {}, 'about ') : null, isEstimate ? rounded(count) : number(count), unit ? el('small', {}, ` ${unit}`) : null));
      }));
    },
  };
}

/** A count from samples, in the three digits that mean something. */
export const rounded = count => number(Number(count.toPrecision(3)));

/** The subjects of a list of `top` as items, over all its rules, the heaviest first. */
export function heaviest(top, list, most) {
  const isDenied = list === 'most_denied', unitOf = rule => (isDenied ? '' : rule.unit);
  const isShadow = name => isDenied && live.rules.find(one => one.name === name)?.mode.in_force === 'shadow';
  const all = top.rules.flatMap(rule => rule[list].map(one => ({ ...one, rule: rule.rule, unit: unitOf(rule) })));
  return all.sort((a, b) => b.count - a.count).slice(0, most).map(({ rule, subject, whole, count, unit }) => ({
    name: text(subject) + (whole ? '' : '…'), href: rule && whole ? pageOf(rule, subject) : null, about: `${rule ?? 'inline limit'}${isShadow(rule) ? ', shadow' : ''}`, count, unit, isEstimate: true,
  }));
}
