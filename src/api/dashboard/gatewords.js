// The texts of gates: the way of a message, held and collected messages, a recipient's state. Pure: the
// clock is always an argument.

import { inTime } from './poolwords.js';
import { clock, count, unixSeconds } from './format.js';

/**
 * @typedef {{ of: string, place: string, by: string, at: string | null }} RuleSource
 * @typedef {{ gate: string, finding: string, rule: string, since?: string, until: string | null, duplicate_of?: number, digest_id?: number, set_by?: RuleSource }} Step
 * @typedef {{ id: number, state: string, category: string, gate: string, rule: string, accepted_at: string, changed_at: string, until: string | null }} PastMessage
 * @typedef {{ at: string, is_of_digest: boolean, sentence: string, gates: Step[], goes_at: string | null }} Forecast
 * @typedef {{ sentence: string, gates: Step[], first_planned_at: string | null, planned_at: string | null, forecast: Forecast | null }} Explanation
 * @typedef {{ name: string, messages: number, digests?: number, next_at: string | null }} Held
 * @typedef {{ id: number, tenant: string, type: string, channel: string, recipient: string, to: string, actor: string, opened_at: string,
 *   closes_at: string, items: number, gate: string, rule: string }} Digest
 * @typedef {{ allowed: boolean, remaining: number, resetAt: string, rule: string, cap: string, is_of_actor: boolean, reserved: number, sent_at: string[] }} Cap
 */

/** @type {Record<string, string>} */
const GATES = {
  deadline: 'deadline', suppression: 'suppression', preferences: 'preferences', dedup: 'dedup', digest: 'digest', local_time: 'local time', quiet_hours: 'quiet hours',
  caps: 'caps', pool: 'pool',
};

/** @param {string} gate */
export function gateWord(gate) {
  return GATES[gate] ?? gate.replaceAll('_', ' ');
}

/** @param {Step} step @param {number} now unix seconds */
export function stepText(step, now) {
  const [since, until] = [unixSeconds(step.since ?? null), unixSeconds(step.until)];
  const from = since === null ? '' : ` ${clock(since, now)}`;
  switch (step.finding) {
    case 'waits': return until === null ? `waits${from && ` since${from}`}` : `waits${from && ` since${from}`} until ${clock(until, now)}, ${inTime(until * 1000, now * 1000)}`;
    case 'collected': return until === null ? `collected${from}` : `collected${from}; closes ${clock(until, now)}`;
    case 'ended': {
      const room = until === null ? '' : `; room at ${clock(until, now)}`;
      return step.duplicate_of ? `ended${from}: duplicate of ${step.duplicate_of}` : from ? `ended${from}${room}` : `ended here${room}`;
    }
    case 'not_reached': return 'not reached';
    // With a time it waited there until then.
    default: return until === null ? 'passed' : `passed ${clock(until, now)}`;
  }
}

/**
 * Tells who set the rule of a gate, and when.
 * @param {Step} step @param {number} now unix seconds
 */
export function sourceText({ set_by: source }, now) {
  if (!source) return '';
  const at = unixSeconds(source.at);
  const changed = at === null ? '' : source.of === 'suppression' ? ` since ${clock(at, now)}` : `, changed ${clock(at, now)}`;
  /** @type {Record<string, string>} */
  const places = { rules: source.place, shipped: 'a rule that ships', profile: 'the profile', defaults: 'defaults of the tenant', message: 'set by the sender', suppression: 'suppressed', gone: 'the rules have changed' };
  return `${places[source.of] ?? source.of}${source.by && ` by ${source.by}`}${changed}`;
}

/**
 * Tells what a gate found for a message of a recipient.
 * @param {PastMessage} message @param {number} now unix seconds
 */
export function pastText({ gate, rule, state, until }, now) {
  if (!gate) return '';
  const at = unixSeconds(until);
  const when = at === null ? '' : state === 'queued' ? ` until ${clock(at, now)}` : state === 'capped' ? `; room at ${clock(at, now)}` : '';
  return `${gateWord(gate)}${rule && `: ${rule}`}${when}`;
}

/**
 * Returns the plan of a message as a line: the time of the first plan, and the present one if it
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
  return `Next check of the gates ${at === null || at <= now ? 'now' : clock(at, now)}: ${subject} ${forecast.sentence}.`;
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
