// A list that is read page by page: the first page again each time, the ones after it once.

import { get } from './api.js';
import { unixSeconds } from './format.js';
import { noting } from './notes.js';
import { clockOffset } from './poolwords.js';

/**
 * Returns the first row of each key: a row that moved while pages were read is on two of them.
 * @template T
 * @param {T[]} rows @param {(row: T) => unknown} key
 * @returns {T[]}
 */
export function unique(rows, key) {
  const seen = new Set();
  return rows.filter((row) => {
    const id = key(row);
    return !seen.has(id) && seen.add(id);
  });
}

/**
 * Draws a list with more rows than it had, and scrolls its box so that the first new one is in sight.
 * @param {HTMLElement} body @param {() => unknown} draw
 */
export async function showNew(body, draw) {
  const before = body.children.length;
  await draw();
  const [row, box] = [body.children[before], body.closest('.scroll')];
  if (row && box) box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - /** @type {HTMLElement} */ (body.previousElementSibling).offsetHeight;
}

export class Pages {
  /** @param {string} field the name of the rows in answers */
  constructor(field) {
    this.field = field;
    /** @type {any[]} */
    this.newest = [];
    /** The pages after the first, which stay as they were read. @type {any[]} */
    this.older = [];
    /** @type {string | null} */
    this.next = null;
    this.isRead = false;
    /** @type {number[]} */
    this.offsets = [];
    /** The clock of the server less that of the browser, in milliseconds. */
    this.offset = 0;
  }

  /** Forgets the pages after the first. */
  restart() {
    this.older = [];
    this.next = null;
  }

  /** Takes the first page. @param {any} answer */
  takeFirst(answer) {
    this.newest = answer[this.field] ?? [];
    this.offset = clockOffset(this.offsets, (unixSeconds(answer.at) ?? 0) * 1000, Date.now());
    // Once older pages are read, the cursor belongs to them.
    if (this.older.length === 0) this.next = answer.next ?? null;
    this.isRead = true;
  }

  /** Takes the page after the last. @param {any} answer */
  takeNext(answer) {
    // Rows that have moved meanwhile from the first page to the next stay in view.
    if (this.older.length === 0) this.older = [...this.newest];
    this.older.push(...(answer[this.field] ?? []));
    this.next = answer.next ?? null;
  }

  /** Returns each row once, in this order. @param {(a: any, b: any) => number} order */
  rows(order) {
    const seen = new Map([...this.older, ...this.newest].map((row) => [row.id, row]));
    return [...seen.values()].sort(order);
  }

  /**
   * Reads the page after the last for a click on `more`, and draws; an error goes into the note.
   * @param {{ body: HTMLElement, more: any, note: HTMLElement }} place @param {() => void} draw
   */
  async askNext({ body, more, note }, draw) {
    const next = this.next;
    if (!next) return;
    more.disabled = true;
    await noting(note, async () => {
      this.takeNext(await get(next));
      await showNew(body, draw);
    });
    more.disabled = false;
  }
}
