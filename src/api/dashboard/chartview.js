// The chart as an element of the page: its canvases, its legend with values, its crosshair by
// mouse, touch and keys.

import { drawChart, drawCrosshair, layout, prepare } from './chart.js';
import { h, keyed, setAttr, setText, svg } from './dom.js';
import { clock, number, rate, UNKNOWN } from './format.js';
import { signalStyle } from './palette.js';
import { measureOf, plot, ratio } from './plot.js';
import { deciderOf } from './ribbons.js';
import { breakerText } from './words.js';

/** The greatest distance of the crosshair from a tick whose values it shows, in seconds. */
const REACH_S = 2;

/** The time under the crosshair, shared by all charts so that they can be compared. */
export class Cursor {
  constructor() {
    /** @type {number | null} */
    this.t = null;
    /** @type {Set<() => void>} */
    this.listeners = new Set();
  }

  /** @param {number | null} t unix seconds */
  set(t) {
    if (this.t === t) return;
    this.t = t;
    for (const listener of this.listeners) listener();
  }
}

export class ChartView {
  /**
   * @param {string} name of the throttle
   * @param {Cursor} cursor
   */
  constructor(name, cursor) {
    this.cursor = cursor;
    /** @type {import('./state.js').Throttle | null} */
    this.throttle = null;
    /** @type {import('./plot.js').Plot | null} */
    this.data = null;
    this.from = 0;
    this.to = 1;
    this.width = 0;
    this.seen = true;
    /** @type {number | null} */
    this.pointerX = null;

    this.base = h('canvas', { 'aria-hidden': 'true' });
    this.overlay = h('canvas', { class: 'overlay', 'aria-hidden': 'true' });
    this.plane = h(
      'div',
      {
        class: 'plane',
        tabindex: '0',
        role: 'slider',
        'aria-label': `Chart of ${name}: arrow keys read its values, Escape returns to now`,
        'aria-valuemin': '0',
        'aria-valuemax': '600',
        'aria-valuenow': '0',
      },
      this.base,
      this.overlay,
    );
    this.legend = h('ul', { class: 'legend' });
    this.when = h('span', { class: 'when' });
    this.element = h('div', { class: 'chart' }, h('div', { class: 'legend-row' }, this.legend, this.when), this.plane);

    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plane);
    new IntersectionObserver(([entry]) => {
      this.seen = entry.isIntersecting;
      if (this.seen) this.draw();
    }, { rootMargin: '200px' }).observe(this.plane);
    this.onCursor = () => this.drawOverlay();
    cursor.listeners.add(this.onCursor);
  }

  remove() {
    this.cursor.listeners.delete(this.onCursor);
    this.element.remove();
  }

  /**
   * @param {import('./state.js').Throttle} throttle
   * @param {number} from unix seconds
   * @param {number} to unix seconds
   */
  update(throttle, from, to) {
    this.throttle = throttle;
    this.from = from;
    this.to = to;
    if (this.seen) this.draw();
  }

  draw() {
    if (!this.throttle) return;
    const width = Math.floor(this.plane.clientWidth);
    if (width < 40) return;
    this.width = width;
    this.data = plot(this.throttle, this.from, this.to);
    const has = {
      signals: this.data.signalNames.length > 0,
      breaker: this.data.breaker.length > 0 || Boolean(this.throttle.detail?.governor),
    };
    this.layout = layout(width, has);
    const ctx = prepare(this.base, width, this.layout.height);
    drawChart(ctx, this.layout, this.data, this.from, this.to);
    if (this.pointerX !== null) this.pointAt(this.pointerX);
    this.drawOverlay();
  }

  drawOverlay() {
    if (!this.layout || !this.data || !this.throttle) return;
    const ctx = prepare(this.overlay, this.width, this.layout.height);
    const t = this.cursor.t;
    const last = this.throttle.ring.last ?? null;
    const point = t === null ? (last && last.t >= this.from ? last : null) : this.throttle.ring.nearest(t, REACH_S);
    if (t !== null && point && point.t >= this.from) drawCrosshair(ctx, this.layout, this.data, this.from, this.to, point);
    this.read(point, t);
  }

  /**
   * Writes the values of a point to the legend and for screen readers.
   * @param {import('./state.js').Point | null} point
   * @param {number | null} t
   */
  read(point, t) {
    /** @type {{ key: string, label: string, text: string, swatch: Look | null }[]} */
    const measure = this.throttle ? measureOf(this.throttle) : null;
    const rows = [
      { key: 'knob', label: 'knob', text: point && measure ? `${rate(measure.knob(point))}${measure.unit}` : UNKNOWN, swatch: { colour: 'ink', dash: [], wide: true } },
      { key: measure?.doneName ?? 'achieved', label: measure?.doneName ?? 'achieved', text: point && measure ? rate(measure.done(point)) : UNKNOWN, swatch: { colour: 'achieved', dash: [] } },
    ];
    this.data?.signalNames.forEach((name, i) => {
      const signal = point?.signals[name];
      const multiple = point ? ratio(point, name) : null;
      const text = signal?.stale ? 'stale' : `${number(signal?.value)} (${multiple === null ? UNKNOWN : `${multiple.toFixed(2)}×`})`;
      rows.push({ key: `signal ${name}`, label: name, text, swatch: signalStyle(i) });
    });
    const decided = point && this.layout?.decider && this.throttle ? deciderOf(this.throttle.decisions)(point) : '';
    if (point?.breaker) rows.push({ key: 'breaker', label: 'breaker', text: breakerText(point.breaker), swatch: null });
    if (decided) rows.push({ key: 'decider', label: 'decider', text: decided, swatch: null });
    if (this.data?.failed.length) rows.push({ key: 'failed', label: 'failed', text: number(this.data.failed.length), swatch: { colour: 'alarm', dash: [2, 3], wide: true } });
    keyed(this.legend, rows, (row) => row.key, legendRow, (element, row) => setText(element.lastElementChild, row.text));
    const time = t === null ? 'now' : clock(t);
    setText(this.when, time);
    this.when.classList.toggle('at', t !== null);
    setAttr(this.plane, 'aria-valuenow', String(Math.round(t === null ? 0 : Math.max(0, this.to - t))));
    setAttr(this.plane, 'aria-valuetext', `${time}: ${rows.map((row) => `${row.label} ${row.text}`).join(', ')}`);
  }

  listen() {
    const plane = this.plane;
    const point = (/** @type {PointerEvent} */ event) => {
      this.pointerX = event.clientX - plane.getBoundingClientRect().left;
      this.pointAt(this.pointerX);
    };
    plane.addEventListener('pointermove', point);
    plane.addEventListener('pointerdown', point);
    plane.addEventListener('pointerleave', (/** @type {PointerEvent} */ event) => {
      this.pointerX = null;
      if (event.pointerType !== 'touch') this.cursor.set(null);
    });
    plane.addEventListener('blur', () => this.cursor.set(null));
    plane.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => this.key(event));
  }

  /** @param {number} px */
  pointAt(px) {
    if (!this.layout) return;
    const { left, right } = this.layout;
    const share = Math.min(1, Math.max(0, (px - left) / (right - left)));
    this.cursor.set(Math.round(this.from + share * (this.to - this.from)));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const last = this.throttle?.ring.last?.t;
    if (last === undefined) return;
    const now = this.cursor.t ?? last;
    const big = Math.round((this.to - this.from) / 10);
    /** @type {Record<string, number | null>} */
    const moves = {
      ArrowLeft: now - (event.shiftKey ? 10 : 1),
      ArrowDown: now - 1,
      ArrowRight: now + (event.shiftKey ? 10 : 1),
      ArrowUp: now + 1,
      PageDown: now - big,
      PageUp: now + big,
      Home: Math.ceil(this.from),
      End: last,
      Escape: null,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const to = moves[event.key];
    this.cursor.set(to === null ? null : Math.min(last, Math.max(Math.ceil(this.from), to)));
  }
}

/** @typedef {{ colour: string, dash: number[], wide?: boolean }} Look */

/** @param {{ label: string, swatch: Look | null }} row */
function legendRow({ label, swatch: look }) {
  return h('li', null, look ? swatch(look) : null, h('span', { class: 'name' }, label), h('b', { class: 'num' }, ''));
}

/**
 * Returns a short piece of a line as the chart draws it.
 * @param {Look} look
 */
export function swatch({ colour, dash, wide }) {
  const stroke = svg('line', { x1: 0, y1: 5, x2: 22, y2: 5, 'stroke-width': wide ? 2.4 : 2, 'stroke-dasharray': dash.join(' ') });
  stroke.setAttribute('class', `stroke-${colour}`);
  return svg('svg', { class: 'swatch', viewBox: '0 0 22 10', width: 22, height: 10, 'aria-hidden': 'true' }, stroke);
}
