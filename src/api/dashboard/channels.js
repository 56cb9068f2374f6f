// The use of channels by tenants: open connections, messages a second, what waits at the limit.

import { get } from './api.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { ago, count, unixSeconds, UNKNOWN } from './format.js';
import { cell, showRows } from './lists.js';
import { drawMeter, meter } from './meter.js';
import { panelId } from './panel.js';

/**
 * @typedef {{ tenant: string, connections: number, connections_max: number | null, messages_used: number | null, messages_max: number | null,
 *   messages: number, waiting: number, limited: number, limited_at: string | null, warnings: number }} ChannelTenant
 */

/** Returns a use and its limit in words. @param {number | null} used @param {number | null} most */
export function ofText(used, most) {
  if (used === null) return UNKNOWN;
  return most === null ? count(used) : `${count(used)} of ${count(most)}`;
}

/** Returns the used share of a limit. @param {number | null} used @param {number | null} most */
export function shareOf(used, most) {
  return used === null || !most ? 0 : Math.min(1, used / most);
}

/** Returns how often a tenant was at its limit, in words. @param {ChannelTenant} one @param {number} now unix seconds */
export function limitedText(one, now) {
  if (one.limited === 0) return 'never at its limit';
  const at = unixSeconds(one.limited_at);
  return `${count(one.limited)} × at its limit${at === null ? '' : `, last ${ago(now - at)}`}`;
}

export class Channels {
  /** @param {{ section: HTMLElement, body: HTMLElement, empty: HTMLElement, note: HTMLElement }} place */
  constructor(place) {
    this.place = place;
    /** @type {ChannelTenant[]} */
    this.tenants = [];
    this.at = 0;
    this.denied = false;
  }

  async refresh() {
    if (this.denied) return;
    try {
      const answer = await get('/api/v1/channels?limit=200');
      this.tenants = answer.tenants ?? [];
      this.at = unixSeconds(answer.at) ?? 0;
      setText(this.place.note, answer.next ? 'The first 200 tenants are shown.' : '');
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      this.denied = status === 403;
      setText(this.place.note, `Loading the channels failed: ${message}`);
      throw error;
    } finally {
      this.draw();
    }
  }

  draw() {
    const { section, body, empty } = this.place;
    // The section is hidden while no tenant uses channels.
    show(section, this.tenants.length > 0);
    showRows(body, empty, this.tenants.length);
    keyed(body, this.tenants, (one) => one.tenant, (one) => this.row(one), (row, one) => this.drawRow(row, one));
  }

  /** @param {ChannelTenant} one */
  row(one) {
    const name = one.tenant || 'operators';
    const parts = {
      connections: h('span', { class: 'num' }), places: meter(`Connections of ${name}`), rate: h('span', { class: 'num' }), window: meter(`Messages of ${name} within a second`),
      waiting: h('b', { class: 'num' }), limited: h('span', { class: 'sub' }), warnings: h('span', { class: 'num' }), all: h('span', { class: 'sub num' }), link: h('a', null, 'throttle'),
    };
    if (one.tenant) setAttr(parts.link, 'href', `#${panelId(`ws:${one.tenant}`)}`);
    show(parts.link, one.tenant !== '');
    setAttr(parts.link, 'aria-label', `Throttle ws:${one.tenant}`);
    return Object.assign(h('tr', null,
      cell('tenant', h('span', { class: 'pair' }, h('span', null, name), h('span', { class: 'sub links' }, parts.link)), 'wrap name'),
      cell('connections', h('span', { class: 'pair' }, parts.connections, parts.places), 'window'),
      cell('messages a second', h('span', { class: 'pair' }, parts.rate, parts.window, parts.all), 'window'),
      cell('waiting', h('span', { class: 'pair' }, parts.waiting, parts.limited)),
      cell('warnings', parts.warnings)), { parts });
  }

  /** @param {any} row @param {ChannelTenant} one */
  drawRow({ parts }, one) {
    const [connections, rate] = [ofText(one.connections, one.connections_max), ofText(one.messages_used, one.messages_max)];
    setText(parts.connections, connections);
    drawMeter(parts.places, shareOf(one.connections, one.connections_max), connections, one.connections === one.connections_max ? 'note' : 'calm');
    setText(parts.rate, rate);
    drawMeter(parts.window, shareOf(one.messages_used, one.messages_max), rate, one.waiting > 0 ? 'note' : 'calm');
    setText(parts.all, `${count(one.messages)} in all`);
    setText(parts.waiting, count(one.waiting));
    setText(parts.limited, limitedText(one, this.at));
    setText(parts.warnings, count(one.warnings));
  }
}
