// The positions of values on the page, and the lines that get a label. Pure.

/**
 * Returns a linear map from a domain to a range of pixels.
 * @param {number} from
 * @param {number} to
 * @param {number} start
 * @param {number} end
 * @returns {(value: number) => number}
 */
export function linear(from, to, start, end) {
  const slope = (end - start) / (to - from || 1);
  return (value) => start + (value - from) * slope;
}

/**
 * Returns the domain of a logarithmic rate axis for these values: 1-2-5 bounds, at least a factor
 * of 5, at most a factor of 1000. Zero and below are outside of it; they have their own place on
 * the axis.
 * @param {Iterable<number | null>} values
 * @returns {{ low: number, high: number }}
 */
export function rateDomain(values) {
  let low = Infinity;
  let high = 0;
  for (const v of values) {
    if (v === null || !(v > 0) || !Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (high === 0) return { low: 0.5, high: 10 };
  low = Math.max(low, high / 1000);
  low = niceDown(low * 0.9);
  high = niceUp(high * 1.1);
  while (high / low < 5 - 1e-9) {
    low = niceDown(low * 0.9);
    if (high / low < 5 - 1e-9) high = niceUp(high * 1.1);
  }
  return { low, high };
}

/** The height for "0" below the logarithmic part and for "unlimited" above it, in pixels. */
export const ZERO_GUTTER_PX = 15;

/**
 * Returns the map of a logarithmic axis with a place for zero below it and for unlimited (below
 * zero) above it.
 * @param {{ low: number, high: number }} domain
 * @param {number} top
 * @param {number} bottom
 * @returns {(value: number) => number}
 */
export function rateScale(domain, top, bottom) {
  const floor = bottom - ZERO_GUTTER_PX;
  const y = linear(Math.log(domain.low), Math.log(domain.high), floor, top + ZERO_GUTTER_PX);
  return (value) => {
    if (value < 0) return top + 2;
    if (value === 0) return bottom;
    return Math.min(floor, Math.max(top + 2, y(Math.log(value))));
  };
}

/**
 * Returns the labels of a logarithmic axis: 1-2-5 steps, thinned to decades and then to fewer where
 * the space is short.
 * @param {{ low: number, high: number }} domain
 * @param {number} most
 * @returns {number[]}
 */
export function logTicks(domain, most) {
  for (const mantissas of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let exponent = Math.floor(Math.log10(domain.low)); exponent <= Math.ceil(Math.log10(domain.high)); exponent += 1) {
      for (const m of mantissas) {
        const value = Number((m * 10 ** exponent).toPrecision(1));
        if (value >= domain.low * 0.999 && value <= domain.high * 1.001) ticks.push(value);
      }
    }
    if (ticks.length <= most) return ticks;
    if (mantissas.length === 1) {
      const keep = Math.ceil(ticks.length / most);
      return ticks.filter((_, i) => i % keep === 0);
    }
  }
  return [];
}

/** The steps of a time axis in seconds, all of which fall on round clock times. */
const TIME_STEPS_S = [5, 10, 15, 30, 60, 120, 300, 600];

/**
 * Returns round clock times between two times, about `spacing_px` apart.
 * @param {number} from unix seconds
 * @param {number} to unix seconds
 * @param {number} width_px
 * @param {number} [spacing_px]
 * @returns {number[]}
 */
export function timeTicks(from, to, width_px, spacing_px = 92) {
  const wanted = ((to - from) * spacing_px) / Math.max(width_px, 1);
  const step = TIME_STEPS_S.find((s) => s >= wanted) ?? 600;
  const ticks = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) ticks.push(t);
  return ticks;
}

/**
 * Returns the top of the axis that shows signals as multiples of their setpoints. The axis is
 * linear up to a ceiling; higher values are drawn at the ceiling with a mark, so that one spike
 * does not flatten the rest.
 * @param {number} peak the largest multiple in view
 * @param {number | null} trip the lowest trip level in view, as a multiple
 * @returns {number}
 */
export function ratioTop(peak, trip) {
  const level = trip !== null && trip > 1 && trip <= 4 ? trip : 2;
  const wanted = Math.max(1.6, peak * 1.08, trip !== null && peak > 1.3 ? level * 1.12 : 0);
  return Math.min(wanted, Math.max(3, level * 1.25));
}

/** @param {number} v */
function niceDown(v) {
  const decade = 10 ** Math.floor(Math.log10(v) + 1e-12);
  const m = v / decade;
  return Number(((m >= 5 - 1e-9 ? 5 : m >= 2 - 1e-9 ? 2 : 1) * decade).toPrecision(1));
}

/** @param {number} v */
function niceUp(v) {
  const decade = 10 ** Math.floor(Math.log10(v) + 1e-12);
  const m = v / decade;
  return Number(((m <= 1 + 1e-9 ? 1 : m <= 2 + 1e-9 ? 2 : m <= 5 + 1e-9 ? 5 : 10) * decade).toPrecision(1));
}
