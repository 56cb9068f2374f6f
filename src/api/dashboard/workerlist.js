// The live workers, those in other programs as well: what each serves and runs.

import { get } from './api.js';
import { serverNow } from './clock.js';
import { h, keyed, setText } from './dom.js';
import { ago, count, unixSeconds } from './format.js';
import { cell, showRefused, showRows } from './lists.js';

/** Returns what a worker serves, in words. @param {any} worker */
export function servesText({ kinds = [], throttles = [] }) {
  const of = throttles.length > 0 ? `throttles ${throttles.join(', ')}` : 'all throttles';
  return `${kinds.join(', ') || 'no kinds'}; ${of}`;
}

export class WorkerList {
  /** @param {{ body: HTMLElement, empty: HTMLElement }} place */
  constructor(place) {
    this.place = place;
  }

  async refresh() {
    const { workers = [] } = await get('/api/v1/workers');
    this.draw(workers, serverNow());
  }

  /** Says that the token may not read them. */
  refused() {
    showRefused(this.place.body, this.place.empty);
  }

  /** @param {any[]} workers @param {number} now */
  draw(workers, now) {
    showRows(this.place.body, this.place.empty, workers.length);
    keyed(this.place.body, workers, (worker) => String(worker.id), (worker) => {
      const parts = { running: h('span', { class: 'num' }), beat: h('span', { class: 'num' }) };
      return Object.assign(h('tr', null,
        cell('worker', h('span', { class: 'pair' }, h('b', null, worker.name), h('span', { class: 'sub' }, worker.host)), 'wrap name'),
        cell('program', worker.remote ? 'another one, over HTTP' : 'flyball'),
        cell('running', parts.running),
        cell('serves', servesText(worker), 'wide'),
        cell('heartbeat', parts.beat)), { parts });
    }, (/** @type {any} */ row, worker) => {
      setText(row.parts.running, count(worker.running));
      setText(row.parts.beat, ago(now - (unixSeconds(worker.heartbeat_at) ?? now)));
    });
  }
}
