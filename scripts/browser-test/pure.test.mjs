// The dashboard's pure modules: `node --test scripts/browser-test/pure.test.mjs`.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { ApiError, call, oneAtATime, refusalText } from '../../src/api/dashboard/api.js';
import * as format from '../../src/api/dashboard/format.js';
import { termNames, termText } from '../../src/api/dashboard/history.js';
import * as knobs from '../../src/api/dashboard/knobs.js';
import { contains, keyPart, keyPath, laneState, walk } from '../../src/api/dashboard/operate.js';
import { plot, ratio, spread } from '../../src/api/dashboard/plot.js';
import { deciderOf, spans } from '../../src/api/dashboard/ribbons.js';
import { replicaNote } from '../../src/api/dashboard/replicanote.js';
import { Ring } from '../../src/api/dashboard/ring.js';
import * as scale from '../../src/api/dashboard/scale.js';
import { apply, emptyState, facts, mayChange, mayEnqueue, ordered, totalReady } from '../../src/api/dashboard/state.js';
import { eventReason } from '../../src/api/dashboard/poolwords.js';
import { unservedNotice, unservedText } from '../../src/api/dashboard/unserved.js';
import { auditLine, editText, isObstacle, standing } from '../../src/api/dashboard/words.js';

const NOW = 1_700_000_000;
const iso = (t) => new Date(t * 1000).toISOString();
const tick = (at, rows) => ({ type: 'tick', data: { at, running_total: 2, workers: 1, throttles: rows } });
const row = (more = {}) => ({ rps: 10, effective_rps: 10, achieved_rps: 9, limiting_share: 1, mode: 'auto', state: 'flowing', breaker: 'closed', ready: 5, running: 1, dead: 0, signals: {}, ...more });

test('a_refusal_says_each_fault_once', () => {
  const refused = (detail, ...errors) => refusalText(new ApiError(422, { detail, errors: errors.map(([pointer, message]) => ({ in: 'body', pointer, message })) }));
  assert.equal(refused('/kind: must be mail', ['/kind', 'must be mail']), 'kind: must be mail');
  assert.equal(refused('the body: must be one job', ['', 'must be one job']), 'the body: must be one job');
  assert.equal(refused('2 fields are wrong; nothing was changed', ['/kind', 'must be mail'], ['/cost', 'must be above 0']), '2 fields are wrong; nothing was changed: kind: must be mail; cost: must be above 0');
  assert.equal(refused('the kind is not served', ['/kind', 'must be mail']), 'the kind is not served: kind: must be mail');
  assert.equal(refused('there is no throttle mail'), 'there is no throttle mail');
});

test('a_question_is_not_asked_again_before_its_answer', async () => {
  const answers = [];
  const ask = oneAtATime(() => new Promise((resolve) => { answers.push(resolve); }));
  const both = [ask(), ask()];
  assert.equal(answers.length, 1);
  answers[0]();
  await Promise.all(both);
  ask();
  assert.equal(answers.length, 2);
});

test('numbers_keep_three_digits_and_unknown_is_never_zero', () => {
  assert.deepEqual([0, 0.0123, 1.234, 12.34, 123.4, 1234, 123456, 2.5e6].map(format.number), ['0', '0.012', '1.23', '12.3', '123', '1,234', '123k', '2.5M']);
  for (const nothing of [null, undefined, NaN, Infinity, 'ten']) assert.equal(format.number(nothing), '–');
  assert.equal(format.rate(-1), 'unlimited');
  assert.equal(format.rate(0), '0');
});

test('durations_and_ages_read_naturally', () => {
  assert.deepEqual([0.25, 1.5, 42, 600, 3600, 5460, 90000].map(format.duration), ['250 ms', '1.5 s', '42 s', '10 min', '60 min', '1 h 31 min', '1 d']);
  assert.equal(format.ago(0.3), 'now');
  assert.equal(format.ago(4.2), '4 s ago');
  assert.equal(format.unixSeconds('not a time'), null);
});

test('a_ring_forgets_the_oldest_and_refuses_what_is_not_newer', () => {
  const ring = new Ring(3);
  for (const t of [1, 2, 2, 1, 3, 4]) ring.push({ t });

  assert.deepEqual(ring.between(0, 9).map((p) => p.t), [2, 3, 4]);
  assert.equal(ring.last.t, 4);
  assert.equal(ring.nearest(3.4, 1).t, 3);
  assert.equal(ring.nearest(9, 1), null);
  assert.deepEqual(ring.between(3, 3).map((p) => p.t), [2, 3], 'one neighbour before the edge is kept');
});

