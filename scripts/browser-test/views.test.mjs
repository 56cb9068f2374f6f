// The pure modules behind the views of the dashboard: `node --test scripts/browser-test/views.test.mjs`.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

import { auditOf } from '../../src/api/dashboard/audit.js';
import { alsoChanged, groupByError, isLike, patternOf, shapeOf } from '../../src/api/dashboard/errorgroups.js';
import { awayText, phaseOf, queueText, storeText } from '../../src/api/dashboard/header.js';
import { allows, bulkChanges, filterText, jobQuery, jobsPath } from '../../src/api/dashboard/jobwords.js';
import { FIELDS, GROUPS, knobSummary, readEdits, valuesOf } from '../../src/api/dashboard/knobs.js';
import { clearFailure, noteFailure } from '../../src/api/dashboard/notes.js';
import { unique } from '../../src/api/dashboard/pages.js';
import { apply, emptyState, facts, isStoreLost, latest, mayChange, totalReady } from '../../src/api/dashboard/state.js';
import { byTrouble, deadOf, featured, isUntouched, isWithoutWork, oldestOf, readyOf, sums, verdict } from '../../src/api/dashboard/trouble.js';
import { jobsAddress, placeOf, throttleAddress } from '../../src/api/dashboard/views.js';
import { editText, handSentence } from '../../src/api/dashboard/words.js';

const NOW = 1_700_000_000;
const iso = (t) => new Date(t * 1000).toISOString();

/** A state with one tick of each of these throttles. */
function stateOf(rows, at = NOW) {
  const state = emptyState();
  const full = (more) => ({ rps: 10, effective_rps: 10, achieved_rps: 10, mode: 'manual', state: 'flowing', breaker: null, ready: 0, running: 0, dead: 0, oldest_ready_s: null, signals: {}, ...more });
  apply(state, { type: 'tick', data: { at, running_total: 0, workers: 1, throttles: Object.fromEntries(Object.entries(rows).map(([name, more]) => [name, full(more)])) } });
  return state;
}
const fail = (state, throttle, n, outcome = 'failed') => {
  for (let i = 0; i < n; i += 1) apply(state, { type: 'failure', data: { job_id: i, attempt: 1, throttle, kind: 'http', key: '', outcome, error: 'x', at: iso(NOW - i % 50) } });
};

test('each_view_has_an_address_and_parts_of_views_lead_to_them', () => {
  const views = (hashes) => hashes.map((hash) => placeOf(hash).view);
  assert.deepEqual(views(['', '#overview', '#nonsense', '#throttles', '#jobs', '#failures', '#schedules', '#audit', '#recipients']), ['overview', 'overview', 'overview', 'throttles', 'jobs', 'failures', 'schedules', 'audit', 'recipients']);
  assert.deepEqual(views(['#pools', '#pool-sms', '#notifications', '#tenants', '#batches']), ['pools', 'pools', 'pools', 'tenants', 'tenants']);
  assert.deepEqual(['#groups', '#dead', '#pool-sms', '#jobs', '#failures', '#audit'].map((hash) => placeOf(hash).part), ['groups', 'dead', 'pool-sms', '', '', '']);
  assert.equal(placeOf(throttleAddress('a b/{c}')).throttle, 'a b/{c}');
  assert.equal(placeOf('#throttle-%zz').throttle, '%zz');
  assert.deepEqual([placeOf('#job/17').view, placeOf('#job/17').job, placeOf('#job/17').nav], ['job', '17', 'jobs']);
  assert.equal(placeOf(jobsAddress({ state: 'dead', key: 'a&b=?', kind: '' })).query.get('key'), 'a&b=?');
});

