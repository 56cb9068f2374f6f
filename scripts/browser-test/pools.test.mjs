// The texts of the pools page, and the wording of slots: `node --test
// scripts/browser-test/pools.test.mjs`.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import * as pools from '../../src/api/dashboard/poolwords.js';
import { FIELDS, wording } from '../../src/api/dashboard/knobs.js';
import { measureOf } from '../../src/api/dashboard/plot.js';
import { apply, emptyState } from '../../src/api/dashboard/state.js';
import { capacitySentence, handSentence } from '../../src/api/dashboard/words.js';

const NOW_MS = 1_700_000_000_000;
const account = (more = {}) => ({ name: 'one', state: 'flowing', until_ms: null, why: '', limit_rps: 100, learned_rps: null, refused: 0, failures: 0, changed_at_ms: 0, ...more });
const pool = (more = {}) => ({ name: 'sms', provider: 'twilio', channel: 'sms', shedding: true, capacity_rps: 200, configured_rps: 200, available: 2, available_at_ms: null, at_ms: NOW_MS, accounts: [account(), account({ name: 'two' })], ...more });

test('a_countdown_goes_in_whole_seconds_and_never_below_nothing', () => {
  const left = (ms) => pools.countdown(NOW_MS + ms, NOW_MS);
  assert.deepEqual([12_000, 11_001, 1, 0, -5_000, 119_000, 600_000].map(left), ['12 s', '12 s', '1 s', 'any moment', 'any moment', '119 s', '10 min']);
  assert.equal(pools.countdown(null, NOW_MS), '');
  assert.equal(pools.inTime(NOW_MS + 3_000, NOW_MS), 'in 3 s');
  assert.equal(pools.inTime(NOW_MS - 1, NOW_MS), 'any moment');
});

test('the_age_beside_the_time_of_a_message_is_its_own_or_says_what_it_is_of', () => {
  const at = (s) => new Date(NOW_MS + s * 1000).toISOString();
  const heard = (made, changed) => pools.heardText({ created_at: made, updated_at: changed }, NOW_MS / 1000);
  assert.equal(heard(at(-720), at(-720)), '12 min ago');
  assert.equal(heard(at(-720), null), '12 min ago');
  assert.equal(heard(at(-720), at(-180)), 'changed 3 min ago');
});

test('the_servers_clock_is_that_of_the_quickest_of_the_last_answers', () => {
  const offsets = [];
  assert.equal(pools.clockOffset(offsets, 1_000, 1_900), -900);
  assert.equal(pools.clockOffset(offsets, 2_000, 2_100), -100);
  assert.equal(pools.clockOffset(offsets, 3_000, 3_700), -100);
  for (let i = 0; i < 10; i += 1) pools.clockOffset(offsets, 5_000, 5_500);
  assert.equal(pools.clockOffset(offsets, 5_000, 5_500), -500, 'a clock that was set back is followed');
});

test('capacity_is_told_in_messages_or_in_accounts_and_zero_when_nobody_is_there', () => {
  assert.deepEqual(pools.capacity(pool({ capacity_rps: 450_000, configured_rps: 500_000 })), { now: '450,000', unit: '/s', of: 'of 500,000/s configured', share: 0.9 });
  assert.deepEqual(pools.capacity(pool({ capacity_rps: null, configured_rps: null, available: 1 })), { now: '1', unit: '', of: 'of 2 accounts, without a rate limit', share: 0.5 });
  assert.equal(pools.capacity(pool({ available: 0, capacity_rps: null })).now, '0');
  assert.equal(pools.capacity(pool({ capacity_rps: 300 })).share, 1);
  assert.equal(pools.capacity(pool({ at_ms: 0, accounts: [], available: 0 })).now, '–');
  assert.deepEqual([0, 0.001, 0.5, 0.999, 1].map(pools.wholePercent), ['0 %', 'under 1 %', '50 %', '99 %', '100 %']);
});

test('a_pool_stands_as_its_accounts_do', () => {
  assert.deepEqual(pools.poolStanding(pool(), NOW_MS), { text: 'all available', tone: 'calm' });
  assert.deepEqual(pools.poolStanding(pool({ available: 1 }), NOW_MS), { text: '1 of 2 unavailable', tone: 'note' });
  assert.deepEqual(pools.poolStanding(pool({ available: 0, available_at_ms: NOW_MS + 12_000 }), NOW_MS), { text: 'none available, back in 12 s', tone: 'alarm' });
  assert.deepEqual(pools.poolStanding(pool({ available: 0 }), NOW_MS), { text: 'none available', tone: 'alarm' });
  assert.deepEqual(pools.poolStanding(pool({ at_ms: 0, available: 0, accounts: [] }), NOW_MS), { text: 'not checked yet', tone: 'note' });
  assert.equal(pools.worst([pool(), pool({ available: 0 }), pool({ available: 1 })]), 'alarm');
  assert.equal(pools.worst([]), 'calm');
});

test('accounts_are_counted_by_state_and_a_learned_one_has_a_state_too', () => {
  const accounts = [account(), account({ learned_rps: 42 }), account({ state: 'blocked', learned_rps: 3 }), account({ state: 'open' }), account({ state: 'probing' })];
  assert.deepEqual(pools.counts(accounts), { all: 5, flowing: 2, blocked: 1, open: 1, probing: 1, learned: 2 });
  assert.deepEqual(new Set(pools.FLOWS.map((flow) => flow.letter)).size, 4);
  assert.deepEqual(accounts.map(pools.isResumable), [false, false, true, true, false]);
});

