// Every message once and in order, whatever happens to connections and frames.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { randoms, until } from './fake-gateway.mjs';
import { notes, numbers, stage, stopClock } from './stage.mjs';

test('messages come in order with their ids and places', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  for (const n of numbers(1, 3)) gateway.publish('orders', { n });
  await until('three messages', () => seen.messages.length === 3);
  assert.deepEqual(seen.messages[1], { type: 'message', channel: 'orders', data: { n: 2 }, id: '2', position: { epoch: '1', offset: 2 } });
  assert.deepEqual(seen.subscribed, [{ type: 'subscribed', channel: 'orders', recovered: false, missed: 0 }]);
  assert.deepEqual(seen.lost, []);
});

test('what was published while the connection was away comes once, and then what is new', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client, is } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  for (const n of numbers(1, 5)) gateway.publish('orders', n);
  await until('five messages', () => seen.messages.length === 5);
  await gateway.die();
  for (const n of numbers(6, 20)) gateway.publish('orders', n);
  await gateway.listen();
  await is('open');
  await until('the confirmation', () => seen.subscribed.length === 2);
  gateway.publish('orders', 21);
  await until('all', () => seen.messages.length === 21);
  assert.deepEqual(seen.data(), numbers(1, 21));
  assert.deepEqual(gateway.last.received[0].since, { epoch: '1', offset: 5 });
  assert.deepEqual(seen.subscribed[1], { type: 'subscribed', channel: 'orders', recovered: true, missed: 15 });
  assert.deepEqual(seen.lost, []);
});

test('a connection that ends before the first message loses nothing', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  await gateway.die();
  gateway.publish('orders', 'first');
  await gateway.listen();
  await until('the message', () => seen.messages.length === 1);
  assert.deepEqual(seen.lost, []);
});

for (const seed of numbers(1, 6)) {
  test(`lost, repeated and interrupted messages, seed ${seed}`, async (t) => {
    const random = randoms(seed);
    t.mock.method(Math, 'random', () => 0);
    const { gateway, client } = await stage(t);
    gateway.hello.resume_window_s = 0;
    gateway.copies = () => { const x = random(); return x < 0.05 ? 0 : x < 0.15 ? 2 : 1; };
    const channels = ['a', 'b', 'c'].map((name) => ({ name, ...notes() }));
    await Promise.all(channels.map(({ name, handlers }) => client.subscribe(name, handlers).ready));
    for (const n of numbers(1, 300)) {
      for (const { name } of channels) gateway.publish(name, n);
      const x = random();
      if (x < 0.02 || n === 150) {
        await gateway.die();
        await gateway.listen();
      } else if (x < 0.04) gateway.last.close(4201);
      else if (x < 0.3) await new Promise((resolve) => setImmediate(resolve));
    }
    // The last message of each channel must arrive for the client to see that one before it did not.
    gateway.copies = () => 1;
    await until('the client', () => client.state.name === 'open');
    for (const { name } of channels) gateway.publish(name, 301);
    await until('all messages', () => channels.every(({ seen }) => seen.messages.length >= 301));
    for (const { seen } of channels) {
      assert.deepEqual(seen.data(), numbers(1, 301));
      assert.deepEqual(seen.lost, []);
    }
    assert.ok(gateway.all.length > 1, 'no connection was lost');
  });
}

test('a program is told once when the history no longer has all', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  const subscription = client.subscribe('orders', handlers);
  await subscription.ready;
  for (const n of numbers(1, 3)) gateway.publish('orders', n);
  await until('three messages', () => seen.messages.length === 3);
  await gateway.die();
  for (const n of numbers(4, 10)) gateway.publish('orders', n);
  Object.assign(gateway.channel('orders'), { first: 8, messages: gateway.channel('orders').messages.slice(7) });
  await gateway.listen();
  await until('the confirmation', () => seen.subscribed.length === 2);
  gateway.publish('orders', 11);
  await until('the next message', () => seen.messages.length === 4);
  assert.deepEqual(seen.data(), [1, 2, 3, 11]);
  assert.deepEqual(seen.lost, [{ type: 'lost', channel: 'orders', reason: 'not_kept', missed: 7 }]);
  assert.deepEqual(subscription.position, { epoch: '1', offset: 11 });
});

test('after another epoch the number of lost messages is unknown', async (t) => {
  const { gateway, client } = await stage(t);
  gateway.channel('orders').epoch = 7;
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers, { since: { epoch: '3', offset: 5 } }).ready;
  assert.deepEqual(seen.lost, [{ type: 'lost', channel: 'orders', reason: 'not_kept', missed: null }]);
});

