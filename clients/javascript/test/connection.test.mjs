// How the client connects, when it comes back, and when it does not.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Flyball, FlyballError } from '../flyball.js';
import { until } from './fake-gateway.mjs';
import { notes, setClock, stage, stopClock } from './stage.mjs';

test('the ticket is in the address, the subprotocol is offered, and refusals are asked for as closes', async (t) => {
  const { gateway, is, states } = await stage(t);
  await is('open');
  const { pathname, searchParams } = gateway.last.url;
  assert.deepEqual([pathname, searchParams.get('ticket'), searchParams.get('refuse')], ['/api/v1/ws', 'ticket-1', 'close']);
  assert.deepEqual(states.map(({ name }) => name), ['connecting', 'open']);
});

test('a token is the first frame and never in the address', async (t) => {
  const { gateway, is } = await stage(t, { token: async () => 'secret-token' });
  await is('open');
  assert.deepEqual(gateway.last.received[0], { type: 'refresh', token: 'secret-token' });
  assert.ok(!gateway.last.url.href.includes('secret'));
});

test('an address may be the page of a server, a path, or a WebSocket', async () => {
  const addresses = [];
  class Noted extends EventTarget {
    constructor(url) {
      super();
      addresses.push(url.href.replace(/\?.*/, ''));
    }

    close() {}
  }
  for (const url of ['https://a.example', 'http://a.example/jobs/', 'wss://a.example/api/v1/ws', 'ws://a.example']) {
    const client = new Flyball({ url, ticket: async () => 't', WebSocket: Noted });
    await until('the attempt', () => addresses.length > 0 && addresses.at(-1));
    await new Promise((resolve) => setImmediate(resolve));
    client.close();
  }
  assert.deepEqual(addresses, ['wss://a.example/api/v1/ws', 'ws://a.example/jobs/api/v1/ws', 'wss://a.example/api/v1/ws', 'ws://a.example/api/v1/ws']);
  assert.throws(() => new Flyball({ url: 'ftp://a.example', ticket: async () => 't' }), /url: must begin with https/);
  assert.throws(() => new Flyball({ url: 'https://a.example' }), /ticket or token/);
});

/** The wait after each close code of a first connection, if chance is one half and the spread ten seconds. */
const CLOSES = [
  [1000, 'waiting', 5_000],
  [1001, 'waiting', 5_000],
  [1002, 'waiting', 5_000],
  [1007, 'waiting', 5_000],
  [1009, 'waiting', 5_000],
  [1011, 'waiting', 5_000],
  [1012, 'waiting', 5_000],
  [1013, 'waiting', 5_000],
  [4001, 'waiting', 0],
  [4003, 'waiting', 0],
  [4099, 'waiting', 0],
  [4100, 'waiting', 750],
  [4108, 'waiting', 750],
  [4109, 'waiting', 750],
  [4199, 'waiting', 750],
  [4200, 'waiting', 0],
  [4201, 'waiting', 0],
  [4299, 'waiting', 0],
  [4300, 'waiting', 5_000],
];

for (const [code, name, retryInMs] of CLOSES) {
  test(`after the close code ${code} it comes back in ${retryInMs} ms`, async (t) => {
    t.mock.method(Math, 'random', () => 0.5);
    stopClock(t);
    const { gateway, is, client, tickets } = await stage(t);
    const { seen, handlers } = notes();
    await client.subscribe('orders', handlers).ready;
    gateway.last.close(code, 'a reason');
    const state = await is('waiting');
    assert.deepEqual([state.name, state.retryInMs, state.code, state.reason], [name, retryInMs, code, 'a reason']);
    if (retryInMs > 0) {
      t.mock.timers.tick(retryInMs - 1);
      assert.equal(client.state.name, 'waiting');
    }
    t.mock.timers.tick(1);
    await is('open');
    gateway.publish('orders', 1);
    await until('the message', () => seen.messages.length === 1);
    assert.equal(tickets.length, 2, 'a ticket opens one connection');
  });
}

test('a server that dies without a word is spread over its window, from its beginning to its end', async (t) => {
  stopClock(t);
  for (const [chance, wait] of [[0, 0], [0.25, 2_500], [0.999, 9_990]]) {
    const random = t.mock.method(Math, 'random', () => chance);
    const { gateway, is } = await stage(t);
    await is('open');
    gateway.last.socket.destroy();
    const state = await is('waiting');
    assert.deepEqual([state.code, state.retryInMs, state.attempt], [1006, wait, 1]);
    random.mock.restore();
  }
});

