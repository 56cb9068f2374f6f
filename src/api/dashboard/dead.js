// Dead jobs: a filter, the newest matches, and buttons that requeue or discard all matches.

import { call, get } from './api.js';
import { ask } from './dialog.js';
import { h, keyed, setText, show } from './dom.js';
import { clock, count } from './format.js';
import { cell, retryButton, showRows } from './lists.js';
import { deadFilter, deadFilterText, walk } from './operate.js';

const ROWS = 50;
/** The most pages that are read for rows with the wanted error, which only this page filters. */
const PAGES_MAX = 5;

export class DeadLetters {
  /**
   * @param {{ form: any, body: HTMLElement, empty: HTMLElement, note: HTMLElement, requeue: any, discard: any, look: (id: number) => void }} place
   */
  constructor({ form, body, empty, note, requeue, discard, look }) {
    this.form = form;
    this.body = body;
    this.empty = empty;
    this.note = note;
    this.look = look;
    this.buttons = [requeue, discard];
    this.busy = false;
    form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.refresh().catch((error) => setText(this.note, error.message));
    });
    requeue.addEventListener('click', () => this.all('requeue'));
    discard.addEventListener('click', () => this.all('discard'));
  }

  typed() {
    const value = (/** @type {string} */ name) => this.form.elements.namedItem(name).value.trim();
    return { throttle: value('throttle'), kind: value('kind'), key: value('key'), error: value('error') };
  }

  /**
   * Refreshes the table. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    if (this.busy) return;
    const typed = this.typed();
    const query = new URLSearchParams({ state: 'dead', limit: String(ROWS) });
    for (const name of /** @type {const} */ (['throttle', 'kind', 'key'])) if (typed[name]) query.set(name, typed[name]);
    const wanted = typed.error.toLowerCase();
    const rows = [];
    /** @type {string | null} */
    let next = `/api/v1/jobs?${query}`;
    for (let page = 0; next && rows.length < ROWS && page < PAGES_MAX; page += 1) {
      const answer = await get(next);
      rows.push(...answer.jobs.filter((/** @type {any} */ job) => !wanted || (job.last_error ?? '').toLowerCase().includes(wanted)));
      next = answer.next;
    }
    this.draw(rows.slice(0, ROWS), Boolean(next) || rows.length > ROWS);
  }

  /** @param {any[]} jobs @param {boolean} more */
  draw(jobs, more) {
    showRows(this.body, this.empty, jobs.length);
    const text = deadFilterText(this.typed());
    setText(this.empty, text ? `No dead letter ${text}.` : 'No dead letters.');
    for (const button of this.buttons) show(button, jobs.length > 0);
    if (!this.busy) setText(this.note, jobs.length && more ? `The newest ${count(jobs.length)} of more.` : '');
    keyed(this.body, jobs, (job) => String(job.id), (job) => h('tr', null,
      cell('job', h('button', { type: 'button', class: 'link num', onclick: () => this.look(job.id) }, String(job.id))),
      cell('enqueued', clock(job.created_at, Date.now() / 1000), 'num'),
      cell('kind', job.kind),
      cell('lane', job.key ? `${job.throttle} / ${job.key}` : job.throttle, 'wrap'),
      cell('attempt', h('span', { class: 'num' }, `${job.attempt} of ${job.max_attempts}`)),
      cell('error', job.last_error ?? '', 'wide'),
      cell('', retryButton(job.id), 'act')));
  }

  /** @param {'requeue' | 'discard'} verb */
  async all(verb) {
    if (this.busy) return;
    const typed = this.typed();
    const filter = deadFilter(typed);
    const path = `/api/v1/dead/${verb}`;
    try {
      const found = await call('POST', path, { body: { ...filter, dry_run: true } });
      const many = `${count(found.jobs)}${found.more ? ' or more' : ''} dead letters`;
      if (found.jobs === 0) {
        setText(this.note, 'Nothing matches.');
        return;
      }
      const text = deadFilterText(typed);
      const answer = await ask(verb === 'requeue'
        ? { title: `Requeue ${many}?`, action: 'Requeue all', text: `${text ? `All ${text}. ` : 'All of them. '}They start again with all their attempts, as fast as their throttles allow.` }
        : { title: `Discard ${many}?`, action: 'Discard all', danger: true, text: `${text ? `All ${text}. ` : 'All of them. '}They are discarded permanently; their history stays until it is pruned.` });
      if (!answer) return;
      this.setBusy(true);
      const done = verb === 'requeue' ? 'Requeued' : 'Discarded';
      const jobs = await walk((start) => call('POST', path, { body: { ...filter, ...answer, limit: 5000, ...(start ? { start } : {}) } }), (n) => setText(this.note, `${done} ${count(n)} …`));
      this.setBusy(false);
      await this.refresh();
      setText(this.note, `${done} ${count(jobs)}.`);
    } catch (error) {
      setText(this.note, /** @type {any} */ (error).message);
    } finally {
      this.setBusy(false);
    }
  }

  /** @param {boolean} busy */
  setBusy(busy) {
    this.busy = busy;
    for (const button of this.buttons) button.disabled = busy;
  }
}
