// The running jobs with their progress, and the search for one job by its number.

import { call, get } from './api.js';
import { ask, signature } from './dialog.js';
import { fill, h, keyed, setText, show } from './dom.js';
import { showRows } from './lists.js';
import { clock, count, duration, UNKNOWN, unixSeconds } from './format.js';

/**
 * The most jobs whose details are requested at a time, the oldest first, because those are the long
 * ones.
 */
const DETAILS_AT_ONCE = 6;
const RUNNING_ROWS = 10;
/** The number of rounds after which a job without progress is requested again. */
const SKIP_ROUNDS = 20;

/** The table of running jobs, refreshed by {@link RunningJobs.refresh}. */
export class RunningJobs {
  /**
   * @param {{ body: HTMLElement, empty: HTMLElement, more: HTMLElement, look: (id: number) => void }} place
   */
  constructor({ body, empty, more, look }) {
    this.body = body;
    this.empty = empty;
    this.more = more;
    this.look = look;
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
    setText(this.more, jobs.length > rows.length ? `and ${count(jobs.length - rows.length)}${jobs.length >= 100 ? ' or more' : ''} short ones` : '');
    keyed(this.body, rows, (job) => String(job.id), (job) => {
      const bar = h('progress', { max: '100', 'aria-label': `Progress of job ${job.id}` });
      const text = h('span', { class: 'sub' });
      const row = h('tr', null,
        h('td', { 'data-label': 'job' }, h('button', { type: 'button', class: 'link num', onclick: () => this.look(job.id) }, String(job.id))),
        h('td', { 'data-label': 'kind' }, job.kind),
        h('td', { 'data-label': 'lane', class: 'wrap' }, job.key ? `${job.throttle} / ${job.key}` : job.throttle),
        h('td', { 'data-label': 'progress', class: 'wide progress' }, bar, text));
      Object.assign(row, { bar, text });
      return row;
    }, (row, job) => drawProgress(row.bar, row.text, this.details.get(job.id)?.detail));
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

/** The search for one job. */
export class JobLookup {
  /** @param {{ form: any, input: any, result: HTMLElement }} place */
  constructor({ form, input, result }) {
    this.form = form;
    this.input = input;
    this.result = result;
    this.note = '';
    form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.note = '';
      this.find(input.value.trim());
    });
  }

  /** @param {number} id */
  open(id) {
    this.input.value = String(id);
    this.note = '';
    this.find(String(id));
    this.input.scrollIntoView({ block: 'center' });
    this.input.focus({ preventScroll: true });
  }

  /** @param {string} text */
  async find(text) {
    if (!/^\d{1,16}$/.test(text)) {
      fill(this.result, h('p', { class: 'error' }, text ? `"${text}" is not a job's number.` : 'Type a job\'s number.'));
      return;
    }
    try {
      this.draw(await get(`/api/v1/jobs/${text}`));
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      fill(this.result, h('p', { class: 'error' }, status === 404 ? `There is no job ${text}; finished jobs are kept for a limited time.` : message));
    }
  }

  /** @param {any} job */
  draw(job) {
    const facts = [
      ['kind', job.kind],
      ['lane', job.key ? `${job.throttle} / ${job.key}` : job.throttle],
      ['attempt', `${job.attempt} of ${job.max_attempts}`],
      ['cost', job.cost === 1 ? '1 token' : `${job.cost} tokens`],
      ['enqueued', clock(job.created_at)],
      ['due', job.due_at ? clock(job.due_at) : null],
      ['worker', job.worker],
      ['running since', job.started_at ? clock(job.started_at) : null],
      ['progress', job.progress ? `${count(job.progress.done)}${job.progress.total ? ` of ${count(job.progress.total)}` : ''} ${job.progress.note}` : null],
      ['last error', job.attempts?.length ? null : job.last_error],
    ].filter(([, value]) => value);
    const waits = job.waiting ? h('p', { class: 'waits' }, job.waiting.reason, job.waiting.until ? ` Until ${clock(job.waiting.until)}.` : '') : null;
    const ended = ['completed', 'cancelled', 'dead'].includes(job.state);
    const actions = h('div', { class: 'buttons' },
      ended ? null : h('button', { type: 'button', disabled: Boolean(job.cancelling), onclick: () => this.cancel(job) }, job.cancelling ? 'Cancelling …' : 'Cancel …'),
      ['dead', 'retryable', 'scheduled'].includes(job.state)
        ? h('button', { type: 'button', onclick: () => this.retry(job.id) }, 'Retry now') : null,
      h('button', { type: 'button', onclick: () => this.find(String(job.id)) }, 'Refresh'));
    const attempts = (job.attempts ?? []).slice(-8).reverse().map((/** @type {any} */ a) => {
      const took = (unixSeconds(a.finished_at) ?? NaN) - (unixSeconds(a.started_at) ?? NaN);
      // A job that was cancelled while it waited had no attempt.
      return h('li', null, a.attempt > 0 ? h('b', { class: 'num' }, String(a.attempt)) : null, ` ${a.outcome} at ${clock(a.finished_at)}${Number.isFinite(took) ? ` after ${duration(took)}` : ''}`,
        a.error ? h('span', { class: 'error-text' }, a.error) : null);
    });
    fill(this.result,
      h('p', { class: 'job-title' }, h('b', { class: 'num' }, String(job.id)), ' ', h('span', { class: 'badge', 'data-tone': tone(job.state) }, job.cancelling ? 'stopping' : job.state)),
      waits,
      h('dl', { class: 'facts' }, ...facts.map(([label, value]) => h('div', null, h('dt', null, label), h('dd', null, value ?? UNKNOWN)))),
      attempts.length ? h('ol', { class: 'attempts', 'aria-label': 'Attempts, newest first' }, ...attempts) : null,
      this.note ? h('p', { class: 'form-note', role: 'status' }, this.note) : null,
      actions);
  }

  /** @param {any} job */
  async cancel({ id, state }) {
    const text = state === 'running' ? 'Its handler is asked to stop; effects so far remain.' : 'It will not run. Its history stays until it is pruned.';
    const signed = await ask({ title: `Cancel job ${id}?`, action: 'Cancel the job', danger: true, text });
    if (!signed) return;
    await this.act(id, async () => {
      const job = await call('DELETE', `/api/v1/jobs/${id}?${new URLSearchParams(signed)}`);
      return job.state === 'cancelled' ? 'Cancelled.' : 'Its handler has been asked to stop.';
    });
  }

  /** @param {number} id */
  async retry(id) {
    const body = await signature({ title: `Retry job ${id}?`, action: 'Retry', text: 'It becomes ready at once and runs when its throttle allows.' });
    if (!body) return;
    await this.act(id, async () => {
      await call('POST', `/api/v1/jobs/${id}/retry`, { body });
      return 'Ready again.';
    });
  }

  /** @param {number} id @param {() => Promise<string>} work answers the note */
  async act(id, work) {
    try {
      this.note = await work();
    } catch (error) {
      this.note = /** @type {any} */ (error).message;
    }
    await this.find(String(id));
  }
}

/** @param {string} state */
function tone(state) {
  if (state === 'dead') return 'alarm';
  return state === 'completed' || state === 'running' ? 'calm' : 'note';
}