test('an_account_is_told_with_quota_state_and_facts', () => {
  assert.equal(pools.quotaText(account({ learned_rps: 42 })), 'learned 42/s of 100/s');
  assert.equal(pools.quotaText(account({ limit_rps: -1 })), 'no limit');
  assert.equal(pools.quotaText(account({ limit_rps: -1, learned_rps: 42 })), 'learned 42/s');
  assert.equal(pools.stateText(account({ state: 'blocked', until_ms: NOW_MS + 9_500 }), NOW_MS), 'blocked, 10 s');
  const blocked = account({ state: 'blocked', until_ms: NOW_MS + 9_500, why: '429: slow down', refused: 3 });
  assert.match(pools.accountLabel(blocked, NOW_MS), /^one, blocked until \d\d:\d\d:\d\d$/);
  const facts = Object.fromEntries(pools.accountFacts(blocked, NOW_MS).map((fact) => [fact.label, fact.text]));
  assert.match(facts.until, /^\d\d:\d\d:\d\d$/);
  assert.deepEqual([facts.why, facts.limit, facts.learned, facts.refusals, facts['breaker changed']], ['429: slow down', '100/s', 'nothing', '3', 'never']);
  assert.equal('why' in Object.fromEntries(pools.accountFacts(account(), NOW_MS).map((fact) => [fact.label, 1])), false);
});

test('the_reason_in_force_is_the_capacity_where_that_is_below_the_knob', () => {
  const detail = (knobs, more = {}) => ({ name: 'sms', mode: 'manual', paused: false, state: 'flowing', effective_rps: 165, knobs: { rps: 235, capacity: 165, capacity_reason: '9 of 12 accounts are available', concurrency: -1, by: 'pool', ...knobs }, governor: null, ...more });
  const facts = (d) => {
    const state = emptyState();
    apply(state, { type: 'throttle', data: d });
    return pools.throttleFacts(state.throttles.get('sms'), NOW_MS / 1000);
  };
  assert.deepEqual(facts(detail({})), { knob: '165', unit: '/s', reason: 'Held to its capacity of 165/s: 9 of 12 accounts are available.' });
  assert.match(facts(detail({ capacity: 234.99999999999997 })).reason, /^Nothing limits it/);
  assert.match(facts(detail({ capacity: -1, by: 'anna', why: 'night' })).reason, /^Set by hand to 235 rps by anna.*night/);
  assert.equal(facts(detail({}, { paused: true })).reason, 'Paused manually.');
  assert.deepEqual([facts(detail({ rps: -1, capacity: -1, concurrency: 100 }, { effective_rps: -1 })).knob, facts(detail({ rps: -1, capacity: -1, concurrency: 100 }, { effective_rps: -1 })).unit], ['100', ' slots']);
  assert.equal(pools.throttleFacts(undefined, 0), null);
  assert.equal(capacitySentence({ knobs: { rps: 5, capacity: 7 } }), '');
  assert.match(handSentence(detail({})), /^Held to its capacity of 165\/s: .* Set to 235 rps by pool\.$/);
});

test('messages_are_asked_for_by_what_was_chosen_only', () => {
  assert.equal(pools.notificationsPath({ state: '', channel: 'sms', pool: 'a/b', account: '' }, 50), '/api/v1/notifications?channel=sms&pool=a%2Fb&limit=50');
  assert.equal(pools.deliveryText({ state: 'opted_out' }), 'opted out');
  assert.equal(pools.deliveryText({ state: 'delivered', complained: true }), 'delivered, complained');
  assert.match(pools.reasonText({ reason: '', attempts: [{ status: '429' }, { status: 'captured' }] }), /nobody got it/);
  assert.deepEqual([pools.reasonText({ reason: 'no such user', attempts: [] }), pools.reasonText({ attempts: [{ status: '201' }] })], ['no such user', '']);
  assert.match(pools.messageCancelledText({ id: 7, state: 'cancelling' }), /is being sent, and was asked to stop/);
  assert.equal(pools.attemptText({ outcome: 'permanent_request', status: '400', ms: 61 }), 'permanent request, 400, 61 ms');
  assert.deepEqual(['sent', 'delivered', 'queued', 'suppressed', 'failed', 'bounced'].map(pools.deliveryTone), ['calm', 'calm', 'note', 'note', 'alarm', 'alarm']);
});

test('bounds_of_a_throttle_that_gives_slots_are_slots', () => {
  const unit = (name, turned) => wording(FIELDS.find((field) => field.name === name), turned).unit;
  assert.deepEqual([unit('min', 'rps'), unit('max', undefined), unit('min', 'concurrency'), unit('max', 'concurrency'), unit('rps', 'concurrency')], ['tokens/s', 'tokens/s', 'slots', 'slots', 'tokens/s']);
  assert.match(wording(FIELDS.find((field) => field.name === 'mode'), 'concurrency').hint, /concurrency/);
});

test('a_chart_of_slots_draws_slots_and_running_jobs', () => {
  const slots = measureOf({ detail: { governor: { actuator: 'concurrency' } } });
  const point = { effective: -1, slots: 42, running: 40, achieved: 400 };
  assert.deepEqual([slots.knob(point), slots.done(point), slots.knob({ ...point, effective: 0 })], [42, 40, 0]);
  assert.match(slots.title, /slots/);
  const rate = measureOf({ detail: { governor: { actuator: 'rps' } } });
  assert.deepEqual([rate.knob(point), rate.done(point)], [-1, 400]);
});
