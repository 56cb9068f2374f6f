// The checks of what the page says and keeps when something goes wrong, on the mock.

/** Checks the page while the server, the store, a request or the browser's clock is at fault. */
export async function faultChecks({ page, url, mock, provoked, check, shot, answer, contrast, overflow }) {
  const live = async (hash = '') => {
    await page.fresh(`${url}/${hash}`);
    await page.until('the page', `document.getElementById('phase').dataset.phase === 'live' && document.querySelector('section.throttle, .throttle-link')`, 15_000);
  };
  // Details come every five seconds, and a busy machine takes its time.
  const SLOW_MS = 30_000;
  /** Runs a check, and sets the mock right after it, so that its faults do not become those of the next. */
  const steered = (name, work) => check(name, () => work().finally(async () => {
    mock.steer({ fail: null, store: '', refuse: {}, reader: false, phase: 'steady' });
    await page.size(1400, 1000);
  }));
  await page.size(1400, 1000);

  await check('items of one key have a row each, and none stays behind', async () => {
    await live();
    const texts = await page.evaluate(`import('/assets/dom.js').then(({ h, keyed }) => {
      const list = h('ul', null, h('li', null, 'not of the list'));
      const pass = (items) => { keyed(list, items, ([key]) => key, () => h('li', null), (row, [, text]) => { row.textContent = text; }); return [...list.children].map((row) => row.textContent).join(' '); };
      return [pass([['a', 'a1'], ['a', 'a2'], ['b', 'b1']]), pass([['b', 'b2'], ['a', 'a3'], ['a', 'a4']]), pass([['a', 'a5']]), pass([])];
    })`);
    return JSON.stringify(texts) === JSON.stringify(['a1 a2 b1', 'b2 a3 a4', 'a5', '']) ? [] : [JSON.stringify(texts)];
  });

  await steered('a pause of everything that fails keeps its question, and a resume says why', async () => {
    provoked.push(/status of (404|409|503)/, /net::ERR_INCOMPLETE_CHUNKED_ENCODING .*\/stream$/);
    const reads = () => mock.requests.filter((r) => r === 'GET /api/v1/pause').length;
    const readTwice = async () => {
      const before = reads();
      for (let i = 0; i < 100 && reads() < before + 2; i += 1) await page.evaluate('new Promise((resolve) => setTimeout(resolve, 100))');
    };
    const notice = `document.getElementById('all-paused-text').textContent`;
    const button = `document.getElementById('pause-all')`;
    const faults = [];
    await page.until('the button', `${button}.checkVisibility()`);
    mock.steer({ fail: 'pause' });
    await page.evaluate(`${button}.click()`);
    await answer({ why: 'an incident' }, 'Pause everything', 'the queue store did not answer');
    await readTwice();
    if (!(await page.evaluate(`document.querySelector('dialog.ask').open && document.querySelector('dialog.ask [name=why]').value === 'an incident' && document.querySelector('dialog.ask .error').checkVisibility()`))) faults.push('the question is gone');
    await shot(page, 'pause-refused', false);
    mock.steer({ fail: null });
    await answer({}, 'Pause everything');
    await page.until('the pause', `${notice}.includes('by browser-test') && ${notice}.includes('an incident')`);
    mock.steer({ fail: 'pause' });
    await page.evaluate(`${button}.click()`);
    await page.until('the refusal', `${notice}.includes('It was not resumed: the queue store did not answer')`);
    await readTwice();
    if (!(await page.evaluate(`${notice}.includes('It was not resumed')`))) faults.push('the refusal of the resume is gone');
    mock.steer({ fail: null });
    await page.evaluate(`${button}.click()`);
    await page.until('no pause', `document.getElementById('all-paused').hidden && ${button}.textContent === 'Pause everything'`);
    return faults;
  });

  await steered('ages and times are those of the server although the clock of the browser is an hour fast', async () => {
    const { identifier } = await page.send('Page.addScriptToEvaluateOnNewDocument', { source: `{ const now = Date.now.bind(Date); Date.now = () => now() + 3_600_000; }` });
    const faults = [];
    const near = (what, ms, wanted) => { if (!(Math.abs(ms - wanted) < 20_000)) faults.push(`${what} is ${new Date(ms).toISOString()}, not ${new Date(wanted).toISOString()}`); };
    const row = (body, part) => `[...document.querySelectorAll('#${body} tr')].find((r) => r.textContent.includes('${part}'))`;
    const read = (path) => page.evaluate(`fetch('${path}').then((r) => r.json())`);
    try {
      mock.steer({ phase: 'steady' });
      mock.steer({ workers: [{ id: 1, name: 'worker-1', host: 'a', running: 2, heartbeat_at: new Date().toISOString() }] });
      await live();
      const since = await page.until('how long a job runs', `${row('running', '7612345678')}?.querySelector('[data-label="running for"]').textContent`);
      if (!/^15 min/.test(since)) faults.push(`a job of 15 minutes runs for ${since}`);
      await live('#throttle-reindex');
      const form = `document.querySelector('#detail form')`;
      await page.until('the knobs', `${form}?.querySelector('[name=max]').value`);
      await page.evaluate(`{ const f = ${form}; const set = (name, value) => { const e = f.querySelector('[name=' + name + ']'); e.value = value; e.dispatchEvent(new Event('input', { bubbles: true })); }; set('manual_until_ms', '30m'); set('by', 'browser-test'); f.requestSubmit(); }`);
      await page.until('the edit', `/^Applied/.test(document.querySelector('#detail .form-note').textContent)`);
      near('manual until', (await read('/api/v1/throttles/reindex')).knobs.manual_until_ms, Date.now() + 1_800_000);
      await page.open(`${url}/#jobs?since=1h`);
      const heartbeat = await page.until('the worker', `document.querySelector('#workers-body [data-label=heartbeat]')?.textContent`);
      if (!/^(now|\d+ s ago|\d+ ms ago)$/.test(heartbeat)) faults.push(`the heartbeat was ${heartbeat}`);
      const asked = mock.requests.findLast((r) => r.includes('created_after'));
      near('created_after', Date.parse(new URLSearchParams(asked.split('?')[1]).get('created_after')), Date.now() - 3_600_000);
      await page.open(`${url}/#failures`);
      const died = await page.until('the dead letters', `document.querySelector('#dead [data-label=newest]')?.textContent`);
      if (!/^died (now|[\d.]+ s ago|1?\d min ago)$/.test(died)) faults.push(`a job that died within minutes "${died}"`);
      await page.open(`${url}/#job/7600001500`);
      await page.until('the job', `[...document.querySelectorAll('#job-buttons button')].some((b) => b.textContent.startsWith('Reschedule') && (b.click(), true))`);
      await answer({ at: '1h' }, 'Reschedule');
      await page.until('what came of it', `document.getElementById('job-note').textContent.startsWith('Scheduled for')`);
      near('run at', Date.parse((await read('/api/v1/jobs/7600001500')).due_at), Date.now() + 3_600_000);
    } finally {
      await page.send('Page.removeScriptToEvaluateOnNewDocument', { identifier });
      mock.steer({ phase: 'steady' });
    }
    return faults;
  });

  await steered('a throttle that left the ticks is shown by its details, in its row and in its panel', async () => {
    await live('#throttles');
    const row = `[...document.querySelectorAll('#throttle-rows tr')].find((r) => r.textContent.startsWith('webhooks'))`;
    const numbers = `['ready', 'dead'].map((name) => ${row}.querySelector('[data-label=' + name + ']').textContent).join()`;
    await page.until('its row', `${row} && /^[\\d,]{3,},\\d/.test(${numbers})`);
    mock.steer({ silent: ['webhooks'], set: { throttle: 'webhooks', to: { ready: 0, dead: 77 } } });
    // The details come every five seconds, and meanwhile another job may die.
    await page.until('the new numbers', `/^\\d{0,2},7[789]\\b/.test(${numbers})`, SLOW_MS);
    await page.open(`${url}/#throttle-webhooks`);
    await page.until('the new numbers in the panel', `/^\\d{1,2}ready.*7[789]dead/.test([...document.querySelectorAll('#detail .depth dl div')].map((d) => d.querySelector('dd').textContent + d.querySelector('dt').textContent).join(' '))`);
    mock.steer({ phase: 'steady' });
  });

  await steered('an error that is over goes from the page, where nothing else is asked too', async () => {
    for (const [view, note] of [['jobs', 'jobs-note'], ['failures', 'dead-said'], ['audit', 'audit-note'], ['job/7600001500', 'job-note']]) {
      mock.steer({ fail: 'lists' });
      await page.open(`${url}/#${view}`);
      await page.until(`the error of ${view}`, `document.getElementById('${note}').textContent === 'the queue store did not answer'`);
      mock.steer({ fail: null });
      await page.until(`the end of the error of ${view}`, `document.getElementById('${note}').textContent === ''`, SLOW_MS);
    }
    await page.until('the job', `document.querySelector('#job-result .facts')`);
  });

  const text = (id) => `document.getElementById('${id}').textContent`;
  const shown = (id) => `document.getElementById('${id}').checkVisibility()`;

  await steered('the loss of Redis is told with what still works, throttles are trouble, and everything can be paused', async () => {
    const faults = [];
    await live();
    for (const store of ['lost', 'untold']) {
      mock.steer({ store });
      // The page that was open, and one that has seen no list of throttles.
      for (const isFresh of [false, true]) {
        const when = `${store}, ${isFresh ? 'opened meanwhile' : 'open before'}`;
        if (isFresh) await page.fresh(`${url}/`);
        await page.until(`the notice (${when})`, `${shown('store-lost')} && /^Redis does not answer, or accepts no writes\\..*on_store_loss.*jobs are accepted.*pause of everything/.test(${text('store-lost')})`, SLOW_MS);
        await page.until(`the words in the header (${when})`, `${text('phase-text')} === 'live, without Redis' && document.title.startsWith('Redis lost')`);
        await page.until(`the button (${when})`, `${shown('pause-all')}`);
        await page.until(`throttles in trouble (${when})`, `[...document.querySelectorAll('#governed .badge')].filter((b) => b.textContent === 'unknown').length >= 6`, SLOW_MS);
        await page.until(`the lists (${when})`, `${shown('decisions')} && document.querySelectorAll('#decisions tr').length > 0`, SLOW_MS);
        if (await page.evaluate(shown('away'))) faults.push(`${when}: a second notice says ${await page.evaluate(text('away'))}`);
      }
    }
    await page.evaluate('scrollTo(0, 0)');
    await shot(page, 'store-lost', false);
    faults.push(...await page.evaluate(contrast), ...await page.evaluate(overflow));
    await page.evaluate(`document.getElementById('pause-all').click()`);
    await answer({ why: 'Redis is gone' }, 'Pause everything');
    await page.until('the pause', `${text('all-paused-text')}.includes('Redis is gone')`);
    await page.evaluate(`document.getElementById('pause-all').click()`);
    await page.until('no pause', `document.getElementById('all-paused').hidden`);
    await page.size(390, 844, { mobile: true });
    await shot(page, 'store-lost-390', false);
    faults.push(...await page.evaluate(overflow));
    await page.size(1400, 1000);
    mock.steer({ store: '' });
    await page.until('the store again', `!${shown('store-lost')} && ${text('phase-text')} === 'live' && document.querySelector('#governed .badge').textContent !== 'unknown'`, SLOW_MS);
    return faults;
  });

  await steered('while Postgres does not answer, that and the age of the counts are told, and each list says so', async () => {
    provoked.push(/status of (401|429|503)/);
    const faults = [];
    const gone = [503, 'queue unavailable', [], 'Postgres did not answer within 4 s'];
    await live();
    await page.evaluate(`location.hash = '#failures'`);
    mock.steer({ refuse: { '/api/v1/pause': gone, '/api/v1/failures': gone } });
    await page.until('the notice', `${shown('queue-lost')} && /^Postgres does not answer, or accepts no writes\\. .*neither accepted nor started.*The counts of jobs are .* old.*within 4 s\\.$/.test(${text('queue-lost')})`, SLOW_MS);
    await page.until('the words in the header', `${text('phase-text')} === 'live, without Postgres' && document.title.startsWith('Postgres lost')`, SLOW_MS);
    await page.until('the same in the list', `${text('dead-said')} === 'Postgres did not answer within 4 s'`, SLOW_MS);
    await shot(page, 'queue-lost', false);
    faults.push(...await page.evaluate(contrast), ...await page.evaluate(overflow));
    mock.steer({ refuse: {} });
    await page.until('Postgres again', `!${shown('queue-lost')} && ${text('phase-text')} === 'live' && ${text('dead-said')} === ''`, SLOW_MS);
    return faults;
  });

  await steered('a list that gets no answer says so although the stream is live, and is not asked for again meanwhile', async () => {
    provoked.push(/net::ERR_/);
    const faults = [];
    await live();
    await page.send('Network.setBlockedURLs', { urls: ['*/api/v1/crons*'] });
    await page.evaluate(`location.hash = '#schedules'`);
    await page.until('the words', `${text('crons-note')} === 'the server does not answer'`);
    await page.send('Network.setBlockedURLs', { urls: [] });
    await page.until('no words', `${text('crons-note')} === ''`, SLOW_MS);
    mock.steer({ slow: 9_000 });
    await live();
    const reads = () => mock.requests.filter((r) => r === 'GET /api/v1/pause').length;
    const before = reads();
    await new Promise((resolve) => setTimeout(resolve, 8_000)); // Real time: the pause is asked for every 3 s.
    if (reads() > before + 1) faults.push(`the pause was asked for ${reads() - before} times while nobody answered`);
    mock.steer({ slow: 0 });
    return faults;
  });

  await steered('a refusal for too many requests says nothing of the session, and a change without an answer is in doubt', async () => {
    await live();
    const said = await page.evaluate(`import('/assets/api.js').then(async ({ call, session }) => {
      const [was, changed] = [window.fetch, session.changed];
      const told = [];
      session.changed = (isDenied) => told.push(isDenied);
      for (const status of [401, 429, 401, 429]) {
        window.fetch = async () => new Response('{}', { status });
        await call('GET', '/api/v1/crons').catch(() => {});
      }
      window.fetch = async () => { throw new TypeError('Failed to fetch'); };
      const words = [];
      for (const method of ['GET', 'POST']) await call(method, '/api/v1/crons').catch((error) => words.push(error.message));
      Object.assign(session, { isDenied: false, changed });
      window.fetch = was;
      return [told, ...words];
    })`);
    return JSON.stringify(said[0]) === '[true]' && said[1] === 'the server does not answer' && /may have been made/.test(said[2]) ? [] : [JSON.stringify(said)];
  });

  await steered('who may only read gets no buttons while Redis is lost', async () => {
    mock.steer({ reader: true });
    await live();
    await page.until('a page for readers', `document.body.classList.contains('reader') && ${text('phase-text')} === 'live'`);
    mock.steer({ store: 'lost' });
    await page.until('the notice', shown('store-lost'));
    const hasButtons = await page.evaluate(shown('pause-all'));
    mock.steer({ store: '', reader: false });
    return hasButtons ? ['everything can be paused'] : [];
  });

  await steered('a refused stream or list of throttles is told with its reason', async () => {
    const faults = [];
    const stream = '/api/v1/stream';
    const scope = [403, 'scope missing', [], 'GET /api/v1/stream needs the scope ops:read; token page has jobs:read'];
    const scopeOfList = [403, 'scope missing', [], 'GET /api/v1/throttles needs the scope ops:read; token page has jobs:read'];
    const many = [503, 'too many streams', [], '16 live streams of this token are open, which is the most; close one'];
    const cases = [
      [{ [stream]: many }, /^No live data: 16 live streams of this token are open, which is the most; close one\. Retrying\.$/],
      [{ [stream]: scope, '/api/v1/throttles': scopeOfList }, /^No live data: GET \/api\/v1\/stream needs the scope ops:read; .* No list of throttles: GET \/api\/v1\/throttles needs the scope/],
      [{ '/api/v1/throttles': [429, 'rate limited', [], 'this token has no requests left for 7 s'] }, /^No list of throttles: this token has no requests left for 7 s\. Retrying\.$/],
    ];
    provoked.push(/status of (403|429)/);
    for (const [refuse, wanted] of cases) {
      mock.steer({ refuse });
      await page.fresh(`${url}/`);
      const said = await page.until(`the reason ${wanted}`, `${shown('away')} && ${text('away-text')}`, SLOW_MS);
      await page.until('it in full', `${wanted}.test(${text('away-text')})`).catch(() => faults.push(`it says "${said}"`));
      if (await page.evaluate(shown('waiting'))) faults.push(`it waits although it says "${said}"`);
      if (refuse[stream] === scope) await shot(page, 'refused', false);
      if (refuse[stream] && !/^no live data/.test(await page.evaluate(text('phase-text')))) faults.push(`the header says "${await page.evaluate(text('phase-text'))}"`);
    }
    mock.steer({ refuse: {} });
    await page.until('nothing refused', `!${shown('away')} && ${text('phase-text')} === 'live'`, SLOW_MS);
    mock.steer({ refuse: { [stream]: many } });
    await page.until('the reason with the time of the data', `/^No live data: 16 live streams .* The data is from \\d\\d:\\d\\d:\\d\\d; retrying\.$/.test(${text('away-text')})`, SLOW_MS);
    mock.steer({ refuse: {} });
    await page.until('live again', `!${shown('away')} && ${text('phase-text')} === 'live'`, SLOW_MS);
    return faults;
  });
}
