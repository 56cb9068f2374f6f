// The running jobs: since when, on which worker, in which attempt, with their progress.

import { get } from './api.js';
import { serverNow } from './clock.js';
import { h, keyed, setText, show } from './dom.js';
import { count, duration, unixSeconds } from './format.js';
import { askChange, changeJob } from './jobchange.js';
import { laneText } from './jobwords.js';
import { cell, showRows } from './lists.js';
import { jobAddress } from './views.js';

/**
 * The most jobs whose details are requested at a time, the oldest first, because those are the long
 * ones.
 */
const DETAILS_AT_ONCE = 10;
const RUNNING_ROWS = 10;
/** The number of rounds after which a job without progress is requested again. */
const SKIP_ROUNDS = 20;

/** The table of running jobs, refreshed by {@link RunningJobs.refresh}. */
export class RunningJobs {
  /**
   * @param {{ body: HTMLElement, empty: HTMLElement, more: HTMLElement, note: HTMLElement }} place
   */
  constructor({ body, empty, more, note }) {
    this.body = body;
    this.empty = empty;
    this.more = more;
    this.note = note;
    this.round = 0;
    /** @type {Map<number, { detail: any, round: number }>} */
    this.details = new Map();
  }

  /**
   * Refreshes the table. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    this.round += 1;
    const { jobs = [] } = await get('/api/v1/jobs?state=running&limit=100');
    const oldest = [...jobs].sort((a, b) => (unixSeconds(a.created_at) ?? 0) - (unixSeconds(b.created_at) ?? 0) || a.id - b.id);
    const running = new Set(jobs.map((/** @type {any} */ job) => job.id));
    for (const id of this.details.keys()) if (!running.has(id)) this.details.delete(id);
    const due = oldest.filter((job) => {
      const known = this.details.get(job.id);
      return !known || known.detail?.progress || this.round - known.round >= SKIP_ROUNDS;
    }).slice(0, DETAILS_AT_ONCE);
    await Promise.all(due.map(async (job) => {
      const detail = await get(`/api/v1/jobs/${job.id}`).catch(() => null);
      this.details.set(job.id, { detail, round: this.round });
    }));
    this.draw(oldest);
  }

  /** @param {any[]} jobs */
  draw(jobs) {
    const rank = (/** @type {any} */ job) => (this.details.get(job.id)?.detail?.progress ? 0 : 1);
    const rows = [...jobs].sort((a, b) => rank(a) - rank(b)).slice(0, RUNNING_ROWS);
    showRows(this.body, this.empty, rows.length);
    setText(this.more, jobs.length > rows.length ? jobs.length >= 100 ? 'All running jobs' : `and ${count(jobs.length - rows.length)} more` : '');
    keyed(this.body, rows, (job) => String(job.id), (job) => {
      const bar = h('progress', { max: '100', 'aria-label': `Progress of job ${job.id}` });
      const parts = { bar, text: h('span', { class: 'sub' }), since: h('span', { class: 'num' }), worker: h('span', null), attempt: h('span', { class: 'num' }), cancel: h('button', { type: 'button', class: 'change', 'aria-label': `Cancel job ${job.id}`, onclick: () => this.cancel(job.id) }, 'Cancel …') };
      const row = h('tr', null,
        cell('job', h('a', { class: 'num', href: jobAddress(job.id) }, String(job.id))),
        cell('kind', job.kind),
        cell('lane', laneText(job), 'wrap'),
        cell('running for', parts.since), cell('worker', parts.worker, 'wrap'), cell('attempt', parts.attempt),
        cell('progress', [bar, parts.text], 'progress'),
        cell('', parts.cancel, 'act'));
      return Object.assign(row, { parts });
    }, ({ parts }, job) => {
      const detail = this.details.get(job.id)?.detail;
      const since = unixSeconds(detail?.started_at);
      setText(parts.since, since === null ? '' : duration(Math.max(0, serverNow() - since)));
      setText(parts.worker, detail?.worker ?? '');
      setText(parts.attempt, `${job.attempt} of ${job.max_attempts}`);
      parts.cancel.disabled = Boolean(detail?.cancelling);
      drawProgress(parts.bar, parts.text, detail);
    });
  }

  /** @param {number} id */
  async cancel(id) {
    const signed = await askChange('cancel', `job ${id}`);
    if (!signed) return;
    try {
      const job = await changeJob('cancel', id, signed);
      setText(this.note, job.state === 'running' ? `The handler of job ${id} has been asked to stop.` : `Job ${id} is ${job.state}.`);
      this.details.delete(id);
      await this.refresh().catch(() => {}); // What was done is said.
    } catch (error) {
      setText(this.note, /** @type {any} */ (error).message);
    }
  }
}

/** @param {any} bar @param {HTMLElement} text @param {any} detail */
function drawProgress(bar, text, detail) {
  const progress = detail?.progress;
  const share = progress?.percent ?? (progress?.total ? (100 * progress.done) / progress.total : null);
  show(bar, share !== null && share !== undefined);
  if (share !== null && share !== undefined) bar.value = share;
  if (!progress) {
    setText(text, detail?.cancelling ? 'stopping' : '');
    return;
  }
  const parts = [
    progress.total ? `${count(progress.done)} of ${count(progress.total)}` : `${count(progress.done)} done`,
    share !== null && share !== undefined ? `${share.toFixed(share < 10 ? 1 : 0)} %` : '',
    progress.note,
    detail.cancelling ? 'stopping' : '',
  ];
  setText(text, parts.filter(Boolean).join(' · '));
}
