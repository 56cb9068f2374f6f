// Drives the JavaScript client in headless Chromium against real processes of Flyball that are
// killed and stopped in traffic.
//
//   node scripts/browser-test/gateway.mjs [--clients 30] [--kills 3]
//
// The page has another origin than the gateway. Two processes share one Postgres: pages are connected
// to the first, by a balancer that counts connections; the second publishes and goes on while the
// first is killed, so that every kill makes clients miss messages. FLYBALL names the program.
// Exit code 0: no faults; 1: faults; 69: no Chromium or no program.

import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { connect, createServer as createProxy } from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { check, failures } from './checks.mjs';
import { Chromium, findChromium } from './chromium.mjs';
import { Stack, findFlyball } from './stack.mjs';

const CLIENT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../clients/javascript/flyball.js');
const DRAIN_S = 4;
const PUBLISH_EVERY_MS = 20;
const TOKEN = '0123456789abcdef-acme';
const SETTINGS = `[api_tokens.acme]
tenant = "acme"
secret_env = "ACME_TOKEN"
scopes = ["channels:subscribe", "channels:publish"]
`;

const option = (name, usual) => {
  const i = process.argv.indexOf(`--${name}`);
  return i < 0 ? usual : Number(process.argv[i + 1]);
};
const clients = option('clients', 30);
const kills = option('kills', 3);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The page: `start(count, url)` opens clients that note what they get. */
const PAGE = `<!doctype html><meta charset="utf-8"><title>gateway</title><link rel="icon" href="data:,"><script type="module">
import { Flyball } from '/flyball.js';
const ticket = async () => {
  const answer = await fetch('/ticket', { method: 'POST' });
  if (!answer.ok) throw new Error('no ticket: ' + answer.status);
  return answer.text();
};
window.seen = [];
window.start = (count, url) => {
  for (let i = 0; i < count; i += 1) {
    const one = { offsets: [], ids: [], lost: [], opened: 0, missed: 0 };
    const client = new Flyball({ url, ticket, onstate: (state) => { one.state = state.name; if (state.name === 'open') one.opened += 1; } });
    client.subscribe('orders', {
      message: ({ position, id, data }) => { one.offsets.push(position.offset); one.ids.push(id); one.last = data; },
      lost: (lost) => one.lost.push(lost.reason),
      subscribed: ({ recovered, missed }) => { if (recovered) one.missed += missed; one.isReady = true; },
    });
    one.client = client;
    window.seen.push(one);
  }
};
// Every offset once and in order, from the same first one.
window.faults = (published) => window.seen.flatMap(({ offsets, ids, lost, state }, i) => {
  const faults = [];
  const wrong = offsets.findIndex((offset, n) => offset !== offsets[0] + n);
  if (wrong >= 0) faults.push('client ' + i + ' got ' + offsets[wrong] + ' after ' + offsets[wrong - 1]);
  const known = new Set(ids);
  if (known.size !== ids.length) faults.push('client ' + i + ' got an id twice');
  const missing = published.filter((id) => !known.has(id));
  if (missing.length) faults.push('client ' + i + ' lacks ' + missing.length + ' of ' + published.length + ' accepted messages');
  if (lost.length) faults.push('client ' + i + ' was told of loss: ' + lost);
  return faults;
}).slice(0, 6);
window.isLoaded = true;
</script>`;

