// The page of pools: asks how they stand while somebody looks, and draws a panel for each.

import { get } from './api.js';
import { keyed, setAttr, setText, show } from './dom.js';
import { PoolPanel } from './poolpanel.js';
import { clockOffset, worst } from './poolwords.js';

export class Pools {
  /**
   * @param {{ list: HTMLElement, empty: HTMLElement, waiting: HTMLElement, nav: HTMLElement, dot: HTMLElement, word: HTMLElement }} place
   * @param {{ messages: (pool: string, account: string) => void, drawn: () => void }} on
   */
  constructor(place, on) {
    this.place = place;
    this.on = on;
    /** @type {import('./poolwords.js').Pool[] | null} null before the first answer */
    this.pools = null;
    /** @type {number[]} */
    this.offsets = [];
    this.offset = 0;
    this.asking = false;
  }

  /** Failures are the caller's: it knows whether the server is there at all. */
  async refresh() {
    if (this.asking) return;
    this.asking = true;
    try {
      const { pools = [] } = await get('/api/v1/pools');
      this.pools = pools;
      const at = Math.max(0, ...pools.map((/** @type {any} */ pool) => pool.at_ms ?? 0));
      if (at > 0) this.offset = clockOffset(this.offsets, at, Date.now());
      show(this.place.waiting, false);
      this.on.drawn();
    } catch (error) {
      // What was last known stays, below a line that says why it does not move.
      setText(this.place.waiting, `The pools cannot be told: ${/** @type {any} */ (error).message}`);
      show(this.place.waiting, true);
      throw error;
    } finally {
      this.asking = false;
    }
  }

  /** Where there are no pools nobody is led to them. @param {boolean} isHere whether somebody is on their page all the same */
  drawNav(isHere) {
    const pools = this.pools ?? [];
    show(this.place.nav, pools.length > 0 || isHere);
    const tone = worst(pools);
    setAttr(this.place.dot, 'data-tone', tone);
    show(this.place.dot, tone !== 'calm');
    setText(this.place.word, tone === 'alarm' ? ' (a pool has no account)' : tone === 'note' ? ' (accounts are away)' : '');
  }

  /** @param {Map<string, import('./state.js').Throttle>} throttles */
  draw(throttles) {
    if (this.pools === null) return;
    show(this.place.empty, this.pools.length === 0);
    const nowMs = Date.now() + this.offset;
    keyed(this.place.list, this.pools, (pool) => pool.name, (pool) => {
      const panel = new PoolPanel(pool.name, { messages: this.on.messages, changed: () => this.refresh().catch(() => {}) });
      return Object.assign(panel.element, { panel });
    }, (element, pool) => element.panel.update(pool, throttles.get(pool.name), nowMs));
  }
}