test('a program that kept its place gets what came after it', async (t) => {
  const { gateway, client } = await stage(t);
  for (const n of numbers(1, 4)) gateway.publish('orders', n);
  const { seen, handlers } = notes();
  client.subscribe('orders', handlers, { since: { epoch: '1', offset: 2 } });
  await until('two messages', () => seen.messages.length === 2);
  assert.deepEqual([seen.data(), seen.lost], [[3, 4], []]);
});

test('a channel that is made anew goes on with its first message, and what is older is dropped', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  const send = (epoch, offset) => gateway.last.send({ type: 'message', channel: 'orders', epoch, offset, id: '1', data: `${epoch}:${offset}` });
  send('1', 1);
  send('10', 1);
  send('9', 2);
  send('10', 1);
  send('10', 2);
  await until('three messages', () => seen.messages.length === 3);
  assert.deepEqual(seen.data(), ['1:1', '10:1', '10:2']);
  assert.equal(gateway.last.received.length, 1, 'it subscribed again');
});

test('a message that the server cannot send is told as a loss, and what follows it arrives', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  const send = (frame) => gateway.last.send({ channel: 'orders', epoch: '1', ...frame });
  send({ type: 'message', offset: 1, id: 'a', data: 'before' });
  send({ type: 'gap', offset: 2, missed: 1 });
  send({ type: 'message', offset: 3, id: 'c', data: 'after' });
  await until('two messages', () => seen.messages.length === 2);
  assert.deepEqual(seen.data(), ['before', 'after']);
  assert.deepEqual(seen.lost.map(({ reason, missed }) => [reason, missed]), [['dropped', 1]]);
  assert.equal(gateway.last.received.length, 1, 'it subscribed again');
});

test('a channel without history says that messages may be missing after each reconnection', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('presence.1', handlers).ready;
  gateway.publish('presence.1', 'here');
  await until('the message', () => seen.messages.length === 1);
  assert.equal(seen.messages[0].position, undefined);
  gateway.last.send({ type: 'gap', channel: 'presence.1', missed: 3 });
  gateway.last.close(4201);
  await until('the confirmation', () => seen.subscribed.length === 2);
  assert.deepEqual(seen.lost.map(({ reason, missed }) => [reason, missed]), [['dropped', 3], ['no_history', null]]);
});

test('a place in a channel without history is answered with a loss', async (t) => {
  const { client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('presence.1', handlers, { since: { epoch: '1', offset: 4 } }).ready;
  assert.deepEqual(seen.lost, [{ type: 'lost', channel: 'presence.1', reason: 'no_history', missed: null }]);
});

test('a channel that gets a history later tells of the time before', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('presence.1', handlers).ready;
  gateway.channel('presence.1').hasHistory = true;
  gateway.last.close(4201);
  await until('the confirmation', () => seen.subscribed.length === 2);
  gateway.publish('presence.1', 'here');
  await until('the message', () => seen.messages.length === 1);
  assert.deepEqual([seen.lost.map(({ reason }) => reason), seen.messages[0].position], [['no_history'], { epoch: '1', offset: 1 }]);
});

test('two names of one channel are no two subscriptions', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('$inbox', handlers).ready;
  await assert.rejects(client.subscribe('$inbox/u1').ready, { code: 'SAME_CHANNEL' });
  gateway.publish('$inbox/u1', 1);
  await until('the message', () => seen.messages.length === 1);
  assert.equal(seen.messages[0].channel, '$inbox');
});

test('another name of a channel that is ended at once ends nothing else', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('$inbox', handlers).ready;
  const other = client.subscribe('$inbox/u1', handlers);
  other.unsubscribe();
  await until('the end', () => gateway.last.received.some(({ type }) => type === 'unsubscribe'));
  gateway.publish('$inbox/u1', 1);
  await until('the message', () => seen.messages.length === 1);
  assert.equal(seen.messages[0].channel, '$inbox');
});

test('what waited at the server when another name of the channel began comes', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('$inbox', handlers).ready;
  // It waits there: the subscription by another name begins after it.
  gateway.copies = () => 0;
  gateway.publish('$inbox/u1', 1);
  gateway.copies = () => 1;
  await assert.rejects(client.subscribe('$inbox/u1').ready, { code: 'SAME_CHANNEL' });
  await until('the message', () => seen.messages.length === 1);
});