test('while nobody listens it waits longer and longer, up to half a minute', async (t) => {
  t.mock.method(Math, 'random', () => 0.999);
  stopClock(t);
  const { gateway, is, client, tickets } = await stage(t);
  await is('open');
  await gateway.die();
  const waits = [];
  for (let attempt = 1; attempt <= 8; attempt += 1) {
    const state = await until('the wait', () => {
      // Node.js 20 and 22 tell of some failures without a close.
      if (client.state.name === 'connecting') t.mock.timers.tick(1);
      return client.state.name === 'waiting' && client.state.attempt === attempt && client.state;
    });
    waits.push(state.retryInMs);
    t.mock.timers.tick(state.retryInMs);
  }
  assert.deepEqual(waits, [9_990, 1_998, 3_996, 7_992, 15_984, 29_970, 29_970, 29_970]);
  assert.equal(tickets.length, 9);
  await gateway.listen();
  await until('a connection', () => {
    t.mock.timers.tick(500);
    return client.state.name === 'open';
  });
});

test('a refused upgrade is a failed attempt', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  const { gateway, states, is } = await stage(t);
  gateway.refuses = 503;
  await until('two attempts', () => states.filter(({ name }) => name === 'waiting').length >= 2);
  assert.equal(states.find(({ name }) => name === 'waiting').code, 1006);
  gateway.refuses = 0;
  await is('open');
});

test('connections that end as soon as they begin are not opened at once for ever', async (t) => {
  t.mock.method(Math, 'random', () => 0.5);
  stopClock(t);
  const { gateway, client } = await stage(t);
  gateway.closes = 4201;
  const waits = [];
  for (let attempt = 1; attempt <= 4; attempt += 1) {
    const state = await until('the wait', () => client.state.name === 'waiting' && client.state.attempt === attempt && client.state);
    waits.push(state.retryInMs);
    t.mock.timers.tick(state.retryInMs);
  }
  assert.deepEqual(waits, [0, 0, 2_000, 4_000]);
});

test('a refused credential is renewed once; then it gives up, and everything that waits is told', async (t) => {
  const { gateway, is, client, tickets } = await stage(t);
  gateway.closes = 4001;
  const { seen, handlers } = notes();
  const subscription = client.subscribe('orders', handlers);
  const published = assert.rejects(client.publish('orders', 1), { code: 'GAVE_UP', maybeDone: false });
  const { error } = await is('closed');
  assert.ok(error instanceof FlyballError);
  assert.deepEqual([error.code, error.permanent, tickets.length, gateway.all.length], ['GAVE_UP', true, 2, 2]);
  await published;
  await assert.rejects(subscription.ready, error);
  assert.deepEqual([seen.errors, subscription.state], [[error], 'ended']);
  assert.throws(() => client.subscribe('more'), { code: 'CLOSED' });
  await assert.rejects(client.publish('orders', 1), { code: 'CLOSED', maybeDone: false });
});

test('a token that cannot be renewed is not sent again', async (t) => {
  const { gateway, is } = await stage(t, { token: 'fixed' });
  gateway.closes = 4003;
  const { error } = await is('closed');
  assert.deepEqual([error.code, gateway.all.length], ['GAVE_UP', 1]);
});

test('a credential that was good for a while may expire again and again', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  stopClock(t);
  const { gateway, client, tickets, is } = await stage(t);
  for (let round = 1; round <= 4; round += 1) {
    await until('the connection', () => {
      t.mock.timers.tick(0);
      return client.state.name === 'open' && gateway.all.length === round;
    });
    t.mock.timers.tick(5_000);
    gateway.last.close(4001, 'expired');
    await is('waiting');
  }
  assert.equal(tickets.length, 4);
});

test('a provider that fails is asked again, and one that says no ends it', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  let asked = 0;
  const ticket = async () => {
    asked += 1;
    if (asked === 1) throw new Error('the page is offline');
    if (asked === 2) return 'good';
    throw new FlyballError('signed out', { code: 'SIGNED_OUT', permanent: true });
  };
  const { gateway, states, is } = await stage(t, { ticket });
  await is('open');
  assert.equal(states.find(({ name }) => name === 'waiting').error.message, 'the page is offline');
  gateway.last.close(4201);
  assert.equal((await is('closed')).error.code, 'SIGNED_OUT');
});