test('the_filter_of_jobs_is_read_from_the_address_and_makes_one_request', () => {
  const read = (text) => jobQuery(new URLSearchParams(text));
  assert.deepEqual(read('state=nonsense&since=3h&kind= http '), { state: '', kind: 'http', throttle: '', key: '', group: '', since: '', error: '', trace: '', unique_key: '', args: '', tag: '' });
  assert.equal(jobsPath(read('error=50%25&args=$.a == 1'), 5, NOW), '/api/v1/jobs?limit=5&error_like=%2550%5C%25%25&args_path=%24.a+%3D%3D+1');
  assert.equal(jobsPath(read('args={"a":1}&trace=0af7&unique_key=k&group=7'), 5, NOW), '/api/v1/jobs?limit=5&group=7&trace=0af7&unique_key=k&args=%7B%22a%22%3A1%7D');
  assert.equal(jobsPath(read('state=ready&throttle=a&since=1h'), 50, NOW), `/api/v1/jobs?limit=50&state=ready&throttle=a&created_after=${encodeURIComponent(iso(NOW - 3600))}`);
  // A key with blanks is another one, and the link of its lane leads to it.
  assert.equal(jobQuery(placeOf(jobsAddress({ key: ' a\nb ' })).query).key, ' a\nb ');
  assert.equal(filterText(read('state=dead&throttle=a&error=502')), 'dead, of throttle a, with "502" in the error');
});

test('changes_of_all_that_match_are_those_that_the_api_knows', () => {
  const of = (text) => bulkChanges(jobQuery(new URLSearchParams(text)), NOW);
  assert.deepEqual(of('state=dead&throttle=a&error=5%25').map(({ verb, path, body }) => [verb, path, body.throttle, body.error_like]), [['requeue', '/api/v1/dead/requeue', 'a', '%5\\%%'], ['discard', '/api/v1/dead/discard', 'a', '%5\\%%']]);
  assert.deepEqual(of('state=ready&key=k&since=24h'), [{ verb: 'cancel', path: '/api/v1/jobs/cancel', body: { state: 'ready', key: 'k', created_after: iso(NOW - 86400) } }]);
  assert.deepEqual(of('state=dead')[0].body, { error_like: '%' });
  assert.deepEqual(of('state=ready&group=7&args={"a": 1}&error=x')[0].body, { state: 'ready', group: 7, error_like: '%x%', args: { a: 1 } });
  assert.deepEqual(of('state=dead&tag=eu')[0].body, { tags: ['eu'] });
  assert.deepEqual(of('state=dead&args=nonsense')[0].body, { args: 'nonsense' });
  // Neither ended jobs nor dead ones by the time of enqueueing can be changed at once, nor jobs of any state.
  for (const none of ['', 'state=completed', 'state=cancelled', 'state=dead&since=1h']) assert.deepEqual(of(none), [], none);
  assert.deepEqual(['dead', 'ready', 'completed'].map((state) => ['retry', 'cancel', 'discard'].filter((verb) => allows(verb, state)).join()), ['retry,discard', 'cancel', '']);
});

