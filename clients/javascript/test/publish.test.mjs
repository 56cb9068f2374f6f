// Publications and other requests: each answer finds its question, and nothing is sent twice unsaid.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { until } from './fake-gateway.mjs';
import { stage } from './stage.mjs';

const published = (gateway) => gateway.all.flatMap(({ received }) => received).filter(({ type }) => type === 'publish').map(({ data }) => data);

test('answers are matched by their ref, in any order', async (t) => {
  const { gateway, client } = await stage(t);
  const held = [];
  gateway.onframe = (connection, frame) => held.push(frame) > 0;
  const promises = [1, 2, 3].map((n) => client.publish('orders', n));
  await until('three frames', () => held.length === 3);
  for (const { ref, data } of held.reverse()) gateway.last.send({ type: 'published', id: `id-${data}`, ref });
  assert.deepEqual(await Promise.all(promises), [{ id: 'id-1' }, { id: 'id-2' }, { id: 'id-3' }]);
});

test('a publication that waits for a connection is sent once there is one', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client, is } = await stage(t);
  await is('open');
  await gateway.die();
  await is('waiting');
  const data = { n: 1 };
  const promises = [client.publish('orders', data), client.publish('orders', 2)];
  // The value at the time of the call counts.
  data.n = 9;
  await gateway.listen();
  assert.equal((await Promise.all(promises)).length, 2);
  assert.deepEqual(published(gateway), [{ n: 1 }, 2]);
});

test('one without an answer when the connection is lost fails as perhaps done, and is not sent again', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client, is } = await stage(t);
  gateway.onframe = (connection, { type }) => type === 'publish';
  const promise = client.publish('orders', 'once');
  await until('the frame', () => published(gateway).length === 1);
  await gateway.die();
  await assert.rejects(promise, { name: 'FlyballError', code: 'CONNECTION_LOST', maybeDone: true });
  gateway.onframe = () => false;
  await gateway.listen();
  await is('open');
  await client.publish('orders', 'next');
  assert.deepEqual(published(gateway), ['once', 'next']);
});

for (const [code, maybeDone] of [['WS_OVERLOADED', false], ['SCOPE_MISSING', false], ['UNAVAILABLE', true]]) {
  test(`${code} says ${maybeDone ? 'that it may have been published' : 'that nothing was published'}`, async (t) => {
    const { gateway, client } = await stage(t);
    gateway.onframe = (connection, { ref }) => { connection.send({ type: 'error', code, message: 'words of the server', ref }); return true; };
    await assert.rejects(client.publish('orders', 1), { code, maybeDone, message: 'words of the server' });
    assert.equal(client.state.name, 'open');
  });
}

test('a frame that cannot be read is the oldest without an answer', async (t) => {
  const { gateway, client } = await stage(t);
  const held = [];
  gateway.onframe = (connection, frame) => held.push(frame) > 0;
  const [first, second] = [client.publish('orders', '\ud800'), client.publish('orders', 2)];
  await until('two frames', () => held.length === 2);
  gateway.last.send({ type: 'error', code: 'BAD_FRAME', message: 'the frame is not JSON' });
  gateway.last.send({ type: 'published', id: '9', ref: held[1].ref });
  await assert.rejects(first, { code: 'BAD_FRAME', maybeDone: false });
  assert.deepEqual(await second, { id: '9' });
});

test('a frame of 65,536 bytes is sent, and a larger one is refused here, where it closes nothing', async (t) => {
  const { gateway, client } = await stage(t);
  await client.publish('orders', '');
  const overhead = JSON.stringify(gateway.last.received[0]).length;
  // Characters of two bytes count as two.
  const text = 'ä'.repeat(Math.floor((65_536 - overhead) / 2)) + 'a'.repeat((65_536 - overhead) % 2);
  assert.deepEqual(Object.keys(await client.publish('orders', text)), ['id']);
  await assert.rejects(client.publish('orders', `${text}a`), { code: 'TOO_LARGE', maybeDone: false });
  assert.equal(client.state.name, 'open');
});

test('a thousand publications may wait, and the next is refused', async (t) => {
  const { gateway, client, is } = await stage(t);
  gateway.onframe = (connection, { type }) => type === 'publish';
  await is('open');
  const waiting = Array.from({ length: 1_000 }, (_, n) => client.publish('orders', n).catch(({ code }) => code));
  await assert.rejects(client.publish('orders', 'more'), { code: 'QUEUE_FULL', maybeDone: false });
  client.close();
  assert.deepEqual(new Set(await Promise.all(waiting)), new Set(['CONNECTION_LOST']));
});
