// The texts of the page of pools: states, countdowns, shares, sentences. Pure: the clock is always
// an argument.

import { ago, clock, count, duration, finite, rate, UNKNOWN, unixSeconds } from './format.js';
import { latest } from './state.js';
import { capacitySentence, handSentence, turnsSlots } from './words.js';

/**
 * @typedef {'flowing' | 'blocked' | 'open' | 'probing'} Flow
 * @typedef {{ name: string, state: Flow, until_ms: number | null, why: string, limit_rps: number, learned_rps: number | null,
 *   refused: number, failures: number, changed_at_ms: number }} Account
 * @typedef {{ name: string, provider: string, channel: string, shedding: boolean, capacity_rps: number | null,
 *   configured_rps: number | null, available: number, available_at_ms: number | null, at_ms: number, accounts: Account[] }} Pool
 */

/**
 * The states of an account, each with the letter of its cell.
 * @type {{ state: Flow, letter: string }[]}
 */
export const FLOWS = [
  { state: 'flowing', letter: 'F' },
  { state: 'blocked', letter: 'B' },
  { state: 'open', letter: 'O' },
  { state: 'probing', letter: 'P' },
];
/**
 * The filters of the grid. `learned` selects the accounts with a learned quota, whatever their
 * state.
 */
export const FILTERS = ['all', ...FLOWS.map((flow) => flow.state), 'learned'];
/**
 * The most accounts that are shown as tiles with their names; more are shown as cells with a
 * letter.
 */
const TILES_MAX = 32;
/**
 * The number of answers whose clock offset is kept: the quickest of them gives the best estimate of
 * the server's clock.
 */
const CLOCKS = 10;

/** @param {string} state */
export function letterOf(state) {
  return FLOWS.find((flow) => flow.state === state)?.letter ?? '?';
}

/**
 * Returns the server's clock minus ours in milliseconds, from the times in its answers. An answer
 * is always late, so the greatest difference is the nearest.
 * @param {number[]} offsets changed in place: the newest last
 * @param {number} atMs the server's clock in an answer
 * @param {number} hereMs ours when it came
 */
export function clockOffset(offsets, atMs, hereMs) {
  offsets.push(atMs - hereMs);
  if (offsets.length > CLOCKS) offsets.shift();
  return Math.max(...offsets);
}

/**
 * Formats the time until `untilMs` in whole seconds, so that the text does not flicker; never
 * negative.
 * @param {number | null | undefined} untilMs
 * @param {number} nowMs
 */
export function countdown(untilMs, nowMs) {
  const until = finite(untilMs);
  if (until === null) return '';
  const seconds = Math.ceil((until - nowMs) / 1000);
  if (seconds <= 0) return 'any moment';
  return seconds < 120 ? `${seconds} s` : duration(seconds);
}

/** @param {number | null | undefined} untilMs @param {number} nowMs */
export function inTime(untilMs, nowMs) {
  const left = countdown(untilMs, nowMs);
  return left === '' || left === 'any moment' ? left : `in ${left}`;
}

/**
 * Formats a rate of messages with grouped thousands: 450,000, 42.5.
 * @param {unknown} value
 */
export function messages(value) {
  const v = finite(value);
  return v !== null && v >= 1000 ? count(v) : rate(v);
}

/**
 * Counts the accounts that each filter selects.
 * @param {Account[]} accounts
 * @returns {Record<string, number>}
 */
export function counts(accounts) {
  return Object.fromEntries(FILTERS.map((filter) => [filter, accounts.filter((account) => fits(account, filter)).length]));
}

/** @param {Account} account @param {string} filter */
export function fits(account, filter) {
  if (filter === 'all') return true;
  return filter === 'learned' ? finite(account.learned_rps) !== null : account.state === filter;
}

/** @param {number} accounts */
export function density(accounts) {
  return accounts <= TILES_MAX ? 'tiles' : 'cells';
}

/**
 * Returns the capacity of the pool as a number, a remark and a share. Pools without a limit are
 * measured in accounts.
 * @param {Pool} pool
 * @returns {{ now: string, unit: string, of: string, share: number }}
 */
export function capacity(pool) {
  const all = pool.accounts.length;
  if (!pool.at_ms) return { now: UNKNOWN, unit: '', of: 'its accounts have not been checked yet', share: 0 };
  const configured = finite(pool.configured_rps);
  if (configured === null || configured <= 0) {
    const share = all ? pool.available / all : 0;
    return { now: count(pool.available), unit: '', of: `of ${count(all)} ${all === 1 ? 'account' : 'accounts'}, without a rate limit`, share };
  }
  const now = pool.available === 0 ? 0 : finite(pool.capacity_rps) ?? configured;
  const share = Math.min(1, Math.max(0, now / configured));
  return { now: messages(now), unit: '/s', of: `of ${messages(configured)}/s configured`, share };
}

