// The failures by error: what dead letters have in common, with a button to requeue those of one
// error, and the attempts that failed recently.

import { get, getAllowed } from './api.js';
import { serverNow } from './clock.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { ago, count, unixSeconds } from './format.js';
import { alsoChanged, beginning, groupByError } from './errorgroups.js';
import { changeAll } from './jobbulk.js';
import { cell, showRows } from './lists.js';
import { noting } from './notes.js';
import { unique } from './pages.js';
import { jobAddress, jobsAddress } from './views.js';

/** The newest dead letters that are grouped, and as many more on request; the failed attempts. */
const READ = 1_000;
/** The most pages of one thousand, because a page may be short although more follow. */
const PAGES_MAX = 5;
const ROWS = 50;
/** The words of an error by which the list of jobs is filtered. */
const SEARCHED_CHARS = 80;
/** The throttles of a group that are named, and not only counted. */
const SOME_NAMES = 2;

/** @typedef {import('./errorgroups.js').Group} Group */

export class Failures {
  /**
   * @param {{ dead: HTMLElement, deadEmpty: HTMLElement, deadNote: HTMLElement, deadMore: HTMLElement, said: HTMLElement, recent: HTMLElement, recentEmpty: HTMLElement, recentNote: HTMLElement }} place
   */
  constructor(place) {
    this.place = place;
    this.busy = false;
    this.thousands = 1;
    /** @type {Group[]} */
    this.groups = [];
    place.deadMore.addEventListener('click', () => {
      this.thousands += 1;
      noting(place.said, () => this.refresh());
    });
  }

  /** Reads the newest dead letters, a thousand for each time that older ones were asked for. */
  async readDead() {
    const jobs = [];
    /** @type {string | null} */
    let next = `/api/v1/jobs?state=dead&limit=${READ}`;
    for (let page = 0; next && jobs.length < READ * this.thousands && page < PAGES_MAX * this.thousands; page += 1) {
      const answer = await get(next);
      jobs.push(...answer.jobs);
      next = answer.next ?? null;
    }
    return { jobs: unique(jobs, (job) => job.id), next };
  }

  /**
   * Refreshes both tables. Failures are left to the caller, which knows whether the server answers
   * at all.
   */
  async refresh() {
    if (this.busy) return;
    const [dead, recent] = await Promise.all([this.readDead(), getAllowed(`/api/v1/failures?limit=${READ}`)]);
    const jobs = dead.jobs.map((/** @type {any} */ job) => ({ throttle: job.throttle, kind: job.kind, error: job.last_error, at: unixSeconds(job.ended_at) ?? unixSeconds(job.created_at) ?? 0, id: job.id }));
    const failed = (recent?.failures ?? []).map((/** @type {any} */ one) => ({ throttle: one.throttle, kind: one.kind, error: one.error, at: unixSeconds(one.at) ?? 0, id: one.job_id }));
    this.groups = groupByError(jobs);
    show(this.place.deadMore, Boolean(dead.next));
    const now = serverNow();
    const all = dead.next ? `of the newest ${count(jobs.length)}; the question before a change counts all` : jobs.length ? `${count(jobs.length)} in all` : '';
    setText(this.place.deadNote, `${all}${cutText(this.groups)}`);
    this.drawDead(Boolean(dead.next), now);
    const oldest = failed.length ? Math.min(...failed.map((/** @type {any} */ one) => one.at)) : now;
    const groups = groupByError(failed, true);
    setText(this.place.recentNote, failed.length ? `the last ${count(failed.length)}, since ${ago(now - oldest)}${cutText(groups)}` : '');
    this.drawRecent(groups, now);
    if (!recent) setText(this.place.recentEmpty, 'This token may not read failed attempts.');
  }