test('a_rate_axis_spans_the_values_between_factor_5_and_1000', () => {
  for (const values of [[120, 121], [0.001, 900], [0], [], [null, -1, 5], [1e-4], [1e6]]) {
    const { low, high } = scale.rateDomain(values);
    assert.ok(low > 0 && high / low >= 5 - 1e-9 && high / low <= 10_001, `${values} gave ${low}..${high}`);
    const most = Math.max(...values.filter((v) => v > 0), 0);
    assert.ok(high >= most);
  }
});

test('zero_lies_below_every_rate_and_unlimited_above', () => {
  const y = scale.rateScale({ low: 1, high: 100 }, 0, 100);
  assert.equal(y(0), 100);
  assert.ok(y(0) > y(1) && y(1) > y(10) && y(10) > y(100) && y(100) > y(-1));
  assert.equal(y(1e-9), y(1), 'what is below the axis stays on its floor, apart from zero');
});

test('log_ticks_are_never_more_than_asked_for', () => {
  for (const most of [2, 3, 5, 8]) {
    const ticks = scale.logTicks({ low: 0.01, high: 1e4 }, most);
    assert.ok(ticks.length >= 2 && ticks.length <= most, `${most}: ${ticks}`);
  }
  assert.deepEqual(scale.logTicks({ low: 1, high: 10 }, 5), [1, 2, 5, 10]);
});

test('time_ticks_fall_on_round_clock_times', () => {
  assert.ok(scale.timeTicks(NOW, NOW + 120, 800).every((t) => t % 15 === 0));
  assert.ok(scale.timeTicks(NOW, NOW + 600, 300).every((t) => t % 300 === 0));
});

test('one_spike_does_not_flatten_the_signals', () => {
  assert.equal(scale.ratioTop(0.9, 2), 1.6);
  assert.equal(scale.ratioTop(50, 2), 3);
  assert.ok(scale.ratioTop(1.9, 2) >= 2);
});

test('labels_are_moved_apart_in_order_and_stay_inside', () => {
  const placed = spread([50, 51, 49], 12, 0, 60);
  assert.ok(placed[2] < placed[0] && placed[0] < placed[1]);
  assert.ok(placed[0] - placed[2] >= 12 && placed[1] - placed[0] >= 12);
  assert.ok(Math.max(...placed) <= 54);
});

test('a_hole_in_time_ends_a_span', () => {
  const points = [1, 2, 3, 30, 31].map((t) => ({ t, breaker: t === 3 ? 'open' : 'closed' }));
  assert.deepEqual(spans(points, (p) => p.breaker, 32), [
    { from: 1, to: 3, value: 'closed' },
    { from: 3, to: 4, value: 'open' },
    { from: 30, to: 32, value: 'closed' },
  ]);
});

test('a_person_and_a_fallback_go_before_the_last_decision', () => {
  const decider = deciderOf([{ t: 5, limiting: 'load' }, { t: 8, limiting: 'slew_limit' }]);
  const point = (t, more) => ({ t, mode: 'auto', state: 'flowing', breaker: 'closed', signals: {}, ...more });
  assert.equal(decider(point(1)), 'governor');
  assert.equal(decider(point(5)), 'load');
  assert.equal(decider(point(6, { mode: 'manual' })), 'manual');
  assert.equal(decider(point(7, { state: 'paused' })), 'paused');
  assert.equal(decider(point(8)), 'slew limit');
  assert.equal(decider(point(9, { signals: { load: { stale: true } } })), 'stale');
});

test('history_then_ticks_make_one_line_without_doubles', () => {
  const state = emptyState();
  apply(state, { type: 'history', data: { ticks: [tick(1, { a: row() }).data, tick(2, { a: row() }).data] } });
  apply(state, tick(2, { a: row({ rps: 99 }) }));
  const touched = apply(state, tick(3, { a: row(), b: row({ ready: 7 }) }));

  assert.deepEqual(state.throttles.get('a').ring.between(0, 9).map((p) => p.t), [1, 2, 3]);
  assert.ok(touched.has('unknown'), 'a throttle without details is asked for');
  assert.equal(totalReady(state), 12);
});

