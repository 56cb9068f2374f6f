// Drives the dashboard in headless Chromium and reports its faults.
//
//   node scripts/browser-test/run.mjs [--url http://127.0.0.1:8080 [--token TOKEN]] [--shots DIR] [--throttle NAME]
//     [--pools] [--recipients] [--operator] [--faults] [--hostile] [--night] [--tenants [--batch ID]]
//
// Without --url it starts the mock and also plays events that cannot be requested from a real
// server: a breaker that opens, a rival edit, a server that vanishes. With --url one knob (max) is
// raised by one and restored, signed "browser-test".
// --pools, --recipients, --operator (jobs, failures and what an operator does), --faults, --hostile (texts of strangers; also with --faults) and --night (what stands still) check only that, on the mock; --tenants only the page of tenants, on either. With
// --url it reads, and with --batch presses each button on that batch, which ends cancelled.
// Exit code 0: no faults; 1: faults, listed at the end; 69: no Chromium or no server.

import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { check, failures } from './checks.mjs';
import { Chromium, findChromium } from './chromium.mjs';
import { faultChecks } from './faults.mjs';
import { hostileChecks } from './hostile.mjs';
import { OVERFLOW, POOR_CONTRAST, namelessControls } from './looks.mjs';
import { startMock } from './mock.mjs';
import { nightChecks } from './night.mjs';
import { operatorChecks } from './operator.mjs';
import { poolChecks } from './pools.mjs';
import { recipientChecks } from './recipients.mjs';
import { tenantChecks, tenantsOnServer } from './tenants.mjs';
import { unservedChecks } from './unserved.mjs';

const option = (name) => {
  const i = process.argv.indexOf(`--${name}`);
  return i < 0 ? undefined : process.argv[i + 1];
};
const shots = option('shots');
/** Log entries that a check provoked itself, such as the 422 of a refused edit. */
const provoked = [];
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function shot(page, name, full = true) {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  writeFileSync(path.join(shots, `${name}.png`), await page.screenshot({ full }));
}

// === code that runs inside the page ===

/** Canvases that are blank: a drawn chart has several colours. */
const BLANK_CANVASES = `(() => {
  const faults = [];
  for (const canvas of document.querySelectorAll('.plane canvas:not(.overlay)')) {
    const name = canvas.closest('section').querySelector('h2').textContent;
    if (!canvas.width) { faults.push(name + ': the canvas has no size'); continue; }
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set(); let inked = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 40) { inked += 1; colours.add((data[i] >> 4) + '/' + (data[i + 1] >> 4) + '/' + (data[i + 2] >> 4)); }
    if (inked < 500 || colours.size < 4) faults.push(name + ': ' + inked + ' inked pixels in ' + colours.size + ' colours');
  }
  return faults;
})()`;

const panelOf = (name) => `[...document.querySelectorAll('section.throttle')].find((s) => s.querySelector('h2').textContent === ${JSON.stringify(name)})`;
const focusIn = (panel, name) => `(() => { const i = ${panel}.querySelector('[name="${name}"]'); i.scrollIntoView({ block: 'center' }); i.focus(); i.select?.(); return true; })()`;
const openKnobs = (panel) => `${panel}.querySelector('details').open = true`;

/** Answers the page's question; with `refusal` until it says that, and stays open. */
const answerOn = (page) => async (fields, action, refusal = null) => {
  await page.until('the question', `document.querySelector('dialog.ask')?.open`);
  for (const [name, value] of Object.entries({ by: 'browser-test', ...fields })) {
    // Not every question asks who answers it.
    await page.evaluate(`{ const field = document.querySelector('dialog.ask [name=${name}]'); if (field ?? ${JSON.stringify(name)} !== 'by') field.value = ${JSON.stringify(value)}; }`);
  }
  await page.evaluate(`[...document.querySelectorAll('dialog.ask button')].find((b) => b.textContent.startsWith(${JSON.stringify(action)})).click()`);
  if (refusal !== null) await page.until(refusal, `document.querySelector('dialog.ask .error').textContent.includes(${JSON.stringify(refusal)})`);
  else await page.until('the answer taken', `!document.querySelector('dialog.ask').open`);
};

// === the checks ===

async function main() {
  if (!findChromium()) {
    console.error('no chromium found: apt-get install chromium, or set CHROMIUM to its path');
    return 69;
  }
  const mock = option('url') ? null : await startMock({ phase: 'steady' });
  const url = (option('url') ?? mock.url).replace(/\/$/, '');
  const reachable = await fetch(`${url}/login`).catch(() => null);
  if (!reachable) {
    console.error(`no server answers at ${url}`);
    return 69;
  }
  const browser = await Chromium.start();
  try {
    await checks(browser, url, mock);
  } finally {
    await browser.close();
    mock?.close();
  }
  if (failures.length) {
    console.error(`\n${failures.length} failed:\n${failures.map((f) => `  - ${f}`).join('\n')}`);
    return 1;
  }
  console.log('\nall is well');
  return 0;
}

