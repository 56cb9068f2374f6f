// How a throttle stands by its state, its failures and its dead letters, and the order in which an
// operator looks at throttles. Pure.

import { facts, HISTORY_POINTS, latest } from './state.js';
import { MACHINES, standing, turnsSlots } from './words.js';

/** The states in which jobs start, so that failures are the news. */
const RUNNING = new Set(['flowing', 'unlimited', '']);
/** The failures of a minute below which a throttle does not count as failing. */
const FAILED_MIN = 3;
/** The shares of failed attempts from which most fail, and from which some do. */
const MOST = 0.5;
const SOME = 0.05;
/** The growth of dead letters within the kept minutes that is an alarm. */
const GROWTH_ALARM = 10;
/** The seconds for which jobs must have waited, but not for tokens, before a throttle does not count as flowing. */
const STILL_S = 15;
/** The share of the time for tokens below which they are not what jobs wait for. */
const TOKENS_SHARE = 0.05;

/**
 * @typedef {import('./state.js').Throttle} Throttle
 * @typedef {{ text: string, tone: 'calm' | 'note' | 'alarm', rank: number, failed: number, grown: number }} Verdict
 *   `rank` is 0 for an alarm, 1 for trouble, 2 for a quiet throttle; `failed` counts failed attempts of the last minute
 */

/** Counts the attempts that failed within the last minute, as far as they are known. @param {Throttle} throttle @param {number} now unix seconds */
export function failedAMinute({ failed }, now) {
  let n = 0;
  for (let i = failed.length - 1; i >= 0 && failed[i] > now - 60; i -= 1) n += 1;
  return n;
}

/** Returns the dead letters of a throttle, or null. @param {Throttle} throttle */
export function deadOf(throttle) {
  return latest(throttle)?.dead ?? throttle.detail?.depth?.dead ?? null;
}

/** Returns the age of the oldest ready job of a throttle in seconds, or null. @param {Throttle} throttle */
export function oldestOf(throttle) {
  const last = latest(throttle);
  return last ? last.oldest : throttle.detail?.depth?.oldest_ready_s ?? null;
}

/** Returns the growth of the dead letters within the kept minutes; 0 where they shrank. @param {Throttle} throttle @param {number} now unix seconds */
function deadGrowth(throttle, now) {
  const { ring } = throttle;
  const last = deadOf(throttle);
  if (last === null) return 0;
  // A throttle that is in no tick any more keeps its points.
  for (let i = ring.lowerBound(now - HISTORY_POINTS); i < ring.length; i += 1) {
    const { dead } = ring.at(i);
    if (dead !== null) return Math.max(0, last - dead);
  }
  return 0;
}

/**
 * Judges a throttle.
 * @param {Throttle} throttle @param {number} now unix seconds
 * @param {boolean} [isStoreLost] true while the store does not answer, so that details are old
 * @returns {Verdict}
 */
export function verdict(throttle, now, isStoreLost = false) {
  const isOld = isStoreLost && !latest(throttle);
  const current = isOld ? { ...facts(throttle), state: 'unknown', paused: false, breaker: null } : facts(throttle);
  const failed = failedAMinute(throttle, now);
  const grown = deadGrowth(throttle, now);
  const found = isMissing(throttle) ? { text: 'does not exist', tone: /** @type {const} */ ('alarm') } : failureOf(current, failed, grown);
  // A limit of slots applies even if the rate is unlimited.
  const bySlots = turnsSlots(throttle.detail) && current.state === 'unlimited';
  const stand = found ?? flowing(throttle, standing(bySlots ? { ...current, state: 'flowing' } : current), current.mode, now);
  const isTrouble = stand.tone === 'note' && (stand.text === 'unknown' ? isStoreLost : !['unlimited', JOBS_WAIT].includes(stand.text));
  return { ...stand, rank: stand.tone === 'alarm' ? 0 : isTrouble ? 1 : 2, failed, grown };
}

/** The name for a throttle with jobs that wait, though not for its tokens. */
export const JOBS_WAIT = 'jobs wait';

/**
 * Looks twice at a throttle that flows: it may be the pattern of others, its governor may see no
 * signal, and its jobs may wait.
 * @param {Throttle} throttle @param {ReturnType<typeof standing>} stand @param {string} mode @param {number} now
 */
function flowing(throttle, stand, mode, now) {
  if (throttle.name.endsWith('*') && ['flowing', 'unlimited', 'no writes'].includes(stand.text)) return { text: 'pattern', tone: /** @type {const} */ ('calm') };
  if (stand.text !== 'flowing') return stand;
  const limiting = throttle.decisions.at(-1)?.limiting ?? throttle.detail?.governor?.limiting;
  if (mode === 'auto' && limiting === 'stale') return { text: 'blind', tone: /** @type {const} */ ('note') };
  return standsStill(throttle, now) ? { text: JOBS_WAIT, tone: /** @type {const} */ ('note') } : stand;
}

/**
 * Returns true if ready jobs have waited for a while at less than half of the rate, though not for
 * tokens: workers are busy, or a limit of keys, slots or a parent holds them back.
 * @param {Throttle} throttle @param {number} now
 */