test('the_history_tells_what_the_token_may_do_without_the_list_of_throttles', () => {
  for (const may of [true, false]) {
    const state = emptyState();
    apply(state, { type: 'history', data: { may_change: may, may_enqueue: !may, ticks: [{ ...tick(1, {}).data, store_lost: true }] } });
    assert.equal(mayChange(state), may);
    assert.equal(mayEnqueue(state), !may);
  }
});

test('a_null_reading_stays_null', () => {
  const state = emptyState();
  apply(state, tick(1, { a: row({ achieved_rps: null, signals: { load: { value: null, setpoint: 1, trip: 2, stale: false } } }) }));
  const point = state.throttles.get('a').ring.last;
  assert.equal(point.achieved, null);
  assert.equal(ratio(point, 'load'), null);
});

test('what_was_told_last_counts_tick_or_details', () => {
  const state = emptyState();
  apply(state, tick(1, { a: row({ state: 'paused' }) }));
  apply(state, { type: 'throttle', data: { name: 'a', mode: 'manual', state: 'flowing', paused: false, knobs: { rps: 3 } } });
  assert.deepEqual([facts(state.throttles.get('a')).paused, facts(state.throttles.get('a')).mode], [false, 'manual']);
  apply(state, tick(2, { a: row({ state: 'paused' }) }));
  assert.deepEqual([facts(state.throttles.get('a')).paused, facts(state.throttles.get('a')).mode], [true, 'auto']);
});

test('decisions_come_once_and_newest_first', () => {
  const state = emptyState();
  apply(state, tick(NOW, { a: row() }));
  const d = (id, at) => ({ id, throttle: 'a', at: iso(at), rps: 1, previous_rps: 2, reason: 'r', limiting: 'load' });
  apply(state, { type: 'decision', data: d(2, NOW + 2) });
  apply(state, { type: 'decisions', data: { decisions: [d(2, NOW + 2), d(1, NOW + 1)] } });

  assert.deepEqual(state.decisions.map((x) => x.id), [2, 1]);
  assert.deepEqual(state.throttles.get('a').decisions.map((x) => x.id), [1, 2]);
});

test('governed_throttles_come_first_those_of_the_api_last_and_vanished_ones_go', () => {
  const state = emptyState();
  apply(state, { type: 'throttles', data: { throttles: [{ name: 'api:read', governor: null }, { name: 'b', governor: null }, { name: 'z', governor: {} }] } });
  assert.deepEqual(ordered(state).map((t) => t.name), ['z', 'b', 'api:read']);
  apply(state, { type: 'throttles', data: { throttles: [{ name: 'a', governor: null }] } });
  assert.deepEqual(ordered(state).map((t) => t.name), ['a']);
});

test('a_plot_carries_edits_by_people_only', () => {
  const state = emptyState();
  apply(state, tick(NOW, { a: row() }));
  for (const actor of ['governor', 'anna']) apply(state, { type: 'audit', data: { at: iso(NOW), actor, action: 'throttle.set', subject: 'a', before: { rps: 1 }, after: { rps: 2 } } });
  assert.deepEqual(plot(state.throttles.get('a'), NOW - 10, NOW).edits, [{ t: NOW, actor: 'anna' }]);
});

test('only_what_differs_is_sent_and_a_text_that_is_no_number_is_told', () => {
  const current = { rps: 120, burst: 1, mode: 'auto' };
  assert.deepEqual(knobs.readEdits({ rps: '5', burst: '1.0', mode: 'manual' }, current), { body: { rps: 5, mode: 'manual' }, errors: {} });
  const { body, errors } = knobs.readEdits({ rps: 'ten', burst: ' ' }, current);
  assert.deepEqual(body, {});
  assert.match(errors.rps, /"ten" is not a number/);
  assert.match(errors.burst, /required/);
  for (const text of ['1,5', 'NaN', 'Infinity', '0x10', '--1', '1e999', '']) assert.equal(knobs.parseNumber(text), null, text);
  for (const [text, value] of [['-1', -1], ['.5', 0.5], [' 1e3 ', 1000], ['-7', -7]]) assert.equal(knobs.parseNumber(text), value);
});

