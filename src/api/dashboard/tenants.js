// Tenants: the use of the limits of each, what waits and what is pending, with the modules on demand.

import { get } from './api.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { count, unixSeconds } from './format.js';
import { cell, showRows } from './lists.js';
import { drawMeter, meter } from './meter.js';
import { TenantModules } from './modules.js';
import { showNew } from './pages.js';
import { panelId } from './panel.js';
import { clockOffset } from './poolwords.js';
import { complaintsText, nextText, oldestText, pendingShare, pendingText, remainingText, tenantStanding, tenantsPath, windowShare, windowText, worstOf } from './tenantwords.js';

const ROWS = 50;
/** The most tenants that are shown at once; others are found by name. */
const ROWS_MAX = 200;

export class Tenants {
  /**
   * @param {{ form: any, body: HTMLElement, empty: HTMLElement, none: HTMLElement, panel: HTMLElement, note: HTMLElement, more: any, link: HTMLElement, dot: HTMLElement, word: HTMLElement }} place
   * @param {{ batches: (tenant: string) => void, drawn: () => void }} on
   */
  constructor(place, on) {
    this.place = place;
    this.on = on;
    /** @type {import('./tenantwords.js').Tenant[] | null} null before the first answer */
    this.tenants = null;
    /** The tenants whose modules are shown. @type {Map<string, TenantModules>} */
    this.open = new Map();
    this.limit = ROWS;
    this.hasMore = false;
    /** True if the token may not read tenants; then only a person's click asks again. */
    this.denied = false;
    /** @type {number[]} */
    this.offsets = [];
    this.offset = 0;
    this.asked = 0;
    place.form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.restart();
    });
    place.more.addEventListener('click', () => {
      this.limit = Math.min(ROWS_MAX, this.limit + ROWS);
      showNew(place.body, async () => {
        await this.refresh();
        this.draw();
      }).catch(() => {});
    });
  }

  restart() {
    this.denied = false;
    this.limit = ROWS;
    return this.refresh().catch(() => {}); // The note says what is wrong.
  }

  name() {
    return this.place.form.elements.namedItem('tenant').value.trim();
  }

  /**
   * Refreshes the tenants and the open modules. Failures are left to the caller, which knows whether
   * the server answers at all.
   */
  async refresh() {
    if (this.denied) return;
    this.asked += 1;
    const asked = this.asked;
    try {
      const [answer] = await Promise.all([get(tenantsPath(this.name(), this.limit)), ...[...this.open.values()].map((modules) => modules.refresh())]);
      if (asked !== this.asked) return;
      this.tenants = answer.tenants ?? [];
      this.hasMore = Boolean(answer.next);
      this.offset = clockOffset(this.offsets, (unixSeconds(answer.at) ?? 0) * 1000, Date.now());
      setText(this.place.note, this.hasMore && this.limit >= ROWS_MAX ? `The first ${ROWS_MAX} tenants are shown; others are found by name.` : '');
    } catch (error) {
      // The last known state stays, below a line with the reason.
      const { status, message } = /** @type {any} */ (error);
      this.denied = status === 403;
      setText(this.place.note, `Loading the tenants failed: ${message}`);
      throw error;
    } finally {
      this.on.drawn();
    }
  }

  /** The number of tenants at the last look, for the navigation. */
  known() {
    return this.tenants?.length ?? 0;
  }

  drawNav() {
    const tone = worstOf(this.tenants ?? []);
    setAttr(this.place.dot, 'data-tone', tone);
    show(this.place.dot, tone !== 'calm');
    setText(this.place.word, tone === 'alarm' ? ' (a tenant needs attention)' : tone === 'note' ? ' (messages wait)' : '');
  }

  draw() {
    const nowMs = Date.now() + this.offset;
    for (const modules of this.open.values()) modules.draw(nowMs);
    show(this.place.note, this.place.note.textContent !== '');
    if (this.tenants === null) return;
    const isFiltered = this.name() !== '';
    show(this.place.none, this.tenants.length === 0 && !isFiltered);
    show(this.place.panel, this.tenants.length > 0 || isFiltered);
    showRows(this.place.body, this.place.empty, this.tenants.length);
    show(this.place.more, this.hasMore && this.limit < ROWS_MAX && !isFiltered);
    const items = this.tenants.flatMap((tenant) => [{ tenant, modules: null }, ...(this.open.has(tenant.tenant) ? [{ tenant, modules: this.open.get(tenant.tenant) }] : [])]);
    keyed(this.place.body, items, ({ tenant, modules }) => `${modules ? 'modules' : 'tenant'} ${tenant.tenant}`,
      ({ tenant, modules }) => (modules ? h('tr', { class: 'modules-row' }, h('td', { colspan: '6' }, modules.element)) : this.row(tenant.tenant)),
      (row, { tenant, modules }) => {
        if (!modules) this.drawRow(row, tenant, nowMs);
      });
  }

  /** @param {string} name */
  row(name) {
    const parts = {
      toggle: h('button', { type: 'button', class: 'link toggle' }, name), per: h('span', { class: 'sub num' }), window: h('span', { class: 'num' }), use: meter(`Limit of ${name}`),
      left: h('span', { class: 'sub num' }), waiting: h('b', { class: 'num' }), oldest: h('span', { class: 'sub num' }), next: h('span', { class: 'num' }),
      pending: h('span', { class: 'num' }), queue: meter(`Queue of ${name}`), state: h('span', { class: 'badge' }), link: h('a', null, 'throttle'),
    };
    parts.toggle.addEventListener('click', () => this.toggle(name));
    const batches = h('button', { type: 'button', class: 'link', 'aria-label': `Batches of ${name}`, onclick: () => this.on.batches(name) }, 'batches');
    return Object.assign(h('tr', null,
      cell('tenant', h('span', { class: 'pair' }, parts.toggle, parts.per), 'wrap name'),
      cell('state', h('span', { class: 'pair' }, h('span', null, parts.state), h('span', { class: 'sub links' }, batches, ' · ', parts.link))),
      cell('window', h('span', { class: 'pair' }, parts.window, parts.use, parts.left), 'window'),
      cell('next slot', parts.next),
      cell('waiting', h('span', { class: 'pair' }, parts.waiting, parts.oldest)),
      cell('pending', h('span', { class: 'pair' }, parts.pending, parts.queue), 'window')), { parts });
  }

  /** @param {any} row @param {import('./tenantwords.js').Tenant} tenant @param {number} nowMs */
  drawRow({ parts }, tenant, nowMs) {
    const stand = tenantStanding(tenant.state);
    const { window } = tenant;
    setAttr(parts.toggle, 'aria-expanded', String(this.open.has(tenant.tenant)));
    setAttr(parts.toggle, 'aria-label', `Modules of ${tenant.tenant}`);
    const perModule = tenant.per_module ? `each module ${count(tenant.per_module.limit)} in ${count(tenant.per_module.span_s)} s` : '';
    setText(parts.per, [perModule, complaintsText(tenant)].filter(Boolean).join(', '));
    setText(parts.state, stand.text);
    setAttr(parts.state, 'data-tone', stand.tone);
    setAttr(parts.link, 'href', `#${panelId(tenant.throttle)}`);
    setAttr(parts.link, 'aria-label', `Throttle ${tenant.throttle}`);
    setText(parts.window, windowText(window, tenant.state));
    setText(parts.left, remainingText(window));
    drawMeter(parts.use, windowShare(window), windowText(window, tenant.state), window?.remaining === 0 ? 'note' : 'calm');
    setText(parts.next, nextText(window?.next_at ?? null, window, nowMs));
    setText(parts.waiting, count(tenant.waiting));
    setText(parts.oldest, [oldestText(tenant.waiting, tenant.oldest_waiting_s), tenant.scheduled > 0 ? `${count(tenant.scheduled)} set aside` : ''].filter(Boolean).join(', '));
    setText(parts.pending, pendingText(tenant));
    drawMeter(parts.queue, pendingShare(tenant), pendingText(tenant), tenant.state === 'queue_full' ? 'alarm' : 'calm');
  }

  /** @param {string} name */
  toggle(name) {
    if (!this.open.delete(name)) {
      const tenant = this.tenants?.find((one) => one.tenant === name);
      const modules = new TenantModules(name, (tenant?.waiting ?? 0) > 0 ? 'depth' : 'key');
      this.open.set(name, modules);
      modules.refresh().then(() => this.draw());
    }
    this.draw();
  }
}
