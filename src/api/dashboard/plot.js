// The data of a throttle's chart: the points in view, the height of the axes, the overload. Pure.

import { ratioTop, rateDomain } from './scale.js';
import { breakerOf, deciderOf, spans } from './ribbons.js';
import { turnsSlots } from './words.js';

/** The multiple of the setpoint from which a signal counts as overload. */
export const OVERLOAD = 1.2;

/**
 * @typedef {import('./state.js').Point} Point
 * @typedef {import('./state.js').Throttle} Throttle
 * @typedef {{ knob: (p: Point) => number | null, done: (p: Point) => number | null, doneName: string, title: string, unit: string }} Measure
 * @typedef {{ points: Point[], measure: Measure, domain: { low: number, high: number }, signalNames: string[], top: number,
 *   trips: number[], breaker: import('./ribbons.js').Span[], decider: import('./ribbons.js').Span[], failed: number[],
 *   edits: { t: number, actor: string }[] }} Plot
 */

/**
 * Returns a signal as a multiple of its setpoint; null if either is unknown or the reading is
 * stale.
 * @param {Point} point
 * @param {string} name
 * @returns {number | null}
 */
export function ratio(point, name) {
  const signal = point.signals[name];
  if (!signal || signal.stale || signal.value === null || signal.setpoint === null || signal.setpoint <= 0) return null;
  return signal.value / signal.setpoint;
}

/** @type {Measure} */
const RATE = { knob: (p) => p.effective, done: (p) => p.achieved, doneName: 'achieved', title: 'rate, tokens per second (log)', unit: '' };
/**
 * The measure of a throttle whose governor sets slots. A stopped or paused throttle grants nothing,
 * however many slots it has.
 * @type {Measure}
 */
const SLOTS = { knob: (p) => (p.effective === 0 ? 0 : p.slots), done: (p) => p.running, doneName: 'running', title: 'slots, jobs at once (log)', unit: ' slots' };

/**
 * Returns the measure of the upper band of a throttle's chart: its rate, or its slots if the
 * governor sets them.
 * @param {Throttle} throttle
 */
export function measureOf(throttle) {
  return turnsSlots(throttle.detail) ? SLOTS : RATE;
}

/**
 * Collects the data for a chart of the time from `from` to `to`.
 * @param {Throttle} throttle
 * @param {number} from unix seconds
 * @param {number} to unix seconds
 * @returns {Plot}
 */
export function plot(throttle, from, to) {
  const points = throttle.ring.between(from, to);
  const measure = measureOf(throttle);
  const rates = [];
  const names = new Set();
  let peak = 0;
  for (const p of points) {
    rates.push(measure.knob(p), measure.done(p));
    for (const [name, signal] of Object.entries(p.signals)) {
      names.add(name);
      peak = Math.max(peak, ratio(p, name) ?? 0);
    }
  }
  const sortedTrips = tripsOf(points.at(-1));
  return {
    points,
    measure,
    domain: rateDomain(rates),
    signalNames: [...names].sort(),
    top: ratioTop(peak, sortedTrips[0] ?? null),
    trips: sortedTrips,
    breaker: spans(points, breakerOf, to),
    decider: spans(points, deciderOf(throttle.decisions), to),
    failed: throttle.failed.filter((t) => t >= from && t <= to),
    edits: throttle.edits.filter((e) => e.t >= from && e.t <= to && e.actor !== 'governor').map((e) => ({ t: e.t, actor: e.actor })),
  };
}

/**
 * Returns the levels that would trip the breaker now, as multiples of the setpoints; past levels
 * would only clutter the chart.
 * @param {Point | undefined} point the newest in view
 */
function tripsOf(point) {
  const levels = Object.values(point?.signals ?? {}).filter((s) => s.trip !== null && s.setpoint).map((s) => Number((Number(s.trip) / Number(s.setpoint)).toFixed(3)));
  return [...new Set(levels)].sort((a, b) => a - b);
}

/**
 * Moves labels apart so that none overlap, keeping their order and staying inside.
 * @param {number[]} wanted positions of the middle of each label, in any order
 * @param {number} height of a label
 * @param {number} top
 * @param {number} bottom
 * @returns {number[]} positions in the order given
 */
export function spread(wanted, height, top, bottom) {
  const order = wanted.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y);
  let floor = top + height / 2;
  for (const label of order) {
    label.y = Math.max(label.y, floor);
    floor = label.y + height;
  }
  let ceiling = bottom - height / 2;
  for (const label of order.reverse()) {
    label.y = Math.min(label.y, ceiling);
    ceiling = label.y - height;
  }
  const placed = new Array(wanted.length);
  for (const { y, i } of order) placed[i] = y;
  return placed;
}