test('errors_that_differ_in_numbers_make_one_group_whose_pattern_the_api_takes', () => {
  const failed = (id, error, more = {}) => ({ id, at: id, throttle: 'a', kind: 'http', error, ...more });
  const groups = groupByError([failed(1, 'order 123456 not found'), failed(2, 'order 99887766 not found\nbody'), failed(3, 'answered 502'), failed(4, 'answered 500'), failed(5, 'answered 500', { throttle: 'b' }), failed(6, null)]);
  assert.deepEqual(groups.map(({ text, jobs, newest }) => [text, jobs, newest.id]).slice(0, 1), [['order … not found', 2, 2]]);
  assert.equal(groups.length, 5);
  const across = groupByError([failed(4, 'answered 500'), failed(5, 'answered 500', { throttle: 'b' })], true);
  assert.deepEqual(across.map(({ jobs, throttles }) => [jobs, ...throttles]), [[2, 'a', 'b']]);
  assert.equal(groups[0].pattern, 'order % not found%');
  assert.equal(groups.find(({ text }) => text === '').pattern, null);
  assert.equal(patternOf('50% of a_b\\c'), '50\\% of a\\_b\\\\c%');
  assert.equal(patternOf('100%'), '100\\%%');
  assert.equal(patternOf('  two blanks'), '%two blanks%');
  const hard = ['1111 2222 3333 4444 5555 6666 7777 x', 'x'.repeat(900), 'ü'.repeat(300), '%%%%%%%%', '\\'.repeat(400), 'job 6918abcdef12 of 7d444840-9dc0-11d1-b245-5ffdce74fad2 took 1.25 s', '1234% of 5678%', `${'x'.repeat(239)}😀`];
  for (const error of hard) {
    const pattern = patternOf(error);
    assert.ok((pattern.match(/%/g) ?? []).length <= 5 && new TextEncoder().encode(pattern).length <= 500 && pattern.endsWith('%'), pattern);
    // An odd number of backslashes before the end would escape the wildcard.
    assert.equal(/(\\*)%$/.exec(pattern)[1].length % 2, 0, pattern);
    const like = pattern.replace(/\\(.)|([.*+?^${}()|[\]])|(%)|(_)/g, (_, literal, special, many, one) => (literal ? (literal === '\\' ? '\\\\' : literal) : special ? `\\${special}` : many ? '[^]*' : one ? '[^]' : ''));
    assert.match(error, new RegExp(`^${like}$`), pattern);
    assert.ok(isLike(pattern, error) && pattern.isWellFormed(), pattern);
  }
  assert.equal(shapeOf('POST https://x/in answered 502'), 'POST https://x/in answered 502');
  // A pattern of wildcards alone would discard the dead letters of every error.
  for (const error of ['12345678', '…', '1234 … 5678'.replaceAll(' ', '')]) assert.equal(patternOf(error), null, error);
  const rows = groupByError([failed(1, '%'), failed(2, 'line one'), failed(3, 'line one hundred'), failed(4, 'line one', { throttle: 'b' }), failed(5, 'x.y')]);
  const others = (text) => alsoChanged(rows.find((one) => one.text === text && one.throttle === 'a'), rows);
  assert.deepEqual(['%', 'line one', 'line one hundred', 'x.y'].map(others), [0, 1, 0, 0]);
  assert.ok(!isLike('x.y%', 'xzy') && isLike('a_c%', 'abcd') && !isLike('a\\_c%', 'abc') && !isLike('%', null));
  assert.ok(isLike('a%b%b', 'a-b-b') && !isLike('a%b%b', 'a-b') && isLike('%a', 'ba') && !isLike('a', 'ab') && isLike('%_%', '😀') && !isLike('%__', '😀') && isLike('a\\\\%', 'a\\'));
  // A search with a step back for each wildcard would take longer than anybody waits.
  const began = performance.now();
  assert.ok(!isLike(patternOf('x 1111 x 2222 x 3333 x 4444 z'), 'x '.repeat(4000)));
  assert.ok(performance.now() - began < 2000);
});

test('what_failed_goes_from_its_note_also_if_it_has_characters_that_are_shown_as_others', () => {
  const note = { textContent: '' };
  noteFailure(note, '/key: "\u202ea" is refused');
  assert.equal(note.textContent, '/key: "\ufffda" is refused');
  clearFailure(note);
  assert.equal(note.textContent, '');
});

test('a_throttle_that_fails_does_not_flow', () => {
  const text = (state, name = 'a') => verdict(state.throttles.get(name), NOW).text;
  const state = stateOf({ a: {}, paused: { state: 'paused' }, open: { breaker: 'open' }, rest: { state: 'unlimited', effective_rps: -1 } });
  assert.equal(text(state), 'flowing');
  fail(state, 'a', 2);
  assert.equal(text(state), 'flowing', 'a failure or two is no state');
  fail(state, 'a', 50);
  assert.equal(text(state), 'some fail');
  fail(state, 'a', 400);
  assert.equal(text(state), 'failing');
  assert.equal(verdict(state.throttles.get('a'), NOW + 120).text, 'flowing', 'a minute later it is over');
  for (const name of ['paused', 'open']) fail(state, name, 400);
  assert.deepEqual(['paused', 'open', 'rest'].map((name) => text(state, name)), ['paused', 'breaker open', 'unlimited']);
  const refused = stateOf({ a: {} });
  fail(refused, 'a', 400, 'throttled');
  assert.equal(text(refused), 'flowing', 'a refusal for lack of tokens is no failure');
});