test('a page of an error in place of a ticket is a provider that fails, not a wrong credential', async (t) => {
  t.mock.method(Math, 'random', () => 0.5);
  stopClock(t);
  const answers = ['Service Unavailable', '<html>sign in</html>', '{"ticket":"t"}', '', undefined, 't'.repeat(129), 'a-ticket'];
  const { gateway, is, client } = await stage(t, { ticket: async () => answers.shift() });
  for (let attempt = 1; attempt <= 6; attempt += 1) {
    const state = await until('the wait', () => client.state.name === 'waiting' && client.state.attempt === attempt && client.state);
    assert.match(state.error.message, /^ticket: its provider must return/);
    t.mock.timers.tick(state.retryInMs);
  }
  await is('open');
  assert.equal(gateway.all.length, 1, 'no other is sent');
});

test('a provider that returns no token is one that fails', async (t) => {
  const { gateway, is } = await stage(t, { token: async () => '' });
  const { error } = await is('waiting');
  assert.match(error.message, /^token: its provider must return/);
  assert.equal(gateway.all.length, 0);
});

test('an address that the platform does not open is tried again, and its fragment is left out', async (t) => {
  const opened = [];
  class Refusing {
    constructor(url) {
      opened.push(url.hash);
      throw new Error('the policy of the page forbids it');
    }
  }
  const client = new Flyball({ url: 'https://a.example/#part', ticket: async () => 't', WebSocket: Refusing });
  t.after(() => client.close());
  const { error } = await until('the wait', () => client.state.name === 'waiting' && client.state);
  assert.equal(error.message, 'the policy of the page forbids it');
  assert.deepEqual(opened, ['']);
});

test('a provider that never answers is not waited for for ever', async (t) => {
  stopClock(t);
  const { client, is } = await stage(t, { ticket: () => new Promise(() => {}) });
  await is('connecting');
  await new Promise((resolve) => setImmediate(resolve));
  t.mock.timers.tick(20_000);
  assert.equal(client.state.name, 'waiting');
});

test('a server that stops is left at the time that it names, even if it dies before', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  stopClock(t);
  const { gateway, client, is, states } = await stage(t);
  await is('open');
  gateway.last.send({ type: 'reconnect', after_ms: 3_000 });
  await client.publish('orders', 'still open');
  t.mock.timers.tick(1_000);
  gateway.last.socket.destroy();
  assert.equal((await is('waiting')).retryInMs, 2_000);
  t.mock.timers.tick(2_000);
  await is('open');
  gateway.last.send({ type: 'reconnect', after_ms: 3_000 });
  await client.publish('orders', 'still open');
  t.mock.timers.tick(3_000);
  gateway.last.close(4201, 'the server restarts');
  assert.equal((await is('waiting')).retryInMs, 0);
  t.mock.timers.tick(0);
  await is('open');
  gateway.last.send({ type: 'reconnect', after_ms: 3_000 });
  await client.publish('orders', 'still open');
  t.mock.timers.tick(5_000);
  const left = states.findLast(({ name }) => name === 'waiting');
  assert.deepEqual([left.code, left.reason], [4201, 'the server stops']);
});

test('a device whose clock is set back comes back in time, and renews its token in time', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  stopClock(t);
  let asked = 0;
  const { gateway, client, is, warnings } = await stage(t, { token: async () => `token-${asked += 1}` });
  const warn = () => gateway.last.send({ type: 'warning', code: 'TOKEN_EXPIRES', message: 'The credential expires in 60s; send a refresh frame.' });
  await is('open');
  warn();
  await until('the warning', () => warnings.length === 1);
  t.mock.timers.tick(0);
  await until('the newer token', () => gateway.last.received.length === 2);
  gateway.last.send({ type: 'reconnect', after_ms: 3_000 });
  await client.publish('orders', 'still open');
  setClock(t, 1_500_000_000_000);
  warn();
  await until('the warning', () => warnings.length === 2);
  gateway.last.socket.destroy();
  assert.equal((await is('waiting')).retryInMs, 3_000);
  t.mock.timers.tick(3_000);
  await is('open');
  warn();
  await until('the warning', () => warnings.length === 3);
  t.mock.timers.tick(7_000);
  await until('the newer token', () => gateway.last.received.length === 2);
  assert.equal(asked, 4);
});

test('pings are answered, and a silent connection is replaced', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  stopClock(t);
  const { gateway, client, is, states } = await stage(t);
  await is('open');
  gateway.last.send({ type: 'ping' });
  await until('the pong', () => gateway.last.pongs === 1);
  t.mock.timers.tick(34_000);
  assert.equal(client.state.name, 'open');
  gateway.last.send({ type: 'ping' });
  await until('the pong', () => gateway.last.pongs === 2);
  t.mock.timers.tick(34_000);
  assert.equal(client.state.name, 'open');
  t.mock.timers.tick(1_000);
  assert.equal(states.findLast(({ name }) => name === 'waiting').reason, 'the server is silent');
  await until('another connection', () => gateway.all.length === 2);
});