/**
 * Formats a share as percent; 100 % and 0 % appear only for exactly all and nothing.
 * @param {number} share
 */
export function wholePercent(share) {
  if (share > 0 && share < 0.01) return 'under 1 %';
  if (share < 1 && share >= 0.99) return '99 %';
  return `${Math.round(share * 100)} %`;
}

/**
 * Describes the state of a pool in a few words, with its severity.
 * @param {Pool} pool
 * @param {number} nowMs
 * @returns {{ text: string, tone: 'calm' | 'note' | 'alarm' }}
 */
export function poolStanding(pool, nowMs) {
  const all = pool.accounts.length;
  if (!pool.at_ms) return { text: 'not checked yet', tone: 'note' };
  if (pool.available === 0) {
    const back = inTime(pool.available_at_ms, nowMs);
    return { text: back ? `none available, back ${back}` : 'none available', tone: 'alarm' };
  }
  if (pool.available < all) return { text: `${count(all - pool.available)} of ${count(all)} unavailable`, tone: 'note' };
  return { text: 'all available', tone: 'calm' };
}

/**
 * Returns the worst severity of all pools, for the navigation.
 * @param {Pool[]} pools
 */
export function worst(pools) {
  const tones = pools.map((pool) => poolStanding(pool, 0).tone);
  return tones.includes('alarm') ? 'alarm' : tones.includes('note') ? 'note' : 'calm';
}

/** Describes the limit of an account and its learned quota. @param {Account} account */
export function quotaText(account) {
  const limit = finite(account.limit_rps);
  const learned = finite(account.learned_rps);
  if (learned !== null) return limit === null || limit < 0 ? `learned ${messages(learned)}/s` : `learned ${messages(learned)}/s of ${messages(limit)}/s`;
  return limit === null || limit < 0 ? 'no limit' : `${messages(limit)}/s`;
}

/**
 * Describes the state of an account with its time, for a tile: `blocked, 12 s`.
 * @param {Account} account @param {number} nowMs
 */
export function stateText(account, nowMs) {
  const left = countdown(account.until_ms, nowMs);
  return left ? `${account.state}, ${left}` : account.state;
}

/**
 * Returns the label of a cell for screen readers. It names the time of the end, which does not
 * change each second.
 * @param {Account} account @param {number} nowMs
 */
export function accountLabel(account, nowMs) {
  const until = finite(account.until_ms);
  const parts = [account.name, until === null ? account.state : `${account.state} until ${clock(until / 1000, nowMs / 1000)}`];
  if (finite(account.learned_rps) !== null) parts.push(quotaText(account));
  return parts.join(', ');
}

/** Returns true if the account can be resumed. @param {Account} account */
export function isResumable({ state }) {
  return state === 'blocked' || state === 'open';
}

/**
 * Returns the facts of an account, in the order in which they are shown.
 * @param {Account} account @param {number} nowMs
 * @returns {{ label: string, text: string }[]}
 */
export function accountFacts(account, nowMs) {
  const until = finite(account.until_ms);
  const limit = finite(account.limit_rps);
  const learned = finite(account.learned_rps);
  return [
    { label: 'until', text: until === null ? '' : clock(until / 1000, nowMs / 1000) },
    { label: 'why', text: account.why ?? '' },
    { label: 'limit', text: limit === null || limit < 0 ? 'none' : `${messages(limit)}/s` },
    { label: 'learned', text: learned === null ? 'nothing' : `${messages(learned)}/s` },
    { label: 'refusals', text: count(account.refused ?? 0) },
    { label: 'failures', text: count(account.failures ?? 0) },
    { label: 'breaker changed', text: account.changed_at_ms > 0 ? `${clock(account.changed_at_ms / 1000, nowMs / 1000)}, ${ago((nowMs - account.changed_at_ms) / 1000)}` : 'never' },
  ].filter((fact) => fact.text !== '');
}

/**
 * Returns the knob of a pool's throttle and the reason in force.
 * @param {import('./state.js').Throttle | undefined} throttle
 * @param {number} now unix seconds
 * @param {Pool} [pool] as it was last looked at
 * @returns {{ knob: string, unit: string, reason: string } | null} null while the throttle is not known
 */
