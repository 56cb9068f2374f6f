// Numbers, times and ages for an operator. Pure: the clock is always an argument.

/** The text for an unknown value. Never zero: "no reading" and "zero" are different facts. */
export const UNKNOWN = '–';

/**
 * Returns a finite number, or null. JSON has no NaN, so servers send null; anything else is treated
 * the same way.
 * @param {unknown} value
 * @returns {number | null}
 */
export function finite(value) {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

/**
 * Formats a number with about three significant digits and grouped thousands.
 * @param {unknown} value
 * @returns {string}
 */
export function number(value) {
  const v = finite(value);
  if (v === null) return UNKNOWN;
  const size = Math.abs(v);
  if (size >= 1e9) return v.toExponential(1).replace('e+', 'e');
  if (size >= 1e6) return `${trim(v / 1e6, 2)}M`;
  if (size >= 1e5) return `${Math.round(v / 1e3)}k`;
  if (size >= 100) return grouped(Math.round(v));
  if (size >= 10) return trim(v, 1);
  if (size >= 1) return trim(v, 2);
  if (size === 0) return '0';
  if (size >= 0.001) return String(Number(v.toPrecision(2)));
  return v.toExponential(0);
}

/**
 * Formats a rate in tokens per second: -1 is unlimited.
 * @param {unknown} value
 * @returns {string}
 */
export function rate(value) {
  const v = finite(value);
  if (v !== null && v < 0) return 'unlimited';
  return number(v);
}

/**
 * Formats a whole number with grouped thousands, shortened from a million on.
 * @param {unknown} value
 * @returns {string}
 */
export function count(value) {
  const v = finite(value);
  if (v === null) return UNKNOWN;
  return Math.abs(v) >= 1e6 ? number(v) : grouped(Math.round(v));
}

/**
 * Formats a share of one as percent.
 * @param {unknown} value
 * @returns {string}
 */
export function percent(value) {
  const v = finite(value);
  return v === null ? UNKNOWN : `${Math.round(v * 100)} %`;
}

/**
 * Formats a length of time in one unit, or two from an hour on.
 * @param {unknown} seconds
 * @returns {string}
 */
export function duration(seconds) {
  const s = finite(seconds);
  if (s === null) return UNKNOWN;
  if (s < 0.95) return `${Math.max(0, Math.round(s * 1000))} ms`;
  if (s < 9.95) return `${trim(s, 1)} s`;
  if (s < 119.5) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 86400) {
    const minutes = Math.round(s / 60);
    return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  }
  return `${trim(s / 86400, 1)} d`;
}

/**
 * Formats an age in whole units, so that the text does not flicker.
 * @param {unknown} seconds
 * @returns {string}
 */
export function ago(seconds) {
  const s = finite(seconds);
  if (s === null) return UNKNOWN;
  if (s < 1.5) return 'now';
  return s < 10 ? `${Math.round(s)} s ago` : `${duration(s)} ago`;
}

/**
 * Returns the unix seconds of an ISO time or of unix seconds; null for other values.
 * @param {unknown} at
 * @returns {number | null}
 */
export function unixSeconds(at) {
  if (typeof at === 'number') return finite(at);
  if (typeof at !== 'string') return null;
  const ms = Date.parse(at);
  return Number.isNaN(ms) ? null : ms / 1000;
}

/**
 * Formats the time of day in the viewer's zone, with the date unless it is today.
 * @param {unknown} at unix seconds or an ISO time
 * @param {number} [now] unix seconds, to leave today's date out
 * @returns {string}
 */
export function clock(at, now) {
  const t = unixSeconds(at);
  if (t === null) return UNKNOWN;
  const date = new Date(t * 1000);
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(':');
  if (now === undefined || new Date(now * 1000).toDateString() === date.toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/** @param {number} n */
function two(n) {
  return String(n).padStart(2, '0');
}

/** @param {number} n */
function grouped(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, ',');
}

/**
 * Formats a number with at most `digits` decimals, without trailing zeros.
 * @param {number} v
 * @param {number} digits
 */
function trim(v, digits) {
  return String(Number(v.toFixed(digits)));
}
