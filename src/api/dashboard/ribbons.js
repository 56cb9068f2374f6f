// Spans of time with one word each: the state of the breaker, and the cause of the rate. Pure.

/** The seconds without a tick after which the chart shows a gap instead of a guess. */
export const GAP_S = 3.5;

/**
 * @typedef {{ from: number, to: number, value: string }} Span
 * @typedef {import('./state.js').Point} Point
 * @typedef {import('./state.js').Decision} Decision
 */

/**
 * Joins points into spans of equal value; a gap of more than {@link GAP_S} ends a span.
 * @param {Point[]} points ascending
 * @param {(point: Point) => string} valueOf an empty text makes no span
 * @param {number} to where the last span ends
 * @returns {Span[]}
 */
export function spans(points, valueOf, to) {
  /** @type {Span[]} */
  const found = [];
  /** @type {Span | null} */
  let open = null;
  let before = -Infinity;
  for (const point of points) {
    const value = valueOf(point);
    const hole = point.t - before > GAP_S;
    if (open && (hole || value !== open.value)) {
      open.to = hole ? before + 1 : point.t;
      found.push(open);
      open = null;
    }
    if (!open && value) open = { from: point.t, to: point.t, value };
    before = point.t;
  }
  if (open) {
    open.to = to - before > GAP_S ? before + 1 : to;
    found.push(open);
  }
  return found;
}

/**
 * Returns the state of the breaker at a point: `closed`, `open`, `half_open`, or empty without a
 * governor.
 * @param {Point} point
 */
export function breakerOf(point) {
  return point.breaker ?? '';
}

/**
 * Returns a function that names the cause of the rate at a point. A person or a fallback takes
 * precedence over the governor's last decision; without either the name is empty.
 * @param {Decision[]} decisions of this throttle, ascending by time
 * @returns {(point: Point) => string}
 */
export function deciderOf(decisions) {
  let next = 0;
  /** @type {Decision | null} */
  let latest = null;
  return (point) => {
    while (next < decisions.length && decisions[next].t <= point.t + 0.5) {
      latest = decisions[next];
      next += 1;
    }
    if (point.state === 'paused') return 'paused';
    if (point.mode === 'manual' || point.mode === 'off') return point.mode;
    if (point.state === 'safe_rps') return 'safe rps';
    const signals = Object.values(point.signals);
    if (signals.length > 0 && signals.every((s) => s.stale)) return 'stale';
    const word = latest?.limiting || latest?.mode || '';
    if (point.mode === 'shadow') return word && word !== 'shadow' ? `shadow: ${word}` : 'shadow';
    if (!word) return point.breaker ? 'governor' : '';
    return word.replaceAll('_', ' ');
  };
}
