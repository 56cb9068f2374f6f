// Batches of messages, newest first: the progress of each, and buttons that pause, resume and cancel
// it.

import { call, get } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { clock, count, unixSeconds } from './format.js';
import { cell, showRows } from './lists.js';
import { Pages } from './pages.js';
import { wholePercent } from './poolwords.js';
import { ageText, batchesPath, batchTone, cancelledText, changesOf, countsText, estimateText, faultText, progressOf } from './tenantwords.js';

const ROWS = 20;
const FILTERS = ['tenant', 'module', 'state'];

/** @param {number} id */
const batchPath = (id) => `/api/v1/notifications/batches/${id}`;

export class Batches {
  /** @param {{ section: any, form: any, body: HTMLElement, empty: HTMLElement, note: HTMLElement, leave: HTMLElement, more: any }} place */
  constructor(place) {
    this.place = place;
    this.pages = new Pages('batches');
    this.mayChange = true;
    /** True if the token is one of operators. */
    this.mayOverrule = false;
    /** True if the token may not read batches; then only a person's click asks again. */
    this.denied = false;
    /** True while the note is an error of the list, which the next answer ends. */
    this.isFault = false;
    this.asked = 0;
    place.form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.restart();
    });
    place.form.elements.namedItem('state').addEventListener('change', () => this.restart());
    place.more.addEventListener('click', () => this.pages.askNext(place, () => this.draw()));
  }

  typed() {
    return Object.fromEntries(FILTERS.map((name) => [name, this.place.form.elements.namedItem(name).value.trim()]));
  }

  /** Shows the batches of one tenant. @param {string} tenant */
  of(tenant) {
    for (const [name, value] of Object.entries({ tenant, module: '', state: '' })) this.place.form.elements.namedItem(name).value = value;
    this.place.section.scrollIntoView();
    this.place.section.querySelector('h2').focus({ preventScroll: true });
    this.restart();
  }

  restart() {
    this.pages.restart();
    this.denied = false;
    return this.refresh().catch(() => {}); // The note says what is wrong.
  }

  /**
   * Refreshes the list. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    if (this.denied) return;
    this.asked += 1;
    const asked = this.asked;
    const answer = await get(batchesPath(this.typed(), ROWS)).catch((error) => {
      this.denied = error.status === 403;
      this.isFault = true;
      setText(this.place.note, error.message);
      throw error;
    });
    if (asked !== this.asked) return;
    this.pages.takeFirst(answer);
    this.mayChange = answer.may_change !== false;
    this.mayOverrule = answer.may_overrule === true;
    if (this.isFault) setText(this.place.note, '');
    this.isFault = false;
    this.draw();
  }

  draw() {
    const { body, empty, leave, more } = this.place;
    const { next, isRead, offset } = this.pages;
    const nowMs = Date.now() + offset;
    const rows = this.pages.rows((a, b) => b.id - a.id);
    const isFiltered = Object.values(this.typed()).some(Boolean);
    showRows(body, empty, rows.length);
    setText(empty, !isRead ? 'Waiting for the server …' : isFiltered ? (next ? 'None of the newest batches matches; older ones may.' : 'No batch matches.') : 'No batches yet.');
    show(more, Boolean(next) && (rows.length > 0 || isFiltered));
    show(leave, !this.mayChange && rows.length > 0);
    keyed(body, rows, (batch) => String(batch.id), (batch) => this.row(batch), (row, batch) => this.drawRow(row, batch, nowMs));
  }

  /** @param {any} batch */
  row({ id, tenant, module, created_at: created }) {
    const parts = {
      state: h('span', { class: 'badge' }), bar: h('span', { class: 'segments', role: 'meter', 'aria-label': `Progress of batch ${id}`, 'aria-valuemin': '0', 'aria-valuemax': '100' },
        ...['sent', 'failed', 'unsent', 'open'].map((kind) => h('i', { 'data-kind': kind }))),
      done: h('b', { class: 'num' }), counts: h('span', { class: 'sub num' }), estimate: h('span', { class: 'num' }), age: h('span', { class: 'sub num' }),
      pause: h('button', { type: 'button', 'aria-label': `Pause batch ${id}`, onclick: () => this.turn(id, 'pause') }, 'Pause'),
      resume: h('button', { type: 'button', 'aria-label': `Resume batch ${id}`, onclick: () => this.turn(id, 'resume') }, 'Resume'),
      cancel: h('button', { type: 'button', 'aria-label': `Cancel batch ${id}`, onclick: () => this.cancel(id) }, 'Cancel …'),
    };
    return Object.assign(h('tr', null,
      cell('batch', h('span', { class: 'num' }, String(id)), 'num'),
      cell('accepted', h('span', { class: 'pair' }, h('span', { class: 'num' }, clock(unixSeconds(created), serverNow())), parts.age)),
      cell('of', h('span', { class: 'pair' }, h('span', null, tenant || 'operators'), h('span', { class: 'sub' }, module)), 'wrap'),
      cell('state', parts.state),
      cell('progress', h('span', { class: 'pair' }, parts.done, parts.bar, parts.counts), 'batch-progress'),
      cell('last admitted', parts.estimate, 'wrap'),
      cell('', h('div', { class: 'buttons' }, parts.pause, parts.resume, parts.cancel), 'act')), { parts });
  }

  /** @param {any} row @param {import('./tenantwords.js').Batch} batch @param {number} nowMs */
  drawRow({ parts }, batch, nowMs) {
    const { ended, share, segments } = progressOf(batch);
    setText(parts.state, batch.state);
    setAttr(parts.state, 'data-tone', batchTone(batch.state));
    setText(parts.age, ageText(batch.created_at, nowMs / 1000));
    const done = `${count(ended)} of ${count(batch.recipients)}, ${wholePercent(share)}`;
    setText(parts.done, done);
    setText(parts.counts, [countsText(batch.counts), batch.problem].filter(Boolean).join('; '));
    setAttr(parts.bar, 'aria-valuenow', String(Math.round(share * 100)));
    setAttr(parts.bar, 'aria-valuetext', `${done}: ${countsText(batch.counts)}`);
    segments.forEach((segment, i) => { parts.bar.children[i].style.width = `${segment.share * 100}%`; });
    setText(parts.estimate, estimateText(batch, nowMs));
    const changes = /** @type {Record<string, boolean>} */ (changesOf(batch, this.mayOverrule));
    for (const change of ['pause', 'resume', 'cancel']) {
      const button = parts[change];
      show(button, changes[change]);
      button.disabled = !this.mayChange;
      setAttr(button, 'title', this.mayChange ? null : 'This token lacks the scope notify:send.');
    }
  }

  /** @param {number} id @param {'pause' | 'resume'} change */
  async turn(id, change) {
    await this.act(id, async () => {
      const { state } = await call('POST', `${batchPath(id)}/${change}`);
      return `${change === 'pause' ? 'Paused' : 'Resumed'} batch ${id}: it is ${state}.`;
    });
  }

  /** @param {number} id */
  async cancel(id) {
    const batch = [...this.pages.newest, ...this.pages.older].find((one) => one.id === id);
    const left = batch ? batch.recipients - progressOf(batch).ended : 0;
    const answer = await ask({ title: `Cancel batch ${id}?`, action: `Cancel ${count(left)} messages`, danger: true, isSigned: false, keep: 'Keep it',
      text: `${batch?.tenant || 'Operators'} sent it to ${count(batch?.recipients ?? 0)} recipients. The ${count(left)} messages that have not ended will not be sent. This cannot be undone; to stop it for a while, pause it.` });
    if (!answer) return;
    await this.act(id, async () => cancelledText(id, await call('POST', `${batchPath(id)}/cancel`)));
  }

  /** @param {number} id @param {() => Promise<string>} work */
  async act(id, work) {
    let note;
    try {
      note = await work();
    } catch (error) {
      note = faultText(id, /** @type {any} */ (error).message);
    }
    try {
      if (this.pages.older.length > 0) {
        const now = await get(batchPath(id));
        this.pages.older = this.pages.older.map((batch) => (batch.id === id ? now : batch));
      }
      await this.refresh();
    } catch {
      // The page says that the server is away; the note of the change stays.
    }
    this.isFault = false;
    setText(this.place.note, note);
  }
}
