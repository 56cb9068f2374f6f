// The texts of the page of tenants: `node --test scripts/browser-test/tenants.test.mjs`.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import * as words from '../../src/api/dashboard/tenantwords.js';

const NOW_MS = 1_700_000_000_000;
const iso = (ms) => new Date(NOW_MS + ms).toISOString();
const window = (more = {}) => ({ limit: 100, span_s: 60, used: 40, remaining: 60, next_at: null, resets_at: iso(18_000), ...more });
const tenant = (more = {}) => ({ tenant: 'acme', throttle: 'notify:acme', state: 'flowing', window: window(), per_module: null, waiting: 0, scheduled: 0, oldest_waiting_s: null, counted_at: null, pending: 7, pending_max: 10_000, ...more });
const batch = (counts, more = {}) => ({ id: 1, tenant: 'acme', module: 'web', state: 'running', paused_by_operators: false, recipients: Object.values(counts).reduce((a, b) => a + b, 0), counts, estimate: null, created_at: iso(0), updated_at: iso(0), ...more });

test('a_window_is_told_with_its_use_and_what_remains', () => {
  assert.equal(words.windowText(window(), 'flowing'), '40 of 100 in 60 s');
  assert.equal(words.remainingText(window()), '60 remaining');
  assert.equal(words.windowShare(window()), 0.4);
  assert.equal(words.windowShare(window({ used: 130, remaining: 0 })), 1, 'critical messages beyond the limit');
  assert.equal(words.windowText(null, 'flowing'), 'no limit');
  assert.equal(words.windowText(null, 'unknown'), 'Redis does not answer');
  assert.deepEqual([words.remainingText(null), words.windowShare(null)], ['', 0]);
});

test('the_next_slot_is_now_or_counts_down', () => {
  assert.equal(words.nextText(null, window(), NOW_MS), 'now');
  assert.equal(words.nextText(iso(18_000), window(), NOW_MS), 'in 18 s');
  assert.equal(words.nextText(iso(-1_000), window(), NOW_MS), 'any moment');
  assert.equal(words.nextText(null, null, NOW_MS), '', 'unknown or without a limit');
});

test('the_queue_is_told_against_its_limit_and_as_at_least_where_counting_stops', () => {
  assert.equal(words.pendingText(tenant()), '7 of 10,000');
  assert.equal(words.pendingText(tenant({ pending: 20_000, pending_max: 50_000 })), '20,000 or more of 50,000');
  assert.equal(words.pendingText(tenant({ pending_max: null })), '7');
  assert.deepEqual([words.pendingShare(tenant({ pending: 11_000 })), words.pendingShare(tenant({ pending_max: null }))], [1, 0]);
  assert.equal(words.oldestText(3, 95), 'oldest 95 s');
  assert.equal(words.oldestText(0, 95), '');
});

test('the_worst_tenant_marks_the_navigation_and_one_at_its_limit_does_not', () => {
  const worst = (...states) => words.worstOf(states.map((state) => tenant({ state })));
  assert.deepEqual([worst(), worst('flowing', 'at_limit'), worst('flowing', 'waiting'), worst('waiting', 'queue_full')], ['calm', 'calm', 'note', 'alarm']);
  assert.equal(words.tenantStanding('new_word').text, 'new_word');
});

test('the_segments_of_a_batch_add_up_and_an_unknown_state_is_not_an_end', () => {
  const { ended, share, segments } = words.progressOf(batch({ sent: 10, delivered: 30, failed: 5, bounced: 5, cancelled: 10, duplicate: 5, forgotten: 5, queued: 10, waiting: 10, reading: 10 }));
  assert.deepEqual([ended, share], [70, 0.7]);
  assert.deepEqual(segments.map(({ kind, share: part }) => `${kind} ${part}`), ['sent 0.4', 'failed 0.1', 'unsent 0.2', 'open 0.3']);
  assert.equal(words.progressOf(batch({}, { recipients: 0 })).share, 0);
});

