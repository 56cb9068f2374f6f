// Drives the example inbox (examples/inbox) in headless Chromium, on a fake gateway.
//
//   node scripts/browser-test/inbox.mjs [--shots DIR]
//
// Exit code 0: no faults; 1: faults; 69: no Chromium.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { FakeGateway } from '../../clients/javascript/test/fake-gateway.mjs';
import { FakeInbox } from '../../clients/javascript/test/fake-inbox.mjs';
import { check, failures } from './checks.mjs';
import { Chromium, findChromium } from './chromium.mjs';
import { OVERFLOW, POOR_CONTRAST, namelessControls } from './looks.mjs';
import { freePort } from './stack.mjs';

const SERVER = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../examples/inbox/server.mjs');
const shots = process.argv.includes('--shots') ? process.argv[process.argv.indexOf('--shots') + 1] : null;

async function shot(page, name) {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  writeFileSync(path.join(shots, `inbox-${name}.png`), await page.screenshot({ full: false }));
}

const TEXTS = [
  ['Your invoice for October', 'The invoice over 129.00 EUR is ready. It will be charged on 1 December.'],
  ['Ada Lovelace mentioned you', '“Can you look at the numbers of the second engine before Thursday?”'],
  ['Export finished', 'The export of 48,211 rows is ready and will be kept for seven days.'],
  ['New sign-in from Lisbon', 'Firefox on Linux. If that was not you, change your password.'],
];

async function main() {
  if (!findChromium()) {
    console.error('no chromium found: install it (apt-get install chromium) or set CHROMIUM to its path');
    return 69;
  }
  const gateway = await FakeGateway.start();
  gateway.hello.resume_window_s = 1;
  const inbox = new FakeInbox(gateway);
  for (let n = 0; n < 45; n += 1) {
    const [subject, body] = TEXTS[n % TEXTS.length];
    inbox.add(subject, { body, created_at: new Date(Date.UTC(2026, 10, 20, 8, 37 * n)).toISOString() });
  }
  inbox.mark({ all_up_to: '42', as: 'read' });
  const port = await freePort();
  const server = spawn(process.execPath, [SERVER, '--port', String(port), '--flyball', gateway.url], { env: { ...process.env, FLYBALL_TOKEN: 'token-of-a-test' }, stdio: ['ignore', 'pipe', 'inherit'] });
  await once(server.stdout, 'data');
  const browser = await Chromium.start();
  try {
    await run(await browser.page(), `http://127.0.0.1:${port}/?recipient=u1`, gateway, inbox);
  } finally {
    await browser.close();
    server.kill();
    await gateway.die();
  }
  return failures.length ? 1 : 0;
}

const rows = `document.querySelectorAll('#messages li').length`;
const connected = `document.getElementById('connection').dataset.state === 'open'`;
const press = (page, nth, action) => page.evaluate(`[...document.querySelectorAll('#messages li')][${nth}].querySelector('[data-mark=${action}]').click()`);
const choose = (page, state) => page.evaluate(`document.querySelector('.filters [data-state="${state}"]').click()`);