test('a_throttle_whose_jobs_wait_though_not_for_tokens_does_not_flow', () => {
  const after = (more, seconds = 20) => {
    const state = emptyState();
    const row = { rps: 10, effective_rps: 10, achieved_rps: 1, limiting_share: 0, mode: 'manual', state: 'flowing', ready: 300, oldest_ready_s: 60, signals: {}, ...more };
    for (let i = seconds; i >= 0; i -= 1) apply(state, { type: 'tick', data: { at: NOW - i, throttles: { a: row } } });
    const { text, tone, rank } = verdict(state.throttles.get('a'), NOW);
    return [text, tone, rank].join();
  };
  assert.equal(after({}), 'jobs wait,note,2');
  assert.equal(after({}, 5), 'flowing,calm,2', 'a few seconds are no state');
  for (const more of [{ ready: 0 }, { oldest_ready_s: 3 }, { limiting_share: 0.9 }, { achieved_rps: 9 }, { effective_rps: -1 }]) assert.equal(after(more), 'flowing,calm,2', JSON.stringify(more));
});

test('a_governor_that_sees_no_signal_is_trouble', () => {
  const of = (mode, limiting) => {
    const state = stateOf({ a: { mode, breaker: 'closed' } });
    apply(state, { type: 'throttle', data: { name: 'a', mode, state: 'flowing', knobs: {}, governor: { limiting } } });
    const { text, rank } = verdict(state.throttles.get('a'), NOW);
    return `${text} ${rank}`;
  };
  assert.deepEqual([of('auto', 'stale'), of('auto', 'load'), of('manual', 'stale')], ['blind 1', 'flowing 2', 'flowing 2']);
});

test('a_pattern_is_no_throttle_that_flows', () => {
  const state = stateOf({ 'ws:*': {}, 'notify:*': { state: 'paused' } });
  assert.deepEqual(['ws:*', 'notify:*'].map((name) => verdict(state.throttles.get(name), NOW).text), ['pattern', 'paused']);
});

test('the_sentence_names_only_the_author_of_what_it_tells', () => {
  const detail = { paused: false, state: 'flowing', knobs: { rps: 20, by: 'zoe', at_ms: 0, why: 'a burst' } };
  const edit = (after) => ({ after });
  assert.equal(handSentence(detail, NOW, edit({ rps: 20 })), 'Set by hand to 20 rps by zoe: a burst.');
  assert.equal(handSentence(detail, NOW, edit({ burst: 2 })), 'Set by hand to 20 rps.');
  assert.equal(handSentence({ ...detail, paused: true }, NOW, edit({ paused: true })), 'Paused by zoe: a burst. Its rate for later is 20 rps.');
  assert.equal(handSentence({ ...detail, paused: true }, NOW, edit({ rps: 20 })), 'Paused. Its rate for later is 20 rps.');
  const direct = { ...detail, knobs: { rps: 20, by: '', at_ms: 0, why: '' } };
  assert.equal(handSentence(direct, NOW, edit({ rps: 10 })), 'Set to 20 rps in Redis directly.');
  assert.equal(handSentence({ ...direct, paused: true }, NOW), 'Paused in Redis directly. Its rate for later is 20 rps.');
  assert.match(handSentence({ ...detail, state: 'stopped', knobs: { ...detail.knobs, concurrency: 0 } }, NOW), /^No job starts, because its knob concurrency is 0\. Set by hand to 20 rps/);
  assert.equal(editText({ action: 'dead.requeue', before: null, after: { filter: { throttle: 'a', error_like: '502%', keep_attempts: false }, jobs: 5 } }), 'requeued dead letters: filter throttle a, error like 502%, jobs 5');
});

