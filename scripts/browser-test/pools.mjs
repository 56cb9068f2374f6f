// The checks of the pools page against the mock: content, mouse and keyboard, both themes, phone
// width.

/**
 * @param {{ page: any, url: string, mock: any, provoked: RegExp[], check: Function, shot: Function, answer: Function, contrast: string, overflow: string, namelessControls: Function }} with_
 */
export async function poolChecks({ page, url, mock, provoked, check, shot, answer, contrast, overflow, namelessControls }) {
  const pool = (name) => `document.getElementById('pool-${name}')`;
  const text = (name, part) => page.evaluate(`${pool(name)}.querySelector('${part}').textContent`);
  const cell = (name, account) => `${pool(name)}.querySelector('.account[data-key="${account}"]')`;
  const chips = (name) => page.evaluate(`[...${pool(name)}.querySelectorAll('.flows label')].filter((l) => !l.hidden).map((l) => l.textContent.replace(/^[FBOP](?=[a-z])/, '')).join('|')`);
  const open = async () => {
    await page.open(`${url}/#pools`);
    await page.until('the accounts', `${pool('sms')}?.querySelectorAll('.account').length === 500`, 15_000);
  };

  await check('pools have a page of their own in the navigation', async () => {
    await page.open(`${url}/`);
    await page.until('the way to the pools', `!document.getElementById('views').hidden`);
    await page.evaluate(`document.getElementById('view-pools').click()`);
    await page.until('the accounts', `${pool('sms')}?.querySelectorAll('.account').length === 500 && document.getElementById('main').hidden`);
    const current = await page.evaluate(`document.querySelector('.views [aria-current]').textContent`);
    return current.startsWith('Pools') ? [] : [`the navigation marks ${current}`];
  });

  await check('500 accounts: counts by state, capacity, the knob with the reason in force', async () => {
    const faults = [];
    const said = await chips('sms');
    if (said !== 'all 500|flowing 444|blocked 30|open 20|probing 6|learned 14') faults.push(`the filters say ${said}`);
    const bears = await text('sms', '.bears');
    if (!bears.includes('450,000/s of 500,000/s configured') || !bears.includes('90 %')) faults.push(`the capacity reads "${bears}"`);
    // The reason is asked for once the pool is drawn.
    await page.until('the reason', `${pool('sms')}.querySelector('.reason').textContent`);
    const reason = await text('sms', '.reason');
    if (!/450,000\/s: 450 of 500 accounts are available: 30 blocked/.test(reason)) faults.push(`the reason reads "${reason}"`);
    const [bar, width] = await page.evaluate(`[${pool('sms')}.querySelector('.share i').getBoundingClientRect().width, ${pool('sms')}.querySelector('.share').getBoundingClientRect().width]`);
    if (Math.abs(bar / width - 0.9) > 0.01) faults.push(`the bar is ${bar} of ${width}`);
    const right = await page.evaluate(`Math.max(...[...${pool('sms')}.querySelectorAll('.account')].map((c) => c.getBoundingClientRect().right)) <= ${pool('sms')}.getBoundingClientRect().right`);
    if (!right) faults.push('cells stick out');
    const high = await page.evaluate(`${pool('sms')}.querySelector('.accounts').getBoundingClientRect().height`);
    if (high > 1000) faults.push(`500 cells are ${high} px high`);
    return faults;
  });

  await check('a pool with none available says when somebody is back, and counts down', async () => {
    const badge = () => text('mail', '.badge');
    const seconds = async () => Number((await badge()).match(/none available, back in (\d+) s/)?.[1] ?? NaN);
    await page.until('the time', `/none available, back in \\d+ s/.test(${pool('mail')}.querySelector('.badge').textContent)`);
    const before = await seconds();
    await page.until('a smaller number', `Number(${pool('mail')}.querySelector('.badge').textContent.match(/back in (\\d+) s/)?.[1]) < ${before} || ${before} < 3`, 15_000);
    const faults = [];
    if (!/^0\/s of 250\/s configured0 %$/.test((await text('mail', '.bears')).replace('capacity now', ''))) faults.push(await text('mail', '.bears'));
    if (!(await page.evaluate(`/a pool has no account/.test(document.getElementById('view-pools').textContent)`))) faults.push('the navigation does not tell');
    return faults;
  });

  await check('a pool without limits is measured in accounts', async () => {
    const bears = await text('notify.push', '.bears');
    const about = await text('notify.push', '.panel-head');
    return bears.includes('2 of 2 accounts, without a rate limit') && about.includes('apns · push') && !/NaN|null|-1/.test(bears) ? [] : [bears, about];
  });
  await shot(page, 'pools-light');
  await check('pools, light: text contrast is AA, every control has a name', async () => [...await page.evaluate(contrast), ...await namelessControls(page)]);

  await check('a filter leaves the accounts of one state', async () => {
    await page.evaluate(`${pool('sms')}.querySelector('.flows input[value=blocked]').click()`);
    await page.until('thirty cells', `${pool('sms')}.querySelectorAll('.account').length === 30`);
    const others = await page.evaluate(`${pool('sms')}.querySelectorAll('.account:not([data-state=blocked])').length`);
    await shot(page, 'pools-filtered', false);
    await page.evaluate(`${pool('sms')}.querySelector('.flows input[value=all]').click()`);
    await page.until('all cells', `${pool('sms')}.querySelectorAll('.account').length === 500`);
    return others ? [`${others} others are left`] : [];
  });

  await check('the mouse reads an account, and leaving it gives the card back', async () => {
    await page.evaluate(`${cell('sms', 'twilio-006')}.scrollIntoView({ block: 'center' })`);
    const box = await page.evaluate(`(() => { const { left, top, width, height } = ${cell('sms', 'twilio-006')}.getBoundingClientRect(); return { left, top, width, height }; })()`);
    await page.mouse(box.left + box.width / 2, box.top + box.height / 2);
    await page.until('the card', `/twilio-006/.test(${pool('sms')}.querySelector('.account-title').textContent)`);
    await shot(page, 'pools-hover', false);
    await page.mouse(2, 2);
    await page.until('the hint', `!${pool('sms')}.querySelector('.account-hint').hidden`);
  });

  await check('the keyboard goes from account to account and reads why', async () => {
    await page.evaluate(`${pool('sms')}.querySelector('.flows input[value=all]').focus()`);
    await page.key('Tab');
    const here = () => page.evaluate('document.activeElement.dataset.key ?? document.activeElement.textContent');
    const faults = [];
    if (await here() !== 'twilio-001') faults.push(`Tab goes to ${await here()}`);
    for (let i = 0; i < 12; i += 1) await page.key('ArrowRight');
    if (await here() !== 'twilio-013') faults.push(`twelve to the right is ${await here()}`);
    const card = await page.until('the card', `(() => { const c = ${pool('sms')}.querySelector('.account-card'); return !c.hidden && /twilio-013/.test(c.textContent) && c.innerText; })()`);
    for (const part of [/open, ends in \d+ (s|min)/, /401 20003: Authenticate/, /limit\s+1,000\/s/, /failures\s+5/, /breaker changed\s+\d\d:\d\d:\d\d/]) if (!part.test(card)) faults.push(`${part} is not in "${card}"`);
    const label = await page.evaluate('document.activeElement.getAttribute("aria-label")');
    if (!/^twilio-013, open until \d\d:\d\d:\d\d$/.test(label)) faults.push(`the cell says "${label}"`);
    await page.key('End');
    if (await here() !== 'twilio-500') faults.push(`End goes to ${await here()}`);
    await page.key('Home');
    await page.key('ArrowDown');
    const below = await page.evaluate(`(() => { const a = ${cell('sms', 'twilio-001')}.getBoundingClientRect(); const b = document.activeElement.getBoundingClientRect(); return Math.abs(a.left - b.left) < 1 && b.top > a.top; })()`);
    if (!below) faults.push('down is not below');
    await shot(page, 'pools-keyboard', false);
    return faults;
  });

  await check('an open account is resumed after a question, with who and why', async () => {
    await page.evaluate(`${cell('sms', 'twilio-013')}.focus()`);
    await page.key('Tab');
    const button = await page.evaluate('document.activeElement.getAttribute("aria-label")');
    await page.key('Enter');
    await page.until('the question', `document.querySelector('dialog.ask')?.open && /The provider said: 401/.test(document.querySelector('dialog.ask').textContent)`);
    await shot(page, 'pools-resume', false);
    await answer({ why: 'the invoice is paid' }, 'Resume');
    await page.until('what was done', `${pool('sms')}.querySelector('.form-note').textContent === 'Resumed twilio-013.'`);
    await page.until('that it flows', `${cell('sms', 'twilio-013')}.dataset.state === 'flowing'`);
    await page.until('the event', `/twilio-013: open → closed/.test(${pool('sms')}.querySelector('.drawer summary').textContent)`);
    const said = await chips('sms');
    return [...(button === 'Resume twilio-013' ? [] : [`Tab goes to ${button}`]), ...(said.includes('open 19') ? [] : [said])];
  });

  await check('events of a pool are listed, newest first', async () => {
    await page.evaluate(`${pool('sms')}.querySelector('.drawer').open = true`);
    const first = await page.evaluate(`${pool('sms')}.querySelector('.pool-events tbody tr').textContent`);
    await page.evaluate(`${pool('sms')}.querySelector('.drawer').scrollIntoView({ block: 'center' })`);
    await shot(page, 'pools-events', false);
    await page.evaluate(`${pool('sms')}.querySelector('.drawer').open = false`);
    return /twilio-013open → closedresumed by browser-test/.test(first) ? [] : [first];
  });

  await check('small pools have tiles with names, learned quotas and countdowns', async () => {
    const tiles = await page.evaluate(`[...${pool('notify.chat')}.querySelectorAll('.account')].map((t) => t.innerText.replace(/\\s+/g, ' ')).join('|')`);
    await page.evaluate(`${pool('notify.chat')}.scrollIntoView(), ${cell('notify.chat', 'workspace-5')}.click()`);
    await shot(page, 'pools-tiles', false);
    return [/workspace-2 flowing learned 42\/s of 100\/s/, /workspace-4 blocked, \d+ (s|min)/, /workspace-5 open, \d+ (s|min)/, /workspace-7 probing/].filter((part) => !part.test(tiles)).map((part) => `${part} is not in "${tiles}"`);
  });

  await check('messages are told with their attempts, filtered, paged and found by account', async () => {
    const rows = `document.querySelectorAll('#notifications-body tr:not(.attempts-row)')`;
    await page.until('fifty messages', `${rows}.length === 50`);
    await page.evaluate(`document.getElementById('notifications-more').click()`);
    await page.until('older ones', `${rows}.length === 100`);
    const set = (name, value) => page.evaluate(`(() => { const e = document.querySelector('#notifications-filter [name=${name}]'); e.value = '${value}'; e.dispatchEvent(new Event('change')); return true; })()`);
    await set('state', 'failed');
    await page.until('failed ones only', `${rows}.length > 0 && [...${rows}].every((r) => r.querySelector('.badge').textContent === 'failed')`);
    await page.evaluate(`document.querySelector('#notifications-body button.link').click()`);
    const attempts = await page.until('the attempts', `document.querySelector('#notifications-body .attempt-list')?.innerText`);
    await page.evaluate(`document.getElementById('notifications').scrollIntoView()`);
    await shot(page, 'notifications', false);
    await set('state', '');
    await page.evaluate(`${cell('notify.chat', 'workspace-5')}.click(), [...${pool('notify.chat')}.querySelectorAll('.account-card button')].find((b) => b.textContent === 'Its messages').click()`);
    await page.until('that there are none', `!document.getElementById('notifications-empty').hidden && document.getElementById('notifications-empty').textContent === 'No message matches.'`);
    await page.evaluate(`for (const name of ['pool', 'account']) document.querySelector('#notifications-filter [name=' + name + ']').value = ''; document.getElementById('notifications-filter').requestSubmit(), true`);
    await page.until('all again', `${rows}.length === 50`);
    return /transient, 503[\s\S]*permanent request, 400/.test(attempts) && !(await page.evaluate(`/@example|\\+1555/.test(document.getElementById('notifications').textContent)`)) ? [] : [`the attempts read "${attempts}"`];
  });

  await check('the link leads to the panel of the pool\'s throttle', async () => {
    await page.evaluate(`${pool('sms')}.querySelector('.panel-head a').click()`);
    await page.until('the panel', `!document.getElementById('throttles-page').hidden && document.getElementById('throttle-sms').getBoundingClientRect().top < innerHeight`);
    await page.evaluate(`document.getElementById('view-pools').click()`);
    await page.until('the pools again', `!document.getElementById('pools-page').hidden`);
  });

  await check('what cannot be told is said in words, and what was known stays', async () => {
    provoked.push(/net::ERR_|status of 503/);
    mock.steer({ fail: 'pools' });
    await page.until('the words', `/failed: the queue store did not answer/.test(document.getElementById('pools-waiting').textContent) && !document.getElementById('pools-waiting').hidden`);
    await page.until('the words at the messages', `document.getElementById('notifications-note').textContent === 'the queue store did not answer'`);
    const kept = await page.evaluate(`${pool('sms')}.querySelectorAll('.account').length`);
    await page.evaluate('scrollTo(0, 0)');
    await shot(page, 'pools-error', false);
    mock.steer({ fail: null });
    await page.until('all well again', `document.getElementById('pools-waiting').hidden && document.getElementById('notifications-note').textContent === ''`, 15_000);
    return kept === 500 ? [] : [`${kept} accounts are left`];
  });

  await page.scheme('dark');
  await open();
  await check('pools, dark: text contrast is AA', () => page.evaluate(contrast));
  await page.evaluate(`${cell('sms', 'twilio-013')}.focus(), scrollTo(0, 0), true`);
  await shot(page, 'pools-dark');
  await page.scheme('light');

  await page.size(390, 844, { mobile: true });
  await open();
  await check('390 px wide: nothing sticks out, with an account in its card', async () => {
    await page.evaluate(`${cell('sms', 'twilio-006')}.scrollIntoView({ block: 'center' }), ${cell('sms', 'twilio-006')}.click()`);
    await page.until('the card in view', `(() => { const b = ${pool('sms')}.querySelector('.account-card').getBoundingClientRect(); return b.height > 0 && b.top > 0 && b.bottom <= innerHeight; })()`);
    await shot(page, 'pools-390-card', false);
    return page.evaluate(overflow);
  });
  await shot(page, 'pools-390');
  await page.size(1400, 1000);

  await check('the throttle that gives slots is labelled in slots', async () => {
    await page.open(`${url}/`);
    const push = `document.getElementById('throttle-notify.push')`;
    await page.until('the chart', `${push}?.querySelector('.legend')?.textContent.includes('42 slots')`);
    const labels = await page.evaluate(`['min', 'max', 'mode'].map((name) => ${push}.querySelector('[name=' + name + ']').closest('.field').textContent)`);
    const legend = await page.evaluate(`${push}.querySelector('.legend').textContent`);
    await page.evaluate(`${push}.querySelector('details').open = true, ${push}.scrollIntoView(), true`);
    await page.until('ink', `${push}.querySelector('.plane canvas').width > 0`);
    await shot(page, 'slots', false);
    const other = await page.evaluate(`document.querySelector('#throttle-reindex [name=min]').closest('.field').textContent`);
    return [...(/^minslots/.test(labels[0]) && /^maxslots/.test(labels[1]) && /what sets concurrency/.test(labels[2]) ? [] : [labels.join('; ')]), ...(/knob42 slotsrunning\d+/.test(legend) ? [] : [legend]), ...(/^mintokens\/s/.test(other) ? [] : [other])];
  });
}