async function run(page, url, gateway, inbox) {
  await page.send('Emulation.setTimezoneOverride', { timezoneId: 'UTC' });
  await page.size(1100, 800);
  await page.scheme('light');
  await page.open(url);

  await check('it shows the newest page, and messages on an open page are seen', async () => {
    await page.until('the first page', `${rows} === 20 && ${connected}`);
    await page.until('that they are seen', `document.getElementById('unseen').hidden && document.title === 'Inbox'`);
    return inbox.counts.unseen === 0 && inbox.counts.unread === 3 ? [] : [`the counts are ${JSON.stringify(inbox.counts)}`];
  });

  for (const [width, height, mobile] of [[1100, 800, false], [390, 844, true]]) {
    for (const scheme of ['light', 'dark']) {
      await check(`it looks right with ${width} px, ${scheme}`, async () => {
        await page.size(width, height, { mobile, scale: mobile ? 2 : 1 });
        await page.scheme(scheme);
        await shot(page, `${width}-${scheme}`);
        return [...await page.evaluate(POOR_CONTRAST), ...await page.evaluate(OVERFLOW), ...await namelessControls(page)];
      });
    }
  }
  await page.size(1100, 800);
  await page.scheme('light');

  await check('the list grows to its end while it is scrolled', async () => {
    await page.until('the end', `(window.scrollTo(0, document.body.scrollHeight), ${rows} === 45)`);
    await page.until('that nothing loads', `document.getElementById('more').hidden`);
    const ids = await page.evaluate(`[...document.querySelectorAll('#messages li')].map(({ dataset }) => Number(dataset.id))`);
    await page.evaluate('scrollTo(0, 0)');
    return ids.every((id, n) => id === 45 - n) ? [] : [`the ids are ${ids}`];
  });

  await check('a message that arrives is on top, said aloud, and counted while the inbox is closed', async () => {
    await page.evaluate(`document.getElementById('bell').click()`);
    inbox.add('<b>not bold</b>', { body: 'a & b' });
    await page.until('the count', `document.getElementById('unseen').textContent === '1' && document.title === '(1) Inbox'`);
    await shot(page, 'bell');
    const faults = await page.evaluate(POOR_CONTRAST);
    if (!/1 new/.test(await page.evaluate(`document.getElementById('bell').textContent`))) faults.push('a screen reader is not told the count');
    if (!/not bold/.test(await page.evaluate(`document.getElementById('news').textContent`))) faults.push('it is not said aloud');
    await page.evaluate(`document.getElementById('bell').click()`);
    await page.until('that it is seen', `document.getElementById('unseen').hidden`);
    if (await page.evaluate(`document.querySelector('#messages h3').textContent`) !== '<b>not bold</b>') faults.push('text of a message became markup');
    return faults;
  });

  await check('one is marked read and unread, archived and put back', async () => {
    await press(page, 0, 'read');
    await page.until('that it is read', `document.querySelector('#messages li').dataset.state === 'read'`);
    await press(page, 0, 'unread');
    await page.until('that it is not', `document.querySelector('#messages li').dataset.state === 'seen'`);
    await press(page, 0, 'archived');
    await page.until('that it is gone', `document.querySelector('#messages li').dataset.id === '45'`);
    await choose(page, 'archived');
    await page.until('the archive', `${rows} === 1`);
    await press(page, 0, 'unarchived');
    await page.until('the empty archive', `!document.getElementById('empty').hidden && document.getElementById('empty').textContent === 'The archive is empty.'`);
    await shot(page, 'empty');
    await choose(page, '');
    await page.until('that it is back', `document.querySelector('#messages li')?.dataset.id === '46'`);
  });

  await check('all are marked read; the unread ones are none then', async () => {
    await page.evaluate(`document.getElementById('read-all').click()`);
    await page.until('that it is done', `document.getElementById('read-all').disabled`);
    await choose(page, 'unread');
    await page.until('nothing', `document.getElementById('empty').textContent === 'Everything is read.' && !document.getElementById('empty').hidden`);
    await choose(page, '');
    await page.until('the list', `${rows} === 20`);
    return inbox.counts.unread === 0 ? [] : [`${inbox.counts.unread} are unread`];
  });

  await check('all are marked read in the archive too, on a device whose clock is a day behind', async () => {
    inbox.mark({ ids: ['45'], as: 'unread' });
    await choose(page, 'archived');
    await page.until('the archive', `!document.getElementById('empty').hidden && !document.getElementById('read-all').disabled`);
    await page.evaluate(`{
      const Real = Date;
      globalThis.Date = class extends Real {
        constructor(...at) { super(...(at.length ? at : [Real.now() - 86_400_000])); }
      };
      globalThis.resetClock = () => { globalThis.Date = Real; };
    }`);
    inbox.messages.at(-1).state = 'seen';
    await page.evaluate(`document.getElementById('read-all').click()`);
    await page.until('that it is done', `document.getElementById('read-all').disabled`);
    await page.evaluate('resetClock()');
    await choose(page, '');
    await page.until('the list', `${rows} === 20`);
    return inbox.counts.unread === 0 ? [] : [`${inbox.counts.unread} are unread`];
  });

  await check('a mark of another device shows here', async () => {
    inbox.mark({ ids: ['45'], as: 'archived' });
    await page.until('that it is gone', `!document.querySelector('[data-id="45"]')`);
    inbox.mark({ ids: ['46'], as: 'unread' });
    await page.until('that it is unread', `document.querySelector('[data-id="46"]').dataset.state === 'seen'`);
    // Several that are told together name no message.
    inbox.messages.find(({ id }) => id === '46').state = 'read';
    gateway.publish('$inbox/u1', { type: 'counts', ...inbox.counts, as: null, ids: null, all_up_to: null });
    await page.until('that it is read', `document.querySelector('[data-id="46"]')?.dataset.state === 'read'`);
  });

  await check('a page that was closed for days marks all that came as seen', async () => {
    await page.evaluate(`document.getElementById('bell').click()`);
    for (let n = 0; n < 1001; n += 1) inbox.add(`Number ${n}`);
    await page.until('the count', `document.getElementById('unseen').textContent === '99+' && ${rows} > 1001`, 30_000);
    await page.evaluate(`document.getElementById('bell').click()`);
    await page.until('that they are seen', `document.getElementById('unseen').hidden`, 30_000);
    return await page.evaluate(`document.getElementById('error').hidden`) ? [] : ['it says that something did not work'];
  });

  await check('a lost connection is said in words; what came meanwhile appears', async () => {
    await gateway.die();
    await page.until('the words', `/^The connection is lost. Trying again/.test(document.getElementById('connection').textContent)`);
    await shot(page, 'lost');
    const faults = await page.evaluate(POOR_CONTRAST);
    inbox.add('While you were away', { body: 'It was kept.' });
    await gateway.listen();
    await page.until('the message', `document.querySelector('#messages h3').textContent === 'While you were away' && ${connected}`, 30_000);
    return faults;
  });

  await check('without a network it says so, and comes back as soon as there is one', async () => {
    const network = (offline) => page.send('Network.emulateNetworkConditions', { offline, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
    await network(true);
    for (const { socket } of gateway.connections) socket.destroy();
    await page.until('the words', `/^You are offline/.test(document.getElementById('connection').textContent)`);
    await page.size(390, 844, { mobile: true, scale: 2 });
    await page.scheme('dark');
    await shot(page, 'offline');
    const faults = [...await page.evaluate(POOR_CONTRAST), ...await page.evaluate(OVERFLOW)];
    await network(false);
    await page.until('the connection', connected, 30_000);
    return faults;
  });

  await check('nothing was logged that is not a lost connection', async () => page.errors.filter((error) => !/WebSocket|net::ERR_|status of 502/.test(error)));
}

process.exit(await main());