test('failures_that_came_before_their_throttle_count_too', () => {
  const state = emptyState();
  fail(state, 'a', 40);
  apply(state, { type: 'throttles', data: { may_change: true, throttles: [{ name: 'a', state: 'flowing', knobs: {}, achieved_rps: 0.1 }] } });
  assert.equal(verdict(state.throttles.get('a'), NOW).failed, 40);
  assert.equal(state.mayChange, true);
});

test('growing_dead_letters_are_trouble_and_shrinking_ones_are_not', () => {
  const grown = (from, to) => {
    const state = stateOf({ a: { dead: from } }, NOW - 300);
    apply(state, { type: 'tick', data: { at: NOW, throttles: { a: { state: 'flowing', effective_rps: 1, dead: to, signals: {} } } } });
    const { text, tone, rank } = verdict(state.throttles.get('a'), NOW);
    return [text, tone, rank];
  };
  assert.deepEqual(grown(3, 3), ['flowing', 'calm', 2]);
  assert.deepEqual(grown(3, 4), ['dead letters grow', 'note', 1]);
  assert.deepEqual(grown(3, 66), ['dead letters grow', 'alarm', 0]);
  assert.deepEqual(grown(66, 3), ['flowing', 'calm', 2]);
});

test('trouble_comes_first_then_backlog_then_the_name', () => {
  const state = stateOf({ calm: {}, busy: { ready: 5000 }, busier: { ready: 7000 }, stopped: { state: 'stopped' }, paused: { state: 'paused' }, governed: { breaker: 'closed' } });
  const judged = byTrouble([...state.throttles.values()], NOW);
  assert.deepEqual(judged.map(({ throttle }) => throttle.name), ['stopped', 'paused', 'busier', 'busy', 'calm', 'governed']);
  assert.deepEqual(featured(judged, 3).map(({ throttle }) => throttle.name), ['stopped', 'paused', 'governed']);
  apply(state, { type: 'throttle', data: { name: 'ghost', knobs: null, depth: { ready: 4, dead: 2, oldest_ready_s: 90 } } });
  const all = byTrouble([...state.throttles.values()], NOW);
  assert.deepEqual([all[0].throttle.name, all[0].verdict.text], ['ghost', 'does not exist']);
  assert.deepEqual(sums(all), { dead: 2, failing: 0, oldest: { seconds: 90, throttle: 'ghost' } });
});

test('throttles_that_flyball_made_and_no_job_used_are_an_empty_page', () => {
  const of = (detail) => {
    const state = emptyState();
    apply(state, { type: 'throttle', data: { name: 'a', knobs: { by: 'flyball' }, ...detail } });
    return isUntouched(state.throttles.get('a'));
  };
  assert.deepEqual([of({}), of({ depth: { ready: 0, scheduled: 0, running: 0, dead: 0 } }), of({ depth: { ready: 0, scheduled: 1, running: 0, dead: 0 } }), of({ achieved_rps: 0.2 }), of({ knobs: { by: 'pool' } }), of({ knobs: { by: 'ann' } }), of({ knobs: null })], [true, true, false, false, true, false, false]);
});

test('a_page_says_that_there_are_no_jobs_only_if_it_would_know_of_them', () => {
  const of = (more) => isWithoutWork({ ...emptyState(), ...more }, []);
  assert.deepEqual([of({}), of({ known: true }), of({ known: true, isOfTenant: true })], [false, true, false]);
});

test('the_form_of_knobs_is_complete_and_reads_flags_and_parents', () => {
  assert.deepEqual(FIELDS.filter(({ group }) => !GROUPS.some(({ name }) => name === group)), []);
  const current = valuesOf({ knobs: { rps: 5, borrow: false, min: 1, key_rps: -1, window: 1, on_store_loss: 'local' }, mode: 'manual', paused: false, parent: 'up' });
  assert.deepEqual(readEdits({ borrow: 'yes', parent: '', on_store_loss: 'open' }, current).body, { borrow: true, parent: null, on_store_loss: 'open' });
  assert.deepEqual(readEdits({ borrow: 'no', parent: 'up' }, current).body, {});
  assert.equal(knobSummary(current, (_, value) => String(value), false), 'rps 5 · parent up · on_store_loss local');
});

