// The newest messages: the state of each, with every attempt on demand.

import { call, get } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { clock, count, unixSeconds } from './format.js';
import { drawWay } from './gateline.js';
import { cell, showRows } from './lists.js';
import { clearFailure, noteFailure } from './notes.js';
import { Pages } from './pages.js';
import { attemptText, deliveryText, deliveryTone, heardText, messageCancelledText, notificationsPath, reasonText } from './poolwords.js';

const ROWS = 50;
const FILTERS = ['state', 'channel', 'pool', 'account', 'tenant'];

export class Notifications {
  /**
   * @param {{ section: any, form: any, body: HTMLElement, empty: HTMLElement, note: HTMLElement, more: any }} place
   * @param {() => boolean} mayChange returns true if the token may cancel messages
   */
  constructor({ section, form, body, empty, note, more }, mayChange) {
    this.mayChange = mayChange;
    this.section = section;
    this.form = form;
    this.body = body;
    this.empty = empty;
    this.note = note;
    this.more = more;
    /** The messages whose attempts are open. @type {Set<number>} */
    this.open = new Set();
    /** The ways of open messages through their gates. @type {Map<number, any>} */
    this.ways = new Map();
    this.pages = new Pages('notifications');
    /** The count of requests, so that a late answer to an old filter is dropped. */
    this.asked = 0;
    form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.restart();
    });
    for (const name of ['state', 'channel']) form.elements.namedItem(name).addEventListener('change', () => this.restart());
    more.addEventListener('click', () => this.pages.askNext({ body, more, note }, () => this.draw()));
  }

  typed() {
    return Object.fromEntries(FILTERS.map((name) => [name, this.form.elements.namedItem(name).value.trim()]));
  }

  /** Shows the messages of one account. @param {string} pool @param {string} account */
  of(pool, account) {
    for (const [name, value] of Object.entries({ state: '', channel: '', pool, account, tenant: '' })) this.form.elements.namedItem(name).value = value;
    this.section.scrollIntoView();
    this.section.querySelector('h2').focus({ preventScroll: true });
    this.restart();
  }

  restart() {
    setText(this.note, '');
    this.pages.restart();
    return this.refresh().catch(() => {}); // The note says what is wrong.
  }

  /**
   * Refreshes the list. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    this.asked += 1;
    const asked = this.asked;
    const answer = await get(notificationsPath(this.typed(), ROWS)).catch((error) => {
      noteFailure(this.note, error.message);
      throw error;
    });
    if (asked !== this.asked) return;
    this.pages.takeFirst(answer);
    clearFailure(this.note);
    this.draw();
    await Promise.all([...this.open].map((id) => this.askWay(id)));
  }

  /** Reads the way of an open message. @param {number} id */
  async askWay(id) {
    try {
      this.ways.set(id, await get(`/api/v1/notifications/${id}/explain`));
    } catch (error) {
      // The attempts are shown all the same.
      this.ways.set(id, { fault: /** @type {any} */ (error).message });
    }
    this.draw();
  }

  draw() {
    const now = serverNow();
    const { next } = this.pages;
    const rows = this.pages.rows((a, b) => b.id - a.id);
    showRows(this.body, this.empty, rows.length);
    const isFiltered = Object.values(this.typed()).some(Boolean);
    setText(this.empty, isFiltered ? (next ? 'None of the newest messages matches; older ones may.' : 'No message matches.') : 'No messages yet.');
    show(this.more, Boolean(next) && (rows.length > 0 || isFiltered));
    const items = rows.flatMap((message) => [{ message, isAttempts: false }, ...(this.open.has(message.id) ? [{ message, isAttempts: true }] : [])]);
    keyed(this.body, items, ({ message, isAttempts }) => `${message.id}${isAttempts ? '/attempts' : ''}`,
      (item) => (item.isAttempts ? this.attemptsRow() : this.messageRow(item.message)),
      (row, { message, isAttempts }) => {
        if (isAttempts) {
          drawWay(row.querySelector('.gate-way'), this.ways.get(message.id), now);
          drawAttempts(row, message, now);
        }
        else this.drawMessage(row, message, now);
      });
  }

  /** @param {any} message */
  messageRow(message) {
    const parts = { state: h('span', { class: 'badge' }), tries: h('button', { type: 'button', class: 'link num' }), account: h('span', null), to: h('span', null), about: h('span', { class: 'sub' }), reason: h('span', null), heard: h('span', { class: 'sub num' }),
      cancel: h('button', { type: 'button', 'aria-label': `Cancel message ${message.id}`, onclick: () => this.cancel(message.id) }, 'Cancel …'),
    };
    parts.tries.addEventListener('click', () => {
      if (!this.open.delete(message.id)) {
        this.open.add(message.id);
        this.askWay(message.id);
      }
      this.draw();
    });
    const row = h('tr', null,
      cell('message', h('span', { class: 'num' }, String(message.id)), 'num'),
      cell('at', h('span', { class: 'pair' }, h('span', { class: 'num' }, clock(unixSeconds(message.created_at), serverNow())), parts.heard), 'day'),
      cell('state', parts.state),
      cell('to', h('span', { class: 'pair' }, parts.to, parts.about), 'wrap'),
      cell('account', h('span', { class: 'pair' }, parts.account, h('span', { class: 'sub' }, message.pool)), 'wrap'),
      cell('attempts', parts.tries),
      cell('reason', parts.reason, 'wide'),
      cell('', parts.cancel, 'act'));
    return Object.assign(row, { parts });
  }

  /** @param {any} row @param {any} message @param {number} now */
  drawMessage({ parts }, message, now) {
    setText(parts.state, deliveryText(message));
    setAttr(parts.state, 'data-tone', message.complained ? 'alarm' : deliveryTone(message.state));
    setText(parts.account, message.account ?? '–');
    // The address is known once the message was tried.
    setText(parts.to, message.to);
    setText(parts.about, [message.channel, message.category].filter(Boolean).join(' · '));
    setText(parts.tries, count(message.attempt_count));
    const isOpen = this.open.has(message.id);
    setAttr(parts.tries, 'aria-expanded', String(isOpen));
    setAttr(parts.tries, 'aria-label', `${count(message.attempt_count)} attempts of message ${message.id}`);
    setText(parts.reason, reasonText(message));
    show(parts.cancel, message.state === 'queued' && this.mayChange());
    setText(parts.heard, heardText(message, now));
  }

  /** Cancels a message after a question. @param {number} id */
  async cancel(id) {
    /** @type {any} */
    let done;
    const answer = await ask({ title: `Cancel message ${id}?`, action: 'Cancel the message', danger: true, keep: 'Keep it', text: 'It will not be sent. One that is being sent at this moment is asked to stop.',
      act: async (signed) => { done = await call('POST', `/api/v1/notifications/${id}/cancel`, { body: signed }); } });
    if (!answer) return;
    await this.refresh().catch(() => {}); // The note says what is wrong.
    setText(this.note, messageCancelledText(done));
    // The focus would be lost with its button.
    const row = /** @type {any} */ ([...this.body.children].find((one) => /** @type {HTMLElement} */ (one).dataset.key === String(id)));
    if (row?.parts.cancel.hidden) row.parts.tries.focus();
  }

  attemptsRow() {
    return h('tr', { class: 'attempts-row' }, h('td', { colspan: '8' }, h('div', { class: 'gate-way' }), h('ol', { class: 'attempt-list' })));
  }
}

/** @param {any} row @param {any} message @param {number} now */
function drawAttempts(row, message, now) {
  const attempts = message.attempts ?? [];
  const items = attempts.length ? attempts : [null];
  keyed(row.querySelector('.attempt-list'), items, (attempt) => (attempt ? `${attempt.at}/${attempt.account}/${attempt.outcome}` : 'none'), (attempt) => {
    if (!attempt) return h('li', { class: 'sub' }, 'No attempt yet: the message waits for its time, its throttle or an account.');
    return h('li', null, h('span', { class: 'num' }, clock(unixSeconds(attempt.at), now)), h('b', null, attempt.account ?? 'no account'), h('span', { class: 'num' }, attemptText(attempt)), h('span', { class: 'attempt-reason' }, attempt.reason ?? ''));
  });
}
