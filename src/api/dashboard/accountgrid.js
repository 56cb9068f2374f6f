// The accounts of a pool as cells or tiles, coloured and lettered by state, and the card of the
// selected one.

import { h, keyed, setAttr, setText, show } from './dom.js';
import { count } from './format.js';
import { accountFacts, accountLabel, counts, density, FILTERS, fits, FLOWS, inTime, isResumable, letterOf, quotaText, stateText } from './poolwords.js';

/** The number of rows that Page up and Page down jump. */
const PAGE_ROWS = 5;

export class AccountGrid {
  /**
   * @param {string} pool its name
   * @param {{ resume: (account: any) => void, messages: (account: string) => void }} on
   */
  constructor(pool, on) {
    this.on = on;
    /** @type {import('./poolwords.js').Account[]} */
    this.accounts = [];
    this.nowMs = 0;
    this.filter = 'all';
    /**
     * The account that stays in the card. The account under the mouse takes precedence over it.
     * @type {string | null}
     */
    this.chosen = null;
    /** @type {string | null} */
    this.hovered = null;

    this.filters = h('fieldset', { class: 'choice flows' }, h('legend', null, `Accounts of ${pool} by state`));
    /** @type {Record<string, { count: HTMLElement, label: HTMLElement, input: any }>} */
    this.chips = {};
    for (const filter of FILTERS) {
      const input = h('input', { type: 'radio', name: `flow-${pool}`, value: filter });
      input.checked = filter === 'all';
      input.addEventListener('change', () => { this.filter = filter; this.draw(); });
      const number = h('b', { class: 'num' });
      const mark = FLOWS.some((flow) => flow.state === filter) ? h('i', { class: 'mark', 'data-state': filter, 'aria-hidden': 'true' }, letterOf(filter))
        : filter === 'learned' ? h('i', { class: 'mark learned', 'aria-hidden': 'true' }) : null;
      const label = h('label', null, input, h('span', null, mark, `${filter} `, number));
      this.chips[filter] = { count: number, label, input };
      this.filters.append(label);
    }

    this.grid = h('div', { class: 'accounts', role: 'group', 'aria-label': `Accounts of ${pool}: arrow keys select an account` });
    this.none = h('p', { class: 'empty', hidden: true });
    this.letter = h('i', { class: 'mark', 'aria-hidden': 'true' });
    this.name = h('b', null);
    this.state = h('span', { class: 'sub' });
    this.facts = h('dl', { class: 'account-facts' });
    this.resume = h('button', { type: 'button', class: 'change' }, 'Resume …');
    this.messages = h('button', { type: 'button' }, 'Its messages');
    this.close = h('button', { type: 'button', class: 'close', 'aria-label': 'Close', onclick: () => { this.chosen = null; this.draw(); } }, '×');
    this.resume.addEventListener('click', () => { const account = this.shown(); if (account) on.resume(account); });
    this.messages.addEventListener('click', () => { const account = this.shown(); if (account) on.messages(account.name); });
    this.card = h('div', { class: 'account-card', role: 'group', 'aria-label': `Account of ${pool}` },
      h('p', { class: 'account-title' }, this.letter, this.name, this.state), this.facts, h('div', { class: 'buttons' }, this.resume, this.messages), this.close);
    this.hint = h('p', { class: 'account-hint sub' }, 'Point at an account, or select it with the arrow keys, to read its state and the reason.');
    this.element = h('div', { class: 'pool-body' },
      h('div', { class: 'pool-accounts' }, this.filters, this.grid, this.none), h('div', { class: 'account-side' }, this.hint, this.card));
    this.listen();
  }

