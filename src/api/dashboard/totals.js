// The figures of the header, each a link to the list behind it.

import { setAttr, setText } from './dom.js';
import { count, duration, UNKNOWN } from './format.js';
import { jobsAddress } from './views.js';

/** @typedef {{ workers: number | null, running: number | null, ready: number | null, dead: number | null, failing: number, oldest: { seconds: number, throttle: string } | null }} Figures */

export class Totals {
  /** @param {Record<'workers' | 'workersWord' | 'running' | 'ready' | 'dead' | 'failing' | 'oldest', any>} place the elements of the figures; all but `workers` and its word are links */
  constructor(place) {
    this.place = place;
  }

  /** @param {Figures} figures @param {boolean} isKnown */
  draw({ workers, running, ready, dead, failing, oldest }, isKnown) {
    const { place } = this;
    setText(place.workers, workers === null ? UNKNOWN : count(workers));
    setText(place.workersWord, workers === 1 ? 'worker' : 'workers');
    setText(place.running, running === null ? UNKNOWN : count(running));
    setText(place.ready, ready === null ? UNKNOWN : count(ready));
    setText(place.dead, dead === null ? UNKNOWN : count(dead));
    setText(place.failing, isKnown ? count(failing) : UNKNOWN);
    setText(place.oldest, oldest ? duration(oldest.seconds) : UNKNOWN);
    setAttr(place.oldest, 'href', jobsAddress({ state: 'ready', throttle: oldest?.throttle }));
    setAttr(place.oldest, 'title', oldest ? `the oldest ready job waits for ${oldest.throttle}` : null);
    setAttr(place.dead, 'data-tone', dead ? 'alarm' : null);
    setAttr(place.failing, 'data-tone', failing > 0 ? 'alarm' : null);
  }
}
