// The texts of gates: the way of a message, held and collected messages, a recipient's state. Pure: the
// clock is always an argument.

import { inTime } from './poolwords.js';
import { clock, count, unixSeconds } from './format.js';

/**
 * @typedef {{ gate: string, finding: string, rule: string, since?: string, until: string | null, duplicate_of?: number, digest_id?: number }} Step
 * @typedef {{ at: string, is_of_digest: boolean, sentence: string, gates: Step[], goes_at: string | null }} Forecast
 * @typedef {{ sentence: string, gates: Step[], first_planned_at: string | null, planned_at: string | null, forecast: Forecast | null }} Explanation
 * @typedef {{ name: string, messages: number, digests?: number, next_at: string | null }} Held
 * @typedef {{ id: number, tenant: string, type: string, channel: string, recipient: string, to: string, actor: string, opened_at: string,
 *   closes_at: string, items: number, gate: string, rule: string }} Digest
 * @typedef {{ allowed: boolean, remaining: number, resetAt: string, rule: string, cap: string, is_of_actor: boolean, reserved: number, sent_at: string[] }} Cap
 */

/** @type {Record<string, string>} */
const GATES = {
  deadline: 'deadline', suppression: 'suppression', preferences: 'preferences', dedup: 'dedup', digest: 'digest', quiet_hours: 'quiet hours', caps: 'caps', pool: 'pool',
};

/** @param {string} gate */
export function gateWord(gate) {
  return GATES[gate] ?? gate.replaceAll('_', ' ');
}

/** @param {Step} step @param {number} now unix seconds */
export function stepText(step, now) {
  const until = unixSeconds(step.until);
  switch (step.finding) {
    case 'waits': return until === null ? 'waits' : `waits until ${clock(until, now)}, ${inTime(until * 1000, now * 1000)}`;
    case 'collected': return until === null ? 'collected' : `collected; closes ${clock(until, now)}`;
    case 'ended': return step.duplicate_of ? `ended: duplicate of ${step.duplicate_of}` : 'ended here';
    case 'not_reached': return 'not reached';
    default: return 'passed';
  }
}

/**
 * Returns the plan of a message as a line: the time that was told first, and the present one if it
 * differs.
 * @param {Explanation} explained @param {number} now unix seconds
 */
export function plannedText({ first_planned_at: first, planned_at: present }, now) {
  const [told, goes] = [unixSeconds(first), unixSeconds(present)];
  if (goes === null) return told === null ? '' : `First planned for ${clock(told, now)}.`;
  const text = `Planned for ${clock(goes, now)}, ${inTime(goes * 1000, now * 1000)}`;
  return told === null || Math.abs(told - goes) < 1 ? `${text}.` : `${text}; first planned for ${clock(told, now)}.`;
}

/** @param {Forecast | null} forecast @param {number} now unix seconds */
export function forecastText(forecast, now) {
  if (!forecast) return '';
  const at = unixSeconds(forecast.at);
  const subject = forecast.is_of_digest ? 'its digest' : 'it';
  return `Next look of the gates ${at === null || at <= now ? 'now' : clock(at, now)}: ${subject} ${forecast.sentence}.`;
}

/** @param {Held} held @param {number} now unix seconds */
export function heldText({ digests, next_at: next }, now) {
  const at = unixSeconds(next);
  const when = at === null ? '' : at <= now ? 'due now' : `${clock(at, now)}, ${inTime(at * 1000, now * 1000)}`;
  return [digests === undefined ? '' : digests === 1 ? '1 digest' : `${count(digests)} digests`, when && `next ${when}`].filter(Boolean).join(', ');
}

/** @param {Digest} digest */
export function whoText({ recipient, to, actor }) {
  return [recipient || to || 'a recipient', actor && `by ${actor}`].filter(Boolean).join(', ');
}

/** @param {Cap} cap @param {number} now unix seconds */
export function capText(cap, now) {
  const at = unixSeconds(cap.resetAt);
  if (cap.allowed) return `${count(cap.remaining)} left`;
  return at === null ? 'none left' : `none left until ${clock(at, now)}, ${inTime(at * 1000, now * 1000)}`;
}

/** Returns the most messages of a cap. @param {Cap} cap */
export function mostOf(cap) {
  return Number.parseInt(cap.cap, 10) || 0;
}

/** @param {string} tenant @param {number} limit */
export function digestsPath(tenant, limit) {
  const query = new URLSearchParams({ limit: String(limit) });
  if (tenant) query.set('tenant', tenant);
  return `/api/v1/digests?${query}`;
}

/** @param {Record<string, string>} filter */
export function checkPath(filter) {
  const given = Object.entries(filter).filter(([, value]) => value);
  return `/api/v1/recipients/check?${new URLSearchParams(given)}`;
}