test('handlers may be methods of an object, and a subscription that ends unconfirmed says so', async (t) => {
  const { gateway, client } = await stage(t);
  class Orders {
    got = [];
    message({ data }) { this.got.push(data); }
    lost() {}
  }
  const orders = new Orders();
  await client.subscribe('orders', orders).ready;
  gateway.publish('orders', 1);
  await until('the message', () => orders.got.length === 1);
  const ended = client.subscribe('more', new Orders());
  ended.unsubscribe();
  await assert.rejects(ended.ready, { code: 'CLOSED' });
});

test('a subscription is iterated, and a program that is slower than its channel loses nothing', { timeout: 30_000 }, async (t) => {
  const { gateway, client } = await stage(t);
  const subscription = client.subscribe('orders');
  await subscription.ready;
  for (const n of numbers(1, 5_000)) gateway.publish('orders', n);
  await until('the pause', () => gateway.last.received.some(({ type }) => type === 'unsubscribe'));
  const seen = [];
  for await (const event of subscription) {
    seen.push(event.data);
    if (seen.length % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
    if (seen.length === 5_000) break;
  }
  assert.deepEqual(seen, numbers(1, 5_000));
  assert.equal(subscription.state, 'ended');
  await until('the end on the server', () => gateway.last.cursors.size === 0);
});

test('a program that is slower than a channel without history has the newest messages and the number of the others', { timeout: 30_000 }, async (t) => {
  const { gateway, client } = await stage(t);
  const subscription = client.subscribe('presence.1');
  await subscription.ready;
  for (const n of numbers(1, 2_500)) gateway.publish('presence.1', n);
  // Its answer comes behind them.
  await client.publish('other', 1);
  const events = [];
  for await (const event of subscription) {
    events.push(event);
    if (event.data === 2_500) break;
  }
  assert.deepEqual(events[0], { type: 'lost', channel: 'presence.1', reason: 'dropped', missed: 1_501 });
  assert.deepEqual(events.slice(1).map(({ data }) => data), numbers(1_502, 2_500));
});

test('an iteration that is closed before its first event, or while it waits for one, ends the subscription', async (t) => {
  const { gateway, client } = await stage(t);
  for (const waits of [false, true]) {
    const subscription = client.subscribe('orders');
    await subscription.ready;
    const events = subscription[Symbol.asyncIterator]();
    const next = waits ? events.next() : null;
    await events.return();
    assert.equal(subscription.state, 'ended');
    if (next) assert.deepEqual(await next, { value: undefined, done: true });
    await until('the end on the server', () => gateway.last.cursors.size === 0);
  }
});

test('an iteration tells of lost messages, and ends with the client', { timeout: 30_000 }, async (t) => {
  const { gateway, client } = await stage(t);
  gateway.channel('orders').epoch = 2;
  const events = [];
  for await (const event of client.subscribe('orders', { since: { epoch: '1', offset: 1 } })) {
    events.push(event.type);
    client.close();
  }
  assert.deepEqual(events, ['lost']);
});

test('acknowledgements are batched: one a second and channel, of the last message', async (t) => {
  stopClock(t);
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  for (const n of numbers(1, 5)) gateway.publish('orders', n);
  await until('five messages', () => seen.messages.length === 5);
  t.mock.timers.tick(600);
  for (const n of numbers(6, 10)) gateway.publish('orders', n);
  await until('ten messages', () => seen.messages.length === 10);
  t.mock.timers.tick(399);
  const [connection] = gateway.all;
  await client.publish('other', 1);
  assert.deepEqual(connection.acks, []);
  t.mock.timers.tick(1);
  await until('the acknowledgement', () => connection.acks.length === 1);
  gateway.publish('orders', 11);
  await until('one more', () => seen.messages.length === 11);
  t.mock.timers.tick(1_000);
  await until('the next', () => connection.acks.length === 2);
  assert.deepEqual(connection.acks.map(({ channel, offset }) => [channel, offset]), [['orders', 10], ['orders', 11]]);
});

test('a handler that throws is reported, and the next message comes', async (t) => {
  const { gateway, client } = await stage(t);
  const reported = [];
  globalThis.reportError = (error) => reported.push(error.message);
  t.after(() => { delete globalThis.reportError; });
  const seen = [];
  await client.subscribe('orders', { message: ({ data }) => { seen.push(data); throw new Error(`no ${data}`); }, lost: () => {} }).ready;
  gateway.publish('orders', 1);
  gateway.publish('orders', 2);
  await until('both', () => seen.length === 2);
  assert.deepEqual(reported, ['no 1', 'no 2']);
});

test('a subscription that the server refuses ends with its error; the others go on', async (t) => {
  const { gateway, client } = await stage(t);
  gateway.onframe = (connection, { type, channel, ref }) => {
    if (type !== 'subscribe' || channel !== 'secret') return false;
    connection.send({ type: 'error', code: 'FORBIDDEN_CHANNEL', message: 'channel: belongs to somebody else', ref });
    return true;
  };
  const [good, bad] = [notes(), notes()];
  const refused = client.subscribe('secret', bad.handlers);
  await client.subscribe('orders', good.handlers).ready;
  await assert.rejects(refused.ready, { code: 'FORBIDDEN_CHANNEL' });
  assert.deepEqual([refused.state, bad.seen.errors.length], ['ended', 1]);
  await assert.rejects(async () => { for await (const _ of client.subscribe('secret')); }, { code: 'FORBIDDEN_CHANNEL' });
  gateway.publish('orders', 1);
  await until('the message', () => good.seen.messages.length === 1);
});

test('a subscription is tried again when the database is away', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, client } = await stage(t);
  let refused = 0;
  gateway.onframe = (connection, { type, ref }) => {
    if (type !== 'subscribe' || ++refused > 2) return false;
    connection.send({ type: 'error', code: 'UNAVAILABLE', message: 'Postgres does not answer', ref });
    return true;
  };
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  assert.deepEqual([refused, seen.errors, seen.lost], [3, [], []]);
});

