// The inbox: pages, marks, counts, and what comes live.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { until } from './fake-gateway.mjs';
import { FakeInbox } from './fake-inbox.mjs';
import { stage } from './stage.mjs';

test('pages follow their cursors to the end', async (t) => {
  const { gateway, client } = await stage(t);
  const inbox = new FakeInbox(gateway);
  for (let n = 1; n <= 7; n += 1) inbox.add(`message ${n}`);
  const ids = [];
  let cursor;
  let pages = 0;
  do {
    const page = await client.inbox.list({ cursor, limit: 3 });
    ids.push(...page.messages.map(({ id }) => id));
    assert.deepEqual(page.counts, { unseen: 7, unread: 7 });
    cursor = page.next;
    pages += 1;
  } while (cursor !== null);
  assert.deepEqual([ids, pages], [['7', '6', '5', '4', '3', '2', '1'], 3]);
});

test('some or all are marked, and the counts answer', async (t) => {
  const { gateway, client } = await stage(t);
  const inbox = new FakeInbox(gateway);
  for (let n = 1; n <= 4; n += 1) inbox.add(`message ${n}`);
  assert.deepEqual(await client.inbox.mark({ ids: ['1'], as: 'read' }), { unseen: 3, unread: 3 });
  assert.deepEqual(await client.inbox.mark({ allUpTo: '3', as: 'seen' }), { unseen: 1, unread: 3 });
  assert.deepEqual(await client.inbox.counts(), { unseen: 1, unread: 3 });
  assert.deepEqual(gateway.last.received.map(({ ref, ...frame }) => frame), [
    { type: 'inbox_mark', ids: ['1'], as: 'read' },
    { type: 'inbox_mark', all_up_to: '3', as: 'seen' },
    { type: 'inbox_list', limit: 1 },
  ]);
});

test('messages and marks of other devices come live, also those that came while the connection was away', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  const inbox = new FakeInbox(gateway);
  const [messages, counts] = [[], []];
  client.inbox.onmessage = ({ subject }) => messages.push(subject);
  client.inbox.oncounts = (change) => counts.push(change);
  await until('the subscription', () => gateway.last?.cursors.size === 1);
  assert.equal(gateway.last.received.length, 1, 'both handlers share one subscription');
  inbox.add('one');
  await until('the message', () => messages.length === 1);
  await gateway.die();
  inbox.add('two');
  await gateway.listen();
  await until('the second message', () => messages.length === 2);
  await client.inbox.mark({ ids: ['1'], as: 'seen' });
  await until('the counts', () => counts.length === 3);
  assert.deepEqual([messages, counts], [['one', 'two'], [
    { unseen: 1, unread: 1 },
    { unseen: 2, unread: 2 },
    { unseen: 1, unread: 2, marked: { as: 'seen', ids: ['1'] } },
  ]]);
  client.inbox.onmessage = null;
  client.inbox.oncounts = null;
  await until('the end of the subscription', () => gateway.last.cursors.size === 0);
});

test('several marks that are told together name none, so that the program lists anew', async (t) => {
  const { gateway, client } = await stage(t);
  const counts = [];
  client.inbox.oncounts = (change) => counts.push(change);
  await until('the subscription', () => gateway.last?.cursors.size === 1);
  gateway.publish('$inbox', { type: 'counts', unseen: 0, unread: 2, as: null, ids: null, all_up_to: null });
  await until('the counts', () => counts.length === 1);
  assert.deepEqual(counts, [{ unseen: 0, unread: 2, marked: null }]);
});

test('a list and a mark without an answer are sent again: done twice is the same', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  const inbox = new FakeInbox(gateway);
  inbox.add('one');
  const answer = gateway.onframe;
  gateway.onframe = () => true;
  const [page, counts] = [client.inbox.list(), client.inbox.mark({ ids: ['1'], as: 'read' })];
  await until('two frames', () => gateway.last?.received.length === 2);
  await gateway.die();
  gateway.onframe = answer;
  await gateway.listen();
  assert.equal((await page).messages.length, 1);
  assert.deepEqual(await counts, { unseen: 0, unread: 0 });
});

test('lost messages of the inbox are told, so that the program lists anew', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  const inbox = new FakeInbox(gateway);
  const lost = [];
  client.inbox.onmessage = () => {};
  client.inbox.onlost = ({ reason }) => lost.push(reason);
  await until('the subscription', () => gateway.last?.cursors.size === 1);
  await gateway.die();
  inbox.add('one');
  gateway.channel('$inbox').epoch = 2;
  await gateway.listen();
  await until('the loss', () => lost.length === 1);
  assert.deepEqual(lost, ['not_kept']);
});

test('a ticket without a recipient has no inbox, and the program is told', async (t) => {
  const { gateway, client } = await stage(t);
  gateway.onframe = (connection, { ref }) => {
    connection.send({ type: 'error', code: 'FORBIDDEN_CHANNEL', message: 'the connection has no inbox: its ticket names no recipient', ref });
    return true;
  };
  const errors = [];
  client.inbox.onerror = ({ code }) => errors.push(code);
  client.inbox.onmessage = () => {};
  await assert.rejects(client.inbox.list(), { code: 'FORBIDDEN_CHANNEL' });
  await until('the error', () => errors.length === 1);
  assert.deepEqual([errors, client.state.name], [['FORBIDDEN_CHANNEL'], 'open']);
});
