// Helpers for the DOM: they build elements, and write only changes.

/**
 * The characters that turn the direction of the text behind them: in an error or a key they would make
 * the rest of our sentence, such as that of a question, unreadable.
 */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

/** Returns a text as it is shown. @param {string} text */
function shownText(text) {
  return typeof text === 'string' ? text.replace(TURNS, '\ufffd') : text;
}

/**
 * Builds an element. Properties starting with `on` are listeners, `class` and `data-…`/`aria-…` are
 * attributes; children may be texts, nodes or empty. Text never passes through HTML.
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

/**
 * Builds an SVG element.
 * @param {string} tag
 * @param {Record<string, any>} props
 * @param {...Node} children
 * @returns {any}
 */
export function svg(tag, props, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * Sets a text if it differs, so that an unchanged page is not touched.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  const shown = shownText(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/**
 * Sets, or with null removes, an attribute if it differs.
 * @param {Element} element
 * @param {string} name
 * @param {string | null} value
 */
export function setAttr(element, name, value) {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/**
 * @param {HTMLElement} element
 * @param {boolean} shown
 */
export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/**
 * Replaces the children of an element.
 * @param {Element} element
 * @param {...(Node | string | null | undefined | false)} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * Updates the children of `parent` to match `items`, reusing rows by key: `make` once per key,
 * `update` each time. Items of the same key have a row each; a child of no item is removed.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} key
 * @param {(item: T) => Element} make
 * @param {(row: any, item: T) => void} [update]
 */
export function keyed(parent, items, key, make, update) {
  const rows = new Map([...parent.children].map((row) => [/** @type {HTMLElement} */ (row).dataset.key, row]));
  /** @type {Map<string, number>} */
  const seen = new Map();
  const placed = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const same = key(item);
    const before = seen.get(same) ?? 0;
    seen.set(same, before + 1);
    const id = before === 0 ? same : `${same} again ${before}`;
    let row = rows.get(id);
    if (!row || placed.has(row)) {
      row = make(item);
      /** @type {HTMLElement} */ (row).dataset.key = id;
    }
    placed.add(row);
    update?.(row, item);
    if (row === at) at = at.nextElementSibling;
    else parent.insertBefore(row, at);
  }
  for (const row of [...parent.children]) if (!placed.has(row)) row.remove();
}

/** The time within which a view has got its rows, in milliseconds. */
const SETTLES_MS = 3_000;

/**
 * Shows a part of a view, and again when the rows above it have come, unless the person has scrolled
 * meanwhile.
 * @param {HTMLElement} part @param {HTMLElement} page
 */
export function scrollToPart(part, page) {
  part.scrollIntoView();
  let at = scrollY;
  const observer = new ResizeObserver(() => {
    if (Math.abs(scrollY - at) > 2) return;
    part.scrollIntoView();
    at = scrollY;
  });
  observer.observe(page);
  setTimeout(() => observer.disconnect(), SETTLES_MS);
}

/** @param {Element} element @param {any[]} children */
function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : shownText(String(child)));
  }
}
