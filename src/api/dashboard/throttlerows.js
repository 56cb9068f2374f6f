// Throttles as rows of a table: one line each, trouble first, with a link to the panel.

import { drawSparkline, prepare } from './chart.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { count, duration, rate } from './format.js';
import { cell, showRows } from './lists.js';
import { facts } from './state.js';
import { deadOf, oldestOf, readyOf } from './trouble.js';
import { jobsAddress, throttleAddress } from './views.js';

const SPARK = { width: 96, height: 18 };

/** @typedef {{ throttle: import('./state.js').Throttle, verdict: import('./trouble.js').Verdict }} Judged */

export class ThrottleRows {
  /** @param {HTMLElement} body @param {HTMLElement} empty */
  constructor(body, empty) {
    this.body = body;
    this.empty = empty;
    /** @type {string[]} */
    this.order = [];
  }

  /**
   * @param {Judged[]} judged in the wanted order
   * @param {{ from: number, to: number }} time
   */
  draw(judged, time) {
    showRows(this.body, this.empty, judged.length);
    const rows = this.settled(judged);
    keyed(this.body, rows, ({ throttle }) => throttle.name, ({ throttle }) => this.row(throttle.name), (row, one) => this.drawRow(row, one, time));
  }

  /** Keeps the present order while a person points at a row or has the focus in one. @param {Judged[]} judged */
  settled(judged) {
    const isUsed = this.body.matches(':hover') || this.body.contains(document.activeElement);
    const places = new Map(this.order.map((name, i) => [name, i]));
    const rows = isUsed ? [...judged].sort((a, b) => (places.get(a.throttle.name) ?? Infinity) - (places.get(b.throttle.name) ?? Infinity) || 0) : judged;
    this.order = rows.map(({ throttle }) => throttle.name);
    return rows;
  }

  /** @param {string} name */
  row(name) {
    const parts = {
      badge: h('span', { class: 'badge' }), mode: h('span', { class: 'sub' }), rate: h('span', { class: 'num' }), achieved: h('span', { class: 'num achieved' }), ready: h('a', { class: 'num quiet', href: jobsAddress({ state: 'ready', throttle: name }) }),
      oldest: h('span', { class: 'num' }), failed: h('span', { class: 'num' }), dead: h('a', { class: 'num quiet', href: jobsAddress({ state: 'dead', throttle: name }) }), spark: h('canvas', { class: 'spark', ...SPARK, 'aria-hidden': 'true' }),
    };
    return Object.assign(h('tr', null,
      cell('throttle', h('a', { class: 'throttle-link', href: throttleAddress(name) }, name), 'wrap name'),
      cell('state', [parts.badge, ' ', parts.mode]), cell('rate', parts.rate), cell('achieved', parts.achieved), cell('ready', parts.ready), cell('oldest', parts.oldest),
      cell('failed', parts.failed), cell('dead', parts.dead), cell('', parts.spark, 'spark-cell')), { parts, drawn: 0 });
  }

  /** @param {any} row @param {Judged} judged @param {{ from: number, to: number }} time */
  drawRow(row, { throttle, verdict }, { from, to }) {
    const { parts } = row;
    const now = facts(throttle);
    setText(parts.badge, verdict.text);
    setAttr(parts.badge, 'data-tone', verdict.tone);
    setText(parts.mode, throttle.detail?.governor && now.mode !== 'auto' ? now.mode : throttle.detail?.governor ? 'governed' : '');
    setText(parts.rate, now.effective === null ? '' : now.effective < 0 ? 'unlimited' : `${rate(now.effective)}/s`);
    setText(parts.achieved, now.achieved === null ? '' : `${rate(now.achieved)}/s`);
    const ready = readyOf(throttle);
    setText(parts.ready, ready === null ? '' : count(ready));
    show(parts.ready, ready !== null);
    const oldest = oldestOf(throttle);
    setText(parts.oldest, oldest === null ? '' : duration(oldest));
    setText(parts.failed, verdict.failed > 0 ? `${count(verdict.failed)} a minute` : '');
    const dead = deadOf(throttle) ?? 0;
    setText(parts.dead, dead > 0 ? `${count(dead)}${verdict.grown > 0 ? ` (+${count(verdict.grown)})` : ''}` : '');
    show(parts.dead, dead > 0);
    row.classList.toggle('alarming', verdict.rank === 0);
    // Between two ticks a drawing would be the same.
    if (row.drawn === to || parts.spark.offsetParent === null) return;
    row.drawn = to;
    drawSparkline(prepare(parts.spark, SPARK.width, SPARK.height), SPARK.width, SPARK.height, throttle.ring.between(from, to), (p) => p.ready, from, to);
  }
}