test('the_governors_own_moves_are_no_conflict_but_a_persons_are', () => {
  const base = { rps: 120, mode: 'auto', max: 10 };
  assert.deepEqual(knobs.conflicts(base, { ...base, rps: 118 }, ['rps']), []);
  assert.deepEqual(knobs.conflicts({ ...base, mode: 'manual' }, { ...base, mode: 'manual', rps: 5 }, ['rps']), ['rps']);
  assert.deepEqual(knobs.conflicts(base, { ...base, mode: 'manual', rps: 5 }, ['rps']), ['rps', 'mode']);
  assert.deepEqual(knobs.conflicts(base, { ...base, max: 20 }, ['rps']), []);
});

test('a_problem_is_placed_beside_its_fields', () => {
  const { fields, rest } = knobs.placeProblem({ errors: [{ pointer: '/rps', message: 'too low' }, { pointer: '#/min', message: 'odd' }, { pointer: '/zzz', message: 'unknown' }] }, ['rps', 'min']);
  assert.deepEqual(fields, { rps: 'too low', min: 'odd' });
  assert.deepEqual(rest, ['zzz: unknown']);
  assert.deepEqual(knobs.placeProblem(null, []).rest, ['the server refused the edit without a reason']);
});

test('the_end_of_a_manual_mode_is_a_span_or_a_time', () => {
  const now = new Date(2026, 10, 20, 14, 0, 0).getTime();
  const cases = [['30m', now + 1_800_000], [' 1.5 h ', now + 5_400_000], ['90s', now + 90_000], ['14:30', now + 1_800_000],
    ['13:00', now + 23 * 3_600_000], ['2026-11-20T13:30:00Z', Date.parse('2026-11-20T13:30:00Z')]];
  for (const [text, ms] of cases) assert.equal(knobs.parseTime(text, now), ms, text);
  for (const text of ['', 'soon', '25:00', '30', '-5m', '2026-11-20']) assert.equal(knobs.parseTime(text, now), null, text);

  const current = { mode: 'auto', rps: 5, manual_until_ms: null };
  assert.deepEqual(knobs.readEdits({ mode: 'manual', manual_until_ms: '30m' }, current, now).body, { mode: 'manual', manual_until_ms: now + 1_800_000 });
  assert.deepEqual(knobs.readEdits({ manual_until_ms: ' ' }, { ...current, manual_until_ms: now }, now).body, { manual_until_ms: null });
  assert.match(knobs.readEdits({ manual_until_ms: 'soon' }, current, now).errors.manual_until_ms, /"soon" is not a span such as 30m/);
  const field = knobs.FIELDS.find((f) => f.name === 'manual_until_ms');
  assert.equal(knobs.fieldText(field, { manual_until_ms: 1_700_000_000_000 }), '2023-11-14T22:13:20.000Z');
  assert.equal(knobs.fieldText(field, current), '');
});

test('a_history_has_a_column_for_every_term', () => {
  assert.deepEqual(termNames([{ terms: { x: 1, e: 2 } }, { terms: { clamps: ['slew'] } }, {}]), ['clamps', 'e', 'x']);
  assert.deepEqual([0.123456, ['slew', 'max'], null, 'load', { a: 1 }].map(termText), ['0.12', 'slew, max', '', 'load', '{"a":1}']);
});

test('the_audit_line_says_what_who_when_and_why', () => {
  const entry = { t: NOW, actor: 'anna', action: 'throttle.set', subject: 'reindex', before: { rps: 120, seq: 1, paused: false }, after: { rps: 5, seq: 2, paused: false }, why: 'provider asked' };
  assert.equal(auditLine(entry, NOW), `rps 120 → 5 by anna, ${format.clock(NOW)}, 'provider asked'`);
  assert.equal(editText({ ...entry, before: { paused: false }, after: { paused: true } }), 'paused');
  assert.equal(editText({ ...entry, before: { knobs: { rps: 1 } }, after: { knobs: { rps: -1 } } }), 'rps 1 → unlimited');
  assert.equal(editText({ ...entry, action: 'job_retry', before: null, after: null }), 'job retry');
});

test('an_open_breaker_goes_before_a_stopped_rate', () => {
  assert.deepEqual(standing({ state: 'stopped', breaker: 'open' }), { text: 'breaker open', tone: 'alarm' });
  assert.equal(standing({ state: 'flowing', breaker: null }).tone, 'calm');
});

