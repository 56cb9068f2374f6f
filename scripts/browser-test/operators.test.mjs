// The pure parts of groups, suppressions, workers and previews.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { jobOf } from '../../src/api/dashboard/enqueuejob.js';
import { groupCounts, groupsPath } from '../../src/api/dashboard/groups.js';
import { previewPath } from '../../src/api/dashboard/preview.js';
import { ofRecipient } from '../../src/api/dashboard/suppressions.js';
import { changeOf, typedFields } from '../../src/api/dashboard/updatejob.js';
import { servesText } from '../../src/api/dashboard/workerlist.js';

test('the counts of a group leave out what is zero', () => {
  assert.equal(groupCounts({ jobs: 5, pending: 2, completed: 2, dead: 1, cancelled: 0 }), '5: 2 pending, 2 completed, 1 dead');
  assert.equal(groupCounts({ jobs: 0, pending: 0, completed: 0, dead: 0, cancelled: 0 }), '0');
});

test('what a person types is encoded in a path', () => {
  assert.equal(groupsPath('', 20), '/api/v1/groups?limit=20');
  assert.equal(groupsPath('open', 20), '/api/v1/groups?state=open&limit=20');
  assert.equal(ofRecipient('email', 'a+b&c@example.com'), '/api/v1/suppressions?channel=email&recipient=a%2Bb%26c%40example.com');
  assert.equal(previewPath('30 2 * * *', 'Europe/Berlin'), '/api/v1/cron-next?expression=30+2+*+*+*&time_zone=Europe%2FBerlin');
  assert.equal(previewPath('@daily', ''), '/api/v1/cron-next?expression=%40daily');
});

test('a worker that was told nothing serves all throttles', () => {
  assert.equal(servesText({ kinds: ['http', 'report'], throttles: [] }), 'http, report; all throttles');
  assert.equal(servesText({ kinds: [], throttles: ['pdf*'] }), 'no kinds; throttles pdf*');
});

test('an update sends only the fields that differ, and null for what goes back to the kind', () => {
  const job = { throttle: 'hooks', key: 'acme', priority: 1, max_attempts: 10, cost: 1.5, timeout_s: 60, tags: ['eu'] };
  const typed = (more) => changeOf(job, { ...typedFields(job), ...more });
  assert.throws(() => typed({}), /Nothing differs/);
  assert.deepEqual(typed({ priority: '0', key: '' }), { priority: 0, key: '' });
  assert.deepEqual(typed({ timeout: '', tags: '' }), { timeout: null, tags: null });
  assert.deepEqual(typed({ tags: 'eu, , urgent', cost: 'much', args: '{"customer": 17}' }), { tags: ['eu', 'urgent'], cost: 'much', args: { customer: 17 } });
  assert.deepEqual(typed({ priority: '' }), { priority: '' }, 'an empty number is none, and not 0');
  assert.throws(() => typed({ args: '{' }), /^Error: arguments: /);
});

test('a job has the fields that were filled in, and arguments', () => {
  assert.throws(() => jobOf({ kind: '' }), /needs a kind/);
  assert.deepEqual(jobOf({ kind: 'mail', args: '', throttle: '', key: 'acme', priority: 'x', run_at: '' }), { kind: 'mail', key: 'acme', priority: 'x', args: {} });
});
