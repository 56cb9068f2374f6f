// Groups of jobs, newest first: the counts of each, what is wrong with its callback, and a button that
// cancels it.

import { call, get } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { clock, count, unixSeconds } from './format.js';
import { cell, showRows } from './lists.js';
import { noting } from './notes.js';
import { Pages } from './pages.js';
import { jobAddress } from './views.js';

const ROWS = 20;

/** Returns the counts of a group as a sentence. @param {any} group */
export function groupCounts({ jobs, pending, completed, dead, cancelled }) {
  const parts = [[pending, 'pending'], [completed, 'completed'], [dead, 'dead'], [cancelled, 'cancelled']];
  const some = parts.filter(([n]) => n > 0).map(([n, word]) => `${count(n)} ${word}`);
  return some.length > 0 ? `${count(jobs)}: ${some.join(', ')}` : count(jobs);
}

/** Returns the path of a page of groups. @param {string} state @param {number} limit */
export function groupsPath(state, limit) {
  return `/api/v1/groups?${state ? `state=${state}&` : ''}limit=${limit}`;
}

export class Groups {
  /** @param {{ form: any, body: HTMLElement, empty: HTMLElement, note: HTMLElement, more: any }} place */
  constructor(place) {
    this.place = place;
    this.pages = new Pages('groups');
    this.asked = 0;
    place.form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.restart();
    });
    place.form.elements.namedItem('state').addEventListener('change', () => this.restart());
    place.more.addEventListener('click', () => this.pages.askNext(place, () => this.draw()));
  }

  state() {
    return this.place.form.elements.namedItem('state').value;
  }

  restart() {
    this.pages.restart();
    noting(this.place.note, () => this.refresh());
  }

  /**
   * Refreshes the list. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    this.asked += 1;
    const asked = this.asked;
    const answer = await get(groupsPath(this.state(), ROWS));
    if (asked !== this.asked) return;
    this.pages.takeFirst(answer);
    this.draw();
  }

  draw() {
    const { body, empty, more } = this.place;
    const rows = this.pages.rows((a, b) => b.id - a.id);
    showRows(body, empty, rows.length);
    setText(empty, !this.pages.isRead ? 'Waiting for the server …' : this.state() ? 'No group is in this state.' : 'No groups yet.');
    show(more, Boolean(this.pages.next) && rows.length > 0);
    keyed(body, rows, (group) => String(group.id), (group) => this.row(group), (row, group) => this.drawRow(row, group));
  }

  /** @param {any} group */
  row({ id, name, tenant, created_at: created }) {
    const parts = {
      state: h('span', { class: 'badge' }), counts: h('span', { class: 'num' }), callback: h('a', { class: 'num' }), problem: h('span', { class: 'error-text' }),
      cancel: h('button', { type: 'button', 'aria-label': `Cancel group ${id}`, onclick: () => this.cancel(id) }, 'Cancel …'),
    };
    return Object.assign(h('tr', null,
      cell('group', h('span', { class: 'pair' }, h('span', { class: 'num' }, String(id)), h('span', { class: 'sub' }, [name, tenant].filter(Boolean).join(', '))), 'wrap'),
      cell('created', clock(unixSeconds(created), serverNow()), 'num'),
      cell('state', parts.state),
      cell('jobs', parts.counts, 'wrap'),
      cell('callback', h('span', { class: 'pair' }, parts.callback, parts.problem), 'wrap'),
      cell('', h('div', { class: 'buttons change' }, parts.cancel), 'act')), { parts });
  }

  /** @param {any} row @param {any} group */
  drawRow({ parts }, group) {
    setText(parts.state, group.cancelled_at && group.state !== 'open' ? `${group.state}, cancelled` : group.state);
    setAttr(parts.state, 'data-tone', group.callback_problem ? 'alarm' : group.state === 'open' ? 'note' : 'calm');
    setText(parts.counts, groupCounts(group));
    const job = group.callback_job_id;
    setText(parts.callback, job ? `job ${job}` : group.callback?.kind ?? 'none');
    setAttr(parts.callback, 'href', job ? jobAddress(job) : null);
    setText(parts.problem, group.callback_problem ?? '');
    show(parts.cancel, group.state !== 'ended');
  }

  /** @param {number} id */
  async cancel(id) {
    const body = await ask({ title: `Cancel group ${id}?`, action: 'Cancel the group', danger: true, keep: 'Keep it',
      text: 'Its waiting jobs will not run, running ones are asked to stop, and no job can join it. Its callback runs when all have ended.' });
    if (!body) return;
    setText(this.place.note, `Cancelling group ${id} …`);
    let note;
    try {
      let cancelled = 0;
      let requested = 0;
      for (let more = true; more;) {
        const step = await call('POST', `/api/v1/groups/${id}/cancel`, { body });
        cancelled += step.cancelled;
        requested += step.requested;
        more = step.more;
        if (more) setText(this.place.note, `Cancelling group ${id}: ${count(cancelled)} jobs so far …`);
      }
      note = `Group ${id} is cancelled: ${count(cancelled)} jobs will not run, ${count(requested)} are asked to stop.`;
      await this.refresh().catch(() => {}); // The group is cancelled all the same.
    } catch (error) {
      note = `Group ${id}: ${/** @type {any} */ (error).message}`;
    }
    setText(this.place.note, note);
  }
}
