// Makes elements. Text is never parsed as markup.

export const $ = id => document.getElementById(id);

/** An element with properties and children. Children that are null are left out. */
export function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) {
    if (property.startsWith('data-') || property.startsWith('aria-') || property === 'role') made.setAttribute(property, value);
    else made[property] = value;
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

/** A section of a page with a heading. `wide` is full, half, more or less. */
export function section(heading, wide, ...children) {
  const title = el('h2', {}, heading);
  return el('section', { className: wide, 'aria-label': heading }, title, ...children);
}

/** Sets a text only if it differs, so that screen readers do not read it again. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A select with options [value, label]. */
export function select(name, options, chosen) {
  const made = el('select', { name }, ...options.map(([value, label]) => el('option', { value }, label)));
  made.value = chosen;
  return made;
}

export const labelled = (label, field, className = '') => el('label', { className }, `${label} `, field);