test('a missing message is asked for once, and frames of the subscription before it are not taken', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  gateway.copies = (connection, offset) => (offset === 2 ? 0 : 1);
  const held = [];
  gateway.onframe = (connection, frame) => frame.type === 'subscribe' && held.push(frame) > 0;
  for (const n of numbers(1, 6)) gateway.publish('orders', n);
  await until('the question', () => held.length === 1);
  await client.publish('other', 'the frames before it were read');
  assert.deepEqual([seen.data(), held.length], [[1], 1]);
  client.unsubscribe('orders');
  const again = notes();
  client.subscribe('orders', again.handlers);
  gateway.last.send({ type: 'message', channel: 'orders', epoch: '1', offset: 6, id: '6', data: 6 });
  await client.publish('other', 'the frames before it were read');
  gateway.onframe = () => false;
  gateway.copies = () => 1;
  gateway.answer(gateway.last, held[1]);
  gateway.publish('orders', 7);
  await until('the message', () => again.seen.messages.length === 1);
  assert.deepEqual([seen.data(), again.seen.data()], [[1], [7]]);
});

test('a lag is told', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  gateway.last.send({ type: 'lag', channel: 'orders' });
  await until('the lag', () => seen.lags.length === 1);
  assert.deepEqual([seen.lags, seen.lost], [[{ channel: 'orders' }], []]);
});

test('an ended subscription gets nothing more, and its channel can be subscribed again', async (t) => {
  const { gateway, client } = await stage(t);
  const [first, second] = [notes(), notes()];
  await client.subscribe('orders', first.handlers).ready;
  assert.throws(() => client.subscribe('orders', second.handlers), /has a subscription/);
  client.unsubscribe('orders');
  await client.subscribe('orders', second.handlers).ready;
  gateway.publish('orders', 1);
  await until('the message', () => second.seen.messages.length === 1);
  assert.deepEqual(first.seen.messages, []);
});

test('the inbox of a recipient is followed whatever letters its id has', async (t) => {
  const { gateway, client } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('$inbox/jürgen 東京', handlers).ready;
  gateway.publish('$inbox/jürgen 東京', 1);
  await until('the message', () => seen.messages.length === 1);
  assert.equal(seen.messages[0].channel, '$inbox/jürgen 東京');
});

test('wrong arguments are named', async (t) => {
  const { client } = await stage(t);
  const lost = () => {};
  for (const [call, words] of [
    [() => client.subscribe(''), /channel: must be a text/],
    [() => client.subscribe('ä', { message: lost, lost }), /channel/],
    [() => client.subscribe('$inbox/a\nb', { message: lost, lost }), /channel/],
    [() => client.subscribe('a', { message: lost }), /lost: must be a function/],
    [() => client.subscribe('a', { lost }), /message: must be a function/],
    [() => client.subscribe('a', { since: { epoch: 'x', offset: 1 } }), /since/],
  ]) assert.throws(call, words);
  await assert.rejects(client.publish('a', undefined), /data: must be a JSON value/);
  await assert.rejects(client.publish('a', () => {}), /data: must be a JSON value/);
  await assert.rejects(client.inbox.mark({ as: 'read' }), /either ids or allUpTo/);
});