function standsStill({ ring }, now) {
  const { last } = ring;
  if (!last || now - last.t > STILL_S || (last.oldest ?? 0) < STILL_S) return false;
  let since = last.t;
  for (let i = ring.length - 1; i >= 0 && since > last.t - STILL_S; i -= 1) {
    const { t, ready, share, achieved, effective } = ring.at(i);
    if (!ready || (share ?? 1) >= TOKENS_SHARE || effective === null || effective <= 0 || (achieved ?? 0) >= effective / 2) return false;
    since = t;
  }
  return since <= last.t - STILL_S;
}

/** Returns true for a name that only jobs use. @param {Throttle} throttle */
export function isMissing({ detail }) {
  return detail !== null && detail.knobs === null;
}

/**
 * Describes the failures of a throttle whose jobs start; null if they are no news.
 * @param {ReturnType<typeof facts>} current @param {number} failed @param {number} grown
 * @returns {{ text: string, tone: 'note' | 'alarm' } | null}
 */
function failureOf({ state, paused, breaker, achieved }, failed, grown) {
  if (paused || !RUNNING.has(state) || (breaker && breaker !== 'closed')) return null;
  const share = failed < FAILED_MIN ? 0 : achieved ? failed / 60 / achieved : 1;
  if (share >= MOST) return { text: 'failing', tone: 'alarm' };
  if (grown >= GROWTH_ALARM) return { text: 'dead letters grow', tone: 'alarm' };
  if (share >= SOME) return { text: 'some fail', tone: 'note' };
  return grown > 0 ? { text: 'dead letters grow', tone: 'note' } : null;
}

/**
 * Returns true for a throttle that Flyball, a file or a pool made and that no job has used yet.
 * @param {Throttle} throttle
 */
export function isUntouched(throttle) {
  const { detail } = throttle;
  if (!MACHINES.has(detail?.knobs?.by)) return false;
  const { ready = 0, scheduled = 0, running = 0, dead = 0 } = detail.depth ?? {};
  return ready + scheduled + running + dead === 0 && !(latest(throttle)?.achieved ?? detail.achieved_rps);
}

/**
 * Returns true if there has been no job yet. A tenant may have jobs at throttles that it shares with
 * others and that its page does not list, so nobody knows that of a tenant.
 * @param {import('./state.js').State} state @param {Throttle[]} throttles all but those of the API itself
 */
export function isWithoutWork(state, throttles) {
  return state.known && !state.isOfTenant && throttles.every((throttle) => isUntouched(throttle));
}

/** Returns the ready jobs of a throttle, or null. @param {Throttle} throttle */
export function readyOf(throttle) {
  return latest(throttle)?.ready ?? throttle.detail?.depth?.ready ?? null;
}

/**
 * Sorts throttles: trouble first, then by the magnitude of the backlog, so that rows do not change
 * places with every job, then by name.
 * @template {Throttle} T
 * @param {T[]} throttles @param {number} now unix seconds @param {boolean} [isStoreLost]
 * @returns {{ throttle: T, verdict: Verdict }[]}
 */
export function byTrouble(throttles, now, isStoreLost = false) {
  const magnitude = (/** @type {T} */ one) => Math.floor(Math.log10((readyOf(one) ?? 0) + 1));
  return throttles.map((throttle) => ({ throttle, verdict: verdict(throttle, now, isStoreLost), size: magnitude(throttle) }))
    .sort((a, b) => a.verdict.rank - b.verdict.rank || b.size - a.size || (a.throttle.name < b.throttle.name ? -1 : 1));
}

/**
 * Chooses the throttles that are shown as panels: those in trouble, then those with a governor.
 * @template {{ throttle: Throttle, verdict: Verdict }} R
 * @param {R[]} judged in the order of {@link byTrouble}
 * @param {number} most
 * @returns {R[]}
 */
export function featured(judged, most) {
  const isGoverned = (/** @type {R} */ { throttle }) => Boolean(throttle.detail?.governor || latest(throttle)?.breaker);
  const calm = judged.filter((one) => one.verdict.rank === 2 && isGoverned(one)).sort((a, b) => (a.throttle.name < b.throttle.name ? -1 : 1));
  return [...judged.filter((one) => one.verdict.rank < 2), ...calm].slice(0, most);
}

/**
 * Sums up all throttles: dead jobs, failing throttles, and the throttle whose ready job is oldest.
 * @param {{ throttle: Throttle, verdict: Verdict }[]} judged
 * @returns {{ dead: number | null, failing: number, oldest: { seconds: number, throttle: string } | null }}
 */
export function sums(judged) {
  let dead = null;
  let failing = 0;
  let oldest = null;
  for (const { throttle, verdict: { text } } of judged) {
    const own = deadOf(throttle);
    if (own !== null) dead = (dead ?? 0) + own;
    if (['failing', 'some fail', 'dead letters grow'].includes(text)) failing += 1;
    const seconds = oldestOf(throttle);
    if (seconds !== null && (!oldest || seconds > oldest.seconds)) oldest = { seconds, throttle: throttle.name };
  }
  return { dead, failing, oldest };
}