test('a_throttle_whose_jobs_wait_or_fail_for_more_than_its_rate_is_not_calm', () => {
  const stands = (state) => standing({ state, breaker: null });
  assert.deepEqual(stands('refused'), { text: 'refused', tone: 'alarm' });
  assert.deepEqual(stands('debt'), { text: 'in debt', tone: 'alarm' });
  assert.deepEqual(stands('failing'), { text: 'failing', tone: 'alarm' });
  assert.deepEqual(stands('held'), { text: 'keys held back', tone: 'note' });
  assert.deepEqual(standing({ state: 'failing', paused: true }), { text: 'paused', tone: 'note' });
  assert.deepEqual(['held', 'stopped', 'flowing', 'constructor'].map(isObstacle), [true, true, false, false]);
});

test('what_was_learned_of_a_lane_is_told_unless_it_is_paused', () => {
  const lane = (rps, more = {}) => laneState({ paused: null, learned: { rps, probing: false, refused: 3, ...more } }, NOW);
  assert.equal(lane(2.5), 'learned 2.5/s');
  assert.equal(lane(0.02), 'learned one in 50 s');
  assert.equal(lane(0), 'waits for its quota');
  assert.equal(lane(null, { probing: true }), 'on trial after a refusal');
  assert.match(laneState({ paused: { until: null, why: '' }, learned: { rps: 1, probing: false } }, NOW), /^paused$/);
});

test('a_lane_without_a_key_has_a_path_too', () => {
  assert.equal(keyPath('a/b', ''), '/api/v1/throttles/a%2Fb/keys/-');
  assert.equal(keyPath('t', '--'), '/api/v1/throttles/t/keys/---');
  assert.equal(keyPath('t', 'x/ü'), '/api/v1/throttles/t/keys/x%2F%C3%BC');
  // `/keys/../resume` would resume the throttle.
  assert.deepEqual(['.', '..', '..-', '...', '.a-'].map((key) => keyPart(key)), ['.-', '..-', '..--', '...', '.a-']);
});

test('a_name_of_dots_sends_no_request', async () => {
  const fetched = mock.method(globalThis, 'fetch', async () => new Response('{}', { headers: { 'content-type': 'application/json' } }));
  for (const path of ['/api/v1/crons/../pause', '/api/v1/throttles/..', '/api/v1/throttles/./why?limit=1', '/api/v1/crons/%2E./run']) await assert.rejects(call('POST', path), /cannot be part of an address/, path);
  assert.equal(fetched.mock.callCount(), 0);
  assert.deepEqual(await call('GET', '/api/v1/crons/.../x?a=/../b'), {});
  mock.restoreAll();
});

test('a_pause_is_told_with_its_end_and_its_reason', () => {
  assert.equal(laneState({ paused: null }, NOW), '');
  assert.match(laneState({ paused: { until: iso(NOW + 60), why: '429' } }, NOW), /^paused until \d\d:\d\d:\d\d: 429$/);
});

test('what_a_person_types_as_an_error_stands_for_itself', () => {
  assert.equal(contains('502'), '%502%');
  assert.equal(contains('100% of a_b\\c'), '%100\\% of a\\_b\\\\c%');
  // The API takes five percent signs.
  assert.equal(contains('1% 2% 3% 4%'), '%1\\% 2\\% 3\\% 4_%');
});

test('a_walk_goes_on_until_everything_was_seen', async () => {
  const answers = [{ jobs: 5, next: 'a' }, { jobs: 0, next: 'b' }, { jobs: 2, next: null }];
  const starts = [];
  const told = [];
  const jobs = await walk(async (start) => { starts.push(start); return answers[starts.length - 1]; }, (n) => told.push(n));
  assert.deepEqual([jobs, starts, told], [7, [null, 'a', 'b'], [5, 5]]);
});

test('an_optional_knob_is_emptied_and_a_needed_one_is_not', () => {
  const current = { max_backlog: 100, rps: 5 };
  assert.deepEqual(knobs.readEdits({ max_backlog: ' ', rps: '' }, current), { body: { max_backlog: null }, errors: { rps: 'a number is required' } });
  assert.deepEqual(knobs.readEdits({ max_backlog: '' }, { max_backlog: null }).body, {});
});