  /** @param {boolean} more @param {number} now */
  drawDead(more, now) {
    const { dead, deadEmpty } = this.place;
    const groups = this.groups.slice(0, ROWS);
    showRows(dead, deadEmpty, groups.length);
    keyed(dead, groups, ({ key }) => key, (group) => {
      const [jobs, newest] = [h('b', { class: 'num' }), h('span', { class: 'num' })];
      const change = (/** @type {'requeue' | 'discard'} */ verb) => h('button', { type: 'button', class: 'change', 'aria-label': `${verb === 'requeue' ? 'Requeue' : 'Discard'} the dead letters of ${group.throttle} with ${group.text || 'no error'}`, onclick: () => this.change(verb, group.key) }, verb === 'requeue' ? 'Requeue …' : 'Discard …');
      const row = h('tr', { class: 'alarming' },
        cell('jobs', jobs), cell('error', errorText(group), 'wide'), cell('throttle', group.throttle, 'wrap'), cell('kind', group.kind), cell('newest', newest),
        cell('', h('div', { class: 'buttons' }, h('a', { href: listAddress(group) }, 'List'), group.pattern ? [change('requeue'), change('discard')] : null), 'act'));
      return Object.assign(row, { jobs, newest });
    }, (row, group) => {
      setText(row.jobs, `${count(group.jobs)}${more ? '+' : ''}`);
      setText(row.newest, `died ${ago(now - group.newest.at)}`);
    });
  }

  /** @param {Group[]} groups @param {number} now */
  drawRecent(groups, now) {
    const { recent, recentEmpty } = this.place;
    showRows(recent, recentEmpty, groups.length);
    keyed(recent, groups.slice(0, ROWS), ({ key }) => key, (group) => {
      const [jobs, newest, link, throttles] = [h('b', { class: 'num' }), h('span', { class: 'num' }), h('a', { class: 'num' }), h('span', null)];
      const row = h('tr', null, cell('attempts', jobs), cell('error', errorText(group), 'wide'), cell('throttle', throttles, 'wrap'), cell('kind', group.kind), cell('newest', newest), cell('job', link));
      return Object.assign(row, { jobs, newest, link, throttles });
    }, (row, group) => {
      setText(row.jobs, count(group.jobs));
      setText(row.newest, ago(now - group.newest.at));
      setText(row.throttles, throttlesText(group.throttles));
      setAttr(row.throttles, 'title', group.throttles.size > SOME_NAMES ? [...group.throttles].join(', ') : null);
      setText(row.link, String(group.newest.id));
      row.link.setAttribute('href', jobAddress(group.newest.id));
    });
  }

  /** @param {'requeue' | 'discard'} verb @param {string} key */
  async change(verb, key) {
    const group = this.groups.find((one) => one.key === key);
    if (this.busy || !group?.pattern) return;
    const told = (/** @type {string} */ text) => setText(this.place.said, text);
    this.busy = true;
    let said;
    try {
      const body = { throttle: group.throttle, kind: group.kind, error_like: group.pattern };
      const others = alsoChanged(group, this.groups);
      const more = others > 0 ? `, and ${count(others)} of other rows, whose errors its pattern matches as well` : '';
      said = await changeAll({ verb, path: `/api/v1/dead/${verb}`, body }, { what: 'dead letters', text: `of throttle ${group.throttle} and kind ${group.kind} with the error "${group.text}"${more}`, told });
    } catch (error) {
      said = /** @type {any} */ (error).message;
    } finally {
      this.busy = false;
    }
    await this.refresh().catch(() => {}); // The page says that the server is away.
    if (said !== null) told(said);
  }
}

/** Says that only the largest groups have a row; empty if all have one. @param {Group[]} groups */
function cutText(groups) {
  return groups.length > ROWS ? `; the ${ROWS} most frequent of ${count(groups.length)} errors are shown` : '';
}

/** Names the throttles of a group, or counts many. @param {Set<string>} throttles */
function throttlesText(throttles) {
  const names = [...throttles];
  return names.length > SOME_NAMES ? `${names[0]} and ${count(names.length - 1)} more` : names.join(', ');
}

/** @param {Group} group */
function errorText({ text }) {
  return text || h('span', { class: 'sub' }, 'no error');
}

/** Returns the address of the dead jobs of a group, by the longest part of its error. @param {Group} group */
function listAddress({ throttle, kind, text }) {
  const part = beginning(text.split('…').sort((a, b) => b.length - a.length)[0].trim(), SEARCHED_CHARS);
  return jobsAddress({ state: 'dead', throttle, kind, error: part });
}
