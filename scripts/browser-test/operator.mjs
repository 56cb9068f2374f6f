// The checks of what an operator does at night, on the mock: find the failing jobs, requeue those
// of one error, pause a customer, turn a knob, each within three actions from the opened page; and the
// views of jobs, failures, schedules, throttles and the audit log. An action is a click, a key, or a
// field that is typed. The name that signs changes is known, because the login page asked for it.

import { HOSTILE } from './mock-jobs.mjs';

const ACTIONS_MAX = 3;

/** Checks the views and flows of an operator. */
export async function operatorChecks({ page, url, mock, provoked, check, shot, answer, contrast, overflow, namelessControls }) {
  const text = (selector) => page.evaluate(`document.querySelector(${JSON.stringify(selector)})?.textContent ?? ''`);
  const row = (body, part) => `[...document.querySelectorAll('#${body} tr')].find((r) => r.textContent.includes(${JSON.stringify(part)}))`;
  const button = (root, label) => `[...${root}.querySelectorAll('button')].find((b) => b.textContent.startsWith(${JSON.stringify(label)}) && b.checkVisibility() && !b.disabled)`;
  const view = async (hash, ready) => {
    await page.open(`${url}/${hash}`);
    await page.until(`the view ${hash}`, ready);
  };
  /** Begins a flow on a page of its own; each of its steps is one action of a person. */
  const flow = async (hash = '') => {
    mock.steer({ phase: 'steady' });
    await page.open(`${url}/login`);
    await page.evaluate(`localStorage.setItem('flyball.who', 'browser-test'), true`);
    await page.fresh(`${url}/${hash}`);
    await page.until('the figures', `document.getElementById('phase').dataset.phase === 'live' && /\\d/.test(document.getElementById('dead-total').textContent) && !document.body.classList.contains('reader')`);
    let actions = 0;
    return {
      act: async (what, element) => {
        actions += 1;
        await page.until(what, `Boolean(${element})`);
        await page.evaluate(`${element}.click()`);
      },
      press: async (key) => {
        actions += 1;
        await page.key(key);
      },
      type: async (element, typed) => {
        actions += 1;
        await page.evaluate(`${element}.focus(), ${element}.select(), true`);
        await page.type(typed);
      },
      faults: () => (actions <= ACTIONS_MAX ? [] : [`it took ${actions} actions`]),
    };
  };
  // Each flow begins with a new world, whose streams break.
  provoked.push(/net::ERR_INCOMPLETE_CHUNKED_ENCODING .*\/stream$/);
  await page.size(1400, 1000);

  await check('a row of the list of throttles has its height before its drawing', async () => {
    await flow();
    const height = await page.evaluate(`import('/assets/throttlerows.js').then(({ ThrottleRows }) => new ThrottleRows(document.createElement('tbody'), document.createElement('p')).row('new').parts.spark.height)`);
    return height === 18 ? [] : [`the drawing is ${height} px high`];
  });

  await check('flow: the failing jobs are found, each with an address and its errors in full', async () => {
    const { act, faults } = await flow();
    await act('the number of dead jobs', `document.getElementById('dead-total')`);
    await page.until('the dead jobs', `${row('jobs-body', '7600000900')}`);
    await act('a job', `${row('jobs-body', '7600000899')}?.querySelector('a')`);
    await page.until('the job', `location.hash === '#job/7600000899' && document.querySelectorAll('#job-result .attempts li').length === 10`);
    const found = await page.evaluate(`({ text: document.getElementById('job-result').textContent, hacked: window.hacked ?? null, images: document.querySelectorAll('#job-result img').length, badge: document.getElementById('job-badge').textContent })`);
    await shot(page, 'job');
    const wanted = ['invoice', HOSTILE, '00-0af7651916cd43dd', 'held', '60 s', 'attempt 10: a long answer', 'worker-1'];
    return [...faults(), ...wanted.filter((part) => !found.text.includes(part)).map((part) => `${part} is not told`), ...(found.hacked === null && found.images === 0 && found.badge === 'dead' ? [] : [JSON.stringify(found).slice(0, 200)])];
  });

  await check('flow: the dead letters of one error are requeued after a question with their number', async () => {
    const { act, faults } = await flow();
    await act('the failures', `document.getElementById('view-failures')`);
    await page.until('the groups', `${row('dead', 'answered 502')}`);
    await shot(page, 'failures');
    await act('the button of the group', button(row('dead', 'answered 502'), 'Requeue'));
    await page.until('the question', `document.querySelector('dialog.ask')?.open`);
    const title = await text('#ask-title');
    await shot(page, 'requeue-question', false);
    await act('the confirmation', button(`document.querySelector('dialog.ask')`, 'Requeue all'));
    await page.until('what was done', `/^Requeued \\d+\\.$/.test(document.getElementById('dead-said').textContent)`);
    const said = (await text('#dead-said')).match(/\d+/)[0];
    const left = await page.evaluate(`[...document.querySelectorAll('#dead tr')].map((r) => r.textContent).filter((t) => t.includes('502') && t.includes('webhooks'))`);
    return [...faults(), ...(title === `Requeue ${said} dead letters?` && Number(said) > 20 ? [] : [`it asked "${title}" and requeued ${said}`]), ...left];
  });

  await check('flow: a customer is paused from the row of one of the jobs, and the pause can be undone', async () => {
    const { act, faults } = await flow();
    await act('the number of ready jobs', `document.getElementById('ready-total')`);
    await page.until('the jobs', `${row('jobs-body', 'customer-7')}`);
    await act('the button of the row', button(row('jobs-body', 'customer-7'), 'pause'));
    await page.until('the question', `document.querySelector('dialog.ask')?.open`);
    await act('the confirmation', button(`document.querySelector('dialog.ask')`, 'Pause'));
    await page.until('what was done', `/^customer-7 of webhooks: Paused until/.test(document.getElementById('jobs-note').textContent)`);
    const asked = mock.requests.findLast((r) => r.startsWith('POST'));
    await shot(page, 'key-paused', false);
    const poor = await page.evaluate(contrast);
    await page.evaluate(`${button(`document.querySelector('.undo')`, 'Undo')}.click()`);
    await page.until('the undo', `/customer-7 of webhooks is resumed/.test(document.querySelector('.undo').textContent)`);
    return [...faults(), ...poor, ...(asked === 'POST /api/v1/throttles/webhooks/keys/customer-7/pause' ? [] : [`asked was ${asked}`])];
  });

  await check('flow: a knob is turned on the panel of a quiet throttle', async () => {
    const { act, press, type, faults } = await flow();
    await act('a quiet throttle', `${row('quiet-rows', 'notify.chat')}?.querySelector('a')`);
    const panel = `document.getElementById('throttle-notify.chat')`;
    await page.until('its knobs', `${panel}?.querySelector('[name=rps]')?.checkVisibility() && ${panel}.querySelector('[name=rps]').value === '800'`);
    await type(`${panel}.querySelector('[name=rps]')`, '900');
    await press('Enter');
    await page.until('that it is applied', `/^Applied rps/.test(${panel}.querySelector('form > .form-note').textContent)`);
    await shot(page, 'throttle-plain');
    const told = await page.evaluate(`(() => { const p = ${panel}; const seen = (name) => p.querySelector('[name=' + name + ']')?.checkVisibility(); return { legend: p.querySelector('.legend').textContent, min: seen('min'), mode: seen('mode'), summary: p.querySelector('summary').textContent, all: ['parent', 'borrow', 'key_burst', 'on_store_loss'].filter((name) => !p.querySelector('[name=' + name + ']')) }; })()`);
    if (/decider|manual/.test(told.legend) || told.min || told.mode || /min|max|safe_rps/.test(told.summary)) return [`words of a governor: ${JSON.stringify(told)}`];
    return [...faults(), ...told.all.map((name) => `the form lacks ${name}`)];
  });

  await check('a customer is paused from a job too, for the minutes that were typed', async () => {
    await view('#jobs?state=ready', `${row('jobs-body', 'customer-7')}`);
    await page.evaluate(`${row('jobs-body', 'customer-7')}.querySelector('a[href^="#job/"]').click()`);
    await page.until('the job', button(`document.getElementById('job-buttons')`, 'Pause key customer-7'));
    await page.evaluate(`${button(`document.getElementById('job-buttons')`, 'Pause key customer-7')}.click()`);
    await answer({ minutes: 'a while' }, 'Pause', 'for: "a while" is not a number of minutes such as 10.');
    await shot(page, 'pause-refused', false);
    await answer({ minutes: '5', why: 'they asked' }, 'Pause');
    await page.until('what was done', `/^Paused until/.test(document.getElementById('job-note').textContent)`);
  });

  await check('the login page takes the name that signs changes, and a change without one asks for it', async () => {
    await page.open(`${url}/login`);
    await page.evaluate(`localStorage.clear(), document.getElementById('who').value = 'ann', document.getElementById('token').value = 'demo', document.forms[0].requestSubmit(), true`);
    await page.until('the name', `localStorage.getItem('flyball.who') === 'ann'`);
    await page.evaluate(`localStorage.clear()`);
    await page.fresh(`${url}/#failures`);
    await page.until('the groups', button(row('dead', 'answered 502'), 'Requeue'));
    await page.evaluate(`${button(row('dead', 'answered 502'), 'Requeue')}.click()`);
    await page.until('the question for the name', `document.querySelector('dialog.ask')?.open && document.activeElement.name === 'by'`);
    await page.evaluate(`document.querySelector('dialog.ask').close()`);
  });

  await check('parts of views have addresses that scroll to them, and nothing else does', async () => {
    const faults = [];
    for (const [hash, part] of [['#groups', 'groups'], ['#notifications', 'notifications'], ['#suppressions', 'suppressions']]) {
      await page.fresh(`${url}/${hash}`);
      await page.until('the part in sight', `document.getElementById('${part}').checkVisibility() && document.getElementById('${part}').getBoundingClientRect().top < innerHeight - 100`).catch((error) => faults.push(`${hash}: ${error.message}`));
    }
    for (const hash of ['#failures', '#audit']) {
      await page.evaluate(`location.hash = '${hash}'`);
      await new Promise((resolve) => setTimeout(resolve, 600));
      const top = await page.evaluate('scrollY');
      if (top > 0) faults.push(`${hash} is scrolled to ${top}`);
    }
    return faults;
  });

  await check('nothing is said to be empty while the server does not answer, and an ended session stays said', async () => {
    provoked.push(/net::ERR_|status of 503|status of 401/);
    const faults = [];
    const empty = async (hash) => {
      await page.evaluate(`location.hash = '${hash}'`);
      await page.until(`the view ${hash}`, `!document.getElementById('${hash.slice(1)}-page').hidden`);
      await new Promise((resolve) => setTimeout(resolve, 400));
      faults.push(...(await page.evaluate(`[...document.querySelectorAll('main:not([hidden]) .empty')].filter((e) => e.checkVisibility() && /^No /.test(e.textContent)).map((e) => e.textContent)`)).map((text) => `${hash} says "${text}"`));
    };
    const live = async () => {
      await page.fresh(`${url}/#overview`);
      await page.until('the stream', `document.getElementById('phase').dataset.phase === 'live'`);
    };
    // The stream tells of throttles before any list is read.
    mock.steer({ fail: 'lists' });
    await live();
    await empty('#failures');
    mock.steer({ fail: null });
    await live();
    mock.steer({ fail: 'down' });
    for (const hash of ['#failures', '#schedules', '#pools', '#jobs']) await empty(hash);
    mock.steer({ fail: '401' });
    await page.until('the end of the session', `!document.getElementById('signed-out').hidden`, 15_000);
    for (let i = 0; i < 6; i += 1) {
      await new Promise((resolve) => setTimeout(resolve, 400));
      if (await page.evaluate(`document.getElementById('signed-out').hidden`)) faults.push('the notice went away');
    }
    mock.steer({ fail: null });
    await page.until('the page that goes on', `document.getElementById('signed-out').hidden && document.getElementById('phase').dataset.phase === 'live'`, 20_000);
    return faults;
  });

  await check('a throttle with waiting jobs is deleted only after a second question', async () => {
    provoked.push(/status of 409 .*throttles/);
    mock.steer({ phase: 'steady' });
    await page.fresh(`${url}/#throttle-webhooks`);
    const panel = `document.getElementById('throttle-webhooks')`;
    // The second question takes the place of the first at once.
    const first = () => page.evaluate(`${button(panel, 'Delete')}.click(), document.querySelector('dialog.ask [name=by]').value = 'browser-test', ${button(`document.querySelector('dialog.ask')`, 'Delete')}.click(), true`);
    await page.until('the button', button(panel, 'Delete'));
    await first();
    await page.until('the second question', `document.querySelector('dialog.ask')?.open && /although \\d+ jobs wait/.test(document.getElementById('ask-title').textContent)`);
    const before = mock.requests.filter((r) => r.startsWith('DELETE /api/v1/throttles/webhooks'));
    await page.evaluate(`${button(`document.querySelector('dialog.ask')`, 'Keep it')}.click()`);
    await new Promise((resolve) => setTimeout(resolve, 300));
    const kept = await page.evaluate(`Boolean(${button(panel, 'Delete')})`);
    await first();
    await page.until('the second question', `document.querySelector('dialog.ask')?.open && /although/.test(document.getElementById('ask-title').textContent)`);
    await page.evaluate(`${button(`document.querySelector('dialog.ask')`, 'Delete anyway')}.click()`);
    await page.until('what was done', `/webhooks is deleted/.test(document.getElementById('aloud').textContent)`);
    const forced = mock.requests.filter((r) => r.startsWith('DELETE') && r.includes('force=true'));
    mock.steer({ phase: 'steady' });
    return [...(before.every((r) => !r.includes('force')) && kept ? [] : ['it was forced at once']), ...(forced.length === 1 ? [] : [`forced ${forced.length} times`])];
  });

  await check('jobs: tabs count, filters are in the address, and older jobs follow', async () => {
    await view('#jobs', `document.querySelectorAll('#jobs-body tr').length === 50`);
    const counts = await page.until('the counts', `/≈/.test(document.getElementById('jobs-tabs').textContent) && document.getElementById('jobs-tabs').textContent`);
    await page.evaluate(`document.querySelector('#jobs-filter [name=throttle]').value = 'notify.sms', document.getElementById('jobs-filter').requestSubmit(), true`);
    await page.until('the filtered jobs', `location.hash === '#jobs?throttle=notify.sms' && [...document.querySelectorAll('#jobs-body tr')].length > 0 && [...document.querySelectorAll('#jobs-body tr')].every((r) => r.textContent.includes('notify.sms'))`);
    await page.evaluate(`history.back()`);
    await page.until('all jobs again', `document.querySelectorAll('#jobs-body tr').length === 50 && document.querySelector('#jobs-filter [name=throttle]').value === ''`);
    await page.evaluate(`document.getElementById('jobs-more').click()`);
    await page.until('older jobs', `document.querySelectorAll('#jobs-body tr').length > 90`);
    await shot(page, 'jobs');
    await view('#jobs?state=dead&error=certificate', `document.querySelectorAll('#jobs-body tr').length > 10 && [...document.querySelectorAll('#jobs-body tr')].every((r) => r.textContent.includes('certificate'))`);
    await page.evaluate(`document.querySelector('#jobs-filter [name=trace]').value = '4bf92f3577b34da6a3ce929d0e0e4736', document.querySelector('#jobs-filter [name=error]').value = '', document.getElementById('jobs-filter').requestSubmit(), true`);
    await view('#jobs?trace=4bf92f3577b34da6a3ce929d0e0e4736', `document.querySelectorAll('#jobs-body tr').length === 1`);
    return /ready[\d,]+running\d+scheduledretryabledead\d+completed≈1\.2Mcancelled≈12/.test(counts) ? [] : [`the tabs say "${counts}"`];
  });

  await check('jobs: some are selected and cancelled, and all that match after a dry run', async () => {
    await view('#jobs?state=retryable', `document.querySelectorAll('#jobs-body tr').length === 12`);
    await page.evaluate(`[...document.querySelectorAll('#jobs-body input')].slice(0, 3).forEach((box) => box.click())`);
    await page.until('the selection', `document.getElementById('jobs-bar').textContent.startsWith('3 selected')`);
    await shot(page, 'jobs-selected', false);
    await page.evaluate(`${button(`document.getElementById('jobs-bar')`, 'Cancel …')}.click()`);
    await answer({}, 'Cancel the job');
    await page.until('what was done', `document.getElementById('jobs-note').textContent === 'Cancelled: 3.'`);
    await page.until('the rest', `document.querySelectorAll('#jobs-body tr').length === 9`);
    await page.evaluate(`${button(`document.getElementById('jobs-bar')`, 'Cancel all that match')}.click()`);
    await page.until('the question', `document.querySelector('dialog.ask')?.open`);
    const title = await text('#ask-title');
    await answer({}, 'Cancel all');
    await page.until('the end', `document.getElementById('jobs-note').textContent === 'Cancelled 9.'`);
    return title === 'Cancel 9 retryable jobs?' ? [] : [`it asked "${title}"`];
  });

  await check('a job: found by its number, retried, cancelled; an ended one offers nothing, and a missing one says so', async () => {
    await view('#jobs', `document.querySelectorAll('#jobs-body tr').length > 0`);
    await page.evaluate(`document.getElementById('lookup-id').value = '7600001495', document.getElementById('lookup').requestSubmit(), true`);
    await page.until('the job', `location.hash === '#job/7600001495' && document.getElementById('job-badge').textContent === 'scheduled'`);
    for (const [label, action, state] of [['Retry now', 'Retry', 'ready'], ['Reschedule …', 'Reschedule', 'scheduled'], ['Cancel …', 'Cancel the job', 'cancelled']]) {
      await page.evaluate(`${button(`document.getElementById('job-buttons')`, label)}.click()`);
      await answer({}, action);
      await page.until(`the state ${state}`, `document.getElementById('job-badge').textContent === ${JSON.stringify(state)}`);
    }
    const buttons = await page.evaluate(`[...document.querySelectorAll('#job-buttons button')].map((b) => b.textContent).filter((t) => !t.startsWith('Pause key'))`);
    provoked.push(/status of 404/);
    await page.evaluate(`location.hash = '#job/7'`);
    await page.until('that there is none', `document.querySelector('#job-result .error')?.textContent.includes('no job 7')`);
    await page.evaluate(`location.hash = '#job/x'`);
    await page.until('that it is no number', `/not a job's number/.test(document.querySelector('#job-result .error')?.textContent)`);
    return buttons.join() === 'Refresh' ? [] : [`a cancelled job offers ${buttons.join(', ')}`];
  });

  await check('running jobs: since when, on which worker, in which attempt, with progress and cancel', async () => {
    await view('#overview', `document.querySelector('#running progress')?.value > 0`);
    const line = await page.evaluate(`${row('running', '7612345678')}.textContent`);
    await page.evaluate(`document.getElementById('running-title').scrollIntoView(), scrollBy(0, -80)`);
    await shot(page, 'running', false);
    return /15 min|16 min/.test(line) && /worker-2/.test(line) && /1 of 10/.test(line) && /Cancel/.test(line) ? [] : [`it reads "${line}"`];
  });

  await check('a throttle whose jobs fail does not flow, stands first, and the header counts it', async () => {
    await view('#throttles', `${row('throttle-rows', 'notify.chat')}`);
    const before = await page.evaluate(`${row('throttle-rows', 'notify.chat')}.querySelector('.badge').textContent`);
    // One of ten a second fails: some do.
    mock.steer({ failures: Array.from({ length: 40 }, (_, i) => ({ job_id: 7600000000 + i, kind: 'http', throttle: 'default', key: '', attempt: 1, outcome: 'failed', error: 'no route to host' })) });
    await page.until('the state', `${row('throttle-rows', 'default')}.querySelector('.badge').textContent === 'failing'`);
    await page.until('the figure', `/40 a minute/.test(${row('throttle-rows', 'default')}.textContent)`);
    const found = await page.evaluate(`({ first: [...document.querySelectorAll('#throttle-rows tr')].slice(0, 4).map((r) => r.querySelector('a').textContent), failing: document.getElementById('failing-total').textContent })`);
    await shot(page, 'throttles');
    return [...(before === 'flowing' ? [] : [`before it was ${before}`]), ...(found.first.includes('default') && Number(found.failing) >= 1 ? [] : [JSON.stringify(found)])];
  });

  await check('a throttle is created, and a missing one offers it', async () => {
    await view('#throttle-brand.new', `/There is no throttle brand.new/.test(document.getElementById('no-throttle').textContent) && ${button(`document.getElementById('no-throttle')`, 'Create')}`);
    await page.evaluate(`document.getElementById('create-named').click()`);
    await answer({ rps: 'fast' }, 'Create', 'rps: "fast" is not a number such as 12.5.');
    await shot(page, 'create-refused', false);
    await answer({ rps: '7' }, 'Create');
    await page.until('its panel', `document.getElementById('throttle-brand.new')?.querySelector('.readout b')?.textContent === '7'`);
    return mock.requests.some((r) => r === 'PATCH /api/v1/throttles/brand.new?create=true') ? [] : ['no throttle was made'];
  });

  await check('a job is enqueued from the page, and a wrong one is refused in words', async () => {
    await view('#jobs', `document.getElementById('enqueue-job').offsetParent !== null`);
    await page.evaluate(`document.getElementById('enqueue-job').click()`);
    await answer({ kind: 'invoice', args: '{"customer": ' }, 'Enqueue', 'arguments: ');
    const kept = await page.evaluate(`document.querySelector('dialog.ask').open && document.getElementById('ask-args').value`);
    provoked.push(/422 .*\/api\/v1\/jobs$/);
    await answer({ kind: 'nobody-runs-it', args: '{}' }, 'Enqueue', 'kind: is not a registered kind');
    await shot(page, 'enqueue-refused', false);
    await answer({ kind: 'invoice', args: '{"customer": 17}', throttle: 'default', priority: '0' }, 'Enqueue');
    await page.until('the job', `location.hash === '#job/7600000899'`);
    const sent = mock.enqueued.at(-1);
    return [...(kept === '{"customer": ' ? [] : [`the question kept "${kept}"`]), ...(sent === '{"kind":"invoice","throttle":"default","priority":0,"args":{"customer":17}}' ? [] : [sent])];
  });

  await check('a waiting job is updated: only what differs is sent, and a refusal keeps what was typed', async () => {
    await view('#job/7600002000', `${button(`document.getElementById('job-buttons')`, 'Update …')}`);
    await page.evaluate(`${button(`document.getElementById('job-buttons')`, 'Update …')}.click()`);
    await answer({}, 'Update', 'Nothing differs');
    provoked.push(/422 .*\/api\/v1\/jobs\/7600002000$/);
    await answer({ priority: '9', tags: 'urgent, eu' }, 'Update', 'from 0 to 3');
    await shot(page, 'update-refused', false);
    await answer({ priority: '0', why: 'the customer waits' }, 'Update');
    await page.until('what was done', `document.getElementById('job-note').textContent === 'Updated: priority, tags.' && /urgent, eu/.test(document.getElementById('job-result').textContent)`);
    const sent = mock.updated.at(-1);
    return sent === '{"priority":0,"tags":["urgent","eu"],"by":"browser-test","why":"the customer waits"}' ? [] : [sent];
  });

  await check('dead jobs say when they died', async () => {
    await view('#failures', `/died \\d/.test(document.getElementById('dead').textContent)`);
    await view('#job/7600000897', `[...document.querySelectorAll('#job-result dt')].some((name) => name.textContent === 'ended')`);
  });

  await check('schedules: told with their next time, run, paused and deleted', async () => {
    const of = (name) => `[...document.querySelectorAll('#crons tr')].find((r) => r.querySelector('b').textContent === '${name}')`;
    const press = (name, label) => page.evaluate(`${button(of(name), label)}.click()`);
    await view('#schedules', `/in \\d/.test(${of('nightly-report')}?.textContent)`);
    await shot(page, 'schedules', false);
    await press('sweep', 'Run now');
    await page.until('the job', `/Created job/.test(document.getElementById('crons-note').textContent)`);
    await press('sweep', 'Pause');
    await page.until('the pause', `/paused/.test(${of('sweep')}.textContent)`);
    await press('import', 'Delete …');
    await answer({}, 'Delete');
    await page.until('that it is gone', `!${of('import')}`);
  });

  await check('audit: verbs and values before and after, filtered by what and who', async () => {
    await view('#audit', `${row('audit', 'webhooks')}`);
    const line = await page.evaluate(`${row('audit', 'customer asked for more')}.textContent`);
    await page.evaluate(`document.querySelector('#audit-filter [name=who]').value = 'anna', document.querySelector('#audit-filter [name=who]').dispatchEvent(new Event('input', { bubbles: true })), true`);
    await page.until('hers alone', `document.querySelectorAll('#audit tr').length === 1 && document.getElementById('audit').textContent.includes('new disks')`);
    await shot(page, 'audit', false);
    return /rps 20 → 50/.test(line) ? [] : [`it reads "${line}"`];
  });

  await check('everything is paused and resumed from the header', async () => {
    await page.evaluate(`document.getElementById('pause-all').click()`);
    await answer({ why: 'the database moves' }, 'Pause everything');
    await page.until('the notice', `/paused by browser-test .*the database moves/.test(document.getElementById('all-paused').textContent)`);
    await page.evaluate('scrollTo(0, 0)');
    await shot(page, 'all-paused', false);
    await page.evaluate(`document.getElementById('pause-all').click()`);
    await page.until('that it goes on', `document.getElementById('all-paused').hidden && document.getElementById('pause-all').textContent === 'Pause everything'`);
  });

  await check('the keyboard goes to views, searches, steps through rows and explains itself', async () => {
    await view('#overview', `document.querySelector('section.throttle')`);
    await page.evaluate('document.activeElement?.blur(), true');
    for (const key of ['g', 't']) await page.key(key);
    await page.until('the throttles', `location.hash === '#throttles' && document.querySelector('#throttle-rows tr')?.checkVisibility()`);
    await page.key('j');
    await page.until('the first row', `document.activeElement.matches('#throttle-rows tr:first-child a')`);
    await page.key('/');
    await page.until('the search', `document.activeElement.name === 'name'`);
    await page.type('sms');
    await page.until('the found ones', `[...document.querySelectorAll('#throttle-rows tr')].every((r) => r.textContent.includes('sms'))`);
    await page.evaluate('document.activeElement.blur(), true');
    await page.key('?');
    await page.until('the list of keys', `document.querySelector('dialog.help')?.open && document.querySelector('dialog.help').textContent.includes('Failures')`);
    await shot(page, 'keys', false);
    await page.key('Escape');
    await page.until('its end', `!document.querySelector('dialog.help').open`);
  });

  await check('a token that may only read sees no buttons of changes', async () => {
    mock.steer({ reader: true });
    const faults = [];
    const words = /^(Pause|Resume|Retry|Cancel|Discard|Requeue|Create|Delete|Run now|Empty|Forget|Take manual|Return to)/;
    for (const [hash, ready] of [['#overview', `document.querySelector('section.throttle')`], ['#jobs?state=dead', `document.querySelectorAll('#jobs-body tr').length === 50`], ['#job/7600000899', `document.querySelector('#job-result .attempts')`], ['#failures', `document.querySelectorAll('#dead tr').length > 0`], ['#schedules', `document.querySelectorAll('#crons tr').length > 0`], ['#throttle-webhooks', `document.getElementById('throttle-webhooks')`]]) {
      await page.fresh(`${url}/${hash}`);
      await page.until(`the view ${hash}`, ready);
      await page.until('the permissions', `document.getElementById('phase').dataset.phase === 'live' && document.querySelector('#view-pools:not([hidden])')`);
      const seen = await page.evaluate(`[...document.querySelectorAll('button')].filter((b) => b.checkVisibility()).map((b) => b.textContent)`);
      faults.push(...seen.filter((label) => words.test(label)).map((label) => `${hash} shows ${label}`));
    }
    mock.steer({ reader: false });
    return faults;
  });

  await check('views are left in the middle of a request without a word in the console', async () => {
    mock.steer({ slow: 400 });
    const before = page.errors.length;
    await page.fresh(`${url}/#jobs`);
    for (const hash of ['#job/7600000900', '#failures', '#jobs?state=dead', '#audit', '#schedules', '#throttle-webhooks', '#job/7600000899', '#overview', '#jobs', '#pools', '#failures']) {
      await page.evaluate(`location.hash = '${hash}'`);
      await new Promise((resolve) => setTimeout(resolve, 120));
    }
    await page.fresh(`${url}/#failures`);
    await page.fresh(`${url}/#jobs?state=dead`);
    await page.until('the jobs of the last view', `document.querySelectorAll('#jobs-body tr').length === 50`);
    mock.steer({ slow: 0 });
    // A running job may end between the list and the question for its details.
    return page.errors.slice(before).filter((error) => !/status of 404 .*\/jobs\/\d+$/.test(error));
  });

  for (const [width, mobile] of [[1440, false], [390, true]]) {
    for (const scheme of ['light', 'dark']) {
      await check(`${width} px, ${scheme}: contrast, names, and nothing sticks out of any view`, async () => {
        await page.size(width, 900, { mobile });
        await page.scheme(scheme);
        const faults = [];
        for (const [name, hash, ready] of [['overview', '#overview', `document.querySelector('.plane canvas')?.width > 0`], ['throttles', '#throttles', `document.querySelectorAll('#throttle-rows tr').length > 3`], ['throttle', '#throttle-webhooks', `document.querySelector('#throttle-webhooks .plane canvas')?.width > 0`], ['jobs', '#jobs', `document.querySelectorAll('#jobs-body tr').length > 10`], ['job', '#job/7600000899', `document.querySelector('#job-result .attempts')`],
          ['failures', '#failures', `document.querySelectorAll('#dead tr').length > 0`], ['schedules', '#schedules', `document.querySelectorAll('#crons tr').length > 0`], ['audit', '#audit', `document.querySelectorAll('#audit tr').length > 0`]]) {
          await view(hash, ready);
          const found = [...await page.evaluate(contrast), ...await page.evaluate(overflow), ...await namelessControls(page)];
          faults.push(...found.map((fault) => `${name}: ${fault}`));
          await shot(page, `view-${name}-${width}-${scheme}`);
        }
        return faults;
      });
    }
  }
  await page.scheme('light');
  await page.size(1400, 1000);
}
