// One job with an address of its own: what it is, why it waits, every attempt, and its buttons.

import { call, get } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { fill, h, setAttr, setText, show } from './dom.js';
import { ago, clock, count, duration, UNKNOWN, unixSeconds } from './format.js';
import { askChange, changeJob, CHANGES } from './jobchange.js';
import { allows, jobTone, laneText } from './jobwords.js';
import { pauseKey } from './keypause.js';
import { parseTime } from './knobs.js';
import { noting } from './notes.js';
import { pauseClass } from './operate.js';
import { updateJob } from './updatejob.js';
import { jobAddress, jobsAddress, throttleAddress } from './views.js';

const ENDED = ['completed', 'cancelled', 'dead'];

/** Formats a JSON value for people. @param {any} value */
function pretty(value) {
  return JSON.stringify(value, null, 2);
}

export class JobPage {
  /** @param {{ title: HTMLElement, badge: HTMLElement, result: HTMLElement, note: HTMLElement, buttons: HTMLElement }} place */
  constructor(place) {
    this.place = place;
    this.id = '';
    /** @type {any} */
    this.job = null;
    /** Older attempts than those of the job itself. @type {any[]} */
    this.older = [];
    /** @type {string | null} */
    this.next = null;
    this.drawn = '';
  }

  /** Shows the job of an address. @param {string} id */
  open(id) {
    if (this.id === id) return;
    Object.assign(this, { id, job: null, older: [], next: null, drawn: '' });
    setText(this.place.title, `Job ${id}`);
    setText(this.place.note, '');
    show(this.place.badge, false);
    fill(this.place.buttons);
    fill(this.place.result, h('p', { class: 'empty' }, 'Waiting for the server …'));
  }

  /**
   * Refreshes the job while it can still change. Failures are left to the caller, which knows
   * whether the server answers at all.
   * @param {boolean} isAsked by a person, or after a change
   */
  async refresh(isAsked = false) {
    const { id } = this;
    if (!id || (!isAsked && this.job && ENDED.includes(this.job.state))) return;
    if (!/^\d{1,16}$/.test(id)) {
      this.say(`"${id}" is not a job's number.`);
      return;
    }
    try {
      const job = await get(`/api/v1/jobs/${id}`);
      if (id !== this.id) return;
      this.job = job;
      this.draw();
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      if (id !== this.id) return;
      if (!this.job || status === 404) this.say(status === 404 ? `There is no job ${id}; finished jobs are kept for a limited time.` : message);
      if (status !== 404) throw error;
    }
  }

  /** Shows a sentence in place of the job. @param {string} text */
  say(text) {
    this.drawn = '';
    this.job = null;
    show(this.place.badge, false);
    fill(this.place.buttons);
    fill(this.place.result, h('p', { class: 'error' }, text));
  }

  draw() {
    const { job } = this;
    // A drawing without news would end a selection of text.
    const news = JSON.stringify([job, this.older.length]);
    if (this.drawn === news) return;
    this.drawn = news;
    const { badge, buttons, result } = this.place;
    setText(badge, job.cancelling ? 'stopping' : job.state);
    setAttr(badge, 'data-tone', jobTone(job.state));
    show(badge, true);
    fill(buttons, ...this.buttons(job));
    const waits = job.waiting ? h('p', { class: 'waits' }, job.waiting.reason.replace(/\.$/, ''), job.waiting.until ? `, until ${clock(job.waiting.until, serverNow())}` : '') : null;
    fill(result, waits, facts(job),
      block('Arguments', job.args),
      job.result === null || job.result === undefined ? null : block('Result', job.result),
      this.attempts(job));
  }

