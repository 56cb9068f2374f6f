// The checks of what an operator reads at night while something stands still, and of what a tenant's
// token, a keyboard and a screen reader get, on the mock.

/** Checks notices, sentences and lists, each for what it says and for what it does not. */
export async function nightChecks({ page, url, mock, provoked, check, shot, answer, contrast, overflow, namelessControls }) {
  const live = async (hash = '') => {
    await page.fresh(`${url}/${hash}`);
    await page.until('the page', `document.getElementById('phase').dataset.phase === 'live'`, 15_000);
  };
  const text = (selector) => page.evaluate(`document.querySelector(${JSON.stringify(selector)})?.textContent ?? ''`);
  const panel = (name) => `document.getElementById('throttle-${name}')`;
  // Jobs of the mock end while they are looked at.
  provoked.push(/status of 404 .*\/jobs\/\d+$/);
  const reset = () => mock.steer({ phase: 'steady', fail: null, unserved: [], mayChange: true, store: '', unwritable: false });
  /** Runs a check on a fresh mock. */
  const night = (name, work) => check(name, async () => {
    reset();
    await page.size(1400, 1000);
    return work();
  });

  await night('while no worker is live, jobs that wait are told once, with what to do', async () => {
    const since = new Date(Date.now() - 90_000).toISOString();
    const unserved = ['reindex', 'webhooks'].map((throttle) => ({ throttle, kind: null, needs: [], jobs: 9, since, remedy: 'no worker is live; start one' }));
    const faults = [];
    for (const known of [[], unserved]) {
      mock.steer({ live: 0, unserved: known });
      await live();
      await page.until('the notice', `!document.getElementById('unserved').hidden`);
      const said = (await text('#unserved')).replaceAll(/\s+/g, ' ').trim();
      if (said !== 'No worker is live Jobs are ready, and none starts. Start a worker: flyball serve.') faults.push(`it says "${said}"`);
      if (await text('#aloud') !== 'No worker is live') faults.push(`aloud it says "${await text('#aloud')}"`);
    }
    await shot(page, 'no-worker', false);
    faults.push(...await page.evaluate(contrast));
    await page.size(360, 780, { mobile: true });
    faults.push(...await page.evaluate(overflow));
    mock.steer({ live: 1, unserved: [] });
    await page.until('no notice', `document.getElementById('unserved').hidden`, 20_000);
    return faults;
  });

  await night('while Postgres accepts no writes one notice says so on every view, no rate counts as in effect, and no worker is missed', async () => {
    const faults = [];
    const unserved = [{ throttle: 'webhooks', kind: null, needs: [], jobs: 9, since: null, remedy: 'no worker is live; start one' }];
    mock.steer({ unwritable: true, live: 0, unserved });
    for (const hash of ['#jobs', '#throttle-webhooks']) {
      await page.fresh(`${url}/${hash}`);
      await page.until('the notice', `!document.getElementById('queue-lost')?.hidden`, 15_000);
      const said = await text('#queue-lost');
      if (!/^Postgres does not answer, or accepts no writes\. Meanwhile jobs are neither accepted nor started, .* flyball doctor says why\.$/.test(said)) faults.push(`it says "${said}"`);
      if (await text('#phase-text') !== 'live, without writes to Postgres') faults.push(`the connection reads "${await text('#phase-text')}"`);
      if (!/^No writes to Postgres/.test(await page.evaluate('document.title'))) faults.push(`the title is "${await page.evaluate('document.title')}"`);
    }
    await page.until('its state', `${panel('webhooks')}?.querySelector('.badge').textContent === 'no writes'`);
    const notes = await page.evaluate(`${panel('webhooks')}.querySelector('.readout').parentElement.textContent`);
    if (!/no job starts/.test(notes) || /in effect|token-limited/.test(notes)) faults.push(`its figures read "${notes}"`);
    await new Promise((resolve) => setTimeout(resolve, 1_500)); // Real time: what no worker serves is asked for beside the ticks.
    if (!await page.evaluate(`document.getElementById('unserved').hidden`)) faults.push(`it says "${await text('#unserved')}"`);
    await shot(page, 'no-writes', false);
    faults.push(...await page.evaluate(contrast));
    await page.size(390, 844, { mobile: true });
    faults.push(...await page.evaluate(overflow));
    await page.evaluate(`localStorage.setItem('flyball.who', 'browser-test')`);
    const pausing = (word) => `[...${panel('webhooks')}.querySelectorAll('.buttons button')].find((b) => b.textContent === '${word}' && b.checkVisibility() && !b.disabled)`;
    await page.evaluate(`${pausing('Pause')}.click()`);
    await answer({}, 'Pause');
    await page.until('the warning', `/^Applied pause\\. Warning: .*audit log failed\\.$/.test(${panel('webhooks')}.querySelector('.form-note').textContent) && document.querySelector('.undo')?.checkVisibility()`);
    await page.until('the other button', pausing('Resume'));
    await page.evaluate(`${pausing('Resume')}.click()`);
    await page.until('no offer to undo what was undone', `${panel('webhooks')}.querySelector('.badge').textContent === 'no writes' && !document.querySelector('.undo').checkVisibility()`);
    mock.steer({ store: 'lost' });
    await page.until('the notice of Redis', `!document.getElementById('store-lost').hidden`);
    if (/jobs are accepted/.test(await text('#store-lost'))) faults.push('both are lost, and it says that jobs are accepted');
    mock.steer({ store: '', unwritable: false, live: 1, unserved: [] });
    await page.until('no notice', `document.getElementById('queue-lost').hidden && document.getElementById('store-lost').hidden`, 20_000);
    return faults;
  });

  await night('a refusal of the whole throttle can be ended on its panel, after a question, and then the button is gone', async () => {
    mock.steer({ refused: 'webhooks' });
    await live('#throttle-webhooks');
    const free = `[...(${panel('webhooks')}?.querySelectorAll('.buttons button') ?? [])].find((b) => b.textContent === 'End the refusal …' && b.checkVisibility())`;
    await page.until('the button', `${panel('webhooks')}?.querySelector('.badge').textContent === 'refused' && ${free}`);
    const faults = await page.evaluate(`${free}.getAttribute('aria-label') === 'End the refusal: webhooks'`) ? [] : ['its label does not name the throttle'];
    await page.evaluate(`${free}.click()`);
    await answer({ why: 'the provider said so' }, 'End the refusal');
    await page.until('its state', `${panel('webhooks')}.querySelector('.badge').textContent !== 'refused' && !${free}`);
    if (await page.evaluate(`document.activeElement.getAttribute('aria-label')`) !== 'Pause webhooks') faults.push('the focus is lost');
    return [...faults, ...await page.evaluate(overflow)];
  });

  await night('a throttle without slots is stopped, says which knob is 0, and nothing counts as in effect', async () => {
    mock.steer({ knobs: { throttle: 'webhooks', to: { concurrency: 0 } } });
    await live('#throttle-webhooks');
    const reason = `${panel('webhooks')}?.querySelector('.reason').textContent`;
    await page.until('the sentence of the server', `/No job starts, because the knob concurrency of webhooks is 0/.test(${reason})`);
    const note = await page.evaluate(`${panel('webhooks')}.querySelector('.readout').textContent`);
    const badge = await page.evaluate(`${panel('webhooks')}.querySelector('.badge').textContent`);
    await shot(page, 'no-slots', false);
    return [...(badge === 'stopped' ? [] : [`it stands "${badge}"`]), ...(/no job starts/.test(note) && !/in effect/.test(note) ? [] : [`the knob reads "${note}"`])];
  });

  await night('a throttle that stands still although it has tokens says what its jobs wait for', async () => {
    mock.steer({ stuck: 'notify.chat' });
    await live('#throttle-notify.chat');
    const of = panel('notify.chat');
    await page.until('the state', `${of}?.querySelector('.badge').textContent === 'jobs wait'`);
    await page.until('the sentence of the server', `/All 5 slots of notify.chat/.test(${of}.querySelector('.reason').textContent)`);
  });

  await night('a knob that was changed in Redis directly has no author, and the sentence says so', async () => {
    mock.steer({ knobs: { throttle: 'webhooks', to: { rps: 70, by: '', at_ms: 0, why: '' } } });
    await live('#throttle-webhooks');
    const reason = await page.until('the sentence', `${panel('webhooks')}?.querySelector('.reason').textContent`);
    return reason === 'Set to 70 rps in Redis directly.' ? [] : [`it reads "${reason}"`];
  });

  await night('a message is cancelled after a question, by the keyboard, and only one that waits', async () => {
    const row = `[...document.querySelectorAll('#notifications-body tr:not(.attempts-row)')]`;
    await live('#pools');
    await page.until('messages', `${row}.length === 50`);
    const faults = [];
    const wrong = await page.evaluate(`${row}.filter((r) => [...r.querySelectorAll('button')].some((b) => b.checkVisibility() && /^Cancel/.test(b.textContent)) !== (r.querySelector('.badge').textContent === 'queued')).length`);
    if (wrong) faults.push(`${wrong} rows have the wrong buttons`);
    await page.evaluate(`${row}.find((r) => r.querySelector('.badge').textContent === 'queued').querySelector('.act button').focus(), true`);
    const label = await page.evaluate(`document.activeElement.getAttribute('aria-label')`);
    const id = label.match(/^Cancel message (\d+)$/)?.[1];
    await page.key('Enter');
    await page.until('the question', `document.querySelector('dialog.ask')?.open`);
    await shot(page, 'message-cancel', false);
    await answer({ why: 'sent twice' }, 'Cancel the message');
    await page.until('what was done', `document.getElementById('notifications-note').textContent === 'Message ${id} will not be sent.'`);
    await page.until('its state', `${row}.find((r) => r.textContent.includes('${id}')).querySelector('.badge').textContent === 'failed'`);
    const here = await page.evaluate(`document.activeElement.getAttribute('aria-label')`);
    if (here !== `0 attempts of message ${id}`) faults.push(`the focus is on "${here}"`);
    await new Promise((resolve) => setTimeout(resolve, 3_500)); // Real time: the list is asked for again every 3 s.
    if (await text('#notifications-note') !== `Message ${id} will not be sent.`) faults.push('the next look takes back what was said');
    mock.steer({ mayChange: false });
    await live('#pools');
    await page.until('messages', `${row}.length === 50`);
    await new Promise((resolve) => setTimeout(resolve, 700)); // Real time: what the token may do is asked for beside the list.
    if (await page.evaluate(`${row}.some((r) => r.querySelector('.act button').checkVisibility())`)) faults.push('a token that only reads may cancel');
    return faults;
  });

  await night('messages: found by tenant and in each state, and one that its account captured says that nobody got it', async () => {
    const row = `[...document.querySelectorAll('#notifications-body tr')]`;
    await live('#pools');
    await page.until('messages', `${row}.length === 50`);
    const first = await page.evaluate(`${row}[0].textContent`);
    await page.evaluate(`document.querySelector('#notifications-filter [name=tenant]').value = 'acme', document.getElementById('notifications-filter').requestSubmit(), true`);
    await page.until('those of the tenant', `${row}.length > 0 && ${row}.length < 50`);
    const states = await page.evaluate(`[...document.querySelector('#notifications-filter [name=state]').options].map((one) => one.value).filter(Boolean).join()`);
    return [...(/delivered.*captured by its account, which has capture = true: nobody got it/.test(first) ? [] : [`it reads "${first}"`]),
      ...(states === 'queued,sent,delivered,failed,bounced,suppressed,collected,opted_out,duplicate,capped,quiet,unreachable' ? [] : [`the states are ${states}`])];
  });

  await night('a tenant whose recipients complain says how many did', async () => {
    await live('#tenants');
    await page.until('the complaints', `[...document.querySelectorAll('#tenants-body tr')].find((row) => row.textContent.includes('crowd'))?.textContent.includes('3 of 1,200 reported as spam in a day')`);
  });

  await night('the way to older rows is in sight without scrolling their box, and the rows come into sight', async () => {
    const faults = [];
    for (const [hash, list] of [['#jobs', 'jobs'], ['#pools', 'notifications'], ['#tenants', 'tenants'], ['#tenants', 'batches']]) {
      await live(hash);
      const more = `document.getElementById('${list}-more')`;
      const box = `document.getElementById('${list}-body').closest('.scroll')`;
      const rows = `document.getElementById('${list}-body').querySelectorAll('tr')`;
      await page.until(`the button of ${list}`, `!${more}.hidden && ${rows}.length >= 20`);
      if (await page.evaluate(`${box}.contains(${more})`)) faults.push(`${list}: the button is inside the box`);
      const before = await page.evaluate(`${rows}.length`);
      await page.evaluate(`${more}.scrollIntoView({ block: 'center' }), ${more}.click(), true`);
      await page.until(`more ${list}`, `${rows}.length > ${before}`);
      const seen = `(() => { const { top } = ${rows}[${before}].getBoundingClientRect(); const b = ${box}.getBoundingClientRect(); return top >= b.top && top < b.top + 80; })()`;
      await page.until(`the new rows of ${list}`, seen, 2_000).catch(() => faults.push(`${list}: the new rows are out of sight`));
    }
    await live('#jobs');
    await page.until('the jobs', `!document.getElementById('jobs-more').hidden`);
    await shot(page, 'older-jobs', false);
    return faults;
  });

  await night('768, 900 and 1024 px wide: nothing sticks out of any view, and no list scrolls sideways', async () => {
    const faults = [];
    const sideways = `[...document.querySelectorAll('main:not([hidden]) .scroll')].filter((box) => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1).map((box) => 'the box of ' + box.querySelector('tbody').id + ' scrolls sideways')`;
    for (const wide of [768, 900, 1024]) {
      await page.size(wide, 900);
      for (const hash of ['#overview', '#throttles', '#jobs', '#jobs?state=scheduled', '#failures', '#schedules', '#pools', '#tenants', '#recipients']) {
        await live(hash);
        await page.until('rows', `[...document.querySelectorAll('main:not([hidden]) tbody tr')].some((row) => row.checkVisibility()) && !document.getElementById('view-recipients').hidden`);
        faults.push(...[...await page.evaluate(overflow), ...await page.evaluate(sideways)].map((fault) => `${wide} px, ${hash}: ${fault}`));
      }
      await shot(page, `recipients-${wide}`, false);
    }
    await page.size(360, 780, { mobile: true });
    await live();
    await page.until('the button', `document.getElementById('pause-all').checkVisibility()`);
    const edges = await page.evaluate(`[...document.querySelectorAll('.settings > *, #window span')].filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect()).map(({ left, right, top }) => [left, right, top])`);
    const overlaps = edges.filter(([left, , top], i) => edges.some(([l, r, t], j) => j < i && Math.abs(t - top) < 20 && l < left && r > left + 1 && r < edges[i][1]));
    if (overlaps.length) faults.push(`360 px: ${overlaps.length} settings overlap`);
    return faults;
  });

  await night('a single job can be selected at every width', async () => {
    const faults = [];
    for (const [wide, mobile] of [[390, true], [900, false], [1400, false]]) {
      await page.size(wide, 900, { mobile });
      await live('#jobs?state=dead');
      const box = `document.querySelector('#jobs-body input')`;
      await page.until('jobs', box);
      if (!await page.evaluate(`${box}.checkVisibility()`)) faults.push(`${wide} px: no job can be selected`);
      await page.evaluate(`${box}.click()`);
      await page.until('the selection', `document.getElementById('jobs-bar').textContent.startsWith('1 selected')`);
      await shot(page, `select-${wide}`, false);
      faults.push(...(await page.evaluate(overflow)).map((fault) => `${wide} px: ${fault}`));
    }
    return faults;
  });

  await night('the token of a tenant leads to its messages, and is not refused the same again and again', async () => {
    provoked.push(/status of 403/);
    mock.steer({ isTenants: true });
    await live();
    const refusals = () => mock.requests.filter((r) => /^GET \/api\/v1\/(pause|pools|workers)\b/.test(r)).length;
    await page.until('the way to its messages', `!document.getElementById('view-pools').hidden && document.getElementById('view-pools').textContent === 'Messages'`);
    const before = refusals();
    await page.evaluate(`document.getElementById('view-pools').click()`);
    await page.until('its messages', `document.querySelectorAll('#notifications-body tr').length === 50`);
    await new Promise((resolve) => setTimeout(resolve, 3_500)); // Real time: longer than the shortest polls.
    const faults = [];
    if (refusals() !== before) faults.push(`${refusals() - before} more refusals`);
    if (await page.evaluate(`document.getElementById('pools-waiting').checkVisibility() || document.getElementById('no-pools').checkVisibility()`)) faults.push('it is told about pools');
    await shot(page, 'tenant-messages', false);
    return [...faults, ...await namelessControls(page)];
  });

  await night('the token of a tenant gets no button and no number that are for operators, and waits for no list that it may not read', async () => {
    provoked.push(/status of 403/);
    mock.steer({ isTenants: true });
    const faults = [];
    const seen = (selector) => page.evaluate(`[...document.querySelectorAll(${JSON.stringify(selector)})].filter((e) => e.checkVisibility()).map((e) => e.textContent.trim())`);
    const none = async (what, selector) => {
      const found = await seen(selector);
      if (found.length > 0) faults.push(`${what}: ${found.join(', ')}`);
    };
    for (const [hash, empty] of [['#overview', 'decisions'], ['#jobs?state=ready', 'workers'], ['#schedules', 'crons'], ['#recipients', 'suppressions']]) {
      await live(hash);
      await page.until(`the words about ${empty}`, `document.getElementById('${empty}-empty').checkVisibility() && document.getElementById('${empty}-empty').textContent === 'This token may not read this list.'`).catch((error) => faults.push(`${error.message}: ${hash}`));
    }
    if ((await seen('#totals-own')).join() !== 'countedonly own throttles') faults.push('the figures do not say what they count');
    await none('suppressions', '#suppression .change');
    await live('#jobs?state=ready');
    await page.until('jobs of a key', `document.body.classList.contains('tenant') && [...document.querySelectorAll('#jobs-body tr')].some((r) => r.textContent.includes('webhooks / customer-'))`);
    await none('a pause of a key of all', '#jobs-body button.change');
    await none('numbers of some throttles for all', '#jobs-tabs .num:not(:empty)');
    await shot(page, 'tenant-jobs', false);
    await page.evaluate(`location.hash = '#jobs?state=ready&throttle=webhooks'`);
    await page.until('the numbers of one throttle', `/\\d/.test(document.getElementById('jobs-tabs').textContent)`);
    await live('#throttle-webhooks');
    await page.until('the panel', `document.body.classList.contains('tenant') && document.querySelector('#detail form')`);
    await page.evaluate(`document.querySelectorAll('#detail details').forEach((one) => { one.open = true; }), true`);
    await none('changes of knobs', '#detail .signed, #detail .delete');
    if (!(await seen('#detail button')).includes('Pause')) faults.push('it cannot pause its own throttle');
    await page.size(390, 844, { mobile: true });
    return [...faults, ...await page.evaluate(overflow)];
  });

  await night('a screen reader is told of a lost stream once, not of each second', async () => {
    provoked.push(/net::ERR_|status of 503/);
    await live();
    await page.evaluate(`window.said = []; new MutationObserver(() => said.push(document.getElementById('phase-aloud').textContent)).observe(document.getElementById('phase-aloud'), { childList: true, characterData: true, subtree: true }), true`);
    mock.steer({ fail: 'down' });
    await page.until('the age', `/last data [3-9] s ago/.test(document.getElementById('phase-text').textContent)`, 20_000);
    const said = await page.evaluate(`said.filter((one) => one.startsWith('reconnecting'))`);
    const chatty = await page.evaluate(`[...document.querySelectorAll('[role=status], [role=alert], [aria-live]')].filter((e) => e.checkVisibility() && /\\d s ago/.test(e.textContent)).map((e) => e.id)`);
    mock.steer({ fail: null });
    await page.until('live again', `document.getElementById('phase').dataset.phase === 'live'`, 20_000);
    return [...(said.length === 1 ? [] : [`it was told ${said.length} times`]), ...chatty.map((id) => `#${id} speaks each second`)];
  });

  reset();
}