test('a newer token is sent before the old one expires, and asked for again if that fails', async (t) => {
  stopClock(t);
  let asked = 0;
  const token = async () => {
    asked += 1;
    if (asked === 2) throw new Error('the provider is away');
    return `token-${asked}`;
  };
  const { gateway, is, warnings, client } = await stage(t, { token });
  await is('open');
  gateway.last.send({ type: 'warning', code: 'TOKEN_EXPIRES', message: 'The credential expires in 60s; send a refresh frame.' });
  await until('the warning', () => warnings.length === 1);
  t.mock.timers.tick(0);
  await until('the question', () => asked === 2);
  await new Promise((resolve) => setImmediate(resolve));
  t.mock.timers.tick(1_000);
  await until('the frame', () => gateway.last.received.length === 2);
  assert.deepEqual([gateway.last.received[1].type, gateway.last.received[1].token], ['refresh', 'token-3']);
  assert.deepEqual([warnings.map(({ code }) => code), client.state.name], [['TOKEN_EXPIRES'], 'open']);
});

test('tokens that live shortly are not renewed without a pause', async (t) => {
  stopClock(t);
  let asked = 0;
  const { gateway, is, warnings } = await stage(t, { token: async () => `token-${asked += 1}` });
  const warn = () => gateway.last.send({ type: 'warning', code: 'TOKEN_EXPIRES', message: 'The credential expires in 30s; send a refresh frame.' });
  // The server warns again as soon as it has the newer token.
  gateway.onframe = (connection, { type, ref }) => {
    if (type !== 'refresh' || !connection.isGreeted) return false;
    connection.send({ type: 'refreshed', expires_at: null, ref });
    warn();
    return true;
  };
  await is('open');
  warn();
  await until('a warning', () => warnings.length === 1);
  t.mock.timers.tick(0);
  await until('the next warning', () => warnings.length === 2);
  t.mock.timers.tick(9_999);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(asked, 2);
  t.mock.timers.tick(1);
  await until('the next warning', () => warnings.length === 3);
  assert.equal(asked, 3);
});

test('warnings of the limit are told', async (t) => {
  const { gateway, is, warnings } = await stage(t);
  await is('open');
  gateway.last.send({ type: 'warning', code: 'WS_RATE_LIMITED', message: 'Message throttled. Retry in 1s.' });
  await until('the warning', () => warnings.length === 1);
  assert.deepEqual(warnings, [{ code: 'WS_RATE_LIMITED', message: 'Message throttled. Retry in 1s.' }]);
});

test('without a network it waits for one, and comes back as soon as there is', async (t) => {
  t.mock.method(Math, 'random', () => 0);
  stopClock(t);
  const target = new EventTarget();
  const replaced = { navigator: { onLine: false }, addEventListener: target.addEventListener.bind(target), removeEventListener: target.removeEventListener.bind(target) };
  const before = Object.fromEntries(Object.keys(replaced).map((name) => [name, Object.getOwnPropertyDescriptor(globalThis, name)]));
  const { gateway, is, client } = await stage(t);
  gateway.hello.resume_window_s = 10;
  await is('open');
  t.after(() => {
    for (const [name, was] of Object.entries(before)) {
      if (was) Object.defineProperty(globalThis, name, was);
      else delete globalThis[name];
    }
  });
  for (const [name, value] of Object.entries(replaced)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  Math.random.mock.mockImplementation(() => 0.9);
  gateway.last.socket.destroy();
  const state = await is('waiting');
  assert.deepEqual([state.offline, state.retryInMs], [true, 9_000]);
  target.dispatchEvent(new Event('online'));
  t.mock.timers.tick(900);
  await until('the connection', () => client.state.name === 'open');
});

test('close ends everything, and a close within a handler too', async (t) => {
  const { gateway, client, is } = await stage(t);
  const { seen, handlers } = notes();
  await client.subscribe('orders', handlers).ready;
  gateway.onframe = (connection, { type }) => type === 'publish';
  const published = client.publish('orders', 1);
  await until('the frame', () => gateway.last.received.some(({ type }) => type === 'publish'));
  client.close();
  assert.deepEqual(client.state, { name: 'closed' });
  await assert.rejects(published, { code: 'CONNECTION_LOST', maybeDone: true });
  await until('the end on the server', () => gateway.connections.size === 0);
  assert.deepEqual(seen.errors, []);
  client.close();
  const ended = new Flyball({ url: gateway.url, ticket: async () => 't', onstate: () => ended.close() });
  await until('its end', () => ended.state.name === 'closed');
  await is('closed');
});