async function checks(browser, url, mock) {
  const page = await browser.page();
  await page.size(1400, 1000);
  await page.scheme('light');

  if (mock && process.argv.includes('--pools')) {
    await poolChecks({ page, url, mock, provoked, check, shot, answer: answerOn(page), contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });
    await check('no errors in the console', () => [...new Set(page.errors)].filter((e) => !provoked.some((p) => p.test(e))).map((e) => e.slice(0, 220)));
    return;
  }

  if (mock && process.argv.includes('--recipients')) {
    await recipientChecks({ page, url, mock, provoked, check, shot, contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });
    await check('no errors in the console', () => [...new Set(page.errors)].filter((e) => !provoked.some((p) => p.test(e))).map((e) => e.slice(0, 220)));
    return;
  }

  if (mock && process.argv.includes('--operator')) {
    await operatorChecks({ page, url, mock, provoked, check, shot, answer: answerOn(page), contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });
    await check('no errors in the console', () => [...new Set(page.errors)].filter((e) => !provoked.some((p) => p.test(e))).map((e) => e.slice(0, 220)));
    return;
  }

  if (mock && process.argv.includes('--night')) {
    await nightChecks({ page, url, mock, provoked, check, shot, answer: answerOn(page), contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });
    await check('no errors in the console', () => [...new Set(page.errors)].filter((e) => !provoked.some((p) => p.test(e))).map((e) => e.slice(0, 220)));
    return;
  }

  if (mock && process.argv.some((one) => one === '--faults' || one === '--hostile')) {
    if (process.argv.includes('--faults')) await faultChecks({ page, url, mock, provoked, check, shot, answer: answerOn(page), contrast: POOR_CONTRAST, overflow: OVERFLOW });
    await hostileChecks({ page, url, mock, provoked, check, shot, answer: answerOn(page), overflow: OVERFLOW });
    await check('no errors in the console', () => [...new Set(page.errors)].filter((e) => !provoked.some((p) => p.test(e))).map((e) => e.slice(0, 220)));
    return;
  }

  const parts = { page, url, check, shot, contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls };
  if (process.argv.includes('--tenants')) {
    if (option('token')) {
      await page.open(`${url}/login`);
      await page.evaluate(`document.getElementById('token').value = ${JSON.stringify(option('token'))}, document.forms[0].requestSubmit(), true`);
      await page.until('the dashboard after signing in', `location.pathname === '/' && document.getElementById('governed')`);
    }
    if (mock) await tenantChecks({ ...parts, mock, provoked });
    else await tenantsOnServer({ ...parts, batch: option('batch') });
    await check('no errors in the console', () => [...new Set(page.errors)].filter((e) => !provoked.some((p) => p.test(e))).map((e) => e.slice(0, 220)));
    return;
  }

  await check('the login page works without scripts and keeps the policy', async () => {
    const html = await (await fetch(`${url}/login`)).text();
    const faults = [];
    if (!/<form[^>]+method="post"[^>]+action="\/login"/.test(html)) faults.push('no form that posts to /login');
    if (!/name="token"/.test(html)) faults.push('no field named token');
    if (/<script>|\sstyle="|\son\w+="/.test(html)) faults.push('inline script or style');
    return faults;
  });
  if (option('token')) {
    await check('a wrong token is refused in words', async () => {
      provoked.push(/status of 40[13]/);
      await page.open(`${url}/login`);
      await page.evaluate(`document.getElementById('token').value = 'wrong', document.forms[0].requestSubmit(), true`);
      await page.until('the error beside the field', `location.pathname === '/login' && document.getElementById('token-error')?.textContent.trim().length > 5`);
    });
    await check('the token opens the page', async () => {
      await page.open(`${url}/login`);
      await page.evaluate(`document.getElementById('token').value = ${JSON.stringify(option('token'))}, document.forms[0].requestSubmit(), true`);
      await page.until('the dashboard after signing in', `location.pathname === '/' && document.getElementById('governed')`);
    });
  }
  await page.open(`${url}/`);
  if (option('throttle')) await page.open(`${url}/#throttle-${encodeURIComponent(option('throttle'))}`);

  await check('every answer for the page carries a strict policy', async () => {
    const policies = await page.evaluate(`Promise.all(['/', '/login', '/assets/app.js', '/assets/app.css', '/assets/icon.svg'].map(async (p) => {
      const r = await fetch(p); return [p, r.status, r.headers.get('content-security-policy') ?? '', r.headers.get('content-type') ?? '']; }))`);
    return policies.flatMap(([p, status, policy, type]) => [
      ...(status === 200 ? [] : [`${p} answered ${status}`]),
      ...(p.includes('.') || /default-src 'none'/.test(policy) ? [] : [`${p}: no default-src 'none' in "${policy}"`]),
      ...(/unsafe|\*|https?:/.test(policy) ? [`${p}: "${policy}" is not strict`] : []),
      ...(p.endsWith('.js') && !/javascript/.test(type) ? [`${p} is sent as ${type}`] : []),
    ]);
  });
  await check('the stream goes live', () => page.until('the state "live"', `document.getElementById('phase').dataset.phase === 'live' && document.querySelector('section.throttle')`, 15_000).then(() => []));
  await page.until('a chart', `document.querySelector('.plane canvas')?.width > 0`);

  const throttle = option('throttle') ?? await page.evaluate(`document.querySelector('#governed h2, .throttle-link').textContent`);
  const name = mock ? 'reindex' : throttle;
  const panel = panelOf(name);

  await check('charts are drawn', async () => {
    await page.evaluate(`${panel}.scrollIntoView()`);
    const seen = `[...document.querySelectorAll('.plane')].filter((p) => p.getBoundingClientRect().top < innerHeight).length`;
    await page.until('a chart in view', `${seen} > 0`);
    const height = await page.evaluate('document.documentElement.scrollHeight');
    await page.size(1400, Math.min(height + 200, 12_000));
    await page.until('ink on every canvas', `(${BLANK_CANVASES}).length === 0`, 6_000).catch(() => {});
    return page.evaluate(BLANK_CANVASES);
  });
  await shot(page, 'light-1400');
  await page.evaluate(`document.querySelectorAll('details').forEach((d) => { d.open = true; })`);
  await page.until('the reasons', `${panel}.querySelector('.why p')?.textContent && ${panel}.querySelector('.history td')`).catch(() => {});
  await check('light: text contrast is AA', () => page.evaluate(POOR_CONTRAST));
  await check('every control has a name', () => namelessControls(page));
  await check('the history has a row for each decision and a column for each term', async () => {
    const found = await page.evaluate(`(() => { const p = ${panel}.querySelector('.history'); const row = p.querySelector('tbody tr'); return { heads: [...p.querySelectorAll('th')].map((t) => t.textContent), rows: p.querySelectorAll('tbody tr').length, cells: row?.children.length, reason: ${panel}.querySelector('.reason').textContent, why: ${panel}.querySelector('.why p').textContent }; })()`);
    const faults = [];
    if (!found.rows || found.cells !== found.heads.length || found.heads.length < 8) faults.push(JSON.stringify(found));
    if (!found.why || !/rps|stopped|holding|raising|lowering/.test(found.reason)) faults.push(`the sentence is "${found.why}", the line "${found.reason}"`);
    return faults;
  });
  if (mock) await check('a learned quota stands beside the knob with its age, and slots are called slots', async () => {
    const read = (name) => page.evaluate(`(() => { const s = document.getElementById('throttle-${name}'); const q = s.querySelector('.readout.quota'); return { quota: q.hidden ? '' : q.textContent, knob: s.querySelector('.readout').textContent, standing: s.querySelector('.badge').textContent }; })()`);
    const [sms, push] = [await read('notify.sms'), await read('notify.push')];
    const faults = [];
    if (!/^learned quota40\.2\/s.*ago, 2 % refused$/.test(sms.quota)) faults.push(`the quota reads "${sms.quota}"`);
    if (push.quota !== '') faults.push(`a quota that nobody learned reads "${push.quota}"`);
    if (!/^knob42 slots/.test(push.knob) || push.standing !== 'flowing') faults.push(`slots read "${push.knob}", ${push.standing}`);
    if (!/^knob28\/s/.test(sms.knob)) faults.push(`a rate reads "${sms.knob}"`);
    return faults;
  });
  await check('what a watchdog has found is told under the reason', async () => {
    const told = await page.evaluate(`${panel}.textContent.includes('idle since') && ${panel}.textContent.includes('nobody waits for tokens while 120 jobs wait')`);
    return told ? [] : ['the finding is not on the page'];
  });
  await shot(page, 'light-1400-open');

  await page.scheme('dark');
  await pause(500);
  await check('dark: the system\'s preference is followed, charts too', async () => {
    const colour = await page.evaluate(`getComputedStyle(document.body).backgroundColor`);
    const [r] = colour.match(/\d+/g).map(Number);
    return [...(r < 60 ? [] : [`the ground is ${colour}`]), ...await page.evaluate(BLANK_CANVASES)];
  });
  await check('dark: text contrast is AA', () => page.evaluate(POOR_CONTRAST));
  await shot(page, 'dark-1400');
  await page.scheme('light');
  await check('the toggle overrules the system and is remembered', async () => {
    await page.evaluate(`document.querySelector('#theme input[value=dark]').click()`);
    await page.fresh(`${url}/`);
    const theme = await page.evaluate('document.documentElement.dataset.theme');
    await page.evaluate(`document.querySelector('#theme input[value=auto]').click()`);
    return theme === 'dark' ? [] : [`after reloading the theme is ${theme}`];
  });

  await page.size(1400, 1000);
  await page.until('the panel', `${panel}`);

  await check('the keyboard reaches the chart, reads it and reaches the edit form', async () => {
    await page.evaluate(`document.activeElement?.blur(), scrollTo(0, 0), true`);
    const here = `(() => { const e = document.activeElement; return { tag: e.tagName, name: e.getAttribute('name'), cls: e.className, own: ${panel}.contains(e), ring: getComputedStyle(e).outlineStyle, radio: e.type === 'radio' }; })()`;
    const faults = [];
    let read = false;
    let opened = false;
    for (let i = 0; i < 200; i += 1) {
      await page.key('Tab');
      const at = await page.evaluate(here);
      if (at.ring === 'none' && !at.radio && at.tag !== 'BODY' && at.tag !== 'HTML') faults.push(`no focus ring on ${at.tag} ${at.cls} ${at.name ?? ''}`);
      if (!at.own) continue;
      if (at.cls === 'plane') {
        await page.key('ArrowLeft');
        await page.key('ArrowLeft');
        const text = await page.evaluate('document.activeElement.getAttribute("aria-valuetext")');
        if (!/^\d\d:\d\d:\d\d: knob /.test(text)) faults.push(`the chart reads "${text}"`);
        read = true;
        await page.key('Escape');
      } else if (at.tag === 'SUMMARY' && !opened) {
        await page.key('Enter');
        opened = true;
      } else if (at.name === 'rps') {
        return read ? faults : [...faults, 'the chart was not reached'];
      }
    }
    return [...faults, 'the rps field was not reached in 200 tabs'];
  });

  await check('without a name nothing is sent, and the page says why', async () => {
    await page.evaluate(`localStorage.removeItem('flyball.who')`);
    await page.open(`${url}/`);
    await page.until('the form', `${panel} && ${panel}.querySelector('[name=max]').value !== ''`);
    await page.evaluate(openKnobs(panel));
    await page.evaluate(focusIn(panel, 'max'));
    await page.type('1999');
    await page.key('Enter');
    await page.until('the error at the name', `!document.getElementById(${panel}.querySelector('[name=by]').id + '-error').hidden`);
    return page.requests.some((r) => r.method === 'PATCH') ? ['a PATCH was sent'] : [];
  });

  await check('a text that is no number is told beside its field', async () => {
    await page.evaluate(focusIn(panel, 'by'));
    await page.type('browser-test');
    await page.evaluate(focusIn(panel, 'max'));
    await page.type('ten');
    await page.key('Enter');
    const text = await page.until('the field error', `(() => { const i = ${panel}.querySelector('[name=max]'); const e = document.getElementById(i.id + '-error'); return i.getAttribute('aria-invalid') === 'true' && !e.hidden && e.textContent; })()`);
    return /not a number/.test(text) ? [] : [`it says "${text}"`];
  });

  await check('a value that the server refuses is told beside its field', async () => {
    // A 409 is possible too: the governor may have moved the knob between reading and writing; the
    // page tries again.
    provoked.push(/status of 4(00|09|22)/);
    await page.evaluate(`[...${panel}.querySelectorAll('button')].find((b) => b.textContent === 'Discard').click()`);
    await page.evaluate(focusIn(panel, 'rps'));
    await page.type('-7');
    await page.key('Enter');
    const text = await page.until('the field error', `(() => { const i = ${panel}.querySelector('[name=rps]'); const e = document.getElementById(i.id + '-error'); return i.getAttribute('aria-invalid') === 'true' && !e.hidden && e.textContent; })()`);
    await shot(page, 'field-error', false);
    return /\S/.test(text) ? [] : ['the error is empty'];
  });

  const api = (p) => page.evaluate(`fetch(${JSON.stringify(p)}).then((r) => r.json())`);
  const throttlePath = `/api/v1/throttles/${encodeURIComponent(name)}`;
  await check('an edit reaches the server and its audit line appears', async () => {
    await page.evaluate(`[...${panel}.querySelectorAll('button')].find((b) => b.textContent === 'Discard').click()`);
    const before = (await api(throttlePath)).knobs.max;
    for (const value of [before + 1, before]) {
      await page.until('the form to follow', `${panel}.querySelector('[name=max]').value !== '${value}' && !${panel}.querySelector('button[type=submit]').disabled`);
      await page.evaluate(focusIn(panel, 'max'));
      await page.type(String(value));
      await page.evaluate(focusIn(panel, 'why'));
      await page.type(value === before ? 'and back' : 'a look at the page');
      await page.key('Enter');
      await page.until('the confirmation', `/^Applied/.test(${panel}.querySelector('.form-note').textContent)`);
      const now = (await api(throttlePath)).knobs.max;
      if (now !== value) return [`max is ${now} on the server, not ${value}`];
      await page.until('the audit line', `/by browser-test, \\d\\d:\\d\\d:\\d\\d, '${value === before ? 'and back' : 'a look at the page'}'/.test(${panel}.querySelector('.audit-line').textContent)`);
    }
    const sent = page.requests.filter((r) => r.method === 'PATCH').at(-1);
    const guard = Object.entries(sent.headers).find(([h]) => h.toLowerCase() === 'if-match')?.[1];
    await shot(page, 'edited', false);
    const here = await page.evaluate('location.hash');
    await page.evaluate(`location.hash = '#audit'`);
    await page.until('the row in the audit log', `[...document.querySelectorAll('#audit tr')].some((r) => r.textContent.includes('browser-test') && /max [\\d.,k]+ → /.test(r.textContent))`);
    await page.evaluate(`location.hash = ${JSON.stringify(here || '#overview')}`);
    await page.until('the panel again', `${panel}`);
    return /^"\d+"$/.test(guard ?? '') ? [] : [`If-Match was ${guard}`];
  });

  await check('the crosshair follows the mouse', async () => {
    const box = await page.evaluate(`(() => { const p = ${panel}.querySelector('.plane'); p.scrollIntoView({ block: 'center' }); const { left, top, width, height } = p.getBoundingClientRect(); return { left, top, width, height }; })()`);
    await page.mouse(box.left + box.width * 0.6, box.top + box.height * 0.3);
    await page.until('the time under the mouse', `/^\\d\\d:\\d\\d:\\d\\d$/.test(${panel}.querySelector('.when').textContent)`);
    await shot(page, 'crosshair', false);
    await page.mouse(2, 2);
    await page.until('now again', `${panel}.querySelector('.when').textContent === 'now'`);
  });

  await check('the page draws at most four times a second, and never while hidden', async () => {
    await page.evaluate(`${panel}.scrollIntoView()`);
    await page.evaluate(`(() => { const clear = CanvasRenderingContext2D.prototype.clearRect; window.__frames = 0; const base = ${panel}.querySelector('.plane canvas');
      CanvasRenderingContext2D.prototype.clearRect = function (...a) { if (this.canvas === base) window.__frames += 1; return clear.apply(this, a); }; return true; })()`);
    await pause(3_000);
    const seen = await page.evaluate('__frames');
    await page.evaluate(`Object.defineProperty(document, 'hidden', { value: true, configurable: true }), document.dispatchEvent(new Event('visibilitychange')), true`);
    await pause(700);
    await page.evaluate('__frames = 0');
    await pause(2_500);
    const hidden = await page.evaluate('__frames');
    await page.evaluate(`delete document.hidden, document.dispatchEvent(new Event('visibilitychange')), true`);
    // Its breaker may have opened meanwhile, which moves it to the top.
    await page.until('drawing again', `(${panel}.scrollIntoView(), __frames > 0)`);
    return [...(seen >= 2 && seen <= 12 ? [] : [`${seen} frames in 3 s`]), ...(hidden === 0 ? [] : [`${hidden} frames while hidden`])];
  });

  await page.size(360, 780, { mobile: true });
  await check('360 px wide: nothing sticks out', async () => {
    await page.open(`${url}/`);
    await page.until('the panel', `${panel} && ${panel}.querySelector('.plane canvas').width > 0`);
    await page.evaluate(openKnobs(panel));
    await pause(600);
    return page.evaluate(OVERFLOW);
  });
  await shot(page, 'phone-360');
  await check('360 px wide: the crosshair follows a finger', async () => {
    const box = await page.evaluate(`(() => { const p = ${panel}.querySelector('.plane'); p.scrollIntoView({ block: 'center' }); const { left, top, width, height } = p.getBoundingClientRect(); return { left, top, width, height }; })()`);
    const touchPoints = [{ x: box.left + box.width * 0.5, y: box.top + box.height * 0.3 }];
    await page.send('Input.dispatchTouchEvent', { type: 'touchStart', touchPoints });
    await page.until('the time under the finger', `/^\\d\\d:\\d\\d:\\d\\d$/.test(${panel}.querySelector('.when').textContent)`);
    await page.send('Input.dispatchTouchEvent', { type: 'touchEnd', touchPoints: [] });
  });
  await page.size(1400, 1000);

  if (mock) await mockChecks(page, mock, url);

  await check('no errors in the console, no violations of the policy', () => [...new Set(page.errors)]
    .filter((e) => !provoked.some((p) => p.test(e))).map((e) => e.slice(0, 220)));
  await check('nothing was asked of another origin', () => [...new Set(page.requests.map((r) => r.url))]
    .filter((u) => !u.startsWith(`${url}/`) && !/^(data|blob|about):/.test(u)));
}

