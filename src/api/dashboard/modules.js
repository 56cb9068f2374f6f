// The modules of one tenant: the use of the limit of each, and what waits.

import { get } from './api.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { count } from './format.js';
import { cell, showRows } from './lists.js';
import { drawMeter, meter } from './meter.js';
import { modulesPath, nextText, oldestText, pauseText, remainingText, tenantStanding, windowShare, windowText } from './tenantwords.js';

const ROWS = 50;
/** The most modules that are shown at once; others are found by name. */
const ROWS_MAX = 200;

export class TenantModules {
  /** @param {string} tenant @param {string} order `depth` or `key` */
  constructor(tenant, order) {
    this.tenant = tenant;
    /** @type {import('./tenantwords.js').TenantModule[]} */
    this.modules = [];
    this.limit = ROWS;
    this.hasMore = false;
    this.isRead = false;
    this.asked = 0;
    const id = `modules-${encodeURIComponent(tenant)}`;
    this.find = h('input', { id, type: 'search', placeholder: 'all modules', autocomplete: 'off', spellcheck: 'false' });
    this.by = h('select', { 'aria-label': `Order of the modules of ${tenant}` }, h('option', { value: 'depth' }, 'most waiting first'), h('option', { value: 'key' }, 'all, by name'));
    this.by.value = order;
    this.by.addEventListener('change', () => this.restart());
    this.body = h('tbody', null);
    this.empty = h('p', { class: 'empty' });
    this.note = h('p', { class: 'form-note', role: 'status' });
    this.more = h('button', { type: 'button', hidden: true, onclick: () => { this.limit = Math.min(ROWS_MAX, this.limit + ROWS); this.refresh(); } }, 'More modules');
    const form = h('form', { class: 'lane-tools', role: 'search', 'aria-label': `Modules of ${tenant}` }, h('label', { for: id }, 'Module'), this.find, h('button', { type: 'submit' }, 'Find'), this.by);
    form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.restart();
    });
    const heads = ['module', 'state', 'window', 'next slot', 'waiting'].map((text) => h('th', { scope: 'col' }, text));
    this.element = h('div', { class: 'modules', role: 'group', 'aria-label': `Modules of ${tenant}` }, form,
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Modules of ${tenant}` }, h('table', { class: 'stack' }, h('thead', null, h('tr', null, ...heads)), this.body)),
      this.empty, this.note, this.more);
  }

  restart() {
    this.limit = ROWS;
    this.isRead = false;
    return this.refresh();
  }

  /** Refreshes the modules; a failure is told below them, and the last known ones stay. */
  async refresh() {
    this.asked += 1;
    const asked = this.asked;
    try {
      const answer = await get(modulesPath(this.tenant, this.find.value.trim(), this.by.value, this.limit));
      if (asked !== this.asked) return;
      this.modules = answer.modules ?? [];
      this.hasMore = Boolean(answer.next);
      this.isRead = true;
      setText(this.note, this.hasMore && this.limit >= ROWS_MAX ? `The first ${ROWS_MAX} modules are shown; others are found by name.` : '');
    } catch (error) {
      setText(this.note, /** @type {any} */ (error).message);
    }
  }

  /** @param {number} nowMs */
  draw(nowMs) {
    showRows(this.body, this.empty, this.modules.length);
    show(this.more, this.hasMore && this.limit < ROWS_MAX && !this.find.value);
    const none = this.find.value ? 'No module of this tenant has that name.' : this.by.value === 'depth' ? 'No message of this tenant waits for its limits.' : 'No module of this tenant has sent a message lately.';
    setText(this.empty, this.isRead ? none : 'Waiting for the server …');
    keyed(this.body, this.modules, (module) => `module ${module.module}`, (module) => {
      const name = module.module || 'no module';
      const parts = {
        state: h('span', { class: 'badge' }), pause: h('span', { class: 'sub' }), window: h('span', { class: 'num' }), use: meter(`Limit of ${name}`), left: h('span', { class: 'sub num' }),
        next: h('span', { class: 'num' }), waiting: h('b', { class: 'num' }), oldest: h('span', { class: 'sub num' }),
      };
      return Object.assign(h('tr', null,
        cell('module', name, 'wrap name'),
        cell('state', h('span', { class: 'pair' }, h('span', null, parts.state), parts.pause), 'wrap'),
        cell('window', h('span', { class: 'pair' }, parts.window, parts.use, parts.left), 'window'),
        cell('next slot', parts.next),
        cell('waiting', h('span', { class: 'pair' }, parts.waiting, parts.oldest))), { parts });
    }, ({ parts }, module) => {
      const stand = tenantStanding(module.state);
      setText(parts.state, stand.text);
      setAttr(parts.state, 'data-tone', stand.tone);
      setText(parts.pause, pauseText(module.paused, nowMs / 1000));
      setText(parts.window, windowText(module.window, module.state));
      setText(parts.left, remainingText(module.window));
      drawMeter(parts.use, windowShare(module.window), windowText(module.window, module.state), module.window?.remaining === 0 ? 'note' : 'calm');
      setText(parts.next, nextText(module.next_at, module.window, nowMs));
      setText(parts.waiting, count(module.waiting));
      setText(parts.oldest, oldestText(module.waiting, module.oldest_waiting_s));
    });
  }
}