export function throttleFacts(throttle, now, pool) {
  const detail = throttle?.detail;
  if (!throttle || !detail) return null;
  const last = latest(throttle);
  const slots = turnsSlots(detail) || (finite(detail.knobs?.rps) ?? 0) < 0 ? finite(detail.knobs?.concurrency) : null;
  const effective = last ? last.effective : finite(detail.effective_rps);
  const isSlots = slots !== null && slots >= 0 && effective !== 0;
  const decision = throttle.decisions.at(-1);
  const governed = detail.governor && detail.mode !== 'manual' && detail.mode !== 'off';
  const said = governed ? decision?.reason ?? detail.governor.reason ?? '' : handSentence(detail, now);
  const isOurs = !governed && detail.knobs?.by === 'pool';
  const free = isOurs ? 'Nothing limits it: the knob equals the limit in the settings of the pool.' : said;
  const reason = detail.paused ? 'Paused manually.' : capacitySentence(detail, pool?.at_ms && pool.available > 0 ? availableText(pool) : undefined) || free;
  return { knob: messages(isSlots ? slots : effective), unit: isSlots ? ' slots' : effective !== null && effective >= 0 ? '/s' : '', reason };
}

/** @param {{ from: string, to: string }} event */
export function eventText({ from, to }) {
  const word = (/** @type {string} */ state) => String(state).replaceAll('_', '-');
  return `${word(from)} → ${word(to)}`;
}

/**
 * Returns the reason for a change. A breaker that closed by itself carries the reason for its
 * opening, which does not explain the closing.
 * @param {{ account: string, to: string, reason?: string | null }} event
 * @param {{ account: string, to: string, reason?: string | null }[]} events newest first
 */
export function eventReason(event, events) {
  const reason = event.reason ?? '';
  if (event.to !== 'closed') return reason;
  const opened = events.slice(events.indexOf(event) + 1).find((e) => e.account === event.account && e.to === 'open');
  return opened?.reason === reason ? '' : reason;
}

/** Describes the availability of a pool's accounts at the last reading. @param {Pool} pool */
export function availableText(pool) {
  const found = counts(pool.accounts);
  const away = [found.blocked && `${count(found.blocked)} blocked`, found.open && `${count(found.open)} with an open breaker`].filter(Boolean).join(', ');
  return `${count(pool.available)} of ${count(pool.accounts.length)} accounts are available${away ? `: ${away}` : ''}`;
}

/**
 * Returns the time of the newest change of a pool's breakers: while it is the same, so are the
 * events.
 * @param {Pool} pool
 */
export function lastChange(pool) {
  return pool.accounts.reduce((newest, account) => Math.max(newest, account.changed_at_ms ?? 0), 0);
}

/**
 * Returns the severity of a message's state.
 * @param {string} state @returns {'calm' | 'note' | 'alarm'}
 */
export function deliveryTone(state) {
  if (state === 'sent' || state === 'delivered') return 'calm';
  return state === 'failed' || state === 'bounced' ? 'alarm' : 'note';
}

/**
 * Returns the state of a message in words.
 * @param {{ state: string, complained?: boolean }} message
 */
export function deliveryText({ state, complained }) {
  return `${state.replaceAll('_', ' ')}${complained ? ', complained' : ''}`;
}

/**
 * Returns the reason for the state of a message. A message that its account captured is delivered, and
 * nobody got it.
 * @param {{ reason?: string, attempts?: { status: string }[] }} message
 */
export function reasonText({ reason, attempts }) {
  return reason || (attempts?.at(-1)?.status === 'captured' ? 'captured by its account, which has capture = true: nobody got it' : '');
}

/**
 * Describes a cancelled message.
 * @param {{ id: number, state: string }} done
 */
export function messageCancelledText({ id, state }) {
  return state === 'cancelled' ? `Message ${id} will not be sent.` : `Message ${id} is being sent, and was asked to stop; its state tells what became of it.`;
}

/**
 * Returns the path of the newest messages that match a filter.
 * @param {Record<string, string>} filter
 * @param {number} limit
 */
export function notificationsPath(filter, limit) {
  const query = new URLSearchParams();
  for (const name of ['state', 'channel', 'pool', 'account', 'tenant']) if (filter[name]) query.set(name, filter[name]);
  query.set('limit', String(limit));
  return `/api/v1/notifications?${query}`;
}

/**
 * Describes the result and the duration of an attempt: `accepted, 201, 84 ms`.
 * @param {{ outcome: string, status: string, ms: number }} attempt
 */
export function attemptText({ outcome, status, ms }) {
  return [String(outcome).replaceAll('_', ' '), status, finite(ms) === null ? '' : duration(ms / 1000)].filter(Boolean).join(', ');
}

/**
 * Formats the age of a message, or of its last event if that is later; the time beside it is that of its
 * creation.
 * @param {any} message @param {number} now unix seconds
 */
export function heardText(message, now) {
  const made = unixSeconds(message.created_at);
  const at = unixSeconds(message.updated_at) ?? made;
  if (at === null) return '';
  return made !== null && at - made >= 1 ? `changed ${ago(now - at)}` : ago(now - at);
}