test('counts_are_listed_from_the_end_to_the_beginning_of_a_message', () => {
  assert.equal(words.countsText({ waiting: 1_200, sent: 50, queued: 0, delivered: 3 }), '3 delivered, 50 sent, 1,200 waiting');
});

test('only_the_changes_that_a_state_allows_are_offered', () => {
  const of = (state) => Object.entries(words.changesOf({ state, paused_by_operators: false }, false)).filter(([, allowed]) => allowed).map(([change]) => change).join();
  assert.deepEqual(['expanding', 'running', 'paused', 'cancelled', 'done'].map(of), ['pause,cancel', 'pause,cancel', 'resume,cancel', '', '']);
});

test('operators_pause_what_a_tenant_has_paused_and_they_alone_resume_what_they_have', () => {
  const of = (isOverruled, mayOverrule) => Object.entries(words.changesOf({ state: 'paused', paused_by_operators: isOverruled }, mayOverrule)).filter(([, allowed]) => allowed).map(([change]) => change).join();
  assert.deepEqual([of(false, true), of(true, true), of(false, false), of(true, false)], ['pause,resume,cancel', 'resume,cancel', 'resume,cancel', 'cancel']);
});

test('an_error_that_names_the_batch_is_not_told_twice', () => {
  assert.equal(words.faultText(1, 'batch 1 is paused by operators, and only they resume it'), 'Batch 1 is paused by operators, and only they resume it');
  assert.equal(words.faultText(1, 'there is no batch 1'), 'There is no batch 1');
  assert.equal(words.faultText(1, 'there is no batch 12'), 'Batch 1: there is no batch 12');
  assert.equal(words.faultText(1, 'the server does not answer'), 'Batch 1: the server does not answer');
});

test('an_estimate_is_a_time_of_day_with_the_wait_and_none_while_paused', () => {
  assert.match(words.estimateText(batch({ waiting: 1 }, { estimate: iso(78_000) }), NOW_MS), /^\d\d:\d\d:\d\d, in 78 s$/);
  assert.equal(words.estimateText(batch({ waiting: 1 }, { estimate: iso(78_000), state: 'paused' }), NOW_MS), '');
  assert.equal(words.estimateText(batch({ sent: 1 }), NOW_MS), '');
});

test('a_cancellation_is_told_with_its_numbers', () => {
  assert.equal(words.cancelledText(7, { sent: 100, cancelled: 1_200, too_late: 0, ended: { capped: 2 } }),
    'Cancelled batch 7: 1,200 messages will not be sent, 100 were sent, 2 capped.');
  assert.match(words.cancelledText(7, { sent: 0, cancelled: 1, too_late: 2, ended: {} }), /0 were sent, 2 are being sent and were asked to stop\.$/);
});

test('paths_hold_what_was_typed_as_data', () => {
  assert.equal(words.tenantsPath('a&b', 50), '/api/v1/tenants?limit=50&tenant=a%26b');
  assert.equal(words.tenantsPath('', 100), '/api/v1/tenants?limit=100');
  assert.equal(words.modulesPath('a/b', '', 'depth', 50), '/api/v1/tenants/a%2Fb/modules?order=depth&limit=50');
  assert.equal(words.modulesPath('acme', 'w&b', 'depth', 50), '/api/v1/tenants/acme/modules?module=w%26b');
  assert.equal(words.batchesPath({ tenant: 'acme', module: '', state: 'paused' }, 20), '/api/v1/notifications/batches?tenant=acme&state=paused&limit=20');
});

test('complaints_are_told_with_the_messages_of_their_day_and_states_in_words', () => {
  const feedback = { accepted: 1_200, bounced: 4, complained: 3, unsubscribed: 0 };
  assert.equal(words.complaintsText({ feedback }), '3 of 1,200 reported as spam in a day');
  assert.deepEqual([words.complaintsText({ feedback: { ...feedback, complained: 0 } }), words.complaintsText({})], ['', '']);
  assert.equal(words.countsText({ opted_out: 2, sent: 5 }), '5 sent, 2 opted out');
});
