// The jobs that no live worker serves: a notice with one line for each throttle and kind, or with one
// for all while no worker is live, and what to do.

import { get } from './api.js';
import { h, keyed, setText, show } from './dom.js';
import { ago, count, unixSeconds } from './format.js';

const ROWS = 5;

/**
 * @typedef {{ throttle: string, kind: string | null, needs: string[], jobs: number, since: string | null, remedy: string }} UnservedJobs
 */

/**
 * Returns what the notice says first and last, and the lines between; null if nothing waits for a
 * worker, or nobody knows because no worker can report.
 * @param {UnservedJobs[]} unserved
 * @param {number | null} workers that are live
 * @param {number} ready the jobs that are ready
 * @param {boolean} [isQueueLost] true while Postgres does not answer or accepts no writes
 * @returns {{ title: string, rows: UnservedJobs[], more: string } | null}
 */
export function unservedNotice(unserved, workers, ready, isQueueLost = false) {
  if (isQueueLost) return null;
  if (workers === 0 && (ready > 0 || unserved.length > 0)) return { title: 'No worker is live', rows: [], more: 'Jobs are ready, and none starts. Start a worker: flyball serve.' };
  if (unserved.length === 0) return null;
  const more = unserved.length - ROWS;
  return { title: 'No live worker serves these jobs', rows: unserved.slice(0, ROWS), more: more > 0 ? `And ${count(more)} more: flyball status lists them.` : '' };
}

/**
 * Describes jobs that no live worker serves.
 * @param {UnservedJobs} one
 * @param {number} now in unix seconds
 */
export function unservedText(one, now) {
  const since = one.since === null ? null : unixSeconds(one.since);
  const what = one.kind ? `kind ${one.kind}, throttle ${one.throttle}` : `throttle ${one.throttle}`;
  const age = since === null ? '' : `, the oldest from ${ago(now - since)}`;
  return `${count(one.jobs)} ${one.jobs === 1 ? 'job' : 'jobs'} of ${what}${age}: ${one.remedy}.`;
}

export class Unserved {
  /**
   * @param {{ notice: HTMLElement, title: HTMLElement, list: HTMLElement, more: HTMLElement, aloud: HTMLElement }} place
   * @param {() => void} drawn draws the page, which knows the workers and the ready jobs
   */
  constructor(place, drawn) {
    this.place = place;
    this.drawn = drawn;
    /** @type {UnservedJobs[]} */
    this.unserved = [];
  }

  /**
   * Refreshes the notice. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    this.unserved = (await get('/api/v1/workers')).unserved ?? [];
    this.drawn();
  }

  /** @param {number | null} workers @param {number} ready @param {number} now unix seconds @param {boolean} isQueueLost */
  draw(workers, ready, now, isQueueLost) {
    const { notice, title, list, more, aloud } = this.place;
    const said = unservedNotice(this.unserved, workers, ready, isQueueLost);
    // The ages in it change, so only its title is announced, and once.
    if (said && (notice.hidden || title.textContent !== said.title)) setText(aloud, said.title);
    show(notice, said !== null);
    if (!said) return;
    setText(title, said.title);
    keyed(list, said.rows, (one) => JSON.stringify([one.throttle, one.kind, one.needs]), () => h('li', null),
      (row, one) => setText(row, unservedText(one, now)));
    show(more, said.more !== '');
    setText(more, said.more);
  }
}