test('the_audit_log_is_searched_by_subject_change_author_and_token', () => {
  const entries = [{ subject: 'hooks', action: 'throttle.set', before: { rps: 1 }, after: { rps: 2 }, actor: 'ann', token: null }, { subject: 'mail', action: 'dead.requeue', before: null, after: { jobs: 5 }, actor: 'bob', token: 'night' }];
  const found = (what, who) => auditOf(entries, { what, who }).map(({ subject }) => subject);
  assert.deepEqual([found('', ''), found('HOOK', ''), found('requeued', ''), found('', 'night'), found('mail', 'ann')], [['hooks', 'mail'], ['hooks'], ['mail'], ['mail'], []]);
});

test('a_row_that_moved_between_two_pages_is_listed_once', () => {
  const rows = [{ id: 3, state: 'ready' }, { id: 2, state: 'ready' }, { id: 2, state: 'running' }, { id: 1, state: 'ready' }];
  assert.deepEqual(unique(rows, ({ id }) => id).map(({ id, state }) => `${id} ${state}`), ['3 ready', '2 ready', '1 ready']);
});

test('only_the_clock_of_the_server_tells_the_time', () => {
  const folder = new URL('../../src/api/dashboard/', import.meta.url);
  const lines = readdirSync(folder).filter((name) => name.endsWith('.js') && name !== 'clock.js')
    .flatMap((name) => readFileSync(new URL(name, folder), 'utf8').split('\n').map((line) => `${name}: ${line.trim()}`));
  // A page whose answers carry their time has an offset of its own, in milliseconds.
  assert.deepEqual(lines.filter((line) => /Date\.now\(\)|new Date\(\)/.test(line) && !/offset/i.test(line)), []);
});

test('a_throttle_that_left_the_ticks_is_shown_by_its_details', () => {
  const state = stateOf({ a: { ready: 900, dead: 40, oldest_ready_s: 700, breaker: 'open', achieved_rps: 9 }, b: {} });
  const a = state.throttles.get('a');
  const shown = (now) => [readyOf(a), deadOf(a), oldestOf(a), totalReady(state), sums(byTrouble([a], now)).dead, facts(a).breaker, verdict(a, now).text].join();
  assert.equal(shown(NOW), '900,40,700,900,40,open,breaker open');
  const detail = (more) => apply(state, { type: 'throttle', data: { name: 'a', mode: 'manual', state: 'flowing', knobs: { by: 'pool' }, achieved_rps: 0, depth: { ready: 0, scheduled: 0, running: 0, dead: 0, oldest_ready_s: null, ...more } } });
  detail({ ready: 7, dead: 3, oldest_ready_s: 2 });
  assert.equal(latest(a), null);
  assert.equal(shown(NOW + 5), '7,3,2,7,3,,flowing');
  detail({});
  assert.equal(isUntouched(a), true);
  detail({ dead: 90 });
  assert.equal(verdict(a, NOW + 5).grown, 50);
  assert.equal(verdict(a, NOW + 3600).grown, 0, 'what was counted an hour ago is no base');
});

test('throttles_of_an_unknown_state_are_trouble_while_the_store_is_lost', () => {
  const state = stateOf({ a: { state: 'unknown' }, b: { state: 'flowing' } });
  apply(state, { type: 'throttle', data: { name: 'b', state: 'flowing', mode: 'manual', knobs: {}, paused: true } });
  const judge = () => ['a', 'b'].map((name) => verdict(state.throttles.get(name), NOW, isStoreLost(state))).map(({ text, rank }) => `${text} ${rank}`).join();
  assert.equal(judge(), 'unknown 2,paused 1');
  assert.equal(mayChange(state), false, 'nobody has said so yet');
  const tick = (more) => apply(state, { type: 'tick', data: { at: NOW + 1, throttles: {}, ...more } });
  tick({ store_lost: true });
  assert.equal(judge(), 'unknown 1,unknown 1');
  assert.equal(mayChange(state), true, 'the server refuses what is not allowed');
  assert.match(storeText(state), /on_store_loss/);
  assert.ok(tick({}).has('unknown'), 'the details are asked for again');
  assert.equal(storeText(state), null);
  apply(state, { type: 'leave', data: { may_change: false } });
  apply(state, { type: 'store', data: 'OOM' });
  assert.deepEqual([isStoreLost(state), mayChange(state)], [true, false]);
  assert.match(storeText(state), /The server says: OOM\.$/);
});

