// The checks of the page of recipients on the mock: counts, digests, one recipient with its history and
// the ways of its messages, both themes, phone width.

const historyRow = (id) => `[...document.querySelectorAll('#history-body > tr')].find((r) => r.dataset.key === '${id}')`;
const wayOf = (id) => `[...document.querySelectorAll('#history-body > tr')].find((r) => r.dataset.key === '${id}/way')`;
const toggle = (id) => `(() => { const b = ${historyRow(id)}.querySelector('button'); b.focus(); b.click(); return document.activeElement === b; })()`;

/**
 * @param {{ page: any, url: string, mock: any, provoked: RegExp[], check: Function, shot: Function, contrast: string, overflow: string, namelessControls: Function }} with_
 */
export async function recipientChecks({ page, url, mock, provoked, check, shot, contrast, overflow, namelessControls }) {
  const open = async () => {
    await page.open(`${url}/#recipients`);
    await page.until('the digests', `document.querySelectorAll('#digests-body > tr').length === 3`, 15_000);
  };
  const look = async (who, by = 'id') => {
    await page.evaluate(`(() => { const { elements } = document.getElementById('recipient-check'); elements.by.value = '${by}'; elements.who.value = '${who}'; document.getElementById('recipient-check').requestSubmit(); return true; })()`);
  };
  const opened = async () => {
    await look('user-7');
    await page.until('the history', `document.querySelectorAll('#history-body > tr').length === 6`);
  };

  await check('recipients: held and collected messages are counted, and digests tell when they close', async () => {
    await open();
    const counts = await page.evaluate(`document.getElementById('held-counts').innerText.replace(/\\s+/g, ' ')`);
    const kept = await page.evaluate(`document.querySelectorAll('#digests-body > tr')[1].innerText.replace(/\\s+/g, ' ')`);
    return [
      ...(/held by quiet hours 1,204 .*in 90 min|held by quiet hours 1,204 .*in 1 h/.test(counts) && /collected in new-comment 31 3 digests/.test(counts) ? [] : [`the counts read "${counts}"`]),
      ...(/quiet hours: 22:00-08:00 Europe\/Berlin/.test(kept) ? [] : [`the second digest reads "${kept}"`]),
    ];
  });

  await check('recipients: one shows its caps and its messages with state, time and gate', async () => {
    await opened();
    const rows = await page.evaluate(`[...document.querySelectorAll('#history-body > tr')].map((r) => r.innerText.replace(/\\s+/g, ' '))`);
    const wanted = [/905 queued quiet hours: 22:00-08:00 Europe\/Berlin until \d/, /904 capped caps: per_day 2 per 1d; room at \d/, /903 delivered/, /902 duplicate dedup: of 901/, /901 delivered/, /900 opted out preferences: the category news by email/];
    const said = await page.evaluate(`document.getElementById('recipient-found').innerText`);
    await shot(page, 'recipient-light');
    return [
      ...wanted.flatMap((pattern, n) => (pattern.test(rows[n] ?? '') ? [] : [`row ${n} reads "${rows[n]}"`])),
      ...(/none left until/.test(said) && /until .*22:00-08:00 Europe\/Berlin/s.test(said) ? [] : [`the facts read "${said}"`]),
    ];
  });

  await check('recipients: a message shows its way through the gates with times, and who set the rule', async () => {
    const faults = [];
    if (!(await page.evaluate(toggle(905)))) faults.push('the button loses the focus');
    await page.until('its way', `${wayOf(905)}?.querySelectorAll('.gates li').length === 9`);
    const lines = await page.evaluate(`new Set([...${wayOf(905)}.querySelectorAll('.gates li')].map((gate) => gate.getBoundingClientRect().top)).size`);
    if (lines !== 1) faults.push(`the gates stand in ${lines} lines`);
    const held = await page.evaluate(`${wayOf(905)}.querySelector('[data-finding=waits]').innerText.replace(/\\s+/g, ' ')`);
    if (!/^quiet hours waits since \d.* until \d.*22:00-08:00 Europe\/Berlin the profile by ann, changed /.test(held)) faults.push(`the gate reads "${held}"`);
    await page.evaluate(toggle(904));
    await page.until('the other way', `${wayOf(904)}?.querySelector('[data-finding=ended]')`);
    const ended = await page.evaluate(`${wayOf(904)}.querySelector('[data-finding=ended]').innerText.replace(/\\s+/g, ' ')`);
    if (!/^caps ended \d.*; room at \d.*per_day 2 per 1d recipients\.toml, line 12, changed /.test(ended)) faults.push(`the gate reads "${ended}"`);
    await page.evaluate(`${historyRow(904)}.scrollIntoView({ block: 'center' })`);
    await shot(page, 'recipient-way', false);
    // The page refreshes meanwhile: what is open stays open, and the focus stays.
    const before = mock.requests.filter((request) => /GET \/api\/v1\/digests/.test(request)).length;
    for (let n = 0; n < 40 && mock.requests.filter((request) => /GET \/api\/v1\/digests/.test(request)).length === before; n += 1) await new Promise((resolve) => setTimeout(resolve, 250));
    const stays = await page.evaluate(`Boolean(${wayOf(905)} && ${wayOf(904)}) && document.activeElement === ${historyRow(904)}.querySelector('button')`);
    if (!stays) faults.push('a refresh closes a way or takes the focus');
    await page.evaluate(toggle(904));
    await page.until('that it is closed', `!${wayOf(904)} && ${historyRow(904)}.querySelector('button').getAttribute('aria-expanded') === 'false'`);
    return faults;
  });

  await check('recipients: a recipient without messages says so, and an unknown one why', async () => {
    await look('user-8');
    await page.until('the words', `!document.getElementById('history-empty').hidden && /No gate has checked/.test(document.getElementById('history-empty').textContent)`);
    provoked.push(/status of 400/);
    await look('nobody');
    await page.until('the reason', `/has no profile/.test(document.getElementById('recipient-note').textContent) && document.getElementById('recipient-history').hidden`);
  });

  await check('recipients, light: text contrast is AA, every control has a name, nothing was run', async () => {
    await opened();
    await page.evaluate(toggle(900));
    await page.until('its way', `${wayOf(900)}?.querySelectorAll('.gates li').length === 9`);
    const images = await page.evaluate(`document.querySelectorAll('#recipients-page img').length`);
    return [...await page.evaluate(contrast), ...await namelessControls(page), ...(images ? ['a text became an element'] : [])];
  });

  await page.scheme('dark');
  await open();
  await opened();
  await page.evaluate(toggle(905));
  await page.until('its way', `${wayOf(905)}?.querySelectorAll('.gates li').length === 9`);
  await check('recipients, dark: text contrast is AA', () => page.evaluate(contrast));
  await shot(page, 'recipient-dark');

  await page.size(390, 844, { mobile: true });
  for (const scheme of ['dark', 'light']) {
    await page.scheme(scheme);
    await open();
    await opened();
    await page.evaluate(toggle(904));
    await page.until('its way', `${wayOf(904)}?.querySelectorAll('.gates li').length === 9`);
    await check(`recipients, 390 px wide, ${scheme}: nothing sticks out`, () => page.evaluate(overflow));
    await page.evaluate(`document.getElementById('history-title').scrollIntoView()`);
    await shot(page, `recipient-390-${scheme}`, false);
  }
  await page.size(1400, 1000);
}
