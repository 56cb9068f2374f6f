// Schedules: the next run of each, the result of the last one, and its buttons.

import { call, get } from './api.js';
import { serverNow } from './clock.js';
import { ask, signature } from './dialog.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { ago, clock, duration, unixSeconds } from './format.js';
import { cell, showRefused, showRows } from './lists.js';
import { jobAddress } from './views.js';

/** @param {string} name */
const path = (name) => `/api/v1/crons/${encodeURIComponent(name)}`;

export class Crons {
  /** @param {{ body: HTMLElement, empty: HTMLElement, note: HTMLElement }} place */
  constructor({ body, empty, note }) {
    this.body = body;
    this.empty = empty;
    this.note = note;
  }

  /**
   * Refreshes the table. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    const { crons = [] } = await get('/api/v1/crons');
    this.draw(crons, serverNow());
  }

  /** Says that the token may not read them. */
  refused() {
    showRefused(this.body, this.empty);
  }

  /** @param {any[]} crons @param {number} now */
  draw(crons, now) {
    showRows(this.body, this.empty, crons.length);
    keyed(this.body, crons, (cron) => cron.name, (cron) => {
      const cells = {
        when: h('span', null), zone: h('span', { class: 'sub' }), job: h('span', null), next: h('span', { class: 'num' }), nextIn: h('span', { class: 'sub' }),
        last: h('span', { class: 'num' }), lastJob: h('a', { class: 'num' }), problem: h('span', { class: 'error-text' }), pause: h('button', { type: 'button' }),
      };
      const run = h('button', { type: 'button', 'aria-label': `Run now: ${cron.name}` }, 'Run now');
      const gone = h('button', { type: 'button', 'aria-label': `Delete ${cron.name}` }, 'Delete …');
      const row = h('tr', null,
        cell('name', h('span', { class: 'pair' }, h('b', null, cron.name), cells.problem), 'wrap name'),
        cell('when', h('span', { class: 'pair' }, cells.when, cells.zone)),
        cell('job', cells.job, 'wrap name'),
        cell('next', h('span', { class: 'pair' }, cells.next, cells.nextIn)),
        cell('last', h('span', { class: 'pair' }, cells.last, cells.lastJob)),
        cell('', h('div', { class: 'buttons change' }, run, cells.pause, gone), 'act'));
      Object.assign(row, { parts: cells, cron });
      run.addEventListener('click', () => this.act(async () => {
        const body = await signature({ title: `Run ${cron.name} now?`, action: 'Run now' });
        if (!body) return '';
        const ran = await call('POST', `${path(cron.name)}/run`, { body });
        return ran.duplicate ? `No job was created: job ${ran.id} of ${cron.name} is unfinished.` : `Created job ${ran.id}.`;
      }));
      cells.pause.addEventListener('click', () => this.act(async () => {
        const verb = row.cron.paused ? 'resume' : 'pause';
        const body = await signature({ title: `${row.cron.paused ? 'Resume' : 'Pause'} ${cron.name}?`, action: row.cron.paused ? 'Resume' : 'Pause' });
        if (!body) return '';
        await call('POST', `${path(cron.name)}/${verb}`, { body });
        return `${cron.name} is ${verb}d.`;
      }));
      gone.addEventListener('click', () => this.remove(cron.name));
      return row;
    }, (row, cron) => {
      const { parts: cells } = row;
      row.cron = cron;
      const next = unixSeconds(cron.next_at);
      const last = unixSeconds(cron.last_at);
      setText(cells.when, cron.expression);
      setText(cells.zone, cron.time_zone);
      setText(cells.job, `${cron.kind} on ${cron.key ? `${cron.throttle} / ${cron.key}` : cron.throttle}`);
      setText(cells.next, cron.paused ? 'paused' : next === null ? '' : `${clock(next, now)} local time`);
      setAttr(cells.next, 'title', 'in the time zone of this browser');
      setText(cells.nextIn, cron.paused || next === null ? '' : next > now ? `in ${duration(next - now)}` : 'due');
      setText(cells.last, last === null ? 'never' : ago(now - last));
      setText(cells.lastJob, cron.last_job_id ? String(cron.last_job_id) : '');
      setAttr(cells.lastJob, 'href', cron.last_job_id ? jobAddress(cron.last_job_id) : null);
      show(cells.lastJob, Boolean(cron.last_job_id));
      setText(cells.problem, cron.problem ?? '');
      setText(cells.pause, cron.paused ? 'Resume' : 'Pause');
      setAttr(cells.pause, 'aria-label', `${cron.paused ? 'Resume' : 'Pause'} ${cron.name}`);
      row.classList.toggle('alarming', Boolean(cron.problem));
    });
  }

  /** @param {string} name */
  async remove(name) {
    const answer = await ask({ title: `Delete the schedule ${name}?`, action: 'Delete', danger: true, text: 'Its existing jobs stay.' });
    if (answer) {
      await this.act(async () => {
        await call('DELETE', `${path(name)}?${new URLSearchParams(answer)}`);
        return `${name} was deleted.`;
      });
    }
  }

  /** @param {() => Promise<string>} work */
  async act(work) {
    let note;
    try {
      note = await work();
      await this.refresh().catch(() => {}); // The change was made, and the list says why it is old.
    } catch (error) {
      note = /** @type {any} */ (error).message;
    }
    setText(this.note, note);
  }
}
