// One pool on the page: its capacity now, the knob of its throttle with the reason, its accounts,
// its breaker events.

import { call, get } from './api.js';
import { AccountGrid } from './accountgrid.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { clock, count, UNKNOWN, unixSeconds } from './format.js';
import { cell, showRows } from './lists.js';
import { panelId } from './panel.js';
import { capacity, eventReason, eventText, inTime, lastChange, poolStanding, throttleFacts, wholePercent } from './poolwords.js';

/**
 * The interval at which events are requested, in milliseconds. They are also requested when a
 * breaker has changed, but are written a moment later.
 */
const EVENTS_EVERY_MS = 10_000;

/** @param {string} name */
const poolPath = (name) => `/api/v1/pools/${encodeURIComponent(name)}`;

/** @param {string} name */
export function poolId(name) {
  return `pool-${encodeURIComponent(name)}`;
}

export class PoolPanel {
  /**
   * @param {string} name
   * @param {{ messages: (pool: string, account: string) => void, changed: () => void }} on
   */
  constructor(name, on) {
    this.name = name;
    this.on = on;
    this.askedAt = -Infinity;
    this.askedFor = -1;
    const titleId = `${poolId(name)}-title`;
    this.standing = h('span', { class: 'badge' });
    this.shedding = h('span', { class: 'badge quiet' });
    this.about = h('span', { class: 'parent' });
    this.link = h('a', { href: `#${panelId(name)}` }, `throttle ${name}`);
    this.reason = h('p', { class: 'reason' });
    this.now = h('b', { class: 'num' });
    this.unit = h('i', null);
    this.of = h('span', { class: 'sub num' });
    this.bar = h('div', { class: 'share', role: 'meter', 'aria-label': `Capacity of ${name}`, 'aria-valuemin': '0', 'aria-valuemax': '100' }, h('i', null));
    this.share = h('span', { class: 'sub num' });
    this.available = h('b', { class: 'num' });
    this.thereOf = h('i', null);
    this.back = h('span', { class: 'sub num' });
    this.knob = h('b', { class: 'num' });
    this.knobUnit = h('i', null);
    this.knobNote = h('span', { class: 'sub' });
    this.note = h('p', { class: 'form-note', role: 'status' });
    this.grid = new AccountGrid(name, { resume: (account) => this.resume(account), messages: (account) => on.messages(name, account) });
    this.newest = h('span', { class: 'knob-values' });
    this.events = h('tbody', null);
    this.noEvents = h('p', { class: 'empty' }, 'No breaker of this pool has opened or closed yet.');
    const table = h('table', { class: 'stack' }, h('thead', null, h('tr', null, ...['at', 'account', 'breaker', 'reason'].map((text) => h('th', { scope: 'col' }, text)))), this.events);
    this.element = h('section', { class: 'panel pool', id: poolId(name), 'aria-labelledby': titleId },
      h('div', { class: 'panel-head' },
        h('div', { class: 'title' }, h('h2', { id: titleId }, name), this.standing, this.shedding, this.about),
        this.link),
      this.reason,
      h('div', { class: 'pool-readouts' },
        h('div', { class: 'readout bears' }, h('span', { class: 'label' }, 'capacity now'), h('span', { class: 'value' }, this.now, this.unit, ' ', this.of),
          h('div', { class: 'share-row' }, this.bar, this.share)),
        h('div', { class: 'readout' }, h('span', { class: 'label' }, 'accounts available'), h('span', { class: 'value' }, this.available, this.thereOf), this.back),
        h('div', { class: 'readout' }, h('span', { class: 'label' }, 'knob'), h('span', { class: 'value' }, this.knob, this.knobUnit), this.knobNote)),
      this.note, this.grid.element,
      h('details', { class: 'drawer' }, h('summary', null, h('span', { class: 'drawer-title' }, 'Events'), this.newest),
        h('div', { class: 'pool-events' }, h('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': `Events of ${name}` }, table, this.noEvents))));
  }

  remove() {
    this.element.remove();
  }

  /**
   * @param {import('./poolwords.js').Pool} pool
   * @param {import('./state.js').Throttle | undefined} throttle
   * @param {number} nowMs by the store's clock
   */
  update(pool, throttle, nowMs) {
    this.pool = pool;
    this.nowMs = nowMs;
    const stand = poolStanding(pool, nowMs);
    const all = pool.accounts.length;
    setText(this.standing, stand.text);
    setAttr(this.standing, 'data-tone', stand.tone);
    setText(this.shedding, pool.shedding ? 'shedding on' : 'shedding off');
    setAttr(this.shedding, 'title', pool.shedding ? 'the whole pool sends less while accounts are unavailable' : 'the remaining accounts take over the whole load');
    setText(this.about, `${pool.provider} · ${pool.channel}`);

    const bears = capacity(pool);
    setText(this.now, bears.now);
    setText(this.unit, bears.unit);
    setText(this.of, bears.of);
    setText(this.share, wholePercent(bears.share));
    /** @type {HTMLElement} */ (this.bar.firstElementChild).style.width = `${bears.share * 100}%`;
    setAttr(this.bar, 'data-tone', stand.tone);
    setAttr(this.bar, 'aria-valuenow', String(Math.round(bears.share * 100)));
    setAttr(this.bar, 'aria-valuetext', `${bears.now}${bears.unit} ${bears.of}`);
    setText(this.available, count(pool.available));
    setText(this.thereOf, ` of ${count(all)}`);
    setText(this.back, all === 0 ? '' : pool.available > 0 ? (pool.available === all ? 'none is blocked' : `${count(all - pool.available)} blocked or open`) : `back ${inTime(pool.available_at_ms, nowMs) || 'when one is resumed'}`);
    this.back.classList.toggle('alarming', pool.available === 0 && all > 0);

    const facts = throttleFacts(throttle, nowMs / 1000, pool);
    setText(this.knob, facts?.knob ?? UNKNOWN);
    setText(this.knobUnit, facts?.unit ?? '');
    setText(this.knobNote, !facts || facts.knob === UNKNOWN ? 'unknown' : 'of the whole pool, in effect');
    this.knob.parentElement.classList.toggle('word', facts?.knob === 'unlimited');
    setText(this.reason, facts?.reason ?? '');
    show(this.link, Boolean(throttle));
    this.grid.update(pool.accounts, nowMs);
    const changed = lastChange(pool);
    if (changed !== this.askedFor || performance.now() - this.askedAt > EVENTS_EVERY_MS) this.askEvents(changed);
  }

  /** @param {number} changed */
  async askEvents(changed) {
    this.askedFor = changed;
    this.askedAt = performance.now();
    try {
      const { events = [] } = await get(poolPath(this.name));
      this.showEvents(events);
    } catch {
      // The page reports that the server is away; the next round asks again.
    }
  }

  /** @param {any[]} events newest first */
  showEvents(events) {
    const now = this.nowMs ? this.nowMs / 1000 : serverNow();
    const first = events[0];
    setText(this.newest, first ? `${clock(unixSeconds(first.at), now)} ${first.account}: ${eventText(first)}${eventReason(first, events) ? `, ${eventReason(first, events)}` : ''}` : 'none yet');
    showRows(this.events, this.noEvents, events.length);
    keyed(this.events, events, (e) => `${e.at}/${e.account}/${e.to}`, (e) => h('tr', { class: e.to === 'open' ? 'alarming' : undefined },
      cell('at', clock(unixSeconds(e.at), now), 'num'), cell('account', e.account, 'wrap'), cell('breaker', eventText(e)), cell('reason', eventReason(e, events), 'wide')));
  }

  /** @param {import('./poolwords.js').Account} account */
  async resume(account) {
    const end = account.state === 'open' ? 'Its breaker closes' : 'Its block ends';
    const answer = await ask({ title: `Resume ${account.name}?`, action: 'Resume',
      text: `${end} for all workers, and it gets messages at once.${account.why ? ` The provider said: ${account.why}` : ''}` });
    if (!answer) return;
    try {
      const done = await call('POST', `${poolPath(this.name)}/accounts/${encodeURIComponent(account.name)}/resume`, { body: answer });
      setText(this.note, done.changed ? `Resumed ${account.name}.` : `${account.name} was already available.`);
      this.askedFor = -1;
      this.on.changed();
    } catch (error) {
      setText(this.note, /** @type {any} */ (error).message);
    }
  }
}
