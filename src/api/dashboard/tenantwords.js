// The texts of the page of tenants: windows, queues, progress of batches. Pure: the clock is always an
// argument.

import { inTime } from './poolwords.js';
import { ago, clock, count, duration, finite, unixSeconds } from './format.js';

/**
 * @typedef {{ limit: number, span_s: number, used: number, remaining: number, next_at: string | null, resets_at: string | null }} MessageWindow
 * @typedef {{ tenant: string, throttle: string, state: string, window: MessageWindow | null, per_module: { limit: number, span_s: number } | null,
 *   waiting: number, scheduled: number, oldest_waiting_s: number | null, counted_at: string | null, pending: number, pending_max: number | null,
 *   feedback?: { accepted: number, bounced: number, complained: number, unsubscribed: number } | null }} Tenant
 * @typedef {{ module: string, state: string, window: MessageWindow | null, waiting: number, oldest_waiting_s: number | null,
 *   next_at: string | null, paused: { until: string | null, why: string } | null }} TenantModule
 * @typedef {{ id: number, tenant: string, module: string, state: string, paused_by_operators: boolean, problem?: string | null, recipients: number,
 *   counts: Record<string, number>, estimate: string | null, created_at: string, updated_at: string }} Batch
 * @typedef {'calm' | 'note' | 'alarm'} Tone
 */

/** The number at which the server stops counting the pending messages of a tenant. */
const PENDING_COUNTED_MAX = 20_000;

/**
 * The states of a tenant or a module, with their words and severities.
 * @type {Record<string, { text: string, tone: Tone }>}
 */
const STATES = {
  flowing: { text: 'flowing', tone: 'calm' },
  at_limit: { text: 'at the limit', tone: 'note' },
  waiting: { text: 'messages wait', tone: 'note' },
  paused: { text: 'paused', tone: 'note' },
  queue_full: { text: 'queue full', tone: 'alarm' },
  unknown: { text: 'unknown', tone: 'alarm' },
};

/**
 * Returns how many messages of a tenant were reported as spam within a day; empty for none.
 * @param {Tenant} tenant
 */
export function complaintsText({ feedback }) {
  if (!feedback || feedback.complained === 0) return '';
  return `${count(feedback.complained)} of ${count(feedback.accepted)} reported as spam in a day`;
}

/** @param {string} state @returns {{ text: string, tone: Tone }} */
export function tenantStanding(state) {
  return STATES[state] ?? { text: state, tone: 'note' };
}

/**
 * Returns the worst severity of the tenants, for the navigation. A tenant at its limit is in order.
 * @param {Tenant[]} tenants @returns {Tone}
 */
export function worstOf(tenants) {
  const tones = tenants.filter((tenant) => tenant.state !== 'at_limit').map((tenant) => tenantStanding(tenant.state).tone);
  return tones.includes('alarm') ? 'alarm' : tones.includes('note') ? 'note' : 'calm';
}

/** @param {MessageWindow | null} window @param {string} state */
export function windowText(window, state) {
  if (window) return `${count(window.used)} of ${count(window.limit)} in ${duration(window.span_s)}`;
  return state === 'unknown' ? 'Redis does not answer' : 'no limit';
}

/** @param {MessageWindow | null} window */
export function remainingText(window) {
  return window ? `${count(window.remaining)} remaining` : '';
}

/** @param {MessageWindow | null} window */
export function windowShare(window) {
  return window && window.limit > 0 ? Math.min(1, window.used / window.limit) : 0;
}

/**
 * Describes the time of the next slot.
 * @param {string | null} at @param {MessageWindow | null} window @param {number} nowMs
 */
export function nextText(at, window, nowMs) {
  const next = unixSeconds(at);
  if (next !== null) return inTime(next * 1000, nowMs);
  return window ? 'now' : '';
}

/** @param {number} waiting @param {number | null} oldestS */
export function oldestText(waiting, oldestS) {
  return finite(oldestS) === null || waiting === 0 ? '' : `oldest ${duration(oldestS)}`;
}

/** @param {Tenant} tenant */
export function pendingText({ pending, pending_max: most }) {
  const text = pending >= PENDING_COUNTED_MAX ? `${count(pending)} or more` : count(pending);
  return most === null ? text : `${text} of ${count(most)}`;
}

/** @param {Tenant} tenant */
export function pendingShare({ pending, pending_max: most }) {
  return most ? Math.min(1, pending / most) : 0;
}

/** @param {{ until: string | null, why: string } | null} paused @param {number} now unix seconds */
export function pauseText(paused, now) {
  if (!paused) return '';
  const why = paused.why ? `: ${paused.why}` : '';
  return paused.until ? `until ${clock(unixSeconds(paused.until), now)}${why}` : why.slice(2);
}

/**
 * The states of the messages of a batch, in the order in which they are shown, with the kind of the
 * segment of the bar.
 */
