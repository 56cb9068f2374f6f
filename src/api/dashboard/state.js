// The state of the page, and its change by each message. No DOM, no clock, no network.

import { finite, unixSeconds } from './format.js';
import { Ring } from './ring.js';

/** The points kept per throttle, one for each second: the longest window (600 s) and a margin. */
export const HISTORY_POINTS = 660;
/** The rows kept per list; the page shows fewer. */
const LIST_ROWS = 200;
/** The times of failed attempts kept per throttle. */
const FAILED_KEPT = 1_000;
/** The outcomes of an attempt that count as failed; a refusal for lack of tokens does not. */
const FAILED = new Set(['failed', 'ambiguous', 'lost', 'dead']);

/**
 * @typedef {{ value: number | null, setpoint: number | null, trip: number | null, age_s: number | null, stale: boolean }} Signal
 * @typedef {{ t: number, rps: number | null, effective: number | null, slots: number | null, achieved: number | null,
 *   share: number | null, mode: string, state: string, breaker: string | null, ready: number | null, running: number | null, dead: number | null,
 *   oldest: number | null, signals: Record<string, Signal> }} Point
 * @typedef {{ id: number, throttle: string, at: string, t: number, rps: number | null, previous_rps: number | null,
 *   breaker: string | null, mode: string | null, limiting: string | null, reason: string, terms?: Record<string, unknown> }} Decision
 * @typedef {{ job_id: number, kind: string, throttle: string, key: string, attempt: number, outcome: string,
 *   error: string | null, at: string, t: number }} Failure
 * @typedef {{ at: string, t: number, actor: string, token?: string | null, action: string, subject: string, before: any, after: any,
 *   why: string | null }} Audit
 * @typedef {{ name: string, detail: any, detailAfter: number, ring: Ring<Point>, decisions: Decision[], edits: Audit[],
 *   failed: number[] }} Throttle
 * @typedef {'connecting' | 'live' | 'lost' | 'unauthorized'} Phase
 * @typedef {{ throttles: Map<string, Throttle>, known: boolean, mayChange: boolean | null, mayEnqueue: boolean | null, isOfTenant: boolean, storeLost: boolean, storeTold: boolean, storeRefusal: string, queueUnwritable: boolean, decisions: Decision[], failures: Failure[], audit: Audit[],
 *   runningTotal: number | null, workers: number | null, depthAge: number | null, replica: { lag_s: number | null, used: boolean } | null, lastTick: number | null, phase: Phase }} State
 */

/** @returns {State} */
export function emptyState() {
  return {
    throttles: new Map(),
    known: false,
    mayChange: null,
    mayEnqueue: null,
    isOfTenant: false,
    storeLost: false,
    storeTold: false,
    storeRefusal: '',
    queueUnwritable: false,
    decisions: [],
    failures: [],
    audit: [],
    runningTotal: null,
    workers: null,
    depthAge: null,
    replica: null,
    lastTick: null,
    phase: 'connecting',
  };
}

/**
 * Applies one message and returns the affected parts of the page: `ticks`, `throttles`,
 * `decisions`, `failures`, `audit`, `phase`, and `unknown` if the details of throttles must be
 * requested.
 * @param {State} state changed in place
 * @param {{ type: string, data: any }} message
 * @returns {Set<string>}
 */
export function apply(state, { type, data }) {
  const touched = new Set();
  switch (type) {
    case 'history':
      // The only answer that tells it while the list of throttles has no Redis to read.
      takeLeave(state, data);
      for (const tick of data?.ticks ?? []) takeTick(state, tick, touched);
      break;
    case 'tick':
      takeTick(state, data, touched);
      break;
    case 'throttles':
      takeThrottles(state, data?.throttles ?? []);
      state.storeRefusal = '';
      takeLeave(state, data);
      touched.add('throttles');
      break;
    case 'leave':
      takeLeave(state, data);
      touched.add('throttles');
      break;
    case 'store':
      state.storeRefusal = data;
      touched.add('throttles');
      break;
    case 'throttle':
      takeDetail(state, data);
      touched.add('throttles');
      break;
    case 'decisions':
    case 'decision': {
      const rows = type === 'decision' ? [data] : data?.decisions ?? [];
      for (const row of rows) takeDecision(state, row);
      touched.add('decisions');
      break;
    }
    case 'failures':
    case 'failure': {
      const rows = type === 'failure' ? [data] : data?.failures ?? [];
      for (const row of rows) {
        const failure = { ...row, t: unixSeconds(row.at) ?? 0 };
        if (insert(state.failures, failure, (f) => `${f.job_id}/${f.attempt}/${f.at}`)) takeFailed(state.throttles.get(failure.throttle), failure);
      }
      touched.add('failures');
      break;
    }
    case 'audits':
    case 'audit': {
      const rows = type === 'audit' ? [data] : data?.entries ?? [];
      for (const row of rows) takeAudit(state, row);
      touched.add('audit');
      break;
    }
    case 'phase':
      if (state.phase !== data) {
        state.phase = data;
        touched.add('phase');
      }
      break;
    default:
      break;
  }
  return touched;
}