test('one_request_without_an_answer_of_redis_is_no_loss_of_it_while_the_ticks_say_otherwise', () => {
  const state = stateOf({ a: {} });
  const server = { unreachable: false, refused: { stream: '', throttles: 'Redis does not answer', queue: '' } };
  Object.assign(state, { phase: 'live' });
  apply(state, { type: 'store', data: 'Redis does not answer' });
  assert.equal(isStoreLost(state), true, 'no tick has said anything');
  apply(state, { type: 'tick', data: { at: NOW + 1, throttles: {}, store_lost: false } });
  assert.deepEqual([isStoreLost(state), storeText(state)], [false, null]);
  assert.equal(awayText(state, server, NOW + 1), 'No list of throttles: Redis does not answer. Retrying.');
  apply(state, { type: 'tick', data: { at: NOW + 2, throttles: {}, store_lost: true } });
  assert.match(storeText(state), /The server says: Redis does not answer\.$/);
  apply(state, { type: 'tick', data: { at: NOW + 3, throttles: {}, store_lost: false } });
  state.phase = 'lost';
  assert.equal(isStoreLost(state), true, 'an old tick is no news');
});

test('what_is_refused_is_told_with_its_reason_and_what_is_lost_with_its_age', () => {
  const state = stateOf({ a: {} });
  const server = (more) => ({ unreachable: false, refused: { stream: '', throttles: '', queue: '', ...more } });
  state.phase = 'live';
  assert.deepEqual([awayText(state, server(), NOW), phaseOf(state, server(), NOW).text], [null, 'live']);
  assert.equal(awayText(state, server({ stream: 'an old reason' }), NOW), null, 'a stream that is there is not refused');
  const hung = server({ queue: 'Postgres did not answer within 4 s' });
  state.depthAge = 130;
  assert.match(queueText(state, hung), /neither accepted nor started.* counts of jobs are 2 min old, and lists no newer\. The server says: Postgres did not answer within 4 s\.$/);
  assert.deepEqual([phaseOf(state, hung, NOW).text, queueText(state, server())], ['live, without Postgres', null]);
  state.queueUnwritable = true;
  assert.match(queueText(state, server()), /neither accepted nor started.* counts of jobs are 2 min old\. flyball doctor says why\.$/);
  assert.match(queueText(state, hung), /says: Postgres did not answer within 4 s\.$/, 'no answer comes before no writes');
  assert.equal(phaseOf(state, server(), NOW).text, 'live, without writes to Postgres');
  state.storeLost = true;
  assert.doesNotMatch(storeText(state, server()), /accepted/);
  Object.assign(state, { queueUnwritable: false, storeLost: false, phase: 'lost' });
  assert.equal(awayText(state, server(), NOW + 5), null, 'a few seconds are no news');
  assert.match(awayText(state, server(), NOW + 9), /^The server does not answer\. The data is from /);
  assert.match(awayText(state, server({ stream: 'too many', throttles: 'no scope.' }), NOW), /^No live data: too many\. No list of throttles: no scope\. The data is from /);
  assert.equal(phaseOf(state, server({ stream: 'too many' }), NOW + 9).text, 'no live data, last data 9 s ago');
  state.storeLost = true;
  assert.match(awayText(state, server({ throttles: 'no store' }), NOW + 9), /^The server does not answer/);
});