/** Serves the page and issues tickets, as the server of an application does. */
async function startPage(gateway) {
  const server = createServer(async (request, response) => {
    if (request.url === '/flyball.js') {
      response.setHeader('content-type', 'text/javascript');
      response.end(await readFile(CLIENT));
    } else if (request.url === '/ticket') {
      const answer = await fetch(`${gateway()}/api/v1/ws/tickets`, {
        method: 'POST',
        headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
        body: JSON.stringify({ channels: ['orders'], publish: true }),
      }).catch(() => null);
      response.statusCode = answer?.ok ? 200 : 502;
      response.end(answer?.ok ? (await answer.json()).ticket : '');
    } else {
      response.setHeader('content-type', 'text/html');
      response.end(PAGE);
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { server, url: `http://127.0.0.1:${server.address().port}` };
}

/** A load balancer in front of the gateway: new connections go where it points. */
async function startBalancer() {
  const balancer = { target: 0, arrivals: [] };
  const server = createProxy((socket) => {
    balancer.arrivals.push(Date.now());
    const inside = connect(balancer.target, '127.0.0.1');
    const cut = () => { socket.destroy(); inside.destroy(); };
    for (const one of [socket, inside]) one.on('error', cut).on('close', cut);
    socket.pipe(inside).pipe(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return Object.assign(balancer, { server, url: `http://127.0.0.1:${server.address().port}` });
}

/** Publishes numbers to a channel until it is stopped; notes the ids that were accepted. */
function startTraffic(url) {
  const traffic = { ids: [], isOver: false };
  traffic.done = (async () => {
    for (let n = 1; !traffic.isOver; n += 1) {
      const answer = await fetch(`${url}/api/v1/channels/orders/messages`, {
        method: 'POST',
        headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
        body: JSON.stringify({ data: n }),
      });
      if (answer.status !== 202) throw new Error(`a publication got ${answer.status}: ${await answer.text()}`);
      traffic.ids.push((await answer.json()).id);
      await pause(PUBLISH_EVERY_MS);
    }
  })();
  return traffic;
}

async function main() {
  const program = findFlyball();
  if (!program || !findChromium()) {
    console.error(program ? 'no chromium found: install it (apt-get install chromium) or set CHROMIUM to its path' : 'no program found: run cargo build, or set FLYBALL to its path');
    return 69;
  }
  const balancer = await startBalancer();
  const publishers = { url: '' };
  const page = await startPage(() => publishers.url);
  const stack = await Stack.start(program, SETTINGS, {
    ACME_TOKEN: TOKEN,
    FLYBALL_API_TOKEN: '0123456789abcdef-admin',
    FLYBALL_WS_DRAIN_S: String(DRAIN_S),
    FLYBALL_WS_ORIGINS: page.url,
  });
  const browser = await Chromium.start();
  try {
    await run({ stack, balancer, page, publishers, tab: await browser.page() });
  } finally {
    await browser.close();
    await stack.stop();
    page.server.close();
    balancer.server.close();
  }
  for (const fault of failures) console.error(fault);
  return failures.length ? 1 : 0;
}

async function run({ stack, balancer, page, publishers, tab }) {
  const publisher = await stack.serve();
  publishers.url = publisher.url;
  let gateway = await stack.serve();
  balancer.target = gateway.port;
  const own = gateway.port;
  await tab.open(page.url);
  await tab.until('the page', 'window.isLoaded');
  await tab.evaluate(`start(${clients}, ${JSON.stringify(balancer.url)})`);
  await tab.until('all subscriptions', `seen.length === ${clients} && seen.every((one) => one.isReady)`, 30_000);
  const traffic = startTraffic(publisher.url);
  /** Waits for everything that is published by now, and returns the faults of what came. */
  const faultsByNow = async () => {
    const published = [...traffic.ids];
    await tab.until('the last message everywhere', `seen.every((one) => one.ids.includes(${JSON.stringify(published.at(-1))}))`, 60_000);
    return tab.evaluate(`faults(${JSON.stringify(published)})`);
  };
  const total = (what) => tab.evaluate(`seen.reduce((sum, one) => sum + one.${what}, 0)`);

  for (let round = 1; round <= kills; round += 1) {
    await check(`kill ${round}: clients come back to the same address and have every message once and in order`, async () => {
      const [opened, missed] = [await total('opened'), await total('missed')];
      await pause(300 + Math.random() * 700);
      const [from, killed] = [balancer.arrivals.length, Date.now()];
      await gateway.kill('SIGKILL');
      // Real time: messages must be published while the clients are away.
      await pause(500);
      gateway = await stack.serve(own);
      await tab.until('every client', `seen.reduce((sum, one) => sum + one.opened, 0) >= ${opened + clients} && seen.every((one) => one.state === 'open')`, 60_000);
      const faults = await faultsByNow();
      const resumed = await total('missed') - missed;
      const halves = [0, 0];
      for (const at of balancer.arrivals.slice(from)) halves[Math.min(1, Math.floor((at - killed) / (DRAIN_S * 500)))] += 1;
      console.log(`     ${clients} clients, ${resumed} messages from the history, attempts in the halves of ${DRAIN_S} s: ${halves.join(', ')}`);
      if (halves.includes(0)) faults.push('the attempts are not spread');
      return resumed > 0 ? faults : [...faults, 'nobody missed a message'];
    });
  }

  await check('a process that is asked to stop sends its clients to the next one over its drain, and nothing is lost', async () => {
    const opened = await total('opened');
    const next = await stack.serve();
    balancer.target = next.port;
    const from = balancer.arrivals.length;
    const began = Date.now();
    const { code } = await gateway.kill('SIGTERM');
    await tab.until('every client', `seen.reduce((sum, one) => sum + one.opened, 0) >= ${opened + clients} && seen.every((one) => one.state === 'open')`, 30_000);
    const faults = await faultsByNow();
    const quarters = [0, 0, 0, 0];
    for (const at of balancer.arrivals.slice(from)) quarters[Math.min(3, Math.max(0, Math.floor((at - began) / (DRAIN_S * 250))))] += 1;
    console.log(`     ${clients} reconnections in the quarters of ${DRAIN_S} s: ${quarters.join(', ')}`);
    if (code !== 0) faults.push(`the process ended with ${code}`);
    if (quarters.some((count) => count === 0 || count > clients / 2)) faults.push(`the reconnections are not spread: ${quarters}`);
    if (balancer.arrivals.length - from !== clients) faults.push(`${balancer.arrivals.length - from} connections for ${clients} clients`);
    gateway = next;
    return faults;
  });

  await check('a publication of the page is answered with its id, and comes to every client', async () => {
    const { id } = await tab.evaluate(`seen[0].client.publish('orders', 'from the page')`);
    await tab.until('it everywhere', `seen.every((one) => one.ids.includes(${JSON.stringify(id)}))`);
    return (await tab.evaluate(`seen[0].client.publish('other', 1).then(() => 'published', (error) => error.code)`)) === 'FORBIDDEN_CHANNEL' ? [] : ['another channel took it'];
  });

  await check('after the traffic every client has the same and all of it', async () => {
    traffic.isOver = true;
    await traffic.done;
    const faults = await faultsByNow();
    const lists = await tab.evaluate(`new Set(seen.map(({ ids }) => ids.join())).size`);
    if (lists !== 1) faults.push(`${lists} different lists`);
    const bad = tab.errors.filter((error) => !/WebSocket|ERR_CONNECTION|net::ERR_|status of 502/.test(error));
    return [...faults, ...bad];
  });

  await check('a page of an origin that is not named may not connect, and gives up after a second ticket', async () => {
    const other = page.url.replace('127.0.0.1', 'localhost');
    await tab.open(other);
    await tab.until('the page', 'window.isLoaded');
    await tab.evaluate(`start(1, ${JSON.stringify(balancer.url)})`);
    await tab.until('the refusal', `seen[0].client.state.name === 'closed'`, 15_000);
    const { code, message } = await tab.evaluate(`(({ code, message }) => ({ code, message }))(seen[0].client.state.error)`);
    const faults = (await tab.evaluate('seen[0].opened')) === 0 ? [] : ['it was let in'];
    return code === 'GAVE_UP' ? faults : [...faults, `it ended with ${code}: ${message}`];
  });
}

process.exit(await main());