/**
 * Returns true while Redis does not answer or accepts no writes: by the last tick, or by the refusal of the
 * throttles while no tick tells. One request may wait longer for Redis than it can, which loses nothing.
 * @param {State} state
 */
export function isStoreLost({ storeLost, storeTold, storeRefusal, phase }) {
  return storeLost || (storeRefusal !== '' && !(storeTold && phase === 'live'));
}

/**
 * Returns true if this token may change things, by the last answer that told it. While the store is
 * lost there may have been none; then the server refuses what is not allowed.
 * @param {State} state
 */
export function mayChange(state) {
  return state.mayChange ?? isStoreLost(state);
}

/** Returns the same for enqueueing. @param {State} state */
export function mayEnqueue(state) {
  return state.mayEnqueue ?? isStoreLost(state);
}

/** Takes what this token may do from an answer that tells it. @param {State} state @param {any} answer */
function takeLeave(state, answer) {
  if (typeof answer?.may_change === 'boolean') state.mayChange = answer.may_change;
  if (typeof answer?.may_enqueue === 'boolean') state.mayEnqueue = answer.may_enqueue;
  if (answer?.is_of_tenant) state.isOfTenant = true;
}

/**
 * Returns the throttles in the order of the page: governed ones first, those of the API itself
 * last, then by name.
 * @param {State} state
 * @returns {Throttle[]}
 */
export function ordered(state) {
  const rank = (/** @type {Throttle} */ t) => (t.detail?.governor || latest(t)?.breaker ? 0 : isApiLimit(t) ? 2 : 1);
  return [...state.throttles.values()].sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
}

/** Returns true for a throttle of the API itself. @param {Throttle} throttle */
export function isApiLimit({ name }) {
  return name.startsWith('api:');
}

/**
 * Describes the limits of the API in a line: their number, and those that are paused or stopped.
 * @param {Throttle[]} limits
 */
export function limitsText(limits) {
  const still = limits.filter((t) => ['paused', 'stopped'].includes(facts(t).state)).map((t) => t.name);
  return `${limits.length} throttles of this API's own requests${still.length ? `; not flowing: ${still.join(', ')}` : ''}`;
}

/**
 * Returns the ready jobs of all throttles by the last tick, or null before the first one.
 * @param {State} state
 */
export function totalReady(state) {
  let total = null;
  for (const throttle of state.throttles.values()) {
    const ready = latest(throttle)?.ready ?? finite(throttle.detail?.depth?.ready);
    if (ready !== null && ready !== undefined) total = (total ?? 0) + ready;
  }
  return total;
}

/**
 * Returns the last tick of a throttle, or null if its details are newer: ticks carry the busiest
 * throttles only, so one may have none any more.
 * @param {Throttle} throttle
 * @returns {Point | null}
 */
export function latest({ detail, detailAfter, ring }) {
  const { last } = ring;
  return last && (!detail || last.t > detailAfter) ? last : null;
}

/**
 * Returns the state of a throttle now: from its last tick, or from its details if they are newer.
 * @param {Throttle} throttle
 * @returns {{ state: string, mode: string, paused: boolean, breaker: string | null, rps: number | null, effective: number | null,
 * achieved: number | null, share: number | null }}
 */
export function facts(throttle) {
  const { detail } = throttle;
  const last = latest(throttle);
  if (last) {
    return { ...last, mode: last.mode || detail?.mode || '', paused: last.state === 'paused' };
  }
  return {
    state: detail?.state ?? '',
    mode: detail?.mode ?? '',
    paused: detail?.paused === true,
    breaker: detail?.governor?.breaker ?? null,
    rps: finite(detail?.knobs?.rps),
    effective: finite(detail?.effective_rps),
    achieved: finite(detail?.achieved_rps),
    share: finite(detail?.limiting_share),
  };
}

/**
 * Returns true if an audit entry is about a throttle. The subject may be the bare name or carry a
 * prefix such as `throttle:`.
 * @param {Audit} entry
 * @param {string} name
 */
export function concerns(entry, name) {
  const subject = entry.subject ?? '';
  return subject === name || subject === `throttle:${name}` || subject === `throttle/${name}` || subject === `throttle ${name}`;
}

/**
 * @param {State} state
 * @param {string} name
 * @returns {Throttle}
 */
function throttleNamed(state, name) {
  let throttle = state.throttles.get(name);
  if (!throttle) {
    throttle = { name, detail: null, detailAfter: 0, ring: new Ring(HISTORY_POINTS), decisions: [], edits: [], failed: [] };
    throttle.decisions = state.decisions.filter((d) => d.throttle === name).reverse();
    throttle.edits = state.audit.filter((a) => concerns(a, name));
    for (const failure of [...state.failures].reverse()) if (failure.throttle === name) takeFailed(throttle, failure);
    state.throttles.set(name, throttle);
  }
  return throttle;
}

