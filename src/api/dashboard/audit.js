// The audit log: who changed what, from which value to which, and why; filtered by subject and
// person.

import { get } from './api.js';
import { serverNow } from './clock.js';
import { h, keyed, setText } from './dom.js';
import { clock, count } from './format.js';
import { cell, showRows } from './lists.js';
import { editText } from './words.js';

const ROWS = 200;
/** The entries that the filter searches. */
const READ = 1_000;

/** @typedef {import('./state.js').Audit} Audit */

/**
 * Returns the entries whose subject and author contain the texts.
 * @param {Audit[]} entries @param {{ what: string, who: string }} typed
 */
export function auditOf(entries, { what, who }) {
  const [wanted, person] = [what.trim().toLowerCase(), who.trim().toLowerCase()];
  const has = (/** @type {string | null | undefined} */ text, /** @type {string} */ part) => (text ?? '').toLowerCase().includes(part);
  return entries.filter((a) => (has(a.subject, wanted) || has(editText(a), wanted)) && (has(a.actor, person) || has(a.token, person)));
}

export class AuditLog {
  /** @param {{ form: any, body: HTMLElement, empty: HTMLElement, note: HTMLElement }} place */
  constructor({ form, body, empty, note }) {
    this.form = form;
    this.body = body;
    this.empty = empty;
    this.note = note;
    /** @type {Audit[]} */
    this.entries = [];
    form.addEventListener('input', () => this.draw());
    form.addEventListener('submit', (/** @type {Event} */ event) => event.preventDefault());
  }

  /**
   * Reads the log again. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    const { entries = [] } = await get(`/api/v1/audit?limit=${READ}`);
    this.entries = entries.map((/** @type {any} */ row) => ({ ...row, t: Date.parse(row.at) / 1000 }));
    this.draw();
  }

  draw() {
    const value = (/** @type {string} */ name) => this.form.elements.namedItem(name).value;
    const typed = { what: value('what'), who: value('who') };
    const found = auditOf(this.entries, typed);
    const rows = found.slice(0, ROWS);
    const now = serverNow();
    showRows(this.body, this.empty, rows.length);
    const isFiltered = Boolean(typed.what.trim() || typed.who.trim());
    setText(this.empty, isFiltered ? 'No change matches.' : 'Nothing has been changed through Flyball yet.');
    const searched = this.entries.length >= READ ? ` of the newest ${count(READ)}` : '';
    setText(this.note, isFiltered ? `${count(found.length)}${searched} match.` : found.length > ROWS ? `The newest ${count(ROWS)}${searched}.` : '');
    keyed(this.body, rows, (a) => `${a.at}/${a.actor}/${a.action}/${a.subject}/${JSON.stringify(a.after)}`, (a) => h('tr', null,
      cell('at', clock(a.t, now), 'num'),
      cell('who', a.token ? `${a.actor} (token ${a.token})` : a.actor),
      cell('what', h('span', null, h('b', null, a.subject), ` ${editText(a)}`), 'wide'),
      cell('why', a.why ?? '', 'wide')));
  }
}
