// The list of jobs: a filter with an address, counts per state, pages, and a selection to change.

import { get } from './api.js';
import { serverNow } from './clock.js';
import { fill, h, keyed, setAttr, setText, show } from './dom.js';
import { clock, count, unixSeconds } from './format.js';
import { JobBulk } from './jobbulk.js';
import { FILTERS, filterText, jobQuery, jobsPath, jobTone, laneText, STATES } from './jobwords.js';
import { pauseKey } from './keypause.js';
import { cell, showRows } from './lists.js';
import { noting } from './notes.js';
import { pauseClass } from './operate.js';
import { showNew, unique } from './pages.js';
import { jobAddress, jobsAddress } from './views.js';

const ROWS = 50;
/** The most pages that one look reads, because a page may be short although more follow. */
const PAGES_MAX = 5;
/** The states that the depth of throttles counts, of one throttle as well. */
const COUNTED = ['ready', 'running', 'dead'];
/** The states of the history, which is only estimated, over all throttles. */
const ESTIMATED = ['completed', 'cancelled'];
/** The fields of the filter that are folded. */
const RARE = ['args', 'tag', 'trace', 'unique_key', 'group'];

/** @typedef {{ ready: number | null, running: number | null, dead: number | null, timed: number | null }} StateCounts */

export class JobList {
  /** @param {{ tabs: HTMLElement, timed: HTMLElement, form: any, note: HTMLElement, body: HTMLElement, empty: HTMLElement, more: any, bar: HTMLElement, all: any, lookup: any, lookupNote: HTMLElement }} place */
  constructor(place) {
    this.place = place;
    this.query = jobQuery(new URLSearchParams());
    /** The texts of the filter as the form got them: a field drops line breaks. @type {Record<string, string>} */
    this.shown = {};
    /** @type {any[]} */
    this.jobs = [];
    /** @type {string | null} */
    this.next = null;
    this.pages = 1;
    this.isRead = false;
    this.asked = 0;
    /** The numbers of all jobs in each state, as last read. @type {any} */
    this.counts = null;
    /** False once the server has said that this token is of a tenant, which has no such numbers. */
    this.hasCounts = true;
    this.tabs = STATES.map(({ name, title }) => {
      const number = h('span', { class: 'num' });
      const link = h('a', null, title, number);
      return { name, link, number };
    });
    place.tabs.append(...this.tabs.map(({ link }) => h('li', null, link)));
    this.bulk = new JobBulk(place, { changed: () => this.refresh().catch(() => {}) });
    place.form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      location.hash = jobsAddress({ ...this.typed(), state: this.query.state });
    });
    place.lookup.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      const text = place.lookup.elements.namedItem('id').value.trim();
      const isNumber = /^\d{1,16}$/.test(text);
      setText(place.lookupNote, isNumber ? '' : text ? `"${text}" is not a job's number.` : 'Type a job\'s number.');
      if (isNumber) location.hash = jobAddress(text);
    });
    place.all.addEventListener('change', () => this.bulk.selectAll(this.jobs, place.all.checked));
    place.more.addEventListener('click', () => {
      this.pages += 1;
      noting(place.note, () => showNew(place.body, () => this.refresh()));
    });
  }

  /** Returns the filter of the form; what nobody typed is as it was, blanks included. */
  typed() {
    const value = (/** @type {string} */ name) => {
      const { value: text } = this.place.form.elements.namedItem(name);
      return text === this.shown[name] ? /** @type {any} */ (this.query)[name] : text.trim();
    };
    return Object.fromEntries(FILTERS.filter((name) => name !== 'state').map((name) => [name, value(name)]));
  }

  /** Shows the jobs of an address. @param {URLSearchParams} query */
  open(query) {
    const before = JSON.stringify(this.query);
    this.query = jobQuery(query);
    for (const name of FILTERS.filter((one) => one !== 'state')) {
      const field = this.place.form.elements.namedItem(name);
      field.value = /** @type {any} */ (this.query)[name];
      this.shown[name] = field.value;
    }
    // A folded filter that is in force would be a riddle.
    if (RARE.some((name) => /** @type {any} */ (this.query)[name])) this.place.form.querySelector('details').open = true;
    this.drawTabs();
    if (before !== JSON.stringify(this.query)) {
      this.pages = 1;
      this.isRead = false;
      this.jobs = [];
      this.bulk.forget();
      setText(this.place.note, '');
      this.draw();
    }
    this.bulk.of(this.query);
  }

  drawTabs() {
    for (const { name, link } of this.tabs) {
      setAttr(link, 'href', jobsAddress({ ...this.query, state: name }));
      setAttr(link, 'aria-current', name === this.query.state ? 'true' : null);
    }
  }

  /**
   * Shows the number of jobs in each state that is counted or estimated.
   * @param {StateCounts} counts @param {boolean} isAll true if the filter excludes none
   */
  drawCounts(counts, isAll) {
    for (const { name, number } of this.tabs) {
      const n = COUNTED.includes(name) ? counts[/** @type {'ready'} */ (name)] : null;
      const about = isAll && ESTIMATED.includes(name) ? this.counts?.[name] ?? null : null;
      setText(number, n !== null ? count(n) : about !== null ? `≈${count(about)}` : '');
    }
    setText(this.place.timed, counts.timed ? `${count(counts.timed)} wait for a time: scheduled or retryable.` : '');
  }

  /**
   * Refreshes the list. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    this.asked += 1;
    const asked = this.asked;
    const rows = [];
    /** @type {string | null} */
    let next = jobsPath(this.query, ROWS, serverNow());
    for (let page = 0; next && rows.length < ROWS * this.pages && page < PAGES_MAX * this.pages; page += 1) {
      const read = page === 0 ? this.firstPage(next) : get(next);
      const answer = await read.catch((error) => {
        // Nothing is waited for any more; the note says what is wrong.
        if (error.status === 400 && asked === this.asked) setText(this.place.empty, 'The server refuses this filter.');
        throw error;
      });
      if (asked !== this.asked) return;
      if (answer.counts) this.counts = answer.counts;
      rows.push(...answer.jobs);
      next = answer.next ?? null;
    }
    // Newer jobs push others off the end of the list, and a selection must not shrink by it. One that is
    // missing in between has left the filter.
    const last = next ? rows.at(-1)?.id ?? 0 : 0;
    const pushed = this.jobs.filter(({ id }) => id < last && this.bulk.selected.has(id));
    this.jobs = unique([...rows, ...pushed], (job) => job.id);
    this.next = next;
    this.isRead = true;
    this.draw();
  }

  /** Reads the first page, with the counts if the token may see them. @param {string} path @returns {Promise<any>} */
  async firstPage(path) {
    if (!this.hasCounts) return get(path);
    try {
      return await get(`${path}&counts=true`);
    } catch (error) {
      const { problem } = /** @type {any} */ (error);
      if (!(problem?.errors ?? []).some((/** @type {any} */ one) => one.pointer === '/counts')) throw error;
      this.hasCounts = false;
      return get(path);
    }
  }

  draw() {
    const { body, empty, more, all } = this.place;
    const now = serverNow();
    showRows(body, empty, this.jobs.length);
    const isFiltered = filterText(this.query) !== '';
    setText(empty, !this.isRead ? 'Waiting for the server …' : this.next ? 'None among the newest jobs; older ones may match.' : isFiltered ? 'No job matches.' : 'No jobs yet.');
    show(more, Boolean(this.next));
    this.bulk.keep(this.jobs);
    all.checked = this.jobs.length > 0 && this.bulk.selected.size === this.jobs.length;
    // An update may move a job to another lane, which is in its row.
    keyed(body, this.jobs, (job) => JSON.stringify([job.id, job.throttle, job.key]), (job) => this.row(job), (row, job) => {
      const { parts } = row;
      parts.box.checked = this.bulk.selected.has(job.id);
      setText(parts.state, job.state);
      setAttr(parts.state, 'data-tone', jobTone(job.state));
      setText(parts.attempt, `${job.attempt} of ${job.max_attempts}`);
      const time = unixSeconds(job.due_at ?? job.ended_at);
      setText(parts.time, time === null ? '' : clock(time, now));
      setText(parts.error, job.last_error ?? '');
      row.classList.toggle('alarming', job.state === 'dead');
    });
  }

  /** @param {any} job */
  row(job) {
    const now = serverNow();
    const box = h('input', { type: 'checkbox', 'aria-label': `Select job ${job.id}` });
    box.addEventListener('change', () => {
      this.bulk.select(job.id, box.checked);
      this.draw();
    });
    const parts = { box, state: h('span', { class: 'badge' }), attempt: h('span', { class: 'num' }), time: h('span', { class: 'num' }), error: h('span', null) };
    const row = h('tr', null, cell('', box, 'pick change'),
      cell('job', h('a', { class: 'num', href: jobAddress(job.id) }, String(job.id))),
      cell('state', parts.state), cell('kind', job.kind),
      cell('lane', [h('a', { class: 'quiet', href: jobsAddress({ state: this.query.state, throttle: job.throttle, key: job.key }) }, laneText(job)), ...(job.key ? [' ', this.pauseButton(job)] : [])], 'wrap'),
      cell('attempt', parts.attempt), cell('enqueued', clock(job.created_at, now), 'num day'), cell('due or ended', parts.time, 'day'), cell('error', parts.error, 'wide'));
    return Object.assign(row, { parts });
  }

  /** @param {any} job */
  pauseButton({ throttle, key }) {
    const button = h('button', { type: 'button', class: `link ${pauseClass(throttle)}`, 'aria-label': `Pause key ${key} of ${throttle}` }, 'pause …');
    button.addEventListener('click', async () => {
      try {
        const said = await pauseKey(throttle, key, () => setText(this.place.note, ''));
        if (said !== null) setText(this.place.note, `${key} of ${throttle}: ${said}`);
      } catch (error) {
        setText(this.place.note, /** @type {any} */ (error).message);
      }
    });
    return button;
  }

  /** Fills the lists of suggestions. @param {HTMLElement} list @param {string[]} throttles */
  suggest(list, throttles) {
    if (list.children.length === throttles.length) return;
    fill(list, ...throttles.map((name) => h('option', { value: name })));
  }
}