/** The checks that need a steered server. */
async function mockChecks(page, mock, url) {
  const panel = panelOf('reindex');
  const fresh = async () => {
    await page.open(`${url}/`);
    await page.until('the panel', `${panel} && ${panel}.querySelector('.plane canvas').width > 0`);
  };

  await check('an open breaker is said in words, colour and title', async () => {
    mock.steer({ phase: 'open' });
    await fresh();
    await page.until('the badge', `${panel}.querySelector('.badge').textContent === 'breaker open'`);
    await page.until('the title', `document.title.startsWith('Breaker open')`);
    await page.evaluate(`${panel}.scrollIntoView()`);
    await pause(500);
    await shot(page, 'breaker-open', false);
    await page.scheme('dark');
    await pause(700);
    await shot(page, 'breaker-open-dark', false);
    await page.scheme('light');
  });

  await check('the newer values of a rival are shown, and the person decides', async () => {
    provoked.push(/status of 409/);
    await page.evaluate(openKnobs(panel));
    await page.evaluate(focusIn(panel, 'min'));
    await page.type('3');
    mock.steer({ edit: { throttle: 'reindex', by: 'tom', why: 'night shift', knobs: { min: 2 } } });
    await page.evaluate(`${panel}.querySelector('form').requestSubmit(), true`);
    const text = await page.until('the conflict', `(() => { const c = ${panel}.querySelector('.conflict'); return !c.hidden && c.textContent; })()`);
    await page.evaluate(`${panel}.querySelector('form').scrollIntoView({ block: 'center' })`);
    await shot(page, 'conflict', false);
    await page.evaluate(`[...${panel}.querySelectorAll('.conflict button')][0].click()`);
    await page.until('the edit after the decision', `/^Applied/.test(${panel}.querySelector('.form-note').textContent)`);
    return /tom changed this/.test(text) && /min is now 2/.test(text) ? [] : [`it says "${text}"`];
  });

  const answer = answerOn(page);
  await check('pause pauses the first time in a browser without a name, and one button each resumes, takes over and hands back', async () => {
    await page.evaluate(`localStorage.removeItem('flyball.who')`);
    await page.open(`${url}/`);
    await page.until('the panel', `${panel} && ${panel}.querySelector('[name=max]').value !== ''`);
    for (const [button, badge] of [['Pause', 'paused'], ['Resume', null], ['Take manual control', 'manual'], ['Return to the governor', 'auto']]) {
      await page.until(`the button ${button}`, `(() => { const b = [...${panel}.querySelectorAll('.panel-head button')].find((b) => b.textContent === '${button}' && !b.hidden && !b.disabled); if (b) b.click(); return Boolean(b); })()`);
      if (button === 'Pause') {
        await page.until('the question', `document.querySelector('dialog.ask')?.open`);
        await shot(page, 'pause-question', false);
        await answer({ why: 'a test' }, 'Pause');
        if (await page.evaluate(`${panel}.querySelector('details.drawer').open`)) return ['the form of the knobs unfolds'];
      }
      if (badge) await page.until(`the badge ${badge}`, `[...${panel}.querySelectorAll('.badge')].some((b) => b.textContent === '${badge}')`);
    }
  });

  await check('the lanes of a throttle: depth, age, pause, weight, and emptying one', async () => {
    const lanes = `${panelOf('webhooks')}.querySelector('.lanes')`;
    await page.open(`${url}/#throttle-webhooks`);
    await page.until('its panel', `${panelOf('webhooks')}`);
    const row = (key) => `[...${lanes}.querySelectorAll('tbody tr')].find((r) => r.firstChild.textContent === '${key}')`;
    await page.evaluate(`${lanes}.open = true`);
    await page.until('the deepest lane first', `${lanes}.querySelector('tbody tr td')?.textContent === 'customer-7' && /counted 2 s ago/.test(${lanes}.querySelector('summary').textContent)`);
    const faults = [];
    if (!(await page.evaluate(`/paused until .*429 from/.test(${row('customer-7')}.textContent) && /90 min|1 h 30 min/.test(${row('customer-7')}.textContent)`))) faults.push('the pause or the age is not told');
    await page.evaluate(`${lanes}.scrollIntoView({ block: 'start' }), scrollBy(0, -80)`);
    await shot(page, 'lanes', false);
    await page.evaluate(`[...${lanes}.querySelectorAll('button')].find((b) => b.textContent === 'More lanes').click()`);
    await page.until('the second page', `${lanes}.querySelectorAll('tbody tr').length === 100`);
    await page.evaluate(`[...${row('customer-7')}.querySelectorAll('button')].find((b) => b.textContent === 'Resume').click()`);
    await page.until('the end of the pause', `!/paused/.test(${row('customer-7')}.textContent)`);
    await page.evaluate(`[...${row('customer-7')}.querySelectorAll('button')].find((b) => b.textContent === 'Pause …').click()`);
    await answer({ minutes: '5', why: 'they asked' }, 'Pause');
    await page.until('the pause', `/paused until .*they asked/.test(${row('customer-7')}.textContent)`);
    await page.evaluate(`${row('customer-100')}.querySelector('button.link').click()`);
    await page.until('the question', `document.querySelector('dialog.ask')?.open`);
    await shot(page, 'question', false);
    faults.push(...(await page.evaluate(POOR_CONTRAST)));
    await answer({ weight: '3' }, 'Set');
    await page.until('the weight', `${row('customer-100')}.querySelector('button.link').textContent === '3'`);
    await page.evaluate(`[...${row('customer-7')}.querySelectorAll('button')].find((b) => b.textContent === 'Empty …').click()`);
    await answer({}, 'Cancel 611 waiting jobs');
    await page.until('the end of it', `/Cancelled 611 jobs/.test(${lanes}.textContent)`);
    return faults;
  });

  await check('the last hours: allowed and refused a minute, and a key of its own', async () => {
    const past = `${panelOf('webhooks')}.querySelector('.past')`;
    await page.evaluate(`${past}.closest('details').open = true, ${past}.closest('details').scrollIntoView({ block: 'center' }), true`);
    await page.until('two charts', `${past}.querySelectorAll('svg').length === 2`);
    await page.evaluate(`[...${past}.querySelectorAll('button')].find((b) => b.textContent === '24h').click()`);
    await page.until('a day', `${past}.querySelector('button[aria-pressed=true]')?.textContent === '24h' && ${past}.querySelectorAll('path.line-refused')[0]?.getAttribute('d').length > 100`);
    await shot(page, 'past', false);
    const legend = await page.evaluate(`[...${past}.querySelectorAll('li')].map((li) => li.textContent).join(', ')`);
    await page.evaluate(`${past}.querySelector('input').value = 'nobody', ${past}.querySelector('input').dispatchEvent(new Event('change')), true`);
    await page.until('the way to count keys', `${past}.querySelector('p').textContent.includes('key_metrics')`);
    return /allowed \(200\): .*refused \(429\): /.test(legend) ? [] : [`the legend says "${legend}"`];
  });

  await check('a throttle is deleted after a question that takes name and reason, and a refusal is told beside the button', async () => {
    const faults = [];
    const of = panelOf('notify.chat');
    const button = `${of}.querySelector('.delete button')`;
    await page.open(`${url}/#throttle-notify.chat`);
    await page.until('its panel', `${of}`);
    await page.evaluate(`${of}.querySelector('details.drawer').open = true; ${button}.click()`);
    await page.until('the question', `document.querySelector('dialog.ask')?.open && /Delete notify.chat/.test(document.querySelector('dialog.ask').textContent)`);
    await shot(page, 'delete-question', false);
    await page.evaluate(`[...document.querySelectorAll('dialog.ask button')].find((b) => b.textContent === 'Cancel').click()`);
    if (page.requests.some((r) => r.method === 'DELETE' && r.url.includes('/throttles/notify.chat'))) faults.push('a cancelled question deletes');
    provoked.push(/409/);
    mock.steer({ fail: 'delete' });
    await page.evaluate(`${button}.click()`);
    await answer({ why: 'a test' }, 'Delete');
    await page.until('the refusal', `/is the parent of/.test(${of}.querySelector('.delete .error').textContent) && !${of}.querySelector('.delete .error').hidden`);
    mock.steer({ fail: null });
    await page.evaluate(`${button}.click()`);
    await answer({ why: 'a test' }, 'Delete');
    await page.until('the end of the panel', `!${of}`);
    const sent = mock.requests.findLast((r) => r.startsWith('DELETE'));
    if (!/\/throttles\/notify\.chat\?by=browser-test&why=a\+test$/.test(sent ?? '')) faults.push(`asked was ${sent}`);
    if (!/notify.chat is deleted/.test(await page.evaluate(`document.getElementById('aloud').textContent`))) faults.push('it is not said aloud');
    await page.open(`${url}/#throttles`);
    await page.evaluate(`document.querySelector('#api-limits').open = true`);
    await page.until('the limits of the API', `document.querySelectorAll('#api-throttles .delete').length > 0`);
    const limits = await page.evaluate(`[...document.querySelectorAll('#api-throttles .delete')].some((row) => !row.hidden)`);
    if (limits) faults.push('a limit of the API can be deleted');
    return faults;
  });

  await operatorChecks({ page, url, mock, provoked, check, shot, answer, contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });

  await poolChecks({ page, url, mock, provoked, check, shot, answer: answerOn(page), contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });

  await tenantChecks({ page, url, mock, provoked, check, shot, contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });

  await recipientChecks({ page, url, mock, provoked, check, shot, contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });

  await faultChecks({ page, url, mock, provoked, check, shot, answer, contrast: POOR_CONTRAST, overflow: OVERFLOW });

  await nightChecks({ page, url, mock, provoked, check, shot, answer, contrast: POOR_CONTRAST, overflow: OVERFLOW, namelessControls });

  await hostileChecks({ page, url, mock, provoked, check, shot, answer, overflow: OVERFLOW });

  await unservedChecks({ page, url, mock, check, shot, contrast: POOR_CONTRAST, overflow: OVERFLOW });

  await check('a broken stream is said with the age of the data, and comes back', async () => {
    provoked.push(/net::ERR_|status of 503|status of 401/);
    mock.steer({ fail: 'down' });
    await page.until('the state "lost"', `/^reconnecting, last data/.test(document.getElementById('phase-text').textContent)`, 15_000);
    await page.until('the notice', `!document.getElementById('away').hidden`, 15_000);
    await page.evaluate('scrollTo(0, 0)');
    await shot(page, 'away', false);
    mock.steer({ fail: null });
    await page.until('live again', `document.getElementById('phase').dataset.phase === 'live' && document.getElementById('away').hidden`, 20_000);
  });

  await check('without a token the way to sign in is shown', async () => {
    mock.steer({ fail: '401' });
    await page.open(`${url}/`);
    await page.until('the link', `!document.getElementById('signed-out').hidden && document.querySelector('#signed-out a').getAttribute('href') === '/login'`);
    await shot(page, 'signed-out', false);
    mock.steer({ fail: null });
  });

  await check('the login page looks right', async () => {
    await page.open(`${url}/login`);
    await shot(page, 'login', false);
    return page.evaluate(POOR_CONTRAST);
  });

  await check('an empty server says how to enqueue', async () => {
    mock.steer({ empty: true });
    await page.open(`${url}/`);
    await page.until('the example', `!document.getElementById('no-throttles').hidden && document.querySelector('[data-origin]').textContent.includes(location.origin)`);
    const faults = [];
    if (await page.evaluate(`document.querySelector('#api-limits').open || document.querySelectorAll('section.throttle').length > 0 || !document.getElementById('quiet').hidden`)) faults.push('the limits of the API fill the empty page');
    await shot(page, 'empty', false);
    if (!(await page.evaluate(`document.getElementById('create-first').checkVisibility()`))) faults.push('the empty page offers no throttle');
    await page.open(`${url}/#throttles`);
    await page.evaluate(`document.querySelector('#api-limits').open = true`);
    await page.until('the limits', `document.querySelectorAll('#api-throttles section.throttle').length === 6`);
    if (!(await page.evaluate(`document.getElementById('view-pools').hidden`))) return ['the navigation leads to pools that are not there'];
    await page.open(`${url}/#pools`);
    await page.until('how a pool is made', `!document.getElementById('no-pools').hidden && !document.getElementById('notifications-empty').hidden`);
    await page.until('no way to older messages', `document.getElementById('notifications-more').hidden`);
    await shot(page, 'no-pools', false);
    await page.open(`${url}/#tenants`);
    await page.until('how a tenant is made', `!document.getElementById('no-tenants').hidden && document.getElementById('tenants-panel').hidden && document.getElementById('batches-empty').textContent === 'No batches yet.'`);
    await shot(page, 'no-tenants', false);
    return faults;
  });
}

process.exit(await main());
