// The governor's last decisions as a table: one row each, a column for every term.

import { fill, h, setText, show } from './dom.js';
import { clock, number, rate, UNKNOWN } from './format.js';
import { breakerText, unitOf } from './words.js';

/** The number of decisions at first, and of all stored. */
export const HISTORY_FIRST = 20;
export const HISTORY_ALL = 1000;

export class History {
  /** @param {string} name of the throttle @param {(limit: number) => void} ask asks for so many decisions */
  constructor(name, ask) {
    this.head = h('tr', null);
    this.body = h('tbody', null);
    this.note = h('span', { class: 'sub' });
    this.all = h('button', { type: 'button', 'aria-label': `Show all decisions of ${name}`, onclick: () => ask(HISTORY_ALL) }, 'Show all');
    this.element = h('div', { class: 'history' },
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Decisions of ${name} with every term` },
        h('table', { class: 'terms' }, h('thead', null, this.head), this.body)),
      h('div', { class: 'buttons' }, this.all, this.note));
  }

  /** @param {any[]} decisions newest first @param {number} limit that was asked for @param {number} now unix seconds */
  show(decisions, limit, now) {
    const terms = termNames(decisions);
    fill(this.head, ...['at', 'rate', 'mode', 'breaker', 'decided', 'reason', ...terms].map((title) => h('th', { scope: 'col' }, title)));
    fill(this.body, ...decisions.map((d) => h('tr', { class: d.breaker === 'open' ? 'alarming' : undefined },
      h('td', { class: 'num' }, clock(d.at, now)),
      h('td', { class: 'num' }, `${rate(d.previous_rps)} → ${rate(d.rps)}${unitOf(d)}`),
      h('td', null, d.mode ?? UNKNOWN),
      h('td', null, breakerText(d.breaker)),
      h('td', null, d.limiting ?? UNKNOWN),
      h('td', { class: 'wide' }, d.reason ?? ''),
      ...terms.map((term) => h('td', { class: 'num' }, termText(d.terms?.[term]))))));
    const more = decisions.length >= limit && limit < HISTORY_ALL;
    show(this.all, more);
    setText(this.note, more ? `the last ${decisions.length}` : `all ${decisions.length} stored`);
    show(this.element, decisions.length > 0);
  }
}

/**
 * Returns the names of all terms in alphabetical order.
 * @param {any[]} decisions
 * @returns {string[]}
 */
export function termNames(decisions) {
  return [...new Set(decisions.flatMap((d) => Object.keys(d.terms ?? {})))].sort();
}

/**
 * Formats a term.
 * @param {any} value
 * @returns {string}
 */
export function termText(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return number(value);
  if (Array.isArray(value)) return value.map(termText).join(', ');
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}