  listen() {
    const nameAt = (/** @type {Event} */ event) => /** @type {HTMLElement} */ (event.target).closest?.('.account')?.getAttribute('data-key') ?? null;
    this.grid.addEventListener('pointerover', (/** @type {PointerEvent} */ event) => {
      if (event.pointerType !== 'touch') this.point(nameAt(event));
    });
    this.grid.addEventListener('pointerleave', () => this.point(null));
    for (const kind of ['focusin', 'click']) this.grid.addEventListener(kind, (/** @type {Event} */ event) => this.choose(nameAt(event)));
    this.grid.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => this.key(event));
  }

  /** @param {string | null} name */
  point(name) {
    if (this.hovered === name) return;
    this.hovered = name;
    this.drawCard();
  }

  /** @param {string | null} name */
  choose(name) {
    if (name === null || this.chosen === name) return;
    this.chosen = name;
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const cells = /** @type {HTMLElement[]} */ ([...this.grid.children]);
    const at = cells.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (at < 0) return;
    const { top } = cells[0].getBoundingClientRect();
    const columns = Math.max(1, cells.filter((cell) => cell.getBoundingClientRect().top === top).length);
    /** @type {Record<string, number>} */
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - columns, ArrowDown: at + columns, PageUp: at - PAGE_ROWS * columns,
      PageDown: at + PAGE_ROWS * columns, Home: 0, End: cells.length - 1 };
    if (event.key === 'Escape') {
      this.chosen = null;
      this.draw();
    } else if (event.key in moves) {
      event.preventDefault();
      cells[Math.min(cells.length - 1, Math.max(0, moves[event.key]))].focus();
    }
  }

  /** Returns the account in the card. */
  shown() {
    const named = (/** @type {string | null} */ name) => this.accounts.find((account) => account.name === name);
    return named(this.hovered) ?? named(this.chosen) ?? null;
  }

  /** @param {import('./poolwords.js').Account[]} accounts @param {number} nowMs */
  update(accounts, nowMs) {
    this.accounts = accounts;
    this.nowMs = nowMs;
    this.draw();
  }

  draw() {
    const found = counts(this.accounts);
    for (const filter of FILTERS) {
      const { count: number, label, input } = this.chips[filter];
      setText(number, count(found[filter]));
      // A filter without accounts gets no chip, unless it is selected.
      show(label, filter === 'all' || filter === 'flowing' || found[filter] > 0 || input.checked);
    }
    const tiles = density(this.accounts.length) === 'tiles';
    setAttr(this.grid, 'data-density', tiles ? 'tiles' : 'cells');
    const shown = this.accounts.filter((account) => fits(account, this.filter));
    show(this.none, shown.length === 0);
    setText(this.none, this.filter === 'all' ? 'No accounts are known yet.' : this.filter === 'learned' ? 'No quota has been learned.' : `No account is ${this.filter}.`);
    // One cell is reached by Tab, the others by the arrow keys.
    const entry = shown.some((account) => account.name === this.chosen) ? this.chosen : shown[0]?.name;
    keyed(this.grid, shown, (account) => account.name, (account) => {
      const parts = { letter: h('span', { class: 'mark', 'aria-hidden': 'true' }), state: h('span', { class: 'stands' }), quota: h('span', { class: 'sub num' }) };
      const cell = h('button', { type: 'button', class: 'account' }, parts.letter,
        tiles ? h('span', { class: 'tile' }, h('b', null, account.name), parts.state, parts.quota) : null);
      return Object.assign(cell, { parts });
    }, (cell, account) => {
      setAttr(cell, 'data-state', account.state);
      setAttr(cell, 'data-learned', account.learned_rps === null || account.learned_rps === undefined ? null : '');
      setAttr(cell, 'aria-label', accountLabel(account, this.nowMs));
      setAttr(cell, 'tabindex', account.name === entry ? '0' : '-1');
      setAttr(cell, 'aria-current', account.name === this.chosen ? 'true' : null);
      setText(cell.parts.letter, letterOf(account.state));
      if (!tiles) return;
      setAttr(cell.parts.letter, 'data-state', account.state);
      setText(cell.parts.state, stateText(account, this.nowMs));
      setText(cell.parts.quota, quotaText(account));
    });
    this.drawCard();
  }

  drawCard() {
    const account = this.shown();
    show(this.card, account !== null);
    // Tiles show most of the facts themselves, so they need no hint.
    show(this.hint, account === null && density(this.accounts.length) === 'cells');
    this.element.classList.toggle('reading', account !== null);
    if (!account) return;
    setText(this.letter, letterOf(account.state));
    setAttr(this.letter, 'data-state', account.state);
    setAttr(this.card, 'data-state', account.state);
    setText(this.name, account.name);
    const left = inTime(account.until_ms, this.nowMs);
    setText(this.state, left ? `${account.state}, ends ${left}` : account.state);
    keyed(this.facts, accountFacts(account, this.nowMs), (fact) => fact.label, (fact) => h('div', { class: fact.label === 'why' ? 'whole' : fact.label === 'until' || fact.label === 'breaker changed' ? 'wide' : undefined }, h('dt', null, fact.label), h('dd', { class: 'num' })),
      (row, fact) => setText(row.lastElementChild, fact.text));
    show(this.resume, isResumable(account));
    setAttr(this.resume, 'aria-label', `Resume ${account.name}`);
    setAttr(this.messages, 'aria-label', `Messages of ${account.name}`);
  }
}
