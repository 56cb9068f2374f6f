// The lanes of one throttle: the waiting jobs of each, the age of the oldest, its weight and its
// pause.

import { call, get, oneAtATime, throttlePath } from './api.js';
import { ask, signature } from './dialog.js';
import { h, keyed, setText, show } from './dom.js';
import { ago, count, duration, number, unixSeconds } from './format.js';
import { pauseKey } from './keypause.js';
import { parseNumber } from './knobs.js';
import { clearFailure, noteFailure } from './notes.js';
import { endedAfter, keyPart, keyPath, laneState, walk } from './operate.js';
import { unique } from './pages.js';
import { jobsAddress } from './views.js';

const PAGE = 50;
/** The interval at which an open list is refreshed, in milliseconds. */
const REFRESH_MS = 5_000;

export class Lanes {
  /** @param {string} name of the throttle */
  constructor(name) {
    this.name = name;
    /** @type {any[]} */
    this.rows = [];
    /** @type {string | null} */
    this.next = null;
    this.order = 'depth';
    this.pages = 1;
    this.timer = 0;
    /** The count of requests, so that a late answer to an older question is dropped. */
    this.asked = 0;
    const id = `lanes-${encodeURIComponent(name)}`;
    this.summary = h('span', { class: 'knob-values' }, 'one for each key: depth, age, weight, pause, learned rate');
    this.body = h('tbody', null);
    this.empty = h('p', { class: 'empty', hidden: true });
    this.note = h('p', { class: 'form-note', role: 'status' });
    this.find = h('input', { id: `${id}-find`, type: 'search', placeholder: 'all keys', autocomplete: 'off', spellcheck: 'false' });
    this.by = h('select', { id: `${id}-order`, 'aria-label': `Order of the lanes of ${name}` }, h('option', { value: 'depth' }, 'deepest first'), h('option', { value: 'key' }, 'by key'));
    this.by.addEventListener('change', () => {
      this.order = this.by.value;
      this.pages = 1;
      this.refresh();
    });
    this.more = h('button', { type: 'button', hidden: true, onclick: () => { this.pages += 1; this.refresh(); } }, 'More lanes');
    const form = h('form', { class: 'lane-tools', role: 'search', 'aria-label': `Lanes of ${name}` },
      h('label', { for: `${id}-find` }, 'Key'), this.find, h('button', { type: 'submit' }, 'Find'), this.by);
    form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.pages = 1;
      this.refresh();
    });
    const heads = ['key', 'ready', 'oldest', 'weight', 'state'].map((text) => h('th', { scope: 'col' }, text));
    this.element = h('details', { class: 'drawer lanes', ontoggle: () => this.toggled() },
      h('summary', null, h('span', { class: 'drawer-title' }, 'Lanes'), this.summary),
      h('div', { class: 'lane-list' }, form,
        h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Lanes of ${name}` }, h('table', { class: 'stack' }, h('thead', null, h('tr', null, ...heads, h('th', { scope: 'col' }, h('span', { class: 'aloud' }, 'actions')))), this.body)),
        this.empty, this.note, h('div', { class: 'buttons' }, this.more)));
  }

  remove() {
    clearInterval(this.timer);
  }

  toggled() {
    clearInterval(this.timer);
    if (!this.element.open) return;
    this.refresh();
    const refresh = oneAtATime(() => this.refresh());
    this.timer = window.setInterval(() => {
      if (!document.hidden) refresh();
    }, REFRESH_MS);
  }

  async refresh() {
    this.asked += 1;
    const asked = this.asked;
    try {
      const key = this.find.value;
      const path = `${throttlePath(this.name)}/lanes?limit=${PAGE}${this.order === 'key' ? '&order=key' : ''}`;
      let page = await get(key === '' ? path : `${throttlePath(this.name)}/lanes?key=${keyPart(key)}`);
      const rows = [...page.lanes];
      for (let n = 1; n < this.pages && page.next; n += 1) {
        page = await get(page.next);
        rows.push(...page.lanes);
      }
      if (asked !== this.asked) return;
      this.rows = unique(rows, (lane) => lane.key);
      this.next = page.next;
      this.at = unixSeconds(page.at);
      clearFailure(this.note);
    } catch (error) {
      if (asked !== this.asked) return;
      noteFailure(this.note, /** @type {any} */ (error).message);
    }
    this.draw();
  }

  draw() {
    const now = this.at ?? 0;
    const counted = this.rows.map((lane) => unixSeconds(lane.counted_at)).filter((at) => at !== null);
    const oldest = counted.length ? Math.min(.../** @type {number[]} */ (counted)) : null;
    setText(this.summary, this.rows.length === 0 ? 'none' : `${count(this.rows.length)}${this.next ? ' or more' : ''}${oldest === null ? '' : `, counted ${ago(now - oldest)}`}`);
    setText(this.empty, this.find.value ? 'No lane of this throttle has that key.' : this.order === 'depth' ? 'No lane of this throttle has a ready job.' : 'No job has been enqueued for this throttle yet.');
    show(this.empty, this.rows.length === 0);
    show(this.body.parentElement, this.rows.length > 0);
    show(this.more, Boolean(this.next) && !this.find.value);
    const deepest = Math.max(1, ...this.rows.map((lane) => lane.depth));
    keyed(this.body, this.rows, (lane) => `lane ${lane.key}`, (lane) => {
      const cells = {
        depth: h('b', { class: 'num' }), bar: h('i', null), oldest: h('span', { class: 'num' }),
        weight: h('button', { type: 'button', class: 'link num' }), stands: h('span', null), pause: h('button', { type: 'button' }), forget: h('button', { type: 'button' }, 'Forget'),
      };
      const empty = h('button', { type: 'button', 'aria-label': `Empty the lane ${lane.key || 'without a key'}` }, 'Empty …');
      const row = h('tr', null,
        h('td', { 'data-label': 'key', class: 'wrap name' }, lane.key === '' ? h('span', { class: 'sub' }, 'no key') : h('a', { class: 'quiet', href: jobsAddress({ throttle: this.name, key: lane.key }) }, lane.key)),
        h('td', { 'data-label': 'ready', class: 'lane-depth' }, cells.depth, h('span', { class: 'lane-bar', 'aria-hidden': 'true' }, cells.bar)),
        h('td', { 'data-label': 'oldest' }, cells.oldest),
        h('td', { 'data-label': 'weight' }, cells.weight),
        h('td', { 'data-label': 'state', class: 'wrap stands' }, cells.stands),
        h('td', { class: 'act' }, h('div', { class: 'buttons change' }, cells.forget, cells.pause, empty)));
      Object.assign(row, { parts: cells });
      cells.weight.addEventListener('click', () => this.weigh(this.lane(lane.key)));
      cells.pause.addEventListener('click', () => this.turn(this.lane(lane.key)));
      cells.forget.setAttribute('aria-label', `Reset the learned rate of the lane ${lane.key || 'without a key'}`);
      cells.forget.addEventListener('click', () => this.free(this.lane(lane.key)));
      empty.addEventListener('click', () => this.purge(this.lane(lane.key)));
      return row;
    }, (row, lane) => {
      const { parts: cells } = row;
      const name = lane.key || 'without a key';
      setText(cells.depth, count(lane.depth));
      cells.bar.style.width = `${(100 * lane.depth) / deepest}%`;
      setText(cells.oldest, lane.oldest_ready_s === null ? '' : duration(lane.oldest_ready_s));
      setText(cells.weight, number(lane.weight));
      cells.weight.setAttribute('aria-label', `Weight of the lane ${name}: ${number(lane.weight)}. Change it`);
      setText(cells.stands, laneState(lane, now));
      show(cells.forget, Boolean(lane.learned) && !lane.paused);
      setText(cells.pause, lane.paused ? 'Resume' : 'Pause …');
      cells.pause.setAttribute('aria-label', `${lane.paused ? 'Resume' : 'Pause'} the lane ${name}`);
    });
  }

  /** @param {string} key */
  lane(key) {
    return this.rows.find((lane) => lane.key === key);
  }

  /** Ends the pause of a key, and resets its learned limits. @param {any} lane */
  async free(lane) {
    const name = lane.key || 'the lane without a key';
    const said = lane.paused ? `Resumed ${name}.` : `Reset the learned rate of ${name}.`;
    const signed = await signature({ title: lane.paused ? `Resume ${name}?` : `Reset the learned rate of ${name}?`, action: lane.paused ? 'Resume' : 'Reset' });
    if (!signed) return;
    await this.act(() => call('POST', `${keyPath(this.name, lane.key)}/resume`, { body: signed }), said);
  }

  /** @param {any} lane */
  async turn(lane) {
    if (lane.paused) {
      await this.free(lane);
      return;
    }
    await this.act(() => pauseKey(this.name, lane.key, () => { setText(this.note, ''); this.refresh(); }));
  }

  /** @param {any} lane */
  async weigh(lane) {
    await this.act(async () => {
      const answer = await ask({
        title: `Weight of ${lane.key || 'the lane without a key'}`, action: 'Set',
        text: 'Its share relative to the other lanes of this throttle: 2 gets twice as much as 1.',
        fields: [{ name: 'weight', label: 'weight', value: String(lane.weight), hint: '0.001 to 1000' }],
        act: async ({ weight: typed, ...signed }) => {
          const weight = parseNumber(typed);
          if (weight === null) throw new Error(`weight: "${typed}" is not a number such as 2.`);
          await call('PATCH', keyPath(this.name, lane.key), { body: { ...signed, weight } });
        },
      });
      return answer && `The weight is ${answer.weight}.`;
    });
  }

  /** @param {any} lane */
  async purge(lane) {
    const path = `${keyPath(this.name, lane.key)}/jobs`;
    let found;
    try {
      found = await call('DELETE', `${path}?dry_run=true`);
    } catch (error) {
      setText(this.note, /** @type {any} */ (error).message);
      return;
    }
    const many = `${count(found.jobs)}${found.more ? ' or more' : ''} waiting jobs`;
    const answer = await ask({
      title: `Empty ${lane.key || 'the lane without a key'}?`, action: `Cancel ${many}`, danger: true,
      text: `This cancels ${many} permanently. Running jobs continue.`,
    });
    if (!answer) return;
    await this.act(async () => {
      let done = 0;
      const jobs = await walk((start) => {
        const query = new URLSearchParams({ limit: '5000', ...answer, ...(start ? { start } : {}) });
        return call('DELETE', `${path}?${query}`);
      }, (n) => {
        done = n;
        setText(this.note, `Cancelled ${count(n)} jobs …`);
      }).catch((error) => { throw endedAfter(error, done, `Cancelled ${count(done)} jobs.`); });
      return `Cancelled ${count(jobs)} jobs.`;
    });
  }

  /**
   * Does work that returns what was done, or null if the person changed nothing; `said` says it
   * in its place.
   * @param {() => Promise<any>} work @param {string} [said]
   */
  async act(work, said) {
    let note;
    try {
      const answer = await work();
      if (!said && answer === null) return;
      note = said ?? answer;
    } catch (error) {
      note = /** @type {any} */ (error).message;
    }
    await this.refresh();
    if (note) setText(this.note, note);
  }
}
