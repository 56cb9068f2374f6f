// The texts of the page of recipients.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { capText, checkPath, digestsPath, forecastText, gateWord, heldText, mostOf, pastText, plannedText, sourceText, stepText, whoText } from '../../src/api/dashboard/gatewords.js';

const NOW = Date.parse('2026-11-20T12:00:00Z') / 1000;
const step = (more) => ({ gate: 'caps', finding: 'passed', rule: '', until: null, ...more });

test('each_finding_of_a_gate_has_its_words', () => {
  assert.equal(stepText(step({}), NOW), 'passed');
  assert.match(stepText(step({ until: '2026-11-20T11:55:00Z' }), NOW), /^passed .*\d$/);
  assert.match(stepText(step({ finding: 'waits', until: '2026-11-20T12:05:00Z' }), NOW), /^waits until .*, in 5 min$/);
  assert.match(stepText(step({ finding: 'collected', until: '2026-11-20T12:05:00Z' }), NOW), /^collected; closes /);
  assert.equal(stepText(step({ finding: 'ended', duplicate_of: 7 }), NOW), 'ended: duplicate of 7');
  assert.equal(stepText(step({ finding: 'ended' }), NOW), 'ended here');
  assert.equal(stepText(step({ finding: 'not_reached' }), NOW), 'not reached');
  assert.equal(gateWord('quiet_hours'), 'quiet hours');
  assert.equal(gateWord('local_time'), 'local time');
});

test('a_plan_tells_the_present_time_and_the_first_one_if_it_differs', () => {
  const at = '2026-11-20T12:05:00Z';
  assert.equal(plannedText({ first_planned_at: null, planned_at: null }, NOW), '');
  assert.match(plannedText({ first_planned_at: at, planned_at: at }, NOW), /^Planned for .*, in 5 min\.$/);
  assert.match(plannedText({ first_planned_at: '2026-11-20T12:01:00Z', planned_at: at }, NOW), /; first planned for /);
  assert.equal(forecastText(null, NOW), '');
  const forecast = { at: '2026-11-20T11:00:00Z', is_of_digest: true, sentence: 'passes all gates', gates: [], goes_at: null };
  assert.equal(forecastText(forecast, NOW), 'Next check of the gates now: its digest passes all gates.');
});

test('caps_counts_and_digests_have_their_words', () => {
  const cap = { allowed: true, remaining: 2, resetAt: '2026-11-20T12:05:00Z', rule: 'per_day', cap: '5 per 1d', is_of_actor: false, reserved: 0, sent_at: [] };
  assert.equal(capText(cap, NOW), '2 left');
  assert.match(capText({ ...cap, allowed: false }, NOW), /^none left until .*, in 5 min$/);
  assert.equal(mostOf(cap), 5);
  assert.equal(heldText({ name: 'caps', messages: 1, next_at: null }, NOW), '');
  assert.match(heldText({ name: 'news', messages: 4, digests: 1, next_at: '2026-11-20T11:00:00Z' }, NOW), /^1 digest, next due now$/);
  assert.equal(whoText({ recipient: '', to: 'a***@e***.com', actor: 'bob' }), 'a***@e***.com, by bob');
  assert.equal(digestsPath('', 5), '/api/v1/digests?limit=5');
  assert.equal(checkPath({ channel: 'sms', to: '+1', category: '' }), '/api/v1/recipients/check?channel=sms&to=%2B1');
});

test('a_step_tells_since_when_and_who_set_its_rule', () => {
  const [since, until] = ['2026-11-20T11:55:00Z', '2026-11-20T12:05:00Z'];
  assert.match(stepText(step({ finding: 'waits', since, until }), NOW), /^waits since .* until .*, in 5 min$/);
  assert.match(stepText(step({ finding: 'ended', since, until }), NOW), /^ended .*; room at /);
  const source = (of, more = {}) => sourceText(step({ set_by: { of, place: '', by: '', at: null, ...more } }), NOW);
  assert.equal(sourceText(step({}), NOW), '');
  assert.equal(source('shipped'), 'a rule that ships');
  assert.match(source('rules', { place: 'own.toml, line 4', at: since }), /^own\.toml, line 4, changed /);
  assert.match(source('profile', { by: 'ann', at: since }), /^the profile by ann, changed /);
  assert.match(source('suppression', { at: since }), /^suppressed since /);
});

test('a_past_message_tells_its_gate_and_the_time_that_matters', () => {
  const past = (more) => ({ id: 1, state: 'delivered', category: '', gate: '', rule: '', accepted_at: '', changed_at: '', until: '2026-11-20T12:05:00Z', ...more });
  assert.equal(pastText(past({}), NOW), '');
  assert.match(pastText(past({ state: 'queued', gate: 'quiet_hours', rule: '22:00-08:00 UTC' }), NOW), /^quiet hours: 22:00-08:00 UTC until /);
  assert.match(pastText(past({ state: 'capped', gate: 'caps', rule: 'per_day 2 per 1d' }), NOW), /^caps: per_day 2 per 1d; room at /);
  assert.equal(pastText(past({ state: 'duplicate', gate: 'dedup', rule: 'of 7', until: null }), NOW), 'dedup: of 7');
});