/**
 * @param {State} state
 * @param {any} tick
 * @param {Set<string>} touched
 */
function takeTick(state, tick, touched) {
  const t = finite(tick?.at);
  if (t === null) return;
  for (const [name, row] of Object.entries(tick.throttles ?? {})) {
    const isNew = !state.throttles.has(name);
    const throttle = throttleNamed(state, name);
    throttle.ring.push(point(t, row));
    if (isNew || !throttle.detail) touched.add('unknown');
  }
  if (state.lastTick === null || t >= state.lastTick) {
    state.lastTick = t;
    state.runningTotal = finite(tick.running_total);
    state.workers = finite(tick.workers);
    state.depthAge = finite(tick.depth_age_s);
    state.replica = tick.replica ?? null;
    const isLost = tick.store_lost === true;
    // The details that were kept are those from before the loss.
    if (state.storeLost && !isLost) touched.add('unknown');
    state.storeLost = isLost;
    state.storeTold = typeof tick.store_lost === 'boolean';
    state.queueUnwritable = tick.queue_unwritable === true;
  }
  touched.add('ticks');
}

/**
 * @param {number} t
 * @param {any} row
 * @returns {Point}
 */
function point(t, row) {
  /** @type {Record<string, Signal>} */
  const signals = {};
  for (const [name, s] of Object.entries(row.signals ?? {})) {
    const signal = /** @type {any} */ (s);
    signals[name] = {
      value: finite(signal.value),
      setpoint: finite(signal.setpoint),
      trip: finite(signal.trip),
      age_s: finite(signal.age_s),
      stale: signal.stale === true,
    };
  }
  return {
    t,
    rps: finite(row.rps),
    effective: finite(row.effective_rps),
    slots: finite(row.concurrency),
    achieved: finite(row.achieved_rps),
    share: finite(row.limiting_share),
    mode: row.mode ?? '',
    state: row.state ?? '',
    breaker: row.breaker ?? null,
    ready: finite(row.ready),
    running: finite(row.running),
    dead: finite(row.dead),
    oldest: finite(row.oldest_ready_s),
    signals,
  };
}

/** Keeps the time of a failed attempt, ascending. @param {Throttle | undefined} throttle @param {Failure} failure */
function takeFailed(throttle, { outcome, t }) {
  if (!throttle || !FAILED.has(outcome)) return;
  const { failed } = throttle;
  let i = failed.length;
  while (i > 0 && failed[i - 1] > t) i -= 1;
  failed.splice(i, 0, t);
  if (failed.length > FAILED_KEPT) failed.shift();
}

/** @param {State} state @param {any} row */
function takeDetail(state, row) {
  const throttle = throttleNamed(state, row.name);
  throttle.detail = row;
  throttle.detailAfter = throttle.ring.last?.t ?? 0;
}

/**
 * Applies the whole list and removes throttles that are no longer in it.
 * @param {State} state
 * @param {any[]} rows
 */
function takeThrottles(state, rows) {
  state.known = true;
  const names = new Set(rows.map((row) => row.name));
  for (const name of [...state.throttles.keys()]) if (!names.has(name)) state.throttles.delete(name);
  for (const row of rows) takeDetail(state, row);
}

/**
 * @param {State} state
 * @param {any} row
 */
function takeDecision(state, row) {
  const decision = { ...row, t: unixSeconds(row.at) ?? 0 };
  if (!insert(state.decisions, decision, (d) => String(d.id))) return;
  const own = state.throttles.get(decision.throttle)?.decisions;
  if (!own) return;
  let i = own.length;
  while (i > 0 && own[i - 1].t > decision.t) i -= 1;
  own.splice(i, 0, decision);
  if (own.length > LIST_ROWS) own.shift();
}

/**
 * @param {State} state
 * @param {any} row
 */
function takeAudit(state, row) {
  const entry = { ...row, t: unixSeconds(row.at) ?? 0 };
  const key = (/** @type {Audit} */ a) => `${a.at}/${a.actor}/${a.action}/${a.subject}/${JSON.stringify(a.after)}`;
  if (!insert(state.audit, entry, key)) return;
  for (const throttle of state.throttles.values()) {
    if (concerns(entry, throttle.name)) throttle.edits = state.audit.filter((a) => concerns(a, throttle.name));
  }
}

/**
 * Inserts a row once into a list that is newest first.
 * @template {{ t: number }} R
 * @param {R[]} list
 * @param {R} row
 * @param {(row: R) => string} key
 * @returns {boolean} false if it was there already
 */
function insert(list, row, key) {
  const id = key(row);
  let i = 0;
  while (i < list.length && list[i].t > row.t) i += 1;
  for (let j = i; j < list.length && list[j].t === row.t; j += 1) if (key(list[j]) === id) return false;
  list.splice(i, 0, row);
  if (list.length > LIST_ROWS) list.length = LIST_ROWS;
  return true;
}
