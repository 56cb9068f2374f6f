// The checks of texts that strangers chose, such as keys of any length, and of answers that come late or
// change what a row shows, on the mock.

/** Checks what must hold whatever a key, a name or the order of answers is. */
export async function hostileChecks({ page, url, mock, provoked, check, shot, answer, overflow }) {
  const LONG = 'k'.repeat(500);
  const live = async (hash = '') => {
    await page.size(1400, 1000);
    await page.fresh(`${url}/${hash}`);
    await page.until('the page', `document.getElementById('phase').dataset.phase === 'live'`, 15_000);
  };
  const row = (body, part) => `[...document.querySelectorAll('#${body} > tr')].find((r) => r.textContent.includes(${JSON.stringify(part)}))`;
  const update = (id, change) => page.evaluate(`fetch('/api/v1/jobs/${id}', { method: 'PATCH', body: ${JSON.stringify(JSON.stringify(change))} }).then((r) => r.ok)`);
  /** Lets the page see other answers: `change` is the source of a function of the path and the answer. */
  const patched = (change) => page.evaluate(`{ const real = window.fetch; const change = ${change}; window.fetch = async (path, init) => { const r = await real(path, init); if (!String(path).startsWith('/api/') || !r.ok || r.headers.get('content-type') !== 'application/json') return r; const body = await r.json(); await change(String(path), body); return new Response(JSON.stringify(body), { headers: { 'content-type': 'application/json' } }); }; }`);
  mock.steer({ phase: 'steady', fail: null, store: '', refuse: {}, reader: false });

  await check('a key of any length leaves the buttons of its job and the offer to undo in sight', async () => {
    const faults = [];
    await live();
    await update(7600002000, { key: LONG });
    for (const [width, mobile] of [[1400, false], [390, true]]) {
      await page.fresh(`${url}/#job/7600002000`);
      await page.size(width, 844, { mobile });
      await page.until('the job', `document.querySelectorAll('#job-buttons button').length >= 4`);
      await page.evaluate(`import('/assets/undo.js').then(({ offerUndo }) => offerUndo('${LONG} of webhooks: Paused.', async () => 'gone'))`);
      await page.until('the offer', `document.querySelector('.undo')?.checkVisibility()`);
      const high = await page.evaluate(`document.querySelector('.undo').offsetHeight`);
      if (high > 200) faults.push(`the offer to undo is ${high} px high in ${width}`);
      await shot(page, `long-key-${width}`, false);
      faults.push(...await page.evaluate(overflow));
    }
    return faults;
  });

  await check('a job that was moved to another lane is shown in it, and its key is the one that is paused', async () => {
    await live('#jobs?state=ready');
    await page.until('the job', row('jobs-body', '7600001999'));
    await update(7600001999, { key: ' customer-8 ' });
    const link = `${row('jobs-body', '7600001999')}.querySelector('a.quiet')`;
    await page.until('its lane', `${link}.textContent === 'webhooks /  customer-8 ' && ${row('jobs-body', '7600001999')}.querySelector('button.link').getAttribute('aria-label') === 'Pause key  customer-8  of webhooks'`);
    await page.evaluate(`${link}.click()`);
    // The key without blanks is that of another customer.
    await page.until('the jobs of this key alone', `[...document.querySelectorAll('#jobs-body > tr')].length === 1 && document.getElementById('jobs-body').textContent.includes('7600001999')`);
    await page.evaluate(`document.getElementById('jobs-filter').requestSubmit()`);
    await page.until('the same filter', `new URLSearchParams(location.hash.split('?')[1]).get('key') === ' customer-8 '`);
  });

  await check('a message shows its address as soon as it is known, and those of the inbox can be listed', async () => {
    await live('#pools');
    await page.until('messages', `document.querySelectorAll('#notifications-body > tr').length > 5`);
    await patched(`(path, body) => { for (const one of body.notifications ?? []) one.to = 'known@example.com'; }`);
    await page.until('the addresses', `[...document.querySelectorAll('#notifications-body [data-label=to]')].slice(0, 20).every((one) => one.textContent.startsWith('known@'))`, 15_000);
    const channels = await page.evaluate(`['notifications-filter', 'recipient-check', 'suppression'].map((form) => [...document.getElementById(form).elements.namedItem('channel').options].map((o) => o.value).filter((v) => v && v !== 'any').sort().join())`);
    return new Set(channels).size === 1 ? [] : [`the channels are ${channels.join(' / ')}`];
  });

  await check('the answer about a recipient that comes late is not that of the next one', async () => {
    await live('#recipients');
    await patched(`async (path, body) => { if (!path.includes('/recipients/check')) return; const isSlow = path.includes('slow'); body.to = isSlow ? 'of-slow' : 'of-quick'; await new Promise((resolve) => setTimeout(resolve, isSlow ? 1200 : 0)); }`);
    const ask = (who) => page.evaluate(`{ const form = document.getElementById('recipient-check'); form.elements.namedItem('who').value = '${who}'; form.requestSubmit(); }`);
    await ask('slow');
    await ask('quick');
    await page.until('the answer', `/of-quick/.test(document.getElementById('recipient-found').textContent)`);
    await new Promise((resolve) => setTimeout(resolve, 1_800)); // Real time: the late answer has come.
    const said = await page.evaluate(`document.getElementById('recipient-found').textContent`);
    return /of-quick/.test(said) ? [] : ['the late answer took its place'];
  });

  await check('what was done to a lane stays said, and a search does not wait for the list', async () => {
    const faults = [];
    await live('#throttle-webhooks');
    const lanes = `document.querySelector('#detail .lanes')`;
    await page.until('the panel', lanes);
    await page.evaluate(`${lanes}.open = true`);
    const weight = `[...${lanes}.querySelectorAll('tbody tr')].find((r) => r.firstChild.textContent === 'customer-100')?.querySelector('button.link')`;
    await page.until('the lanes', weight);
    await page.evaluate(`${weight}.click()`);
    await answer({ weight: '3' }, 'Set');
    const note = `${lanes}.querySelector('.form-note').textContent`;
    await page.until('what was done', `${note} === 'The weight is 3.'`);
    await new Promise((resolve) => setTimeout(resolve, 6_500)); // Real time: the list is asked for every 5 s.
    if (await page.evaluate(note) !== 'The weight is 3.') faults.push('the next look takes back what was said');
    await patched(`async (path) => { if (/lanes\\?limit/.test(path)) await new Promise((resolve) => setTimeout(resolve, 3000)); }`);
    await page.evaluate(`${lanes}.querySelector('select').dispatchEvent(new Event('change'))`);
    await page.evaluate(`{ const find = ${lanes}.querySelector('input'); find.value = 'customer-120'; find.form.requestSubmit(); }`);
    await page.until('the lane that was searched', `${lanes}.querySelectorAll('tbody tr').length === 1`, 2_000).catch((error) => faults.push(error.message));
    await new Promise((resolve) => setTimeout(resolve, 3_200)); // Real time: the answer to the older question has come.
    if (await page.evaluate(`${lanes}.querySelectorAll('tbody tr').length`) !== 1) faults.push('the answer to an older question took its place');
    return faults;
  });

  await check('a change that was made is said although the list cannot be read after it', async () => {
    provoked.push(/status of 503/, /net::ERR_INCOMPLETE_CHUNKED_ENCODING .*\/stream$/);
    await live('#schedules');
    const pause = `${row('crons', 'sweep')}?.querySelectorAll('button')[1]`;
    await page.until('a schedule', pause);
    await page.evaluate(`localStorage.setItem('flyball.who', 'browser-test')`);
    mock.steer({ refuse: { '/api/v1/crons': [503, 'no answer', [], 'the queue store did not answer'] } });
    await page.evaluate(`${pause}.click()`);
    const said = await page.until('what was done', `/sweep is/.test(document.getElementById('crons-note').textContent) && document.getElementById('crons-note').textContent`);
    mock.steer({ refuse: {}, phase: 'steady' });
    return said === 'sweep is paused.' ? [] : [`it says "${said}"`];
  });

  await check('more errors than rows are said, and who may not read attempts sees the dead letters all the same', async () => {
    await live('#failures');
    await page.until('the dead letters', `document.querySelectorAll('#dead > tr').length > 1`);
    await page.evaluate(`location.hash = '#jobs'`);
    await patched(`(path, body) => { if (/state=dead/.test(path)) body.jobs.forEach((job, n) => { job.last_error = 'error ' + String.fromCharCode(97 + n % 26, 97 + n / 26); }); }`);
    await page.evaluate(`location.hash = '#failures'`);
    await page.until('that rows are missing', `/the 50 most frequent of 70 errors are shown$/.test(document.getElementById('dead-note').textContent) && document.querySelectorAll('#dead > tr').length === 50`);
    provoked.push(/status of (403|409)/);
    mock.steer({ refuse: { '/api/v1/failures': [403, 'scope missing', [], 'GET /api/v1/failures needs the scope ops:read'] } });
    await live('#failures');
    await page.until('both', `document.querySelectorAll('#dead > tr').length > 1 && /may not read/.test(document.getElementById('errors-empty').textContent)`);
    mock.steer({ refuse: {} });
  });

  await check('a pause keeps a half-typed edit, and a conflict is not decided with what was typed before', async () => {
    const faults = [];
    await live('#throttle-webhooks');
    const form = `document.querySelector('#detail form')`;
    const button = (text) => `[...document.querySelectorAll('#detail button')].find((b) => b.textContent === '${text}' && b.checkVisibility() && !b.disabled)`;
    const typed = (value) => page.evaluate(`{ const e = ${form}.querySelector('[name=rps]'); e.value = '${value}'; e.dispatchEvent(new Event('input', { bubbles: true })); }`);
    await page.until('the knobs', `${form}?.querySelector('[name=rps]').value`);
    await page.evaluate(`localStorage.setItem('flyball.who', 'browser-test')`);
    await typed('33');
    await page.evaluate(`${form}.querySelector('[name=why]').value = 'half typed'`);
    await page.evaluate(`${button('Pause')}.click()`);
    await answer({}, 'Pause');
    await page.until('the pause', button('Resume'));
    await page.evaluate(`${button('Resume')}.click()`);
    await page.until('no pause', button('Pause'));
    const kept = await page.evaluate(`[${form}.querySelector('[name=rps]').value, ${form}.querySelector('[name=why]').value].join()`);
    if (kept !== '33,half typed') faults.push(`the edit is "${kept}"`);
    mock.steer({ edit: { throttle: 'webhooks', by: 'rival', knobs: { rps: 44 } } });
    await typed('34');
    await page.evaluate(`${form}.querySelector('[name=by]').value = 'browser-test', ${form}.requestSubmit()`);
    await page.until('the conflict', `${form}.querySelector('.conflict').checkVisibility()`);
    await typed('20');
    if (await page.evaluate(`${form}.querySelector('.conflict').checkVisibility()`)) faults.push('the old question stays');
    await page.evaluate(`${form}.requestSubmit()`);
    await page.until('the question about the new value', `/your value is 20/.test(${form}.querySelector('.conflict').textContent)`);
    await page.evaluate(`${button('Apply my values')}.click()`);
    await page.until('the change', `/^Applied rps/.test(${form}.querySelector(':scope > .form-note').textContent)`);
    const rps = await page.evaluate(`fetch('/api/v1/throttles/webhooks').then((r) => r.json()).then((t) => t.knobs.rps)`);
    if (rps !== 20) faults.push(`applied was ${rps}`);
    mock.steer({ phase: 'steady' });
    return faults;
  });

  await check('newer jobs do not shrink a selection, and a list of many pages is read anew too', async () => {
    const faults = [];
    await live('#jobs?state=dead');
    const body = `document.getElementById('jobs-body')`;
    await page.until('the jobs', `${body}.children.length === 50`);
    await page.evaluate(`${body}.lastElementChild.querySelector('input').click()`);
    const chosen = await page.evaluate(`${body}.lastElementChild.querySelector('a').textContent`);
    await patched(`(path, answer) => { if (/state=dead/.test(path) && !/before=/.test(path)) answer.jobs = [...Array.from({ length: 40 }, (_, n) => ({ ...answer.jobs[0], id: 7700000000 + n })).reverse(), ...answer.jobs].slice(0, 50); }`);
    await page.until('the newer jobs', `${body}.textContent.includes('7700000039')`, 10_000);
    const said = await page.evaluate(`[document.getElementById('jobs-bar').textContent, ${body}.lastElementChild.textContent, ${body}.lastElementChild.querySelector('input').checked].join(' / ')`);
    if (!said.startsWith('1 selected') || !said.includes(chosen) || !said.endsWith('true')) faults.push(`it reads "${said}"`);
    await page.evaluate(`document.getElementById('jobs-more').click()`);
    await page.until('the next page', `${body}.children.length > 60`);
    const reads = mock.requests.filter((r) => /state=dead/.test(r)).length;
    for (let n = 0; n < 150 && mock.requests.filter((r) => /state=dead/.test(r)).length === reads; n += 1) await page.evaluate('new Promise((resolve) => setTimeout(resolve, 100))');
    if (mock.requests.filter((r) => /state=dead/.test(r)).length === reads) faults.push('the list is not read anew');
    return faults;
  });

  await check('characters that turn the direction of text are shown, and turn nothing', async () => {
    await live('#jobs');
    await patched(`(path, answer) => { if (path.includes('/dead/')) answer.jobs = 3; else for (const job of answer.jobs ?? []) { if (job.state === 'dead') job.last_error = '\\u202egnp.exe'; job.key = 'key \\u2067x'; } }`);
    await page.evaluate(`location.hash = '#failures'`);
    const discard = `[...document.querySelectorAll('#dead button')].find((b) => b.textContent.startsWith('Discard') && b.closest('tr').textContent.includes('gnp.exe'))`;
    await page.until('the dead letters', discard);
    await page.evaluate(`${discard}.click()`);
    const text = await page.until('the question', `document.querySelector('dialog.ask')?.open && document.querySelector('dialog.ask').textContent`);
    await page.evaluate(`document.querySelector('dialog.ask').close()`);
    await page.evaluate(`location.hash = '#jobs?state=dead'`);
    await page.until('the jobs', `/key .x/.test(document.getElementById('jobs-body').textContent)`);
    const turned = await page.evaluate(`/[\\u202a-\\u202e\\u2066-\\u2069]/.test(document.body.textContent)`);
    return [...(/error "\ufffdgnp.exe"/.test(text) ? [] : [`the question is "${text}"`]), ...(turned ? ['a character turns the text'] : [])];
  });

  await check('running jobs are said to be asked to stop, and a change that ends half-way says how far it came', async () => {
    const faults = [];
    const note = `document.getElementById('jobs-note').textContent`;
    const button = (text) => `[...document.querySelectorAll('#jobs-bar button')].find((b) => b.textContent.startsWith('${text}') && b.checkVisibility())`;
    await live('#jobs?state=running');
    await page.until('the button', button('Cancel all that match'));
    await patched(`(path, answer) => { if (path.endsWith('/jobs/cancel')) Object.assign(answer, answer.dry_run ? { jobs: 6 } : { jobs: 0, requested: 6, next: null }); }`);
    await page.evaluate(`${button('Cancel all that match')}.click()`);
    await answer({}, 'Cancel all');
    await page.until('what was done', `/^(Cancelled|Asked) /.test(${note})`);
    if (await page.evaluate(note) !== 'Asked 6 running jobs to stop.') faults.push(`it says "${await page.evaluate(note)}"`);
    await live('#jobs?state=dead&kind=mail');
    await patched(`(path, answer) => { if (!path.endsWith('/dead/requeue') || answer.dry_run) return; window.steps = (window.steps ?? 0) + 1; if (window.steps === 2) throw new TypeError('Failed to fetch'); answer.next ??= 'on'; }`);
    await page.until('the button', button('Requeue all that match'));
    await page.evaluate(`${button('Requeue all that match')}.click()`);
    await answer({}, 'Requeue all');
    const said = await page.until('the end', `/answer|ended/.test(${note}) && ${note}`);
    if (!/^Requeued \d+\. Then it ended: .*may have been made/.test(said)) faults.push(`it says "${said}"`);
    mock.steer({ phase: 'steady' });
    return faults;
  });

  await check('a filter that is refused is not waited for', async () => {
    provoked.push(/status of 400/);
    mock.steer({ refuse: { '/api/v1/jobs': [400, 'invalid query', [], '/group: must be a whole number'] } });
    await live('#jobs?group=abc');
    await page.until('the words', `document.getElementById('jobs-note').textContent === '/group: must be a whole number' && document.getElementById('jobs-empty').textContent === 'The server refuses this filter.'`);
    mock.steer({ refuse: {} });
    await page.until('the end of the words', `document.getElementById('jobs-note').textContent === '' && document.getElementById('jobs-empty').textContent !== 'The server refuses this filter.'`, 15_000);
  });

  await check('what came of a retry is told to a screen reader too', async () => {
    provoked.push(/status of 404/);
    await live('#failures');
    const retry = `document.querySelector('#failures .act button')`;
    await page.until('a dead letter', retry);
    await page.evaluate(`localStorage.setItem('flyball.who', 'browser-test'), ${retry}.click()`);
    await page.until('what came of it', `${retry}.textContent !== 'Retry'`);
    const name = await page.evaluate(`${retry}.getAttribute('aria-label')`);
    return name === null ? [] : [`its name is still "${name}"`];
  });
}
