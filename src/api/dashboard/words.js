// Sentences about facts: edits, decisions, states. Pure.

import { serverNow } from './clock.js';
import { clock, count, number, rate, UNKNOWN, unixSeconds } from './format.js';
import { changes } from './knobs.js';

/** A time as the API writes it. */
const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;
const TIMES = new Set(['manual_until_ms']);
const RATES = new Set(['rps', 'min', 'max', 'safe_rps', 'capacity', 'key_rps', 'concurrency', 'key_concurrency']);

/**
 * Formats the value of a knob.
 * @param {string} name
 * @param {any} value
 * @returns {string}
 */
export function knobValue(name, value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (TIMES.has(name) && Number(value) > 0) return clock(Number(value) / 1000, serverNow());
  if (RATES.has(name) && typeof value === 'number') return rate(value);
  if (typeof value === 'number') return number(value);
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (Array.isArray(value)) return value.map((one) => knobValue('', one)).join(', ');
  // A filter of jobs, such as that of a change of many.
  if (typeof value === 'object') return Object.entries(value).filter(([, one]) => one !== false && one !== null && one !== '').map(([key, one]) => `${key.replaceAll('_', ' ')} ${knobValue('', one)}`).join(', ');
  return ISO.test(value) ? clock(unixSeconds(value) ?? 0, serverNow()) : String(value);
}

/** The verbs of the actions in the audit log. @type {Record<string, string>} */
const VERBS = {
  'all.pause': 'paused', 'all.resume': 'resumed', 'account.resume': 'resumed', 'cron.delete': 'deleted', 'cron.pause': 'paused', 'cron.resume': 'resumed',
  'cron.run': 'run now', 'cron.set': 'set', 'dead.discard': 'discarded dead letters', 'dead.requeue': 'requeued dead letters', 'job.cancel': 'cancelled',
  'group.cancel': 'cancelled a group', 'job.discard': 'discarded', 'job.reschedule': 'rescheduled', 'job.retry': 'retried', 'job.update': 'updated', 'jobs.cancel': 'cancelled jobs', 'key.pause': 'key paused',
  'key.resume': 'key resumed', 'kind.register': 'registered a kind', 'lane.purge': 'emptied', 'lane.weight': 'weighed', 'throttle.delete': 'deleted', 'throttle.import': 'imported',
  'throttle.pause': 'paused', 'throttle.resume': 'resumed', 'batch.cancel': 'cancelled a batch', 'batch.pause': 'paused a batch', 'batch.resume': 'resumed a batch',
  'recipient.suppress': 'suppressed', 'recipient.unsuppress': 'allowed again', 'recipient.set': 'profile set', 'recipient.delete': 'profile erased',
  'recipient.import': 'imported profiles', 'recipient.defaults': 'defaults set', 'recipient.replan': 'planned again',
};

/**
 * Returns the verb of an action; an unknown action is shown as its own name.
 * @param {string} action
 */
export function verb(action) {
  return VERBS[action] ?? String(action ?? '').replaceAll(/[._]/g, ' ');
}

/**
 * Describes an edit: `rps 120 → 5, mode auto → manual`; with its verb if it did more than edit
 * knobs.
 * @param {import('./state.js').Audit} entry
 * @returns {string}
 */
export function editText(entry) {
  // A change of nothing to nothing, such as an empty list of fields, tells nothing.
  const told = changes(entry.before, entry.after).filter(({ from, to }) => (from ?? null) !== null || knobValue('', to) !== '');
  const parts = told.map(({ name, from, to }) => {
    // A knob is recorded as its text in Redis, so its 0 is no false.
    if (name === 'paused') return ['1', 'true'].includes(String(to)) ? 'paused' : 'resumed';
    if (from === undefined || from === null) return `${name} ${knobValue(name, to)}`;
    return `${name} ${knobValue(name, from)} → ${knobValue(name, to)}`;
  });
  // The former values of a deleted object are not shown as changes.
  if (parts.length === 0 || String(entry.action).endsWith('.delete')) return verb(entry.action);
  const changed = parts.length > 6 ? `${parts.slice(0, 6).join(', ')} and ${parts.length - 6} more` : parts.join(', ');
  const said = entry.action === 'throttle.set' || changed === verb(entry.action) ? '' : `${verb(entry.action)}: `;
  return said + changed;
}

/**
 * Returns the audit line: `rps 120 → 5 by anna, 14:02:11, 'provider asked'`.
 * @param {import('./state.js').Audit} entry
 * @param {number} [now] unix seconds
 * @returns {string}
 */
export function auditLine(entry, now) {
  const why = entry.why ? `, '${entry.why}'` : '';
  return `${editText(entry)} by ${entry.actor || 'somebody'}, ${clock(entry.t, now)}${why}`;
}

/**
 * Describes the state of the breaker.
 * @param {string | null | undefined} breaker
 */
export function breakerText(breaker) {
  return breaker ? breaker.replace('half_open', 'half-open') : 'none';
}

/**
 * Returns true if the governor sets `concurrency` instead of the rate.
 * @param {any} detail
 */
export function turnsSlots(detail) {
  return detail?.governor?.actuator === 'concurrency';
}

