// The page of pools: requests their state while it is visible, and draws a panel for each.

import { get } from './api.js';
import { keyed, setAttr, setText, show } from './dom.js';
import { PoolPanel } from './poolpanel.js';
import { clockOffset, worst } from './poolwords.js';

export class Pools {
  /**
   * @param {{ list: HTMLElement, empty: HTMLElement, waiting: HTMLElement, name: HTMLElement, dot: HTMLElement, word: HTMLElement }} place
   * @param {{ messages: (pool: string, account: string) => void, hasMessages: () => boolean, drawn: () => void }} on
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
    /** True if the token may not read pools, such as that of a tenant, which reads its messages. */
    this.denied = false;
  }

  /**
   * Refreshes the pools. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
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
      // The last known state stays, below a line with the reason.
      const { status, message } = /** @type {any} */ (error);
      this.denied = status === 403;
      setText(this.place.waiting, `Loading the pools failed: ${message}`);
      show(this.place.waiting, !this.denied);
      throw error;
    } finally {
      this.asking = false;
    }
  }

  /** The number of pools at the last look, for the navigation; messages count without them. */
  known() {
    return this.denied ? Number(this.on.hasMessages()) : this.pools?.length ?? 0;
  }

  drawNav() {
    const pools = this.pools ?? [];
    const tone = worst(pools);
    setText(this.place.name, this.denied ? 'Messages' : 'Pools');
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