const MESSAGE_STATES = [
  ['delivered', 'sent'], ['sent', 'sent'], ['failed', 'failed'], ['bounced', 'failed'], ['suppressed', 'unsent'],
  ['duplicate', 'unsent'], ['collected', 'unsent'], ['opted_out', 'unsent'], ['capped', 'unsent'], ['quiet', 'unsent'],
  ['unreachable', 'unsent'], ['cancelled', 'unsent'], ['forgotten', 'unsent'], ['queued', 'open'], ['held', 'open'], ['waiting', 'open'], ['expanding', 'open'],
];

/**
 * Returns the progress of a batch: the messages that have ended, and the segments of its bar.
 * @param {Batch} batch
 */
export function progressOf(batch) {
  const kinds = /** @type {Record<string, number>} */ ({ sent: 0, failed: 0, unsent: 0, open: 0 });
  const known = new Map(/** @type {[string, string][]} */ (MESSAGE_STATES));
  for (const [state, messages] of Object.entries(batch.counts)) kinds[known.get(state) ?? 'open'] += messages;
  const total = Math.max(1, batch.recipients);
  const ended = kinds.sent + kinds.failed + kinds.unsent;
  const segments = Object.entries(kinds).map(([kind, messages]) => ({ kind, share: messages / total }));
  return { ended, share: ended / total, segments };
}

/** Lists the messages of a batch by state. @param {Record<string, number>} counts */
export function countsText(counts) {
  const order = MESSAGE_STATES.map(([state]) => state);
  const place = (/** @type {string} */ state) => (order.includes(state) ? order.indexOf(state) : order.length);
  return Object.entries(counts).filter(([, messages]) => messages > 0).sort(([a], [b]) => place(a) - place(b))
    .map(([state, messages]) => `${count(messages)} ${state.replaceAll('_', ' ')}`).join(', ');
}

/** @param {string} state @returns {Tone} */
export function batchTone(state) {
  return state === 'paused' || state === 'cancelled' ? 'note' : 'calm';
}

/** @param {Batch} batch @param {number} nowMs */
export function estimateText(batch, nowMs) {
  const at = unixSeconds(batch.estimate);
  if (at === null || batch.state === 'paused') return '';
  return `${clock(at, nowMs / 1000)}, ${inTime(at * 1000, nowMs)}`;
}

/**
 * Returns the changes that a batch allows. A pause of operators takes the place of one of the tenant,
 * and they alone end it.
 * @param {Pick<Batch, 'state' | 'paused_by_operators'>} batch @param {boolean} mayOverrule true for a token of operators
 */
export function changesOf({ state, paused_by_operators: isOverruled }, mayOverrule) {
  const isOpen = state !== 'cancelled' && state !== 'done';
  const isPaused = state === 'paused';
  const flows = state === 'running' || state === 'expanding';
  return { pause: flows || (isPaused && mayOverrule && !isOverruled), resume: isPaused && (mayOverrule || !isOverruled), cancel: isOpen };
}

/**
 * Describes a change that failed. An error that names the batch itself is not told twice.
 * @param {number} id @param {string} message
 */
export function faultText(id, message) {
  return new RegExp(`\\bbatch ${id}\\b`, 'i').test(message) ? message.charAt(0).toUpperCase() + message.slice(1) : `Batch ${id}: ${message}`;
}

/**
 * Describes the result of a cancellation.
 * @param {number} id @param {{ sent: number, cancelled: number, too_late: number, ended: Record<string, number> }} done
 */
export function cancelledText(id, { sent, cancelled, too_late: late, ended }) {
  const rest = [`${count(sent)} were sent`, countsText(ended), late > 0 ? `${count(late)} are being sent and were asked to stop` : ''].filter(Boolean).join(', ');
  return `Cancelled batch ${id}: ${count(cancelled)} messages will not be sent, ${rest}.`;
}

/** @param {string} at @param {number} now unix seconds */
export function ageText(at, now) {
  const then = unixSeconds(at);
  return then === null ? '' : ago(now - then);
}

/** @param {string} name @param {number} limit */
export function tenantsPath(name, limit) {
  const query = new URLSearchParams({ limit: String(limit), ...(name ? { tenant: name } : {}) });
  return `/api/v1/tenants?${query}`;
}

/** @param {string} tenant @param {string} module @param {string} order @param {number} limit */
export function modulesPath(tenant, module, order, limit) {
  const query = new URLSearchParams(module ? { module } : { order, limit: String(limit) });
  return `/api/v1/tenants/${encodeURIComponent(tenant)}/modules?${query}`;
}

/** @param {Record<string, string>} filter @param {number} limit */
export function batchesPath(filter, limit) {
  const query = new URLSearchParams();
  for (const name of ['tenant', 'module', 'state']) if (filter[name]) query.set(name, filter[name]);
  query.set('limit', String(limit));
  return `/api/v1/notifications/batches?${query}`;
}