/**
 * Returns the lowest learned quota with the signal that learned it; null if there is none.
 * @param {any} governor
 * @returns {{ signal: string, rps: number, at: string, refused_share: number } | null}
 */
export function learnedQuota(governor) {
  const found = (governor?.signals ?? []).filter((s) => s.learned_quota).map((s) => ({ signal: s.name, ...s.learned_quota }));
  return found.sort((a, b) => a.rps - b.rps)[0] ?? null;
}

/**
 * Returns the unit of a decision's knob if it is not the rate: ` slots`.
 * @param {{ terms?: any }} decision
 */
export function unitOf(decision) {
  return decision.terms?.actuator === 'concurrency' ? ' slots' : '';
}

/**
 * The states of a throttle whose jobs wait, or fail, for another reason than its rate.
 * @type {Record<string, { text: string, tone: 'note' | 'alarm' }>}
 */
const OBSTACLES = {
  refused: { text: 'refused', tone: 'alarm' },
  debt: { text: 'in debt', tone: 'alarm' },
  no_writes: { text: 'no writes', tone: 'alarm' },
  failing: { text: 'failing', tone: 'alarm' },
  held: { text: 'keys held back', tone: 'note' },
};

/** Returns true if a state needs the sentence with its reason. @param {string} state */
export function isObstacle(state) {
  return state === 'stopped' || Object.hasOwn(OBSTACLES, state);
}

/**
 * Describes the state of a throttle in one word or two, with its severity.
 * @param {{ state?: string, breaker?: string | null, paused?: boolean }} facts
 * @returns {{ text: string, tone: 'calm' | 'note' | 'alarm' }}
 */
export function standing({ state, breaker, paused }) {
  if (paused || state === 'paused') return { text: 'paused', tone: 'note' };
  if (breaker === 'open') return { text: 'breaker open', tone: 'alarm' };
  if (breaker === 'half_open') return { text: 'probing', tone: 'note' };
  if (state === 'stopped') return { text: 'stopped', tone: 'alarm' };
  if (Object.hasOwn(OBSTACLES, state ?? '')) return OBSTACLES[/** @type {string} */ (state)];
  if (state === 'safe_rps') return { text: 'safe rate', tone: 'alarm' };
  if (state === 'unlimited') return { text: 'unlimited', tone: 'note' };
  if (state === 'flowing') return { text: 'flowing', tone: 'calm' };
  return { text: 'unknown', tone: 'note' };
}

/**
 * Returns true if an edit is what {@link handSentence} is about: the pause, or else the rate.
 * @param {any} detail @param {import('./state.js').Audit} edit
 */
export function isOfSentence(detail, edit) {
  return Object.hasOwn(edit.after ?? {}, detail?.paused ? 'paused' : 'rps');
}

/** The authors of knobs that are not people. */
export const MACHINES = new Set(['pool', 'file', 'flyball']);

/**
 * Describes a throttle that is limited by the capacity of its pool of accounts, with the reason;
 * empty if it is not.
 * @param {any} detail
 * @param {string} [newer] a reason that is known better than the one that was written beside the knob
 */
export function capacitySentence(detail, newer) {
  const { capacity, rps, capacity_reason: why } = detail?.knobs ?? {};
  // Sums of limits differ in their last digits.
  if (typeof capacity !== 'number' || capacity < 0 || (typeof rps === 'number' && rps >= 0 && rps <= capacity * 1.000001)) return '';
  return `Held to its capacity of ${capacity >= 1000 ? count(capacity) : rate(capacity)}/s: ${newer || why || 'the knob capacity says so'}.`;
}

/**
 * Describes the source of the rate, for a throttle without a governor's reason. The knobs name only
 * the author of their last edit, so without an edit of the rate, or of the pause, no author is named.
 * @param {any} detail
 * @param {number} [now] unix seconds
 * @param {import('./state.js').Audit} [edit] the last one, if it is known
 */
export function handSentence(detail, now, edit) {
  const knobs = detail?.knobs;
  if (!knobs) return '';
  const slots = turnsSlots(detail);
  if (detail.state === 'unlimited' && !slots) return 'No limit is set: jobs run as fast as workers claim them.';
  // Flyball writes an author or at least a time.
  const isDirect = !knobs.by && !knobs.at_ms;
  const isTold = !edit || isOfSentence(detail, edit);
  const by = isDirect ? ' in Redis directly' : isTold && knobs.by && knobs.by !== 'governor' ? ` by ${knobs.by}` : '';
  const at = isTold && knobs.at_ms ? `, ${clock(knobs.at_ms / 1000, now)}` : '';
  const why = isTold && knobs.why ? `: ${knobs.why}` : '';
  if (detail.paused) return `Paused${by}${at}${why}. Its rate for later is ${rate(knobs.rps)} rps.`;
  const hand = isDirect || MACHINES.has(knobs.by) ? '' : ' by hand';
  const set = `Set${hand} to ${slots ? `${rate(knobs.concurrency)} slots` : `${rate(knobs.rps)} rps`}${by}${at}${why}.`;
  const still = knobs.concurrency === 0 && !slots ? 'No job starts, because its knob concurrency is 0.' : '';
  return [still, capacitySentence(detail), set].filter(Boolean).join(' ');
}