  /** @param {any} job */
  buttons(job) {
    const verbs = /** @type {const} */ (['retry', 'cancel', 'discard']).filter((verb) => allows(verb, job.state));
    const changes = verbs.map((verb) => h('button', { type: 'button', class: 'change', disabled: verb === 'cancel' && Boolean(job.cancelling), onclick: () => this.change(verb) },
      verb === 'cancel' && job.cancelling ? 'Cancelling …' : verb === 'retry' ? 'Retry now' : `${verb[0].toUpperCase()}${verb.slice(1)} …`));
    const later = allows('reschedule', job.state) ? h('button', { type: 'button', class: 'change', onclick: () => this.act(() => this.reschedule()) }, 'Reschedule …') : null;
    const update = allows('update', job.state) ? h('button', { type: 'button', class: 'change', onclick: () => this.act(() => updateJob(job)) }, 'Update …') : null;
    const pause = job.key === '' ? null : h('button', { type: 'button', class: pauseClass(job.throttle), onclick: () => this.pause(job) }, `Pause key ${job.key} …`);
    return [...changes, later, update, pause, h('button', { type: 'button', onclick: () => noting(this.place.note, () => this.refresh(true)) }, 'Refresh')];
  }

  /** @param {any} job */
  attempts(job) {
    const all = [...this.older, ...(job.attempts ?? [])].reverse();
    const isCut = (job.attempts ?? []).length >= 100 && (this.older.length === 0 || this.next);
    const rows = all.map((/** @type {any} */ a) => {
      const took = (unixSeconds(a.finished_at) ?? NaN) - (unixSeconds(a.started_at) ?? NaN);
      // A job that was cancelled while it waited had no attempt.
      return h('li', null, a.attempt > 0 ? h('b', { class: 'num' }, String(a.attempt)) : null,
        ` ${a.outcome} at ${clock(a.finished_at, serverNow())}${Number.isFinite(took) ? ` after ${duration(took)}` : ''}${a.worker ? `, worker ${a.worker}` : ''}`,
        a.error ? h('pre', { class: 'error-text', tabindex: '0' }, a.error) : null);
    });
    const last = all.length === 0 && job.last_error ? h('pre', { class: 'error-text', tabindex: '0' }, job.last_error) : null;
    return h('section', null, h('h3', null, all.length ? `Attempts, newest first` : 'No attempt has ended yet'), last,
      rows.length ? h('ol', { class: 'attempts' }, ...rows) : null,
      isCut ? h('button', { type: 'button', onclick: () => this.moreAttempts() }, 'Older attempts') : null);
  }

  async moreAttempts() {
    try {
      const first = this.older[0] ?? this.job.attempts[0];
      const query = new URLSearchParams({ limit: '100', before: first.finished_at });
      const answer = await get(this.next ?? `/api/v1/jobs/${this.id}/attempts?${query}`);
      this.older = [...answer.attempts.reverse(), ...this.older];
      this.next = answer.next ?? null;
      if (!answer.next && answer.attempts.length === 0) setText(this.place.note, 'There are no older attempts.');
      this.draw();
    } catch (error) {
      setText(this.place.note, /** @type {any} */ (error).message);
    }
  }

  /** @param {'retry' | 'cancel' | 'discard'} verb */
  async change(verb) {
    const { id } = this;
    const signed = await askChange(verb, `job ${id}`);
    if (!signed) return;
    await this.act(async () => {
      const job = await changeJob(verb, Number(id), signed);
      return verb === 'cancel' && job.state === 'running' ? 'Its handler has been asked to stop.' : `${CHANGES[verb].done}.`;
    });
  }

  /** Asks for a time and lets the job wait for it; returns what to say, or null if the person changes nothing. */
  async reschedule() {
    const { id } = this;
    let at = 0;
    const answer = await ask({
      title: `Reschedule job ${id}?`, action: 'Reschedule', text: 'It waits until then and uses no attempt.',
      fields: [{ name: 'at', label: 'run at', value: '1h', hint: '30m, 2h, 14:30 or 2027-01-31T09:00' }],
      act: async ({ at: typed, ...signed }) => {
        const parsed = parseTime(typed, serverNow() * 1000);
        if (parsed === null) throw new Error(`"${typed}" is not a time such as 30m, 2h or 14:30.`);
        await call('POST', `/api/v1/jobs/${id}/reschedule`, { body: { ...signed, run_at: new Date(parsed).toISOString() } });
        at = parsed;
      },
    });
    return answer && `Scheduled for ${clock(at / 1000, serverNow())}.`;
  }

