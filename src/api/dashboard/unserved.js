// The jobs that no live worker serves: a notice with one line for each throttle and kind, and what
// to do.

import { get } from './api.js';
import { serverNow } from './clock.js';
import { h, keyed, setText, show } from './dom.js';
import { ago, count, unixSeconds } from './format.js';

const ROWS = 5;

/**
 * @typedef {{ throttle: string, kind: string | null, needs: string[], jobs: number, since: string | null, remedy: string }} UnservedJobs
 */

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
  /** @param {{ notice: HTMLElement, list: HTMLElement, more: HTMLElement }} place */
  constructor({ notice, list, more }) {
    this.notice = notice;
    this.list = list;
    this.more = more;
  }

  /**
   * Refreshes the notice. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    this.draw((await get('/api/v1/workers')).unserved ?? [], serverNow());
  }

  /** @param {UnservedJobs[]} unserved @param {number} now */
  draw(unserved, now) {
    show(this.notice, unserved.length > 0);
    keyed(this.list, unserved.slice(0, ROWS), (one) => JSON.stringify([one.throttle, one.kind, one.needs]), () => h('li', null),
      (row, one) => setText(row, unservedText(one, now)));
    const more = unserved.length - ROWS;
    show(this.more, more > 0);
    setText(this.more, `And ${count(more)} more: flyball status lists them.`);
  }
}
