// The keyboard: `/` searches, `g` and a letter go to a view, `j` and `k` to the next panel or row,
// `?` lists all of them.

import { fill, h } from './dom.js';
import { VIEWS } from './views.js';

/** The time within which the letter follows `g`, in milliseconds. */
const FOLLOWS_MS = 1_500;
/** The elements that `j` and `k` visit. */
const STOPS = 'section.throttle, tbody tr';

/** Returns true where a person types text. @param {any} element */
function isTyping(element) {
  return element instanceof HTMLElement && (element.isContentEditable || element instanceof HTMLTextAreaElement || element instanceof HTMLSelectElement
    || (element instanceof HTMLInputElement && !['checkbox', 'radio', 'button'].includes(element.type)));
}

export class Keyboard {
  /** @param {{ page: () => HTMLElement, search: () => HTMLElement | null }} on `page` returns the visible view, `search` its field for search */
  constructor(on) {
    this.on = on;
    this.wentAt = 0;
    /** @type {any} */
    this.help = null;
    addEventListener('keydown', (event) => this.press(event));
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target) || document.querySelector('dialog[open]')) return;
    const follows = performance.now() - this.wentAt < FOLLOWS_MS;
    this.wentAt = 0;
    const view = follows ? VIEWS.find(({ key }) => key === event.key) : undefined;
    if (view) location.hash = `#${view.name}`;
    else if (event.key === 'g') this.wentAt = performance.now();
    else if (event.key === '/') this.search();
    else if (event.key === '?') this.explain();
    else if (event.key === 'j' || event.key === 'k') this.step(event.key === 'j' ? 1 : -1);
    else return;
    event.preventDefault();
  }

  search() {
    const field = this.on.search();
    field?.scrollIntoView({ block: 'center' });
    field?.focus({ preventScroll: true });
  }

  /** Moves the focus to the next panel or row. @param {1 | -1} by */
  step(by) {
    const stops = /** @type {HTMLElement[]} */ ([...this.on.page().querySelectorAll(STOPS)]).filter((one) => one.checkVisibility());
    const here = stops.findIndex((one) => one.contains(document.activeElement));
    const next = stops[here < 0 ? (by > 0 ? 0 : stops.length - 1) : here + by];
    // A row is reached by its link, so that Enter opens it.
    const target = next?.querySelector('a[href]') && next.tagName === 'TR' ? /** @type {HTMLElement} */ (next.querySelector('a[href]')) : next;
    if (!target) return;
    if (target === next) next.tabIndex = -1;
    target.focus({ preventScroll: true });
    next.scrollIntoView({ block: next.offsetHeight > innerHeight / 2 ? 'start' : 'nearest' });
  }

  explain() {
    this.help ??= document.body.appendChild(h('dialog', { class: 'help', 'aria-labelledby': 'keys-title' }));
    const keys = [['/', 'search on this page'], ...VIEWS.map(({ key, title }) => [`g ${key}`, title]), ['j k', 'next and previous panel or row'], ['← →', 'read a chart that has the focus'], ['?', 'this list']];
    fill(this.help, h('h2', { id: 'keys-title' }, 'Keyboard'),
      h('dl', { class: 'keys' }, ...keys.map(([key, text]) => h('div', null, h('dt', null, ...key.split(' ').map((one) => h('kbd', null, one))), h('dd', null, text)))),
      h('form', { method: 'dialog', class: 'buttons' }, h('button', { type: 'submit', class: 'primary' }, 'Close')));
    this.help.showModal();
  }
}