  /** @param {any} job */
  pause(job) {
    return this.act(() => pauseKey(job.throttle, job.key, () => {
      setText(this.place.note, '');
      this.refresh(true).catch(() => {});
    }));
  }

  /** @param {() => Promise<string | null>} work returns what to say */
  async act(work) {
    let said;
    try {
      said = await work();
    } catch (error) {
      said = /** @type {any} */ (error).message;
    }
    await this.refresh(true).catch(() => {});
    if (said !== null) setText(this.place.note, said);
  }
}

/** @param {any} job */
function facts(job) {
  const now = serverNow();
  const since = unixSeconds(job.started_at);
  const { progress } = job;
  /** @type {[string, any][]} */
  const all = [
    ['kind', job.kind],
    ['throttle', h('a', { href: throttleAddress(job.throttle) }, job.throttle)],
    ['key', job.key ? h('a', { href: jobsAddress({ throttle: job.throttle, key: job.key }), 'aria-label': `Jobs of ${laneText(job)}` }, job.key) : 'none'],
    ['tenant', job.tenant || null],
    ['tags', (job.tags ?? []).join(', ') || null],
    ['after', job.after?.length ? jobLinks(job.after.map((/** @type {number} */ id) => ({ id }))) : null],
    ['if one fails', job.after?.length ? (job.after_failure === 'run' ? 'runs anyway' : 'is cancelled') : null],
    ['waits for', job.waits_for?.length ? jobLinks(job.waits_for) : null],
    ['calls when completed', job.on_complete ?? null],
    ['calls when dead', job.on_dead ?? null],
    ['signed with', job.webhook_secret ?? null],
    ['attempt', `${job.attempt} of ${job.max_attempts}`],
    ['priority', String(job.priority)],
    ['cost', job.cost === 1 ? '1 token' : `${job.cost} tokens`],
    ['timeout', job.timeout_s ? duration(job.timeout_s) : 'that of its kind'],
    ['waits after failures', job.retry ? `up to ${duration(job.retry.delay_s)}, ${job.retry.factor} times as long each time, at most ${duration(job.retry.max_delay_s)}` : 'those of its kind'],
    ['unique key', job.unique ? 'held' : 'none'],
    ['enqueued', clock(job.created_at, now)],
    ['due', job.due_at ? clock(job.due_at, now) : null],
    ['ended', job.ended_at ? clock(job.ended_at, now) : null],
    ['worker', job.worker ?? null],
    ['running since', since === null ? null : `${clock(since, now)}, ${duration(Math.max(0, now - since))}`],
    ['heartbeat', job.heartbeat_age_s === null || job.heartbeat_age_s === undefined ? null : ago(job.heartbeat_age_s)],
    ['progress', progress ? `${count(progress.done)}${progress.total ? ` of ${count(progress.total)}` : ''} ${progress.note}` : null],
    ['trace', job.traceparent ?? null],
  ];
  const shown = all.filter(([, value]) => value !== null && value !== '');
  return h('dl', { class: 'facts' }, ...shown.map(([label, value]) => h('div', { class: label === 'trace' ? 'trace' : null }, h('dt', null, label), h('dd', null, value ?? UNKNOWN))));
}

/** Lists jobs with their states. @param {{ id: number, state?: string }[]} jobs */
function jobLinks(jobs) {
  return h('span', null, ...jobs.flatMap(({ id, state }, n) => [n ? ', ' : '', h('a', { href: jobAddress(id) }, String(id)), state ? ` ${state}` : '']));
}

/** @param {string} title @param {any} value */
function block(title, value) {
  return h('section', null, h('h3', null, title), h('pre', { class: 'json', tabindex: '0' }, pretty(value)));
}
