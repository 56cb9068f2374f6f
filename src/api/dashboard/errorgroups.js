// Failures and dead letters grouped by what their errors have in common, with the pattern that
// matches a group in the API. Pure.

/**
 * The parts of an error that differ from job to job: identifiers, long numbers, and spans of time
 * with decimals.
 */
const VOLATILE = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|\d+\.\d+(?=\s?m?s\b)|\d{4,}/gi;
/** The wildcards that the API allows in a pattern, and its length in bytes. */
const WILDCARDS_MAX = 5;
const PATTERN_BYTES_MAX = 500;
const SHOWN_CHARS = 240;

/** Returns the beginning of a text without half a character at its end. @param {string} text @param {number} chars */
export function beginning(text, chars) {
  return text.slice(0, chars).replace(/[\uD800-\uDBFF]$/, '');
}

/**
 * @typedef {{ throttle: string, kind: string, error: string | null, at: number, id: number }} Failed
 * @typedef {{ key: string, throttle: string, kind: string, throttles: Set<string>, text: string, pattern: string | null, jobs: number, newest: Failed }} Group
 *   `pattern` is null for jobs without an error, or with one of volatile parts only; `throttle` is the only one, or the first of `throttles`
 */

/** Returns the first line of an error without its volatile parts. @param {string | null} error */
export function shapeOf(error) {
  const shape = (error ?? '').trim().split('\n')[0].replace(VOLATILE, '…');
  return shape.length > SHOWN_CHARS ? `${beginning(shape, SHOWN_CHARS)}…` : shape;
}

/**
 * Returns the pattern for `error_like` that matches all errors of the same shape, or more if the
 * shape has many volatile parts; null without an error, and for one of volatile parts only, whose
 * pattern would match any error.
 * @param {string | null} error
 */
export function patternOf(error) {
  const shape = shapeOf(error);
  if (!shape) return null;
  const isTrimmed = (error ?? '') !== (error ?? '').trimStart();
  // Each part but the last is followed by a wildcard, and so is the end.
  const parts = `${isTrimmed ? '…' : ''}${shape}`.split(/…+/).slice(0, WILDCARDS_MAX);
  // The API counts an escaped percent sign as a wildcard too, so any character stands for the last ones.
  let free = WILDCARDS_MAX - parts.length;
  let pattern = '';
  for (const part of parts) {
    // An empty part at the end has its wildcard already.
    if (part === '' && pattern !== '') continue;
    const text = part.replace(/[\\_]/g, (c) => `\\${c}`).replaceAll('%', () => ((free -= 1) >= 0 ? '\\%' : '_'));
    if (bytes(pattern) + bytes(text) >= PATTERN_BYTES_MAX) break;
    pattern += `${text}%`;
  }
  return /^[%_]*$/.test(pattern) ? null : pattern;
}

/**
 * Returns true if a pattern of `error_like` matches an error. Each part is looked for behind the one before
 * it: an expression with several wildcards would try for minutes on an error that repeats itself.
 * @param {string} pattern @param {string | null} error
 */
export function isLike(pattern, error) {
  if (error === null) return false;
  // The parts between the wildcards; null stands for any one character.
  /** @type {(string | null)[][]} */
  const parts = [[]];
  for (const [one] of pattern.matchAll(/\\[^]|[^]/gu)) {
    if (one === '%') parts.push([]);
    else parts[parts.length - 1].push(one === '_' ? null : one.length > 1 && one[0] === '\\' ? one.slice(1) : one);
  }
  const chars = [...error];
  const fits = (/** @type {(string | null)[]} */ part, /** @type {number} */ at) => at + part.length <= chars.length && part.every((one, n) => one === null || one === chars[at + n]);
  const [first, ...others] = parts;
  if (!fits(first, 0)) return false;
  const last = others.pop();
  if (!last) return chars.length === first.length;
  let at = first.length;
  for (const part of others) {
    while (at <= chars.length && !fits(part, at)) at += 1;
    at += part.length;
  }
  const end = chars.length - last.length;
  return at <= end && fits(last, end);
}

/**
 * Returns the number of jobs of other groups that a change of a group changes as well, because its
 * pattern matches their errors.
 * @param {Group} group @param {Group[]} groups
 */
export function alsoChanged({ key, throttle, kind, pattern }, groups) {
  if (pattern === null) return 0;
  const others = groups.filter((one) => one.key !== key && one.throttle === throttle && one.kind === kind && isLike(pattern, one.newest.error));
  return others.reduce((jobs, one) => jobs + one.jobs, 0);
}

/** @param {string} text */
function bytes(text) {
  return new TextEncoder().encode(text).length;
}

/**
 * Groups failures by kind, shape of the error and throttle, the largest group first.
 * @param {Failed[]} failures @param {boolean} [isAcross] puts those of all throttles together
 * @returns {Group[]}
 */
export function groupByError(failures, isAcross = false) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  for (const failure of failures) {
    const text = shapeOf(failure.error);
    const key = JSON.stringify([isAcross ? '' : failure.throttle, failure.kind, text]);
    const group = groups.get(key);
    if (!group) {
      groups.set(key, { key, throttle: failure.throttle, kind: failure.kind, throttles: new Set([failure.throttle]), text, pattern: patternOf(failure.error), jobs: 1, newest: failure });
      continue;
    }
    group.jobs += 1;
    group.throttles.add(failure.throttle);
    if (failure.at > group.newest.at) group.newest = failure;
  }
  return [...groups.values()].sort((a, b) => b.jobs - a.jobs || b.newest.at - a.newest.at || (a.key < b.key ? -1 : 1));
}