test('an_edit_says_what_was_done', () => {
  const entry = (action, more = {}) => ({ at: '', t: 0, actor: 'ann', subject: 'crm', before: null, after: null, why: null, action, ...more });
  assert.equal(editText(entry('dead.requeue', { after: { jobs: 524 } })), 'requeued dead letters: jobs 524');
  assert.equal(editText(entry('dead.discard', { after: { jobs: 524 } })), 'discarded dead letters: jobs 524');
  assert.equal(editText(entry('key.pause', { after: { seconds: 900 } })), 'key paused: seconds 900');
  assert.equal(editText(entry('recipient.set', { after: { channels: [], created: true, fields: [], tenant: '' } })), 'profile set: created yes');
  assert.equal(editText(entry('throttle.set', { before: { rps: 30 }, after: { rps: 33 } })), 'rps 30 → 33');
  assert.equal(editText(entry('throttle.delete', { before: { rps: 30, by: 'ann' }, after: null })), 'deleted');
  assert.equal(editText(entry('throttle.pause', { before: { paused: false }, after: { paused: true } })), 'paused');
  assert.equal(editText(entry('throttle.pause', { before: { paused: null }, after: { paused: '1' } })), 'paused');
  assert.equal(editText(entry('throttle.resume', { before: { paused: '1' }, after: { paused: '0' } })), 'resumed');
  assert.equal(editText(entry('throttle.set', { before: { paused: null }, after: { paused: '0' } })), 'resumed');
  assert.equal(editText(entry('job.cancel')), 'cancelled');
  assert.equal(editText(entry('some_new.thing')), 'some new thing');
});

test('a_breaker_that_closed_does_not_say_why_it_had_opened', () => {
  const events = [{ account: 'a', to: 'closed', reason: '5 failures' }, { account: 'b', to: 'open', reason: 'x' }, { account: 'a', to: 'half_open', reason: '5 failures' }, { account: 'a', to: 'open', reason: '5 failures' }];
  assert.equal(eventReason(events[0], events), '');
  assert.equal(eventReason(events[3], events), '5 failures');
  assert.equal(eventReason({ account: 'a', to: 'closed', reason: 'resumed by ann' }, events), 'resumed by ann');
});

test('a line is interrupted where samples are missing', async () => {
  const { linePath } = await import('../../src/api/dashboard/past.js');
  const points = [0, 10, 20, 100, 110].map((at) => ({ at, value: at }));
  const path = linePath(points, { from: 0, to: 120, top: 120, step: 10 });
  assert.equal(path, 'M0.0 110.0L50.0 100.8L100.0 91.7M500.0 18.3L550.0 9.2');
  assert.equal(linePath([], { from: 0, to: 1, top: 1, step: 1 }), '');
});

test('jobs_that_nobody_serves_say_how_many_since_when_and_what_to_do', () => {
  const one = { throttle: 'sms', kind: 'notification', needs: ['channel sms'], jobs: 1240, since: iso(NOW - 300), remedy: 'no live worker serves channel sms; add [pools.<name>]' };
  assert.equal(unservedText(one, NOW), '1,240 jobs of kind notification, throttle sms, the oldest from 5 min ago: no live worker serves channel sms; add [pools.<name>].');
  assert.equal(unservedText({ ...one, kind: null, jobs: 1, since: null, remedy: 'start one' }, NOW), '1 job of throttle sms: start one.');
  const titles = (workers, ready, rows) => unservedNotice(rows, workers, ready)?.title ?? null;
  assert.deepEqual([titles(3, 5, []), titles(0, 0, []), titles(null, 5, []), titles(3, 5, [one])], [null, null, null, 'No live worker serves these jobs']);
  assert.deepEqual([titles(0, 5, []), titles(0, 0, [one])], ['No worker is live', 'No worker is live']);
  assert.equal(unservedNotice([one], 0, 5, true), null, 'no worker can report');
});

test('a_replica_is_mentioned_only_if_readers_would_miss_something', () => {
  for (const calm of [null, undefined, { used: true, lag_s: 0.4 }, { used: true, lag_s: null }, { used: false, lag_s: 90 }]) assert.equal(replicaNote(calm), null);
  assert.equal(replicaNote({ used: true, lag_s: 12.3 }), 'Lists and counts are read from a replica that lags by 12 s: later changes are not shown yet.');
  const state = emptyState();
  apply(state, { type: 'tick', data: { at: NOW, throttles: {}, replica: { used: true, lag_s: 4 } } });
  assert.deepEqual(state.replica, { used: true, lag_s: 4 });
  apply(state, tick(NOW + 1, {}));
  assert.equal(state.replica, null);
});
