// Drives the example inbox in headless Chromium against real processes of Flyball: two devices of one
// person, somebody else, and a process that is killed.
//
//   node scripts/browser-test/inbox-server.mjs
//
// FLYBALL names the program; it needs the channel `inapp`. Exit code 0: no faults; 1: faults; 69: no Chromium or no program.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { check, failures } from './checks.mjs';
import { Chromium, findChromium } from './chromium.mjs';
import { Stack, findFlyball, freePort } from './stack.mjs';

const SERVER = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../examples/inbox/server.mjs');
const TOKEN = '0123456789abcdef-acme';
const SETTINGS = (origin) => `ws_origins = ["${origin}"]
ws_drain_s = 1

[api_tokens.acme]
tenant = "acme"
secret_env = "ACME_TOKEN"
scopes = ["channels:subscribe", "notify:send"]
`;

async function main() {
  const program = findFlyball();
  if (!program || !findChromium()) {
    console.error(program ? 'no chromium found: install it (apt-get install chromium) or set CHROMIUM to its path' : 'no program found: run cargo build, or set FLYBALL to its path');
    return 69;
  }
  const port = await freePort();
  const origin = `http://127.0.0.1:${port}`;
  const stack = await Stack.start(program, SETTINGS(origin), { ACME_TOKEN: TOKEN });
  const browser = await Chromium.start();
  let page;
  try {
    const sender = await stack.serve(undefined, 'api,runner');
    const gateway = await stack.serve();
    page = spawn(process.execPath, [SERVER, '--port', String(port), '--flyball', gateway.url], { env: { ...process.env, FLYBALL_TOKEN: TOKEN }, stdio: ['ignore', 'pipe', 'inherit'] });
    await once(page.stdout, 'data');
    await run({ browser, origin, stack, sender, gateway });
  } finally {
    page?.kill();
    await browser.close();
    await stack.stop();
  }
  return failures.length ? 1 : 0;
}

const subjects = `[...document.querySelectorAll('#messages h3')].map((h) => h.textContent)`;
const first = (subject) => `(${subjects})[0] === ${JSON.stringify(subject)}`;
const connected = `document.getElementById('connection').dataset.state === 'open'`;

async function run({ browser, origin, stack, sender, gateway }) {
  const send = async (subject, to = 'user-7') => {
    const answer = await fetch(`${sender.url}/api/v1/notifications`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
      body: JSON.stringify({ channel: 'inapp', to, subject, body: `The text of ${subject}.` }),
    });
    if (!answer.ok) throw new Error(`a notification got ${answer.status}: ${await answer.text()}`);
  };
  await check('the server of the page outlives a request whose address is none', async () => {
    const { status } = await fetch(`${origin}//`);
    return status === 400 ? [] : [`it was answered with ${status}`];
  });

  const [desk, phone, other] = [await browser.page(), await browser.page(), await browser.page()];
  await desk.open(`${origin}/?recipient=user-7`);
  await phone.open(`${origin}/?recipient=user-7`);
  await other.open(`${origin}/?recipient=user-8`);
  for (const tab of [desk, phone, other]) await tab.until('the connection', connected);

  await check('a message comes live to every device of its recipient, and to nobody else', async () => {
    await send('one');
    await desk.until('it on the desk', first('one'));
    await phone.until('it on the phone', first('one'));
    await send('for somebody else', 'user-8');
    await other.until('theirs', first('for somebody else'));
    return (await other.evaluate(subjects)).length === 1 ? [] : ['somebody else got a message'];
  });

  await check('a mark on one device shows on the other, and one person cannot mark for another', async () => {
    // What a hidden tab shows is not seen.
    await phone.send('Page.bringToFront');
    await phone.until('that it is seen', `document.querySelector('#messages li').dataset.state === 'seen'`);
    await desk.evaluate(`document.querySelector('#messages [data-mark=read]').click()`);
    await phone.until('that it is read', `document.querySelector('#messages li').dataset.state === 'read'`);
    await other.evaluate(`document.getElementById('read-all').click()`);
    await other.until('that theirs is read', `document.querySelector('#messages li').dataset.state === 'read'`);
  });

  await check('a process that is killed is away for a moment, and what was sent meanwhile comes once and in order', async () => {
    await gateway.kill('SIGKILL');
    await desk.until('the words', `/^The connection is lost/.test(document.getElementById('connection').textContent)`);
    await send('two');
    await send('three');
    await stack.serve(gateway.port);
    for (const tab of [desk, phone]) {
      await tab.until('both', `${connected} && (${subjects}).length === 3`, 30_000);
    }
    const [here, there] = [await desk.evaluate(subjects), await phone.evaluate(subjects)];
    const sorted = [...here].sort().join();
    return here.join() === there.join() && sorted === 'one,three,two' ? [] : [`the desk has ${here}, the phone ${there}`];
  });

  await check('pages follow each other to the first message', async () => {
    for (let n = 1; n <= 42; n += 1) await send(`more ${n}`);
    await phone.until('all, live', `(${subjects}).length === 45`, 30_000);
    await desk.send('Page.bringToFront');
    await desk.open(`${origin}/?recipient=user-7`);
    await desk.until('the first page', `(${subjects}).length === 20`, 20_000);
    await desk.until('all', `(window.scrollTo(0, document.body.scrollHeight), (${subjects}).length === 45)`, 20_000);
    const [here, there] = [await desk.evaluate(subjects), await phone.evaluate(subjects)];
    return here.join() === there.join() && here.at(-1) === 'one' ? [] : [`the list is ${here}, and live it was ${there}`];
  });

  await check('what is archived is gone from every device, and comes back from the archive', async () => {
    await desk.evaluate('scrollTo(0, 0)');
    const newest = await desk.evaluate(`(${subjects})[0]`);
    await desk.evaluate(`document.querySelector('#messages [data-mark=archived]').click()`);
    await phone.until('that it is gone', `!(${subjects}).includes(${JSON.stringify(newest)})`);
    await phone.evaluate(`document.querySelector('.filters [data-state=archived]').click()`);
    await phone.until('the archive', `(${subjects}).join() === ${JSON.stringify(newest)}`);
    await phone.evaluate(`document.querySelector('#messages [data-mark=unarchived]').click()`);
    await desk.until('that it is back', first(newest));
  });
}

process.exit(await main());
