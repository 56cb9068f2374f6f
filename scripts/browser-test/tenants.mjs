// The checks of the page of tenants: figures against the API, modules, batches and their buttons, both
// themes, phone width. `tenantChecks` plays on the mock, `tenantsOnServer` on a real server.

const rowOf = (name) => `[...document.querySelectorAll('#tenants-body > tr')].find((r) => r.dataset.key === 'tenant ' + ${JSON.stringify(name)})`;
const batchRow = (id) => `[...document.querySelectorAll('#batches-body > tr')].find((r) => r.dataset.key === '${id}')`;
const pressed = (id, text) => `(() => { const b = [...${batchRow(id)}.querySelectorAll('button')].find((b) => b.textContent === '${text}' && !b.hidden && !b.disabled); b?.click(); return Boolean(b); })()`;
const noteOf = `document.getElementById('batches-note').textContent`;

/**
 * Compares the rows with the API, formatted independently of the page: every tenant and every batch of
 * the first page. The sums of the counts are checked too.
 */
const FIGURES = `(async () => {
  const get = async (path) => (await fetch(path)).json();
  const [{ tenants }, { batches }] = await Promise.all([get('/api/v1/tenants?limit=50'), get('/api/v1/notifications/batches?limit=20')]);
  const plain = (row) => row ? row.innerText.replace(/\\s+/g, ' ') : '';
  const n = (value) => value.toLocaleString('en-US');
  const faults = [];
  const wants = (what, text, parts) => { for (const part of parts) if (!text.includes(part)) faults.push(what + ': no "' + part + '" in "' + text + '"'); };
  for (const t of tenants) {
    const row = [...document.querySelectorAll('#tenants-body > tr')].find((r) => r.dataset.key === 'tenant ' + t.tenant);
    const w = t.window;
    wants(t.tenant, plain(row), [t.tenant, n(t.waiting), n(t.pending), ...(w ? [n(w.used) + ' of ' + n(w.limit) + ' in', n(w.remaining) + ' remaining', w.next_at ? 'in ' : 'now'] : [])]);
    if (w && w.used <= w.limit && w.used + w.remaining !== w.limit) faults.push(t.tenant + ' does not add up: ' + JSON.stringify(w));
  }
  for (const b of batches) {
    const row = [...document.querySelectorAll('#batches-body > tr')].find((r) => r.dataset.key === String(b.id));
    const sum = Object.values(b.counts).reduce((all, messages) => all + messages, 0);
    if (sum !== b.recipients) faults.push('batch ' + b.id + ' does not add up');
    wants('batch ' + b.id, plain(row), [b.state, 'of ' + n(b.recipients), ...Object.entries(b.counts).map(([state, messages]) => n(messages) + ' ' + state.replaceAll('_', ' '))]);
  }
  return { faults, tenants: tenants.length, batches: batches.length };
})()`;

/** Reads until the page shows what the API says: both change meanwhile. */
async function figures(page) {
  let found = { faults: ['nothing was read'] };
  for (let n = 0; n < 12; n += 1) {
    found = await page.evaluate(FIGURES);
    if (found.faults.length === 0 && found.tenants > 0) return [];
    await new Promise((resolve) => setTimeout(resolve, 700));
  }
  return found.faults.length ? found.faults.slice(0, 6) : ['there is no tenant'];
}

/**
 * On a real server: the figures, the modules of the first tenant, and with `batch` each button on that
 * batch, which ends cancelled.
 */
export async function tenantsOnServer({ page, url, check, shot, contrast, overflow, namelessControls, batch }) {
  const state = async (id) => page.evaluate(`fetch('/api/v1/notifications/batches/${id}').then((r) => r.json())`);
  await check('tenants: the figures are those of the API', async () => {
    await page.open(`${url}/login`);
    await page.open(`${url}/#tenants`);
    await page.until('a tenant', `document.querySelector('#tenants-body > tr')`, 15_000);
    return figures(page);
  });
  await check('tenants: the modules of one are those of the API', async () => {
    const name = await page.evaluate(`(async () => { const { tenants } = await (await fetch('/api/v1/tenants')).json(); return (tenants.find((t) => t.waiting > 0) ?? tenants[0]).tenant; })()`);
    await page.evaluate(`${rowOf(name)}.querySelector('.toggle').click()`);
    const modules = `document.querySelector('.modules')`;
    await page.until('its modules', `${modules}?.querySelector('tbody > tr')`);
    await page.until('their figures', `(async () => {
      const { modules } = await (await fetch('/api/v1/tenants/' + encodeURIComponent(${JSON.stringify(name)}) + '/modules?order=' + ${modules}.querySelector('select').value)).json();
      const rows = [...${modules}.querySelectorAll('tbody > tr')];
      return modules.length === rows.length && modules.every((m, i) => { const text = rows[i].innerText.replace(/\\s+/g, ' '); return text.includes(m.module) && text.includes(m.waiting.toLocaleString('en-US')) && (!m.window || text.includes(m.window.used + ' of ' + m.window.limit + ' in')); });
    })()`, 15_000);
  });
  await shot(page, 'server-tenants');
  await check('tenants: text contrast is AA, every control has a name', async () => [...await page.evaluate(contrast), ...await namelessControls(page)]);
  await page.scheme('dark');
  await check('tenants, dark: text contrast is AA', () => page.evaluate(contrast));
  await shot(page, 'server-tenants-dark');
  await page.scheme('light');
  await page.size(390, 844, { mobile: true });
  await check('tenants, 390 px wide: nothing sticks out', () => page.evaluate(overflow));
  await shot(page, 'server-tenants-390');
  await page.size(1400, 1000);
  if (!batch) return;

  await check(`batch ${batch} is paused, resumed and cancelled, and the server agrees`, async () => {
    const faults = [];
    await page.until('the batch', batchRow(batch));
    const isPaused = (await state(batch)).state === 'paused';
    for (const [button, wanted] of isPaused ? [['Resume', /running|expanding/], ['Pause', /paused/]] : [['Pause', /paused/], ['Resume', /running|expanding/]]) {
      await page.until(`the button ${button}`, pressed(batch, button));
      await page.until('what was done', `new RegExp('^${button === 'Pause' ? 'Paused' : 'Resumed'} batch ${batch}: it is ').test(${noteOf})`);
      const now = await state(batch);
      if (!wanted.test(now.state)) faults.push(`after ${button} it is ${now.state}`);
      await page.until('the same on the page', `${batchRow(batch)}.querySelector('.badge').textContent === '${now.state}'`);
    }
    await page.until('the button to cancel', pressed(batch, 'Cancel …'));
    await page.until('the question', `document.querySelector('dialog.ask')?.open`);
    await shot(page, 'server-cancel', false);
    await page.evaluate(`document.querySelector('dialog.ask .danger').click()`);
    const said = await page.until('what was done', `/^Cancelled batch/.test(${noteOf}) && ${noteOf}`);
    const now = await state(batch);
    const numbers = said.match(/: ([\d,]+) messages will not be sent/)?.[1].replaceAll(',', '');
    if (now.state !== 'cancelled' || now.counts.cancelled < Number(numbers)) faults.push(`${said}, but the server says ${JSON.stringify(now)}`);
    await shot(page, 'server-cancelled', false);
    return [...faults, ...await figures(page)];
  });
}

/**
 * @param {{ page: any, url: string, mock: any, provoked: RegExp[], check: Function, shot: Function, contrast: string, overflow: string, namelessControls: Function }} with_
 */
export async function tenantChecks({ page, url, mock, provoked, check, shot, contrast, overflow, namelessControls }) {
  const text = (row) => page.evaluate(`${row}.innerText.replace(/\\s+/g, ' ')`);
  const open = async () => {
    await page.open(`${url}/login`); // Another document, so that the page begins anew.
    await page.open(`${url}/#tenants`);
    await page.until('the tenants', `document.querySelectorAll('#tenants-body > tr').length === 50 && document.querySelectorAll('#batches-body > tr').length === 20`, 15_000);
  };

  await check('tenants have a page of their own, and the navigation says that one needs attention', async () => {
    await page.open(`${url}/`);
    await page.until('the way to the tenants', `!document.getElementById('views').hidden && /needs attention/.test(document.getElementById('view-tenants').textContent)`);
    await page.evaluate(`document.getElementById('view-tenants').click()`);
    await page.until('the tenants', `document.querySelectorAll('#tenants-body > tr').length === 50 && document.getElementById('main').hidden`);
    const current = await page.evaluate(`document.querySelector('.views [aria-current]').textContent`);
    return current.startsWith('Tenants') ? [] : [`the navigation marks ${current}`];
  });

  await check('the figures of the first page are those of the API, and add up', () => figures(page));

  await check('channels: connections, messages a second, and how often a tenant was at its limit', async () => {
    await page.until('the channels', `document.querySelectorAll('#channels-body > tr').length === 4`);
    const said = await page.evaluate(`[...document.querySelectorAll('#channels-body > tr')].map((r) => r.innerText.replace(/\\s+/g, ' '))`);
    const parts = [/operators.*2 of 1,000/, /acme.*1,000 of 1,000.*200 of 200 1.23M in all.*4,321 87 × at its limit, last \d+ s ago.*86,000/, /quiet.*12 of 1,000.*never at its limit/, /resting.*–/];
    return parts.flatMap((part, at) => (part.test(said[at]) ? [] : [`${part} is not in "${said[at]}"`]));
  });

  await check('a tenant over its limit: window, next slot, queue, what is set aside', async () => {
    const said = await text(rowOf('acme'));
    const parts = [/100 of 100 in 60 s/, /0 remaining/, /in \d+ s/, /4,321 oldest 95 s, 200 set aside/, /4,700 of 10,000/, /messages wait/, /each module 50 in 60 s/];
    const faults = parts.filter((part) => !part.test(said)).map((part) => `${part} is not in "${said}"`);
    for (const [name, part] of [['crowd', /queue full/], ['paused', /paused/], ['resting', /unknown.*Redis does not answer/], ['quiet', /88 remaining now 0/]]) {
      const other = await text(rowOf(name));
      if (!part.test(other)) faults.push(`${part} is not in "${other}"`);
    }
    const [bar, width] = await page.evaluate(`(() => { const u = ${rowOf('bulk')}.querySelector('.use'); return [u.firstChild.getBoundingClientRect().width, u.getBoundingClientRect().width]; })()`);
    if (Math.abs(bar / width - 0.37) > 0.01) faults.push(`the bar is ${bar} of ${width}`);
    return faults;
  });

  await check('the time to the next slot counts down without a request', async () => {
    const seconds = `Number(${rowOf('acme')}.querySelector('td[data-label="next slot"]').textContent.match(/in (\\d+) s/)?.[1] ?? NaN)`;
    const before = await page.evaluate(seconds);
    await page.until('another number', `${seconds} !== ${before}`, 5_000);
  });

  await check('the modules of a tenant: those that wait first, all by name, one by its name; at most 200 of 1,000', async () => {
    await page.evaluate(`${rowOf('bulk')}.querySelector('.toggle').focus()`);
    await page.key('Enter');
    const modules = `document.querySelector('#tenants-body .modules')`;
    await page.until('the twelve that wait', `${modules}?.querySelectorAll('tbody > tr').length === 12`);
    await page.evaluate(`(() => { const s = ${modules}.querySelector('select'); s.value = 'key'; s.dispatchEvent(new Event('change')); return true; })()`);
    await page.until('fifty', `${modules}.querySelectorAll('tbody > tr').length === 50`);
    for (let n = 100; n <= 200; n += 50) {
      await page.evaluate(`[...${modules}.querySelectorAll('button')].find((b) => b.textContent === 'More modules').click()`);
      await page.until(`${n} modules`, `${modules}.querySelectorAll('tbody > tr').length === ${n}`);
    }
    await page.until('how to find others', `/others are found by name/.test(${modules}.querySelector('.form-note').textContent) && [...${modules}.querySelectorAll('button')].find((b) => b.textContent === 'More modules').hidden`);
    await page.evaluate(`${modules}.querySelector('input').value = 'module-0777', ${modules}.querySelector('form').requestSubmit(), true`);
    await page.until('the one', `${modules}.querySelectorAll('tbody > tr').length === 1 && /module-0777 flowing 27 of 50 in 60 s 23 remaining now 0/.test(${modules}.querySelector('tbody > tr').innerText.replace(/\\s+/g, ' '))`);
    await page.evaluate(`${modules}.querySelector('input').value = 'nobody', ${modules}.querySelector('form').requestSubmit(), true`);
    await page.until('that there is none', `/No module of this tenant has that name/.test(${modules}.textContent)`);
    await page.evaluate(`${rowOf('bulk')}.querySelector('.toggle').click()`);
    await page.evaluate(`${rowOf('acme')}.querySelector('.toggle').click()`);
    await page.until('acme\'s two that wait', `${modules}?.querySelectorAll('tbody > tr').length === 2`);
  });
  await page.evaluate('scrollTo(0, 0)');
  await shot(page, 'tenants-light');
  await check('tenants, light: text contrast is AA, every control has a name', async () => [...await page.evaluate(contrast), ...await namelessControls(page)]);

  await check('a tenant is found by its name, and more are read up to 200', async () => {
    const rows = `document.querySelectorAll('#tenants-body > tr:not(.modules-row)').length`;
    await page.evaluate(`document.getElementById('tenants-more').click()`);
    await page.until('a hundred', `${rows} === 100`);
    const find = (name) => page.evaluate(`document.querySelector('#tenants-filter input').value = '${name}', document.getElementById('tenants-filter').requestSubmit(), true`);
    await find('shop-230');
    await page.until('the one', `${rows} === 1 && ${rowOf('shop-230')}`);
    await find('nobody');
    await page.until('that there is none', `!document.getElementById('tenants-empty').hidden && document.getElementById('no-tenants').hidden`);
    await find('');
    await page.until('the first page', `${rows} === 50`);
  });

  await check('names from outside are text, not markup', async () => {
    const faults = await page.evaluate(`document.querySelectorAll('#tenants-page img').length`);
    return faults === 0 && /<img src=x/.test(await text(batchRow(9998))) ? [] : [`${faults} pictures, or the name is not there`];
  });

  await check('batches: paged, filtered by tenant and state', async () => {
    const rows = `document.querySelectorAll('#batches-body > tr').length`;
    await page.evaluate(`document.getElementById('batches-more').click()`);
    await page.until('older ones', `${rows} === 40`);
    const set = (name, value) => page.evaluate(`(() => { const e = document.querySelector('#batches-filter [name=${name}]'); e.value = '${value}'; document.getElementById('batches-filter').requestSubmit(); return true; })()`);
    await set('state', 'paused');
    await page.until('the paused one', `${rows} === 1 && ${batchRow(9999)}`);
    await set('tenant', 'bulk');
    await page.until('that there is none', `!document.getElementById('batches-empty').hidden && document.getElementById('batches-empty').textContent === 'No batch matches.'`);
    await set('state', '');
    await set('tenant', '');
    await page.until('all again', `${rows} === 20`);
    await page.evaluate(`[...${rowOf('bulk')}.querySelectorAll('button')].find((b) => b.textContent === 'batches').click()`);
    await page.until('those of bulk', `[...document.querySelectorAll('#batches-body > tr')].every((r) => r.querySelector('[data-label=of]').textContent.startsWith('bulk'))`);
    await set('tenant', '');
    await page.until('all again', `${rows} === 20 && ${batchRow(10000)}`);
  });

  await check('the bar of a batch has a segment for each end, and buttons only for what its state allows', async () => {
    const widths = await page.evaluate(`[...${batchRow(9999)}.querySelectorAll('.segments i')].map((i) => Math.round(100 * i.getBoundingClientRect().width / i.parentElement.getBoundingClientRect().width))`);
    const buttons = (id) => page.evaluate(`[...${batchRow(id)}.querySelectorAll('button')].filter((b) => !b.hidden).map((b) => b.textContent).join()`);
    const said = await Promise.all([10000, 9999, 9998, 9997, 9996].map(buttons));
    const faults = widths.join() === '40,10,0,50' ? [] : [`the segments are ${widths}`];
    if (said.join('|') !== 'Pause,Cancel …|Pause,Resume,Cancel …|Pause,Cancel …||') faults.push(`the buttons are ${said.join('|')}`);
    return faults;
  });

  await check('a batch is paused, resumed, and cancelled after a question that tells how many', async () => {
    const faults = [];
    await page.evaluate(pressed(10000, 'Pause'));
    await page.until('the pause', `${noteOf} === 'Paused batch 10000: it is paused.' && ${batchRow(10000)}.querySelector('.badge').textContent === 'paused'`);
    await page.until('the other button', pressed(10000, 'Resume'));
    await page.until('that it goes on', `${noteOf} === 'Resumed batch 10000: it is running.' && ${batchRow(10000)}.querySelector('.badge').textContent === 'running'`);
    await page.evaluate(pressed(10000, 'Cancel …'));
    await page.until('the question', `document.querySelector('dialog.ask')?.open && /acme sent it to 300 recipients. The 250 messages/.test(document.querySelector('dialog.ask').textContent)`);
    if (await page.evaluate(`document.querySelectorAll('dialog.ask input').length`)) faults.push('it asks for a name that the route does not take');
    await shot(page, 'batch-cancel', false);
    await page.evaluate(`[...document.querySelectorAll('dialog.ask button')].find((b) => b.textContent === 'Keep it').click()`);
    if (mock.requests.some((request) => /10000\/cancel/.test(request))) faults.push('a question that was closed cancels');
    await page.evaluate(pressed(10000, 'Cancel …'));
    await page.until('the question again', `document.querySelector('dialog.ask')?.open`);
    await page.evaluate(`document.querySelector('dialog.ask .danger').click()`);
    await page.until('what was done', `${noteOf} === 'Cancelled batch 10000: 250 messages will not be sent, 50 were sent.'`);
    await page.until('its state', `${batchRow(10000)}.querySelector('.badge').textContent === 'cancelled' && /50 sent, 250 cancelled/.test(${batchRow(10000)}.textContent)`);
    return faults;
  });

  await check('with a token that only reads, the buttons are disabled and the reason is there', async () => {
    provoked.push(/status of 403/);
    mock.steer({ mayChange: false });
    await page.until('the reason', `!document.getElementById('batches-leave').hidden && [...${batchRow(9999)}.querySelectorAll('button')].every((b) => b.disabled && /notify:send/.test(b.title))`);
    await page.evaluate(`document.getElementById('batches').scrollIntoView()`);
    await shot(page, 'batches-read-only', false);
    mock.steer({ mayChange: true });
    await page.until('the buttons', `document.getElementById('batches-leave').hidden && ![...${batchRow(9999)}.querySelectorAll('button')].some((b) => b.disabled)`);
  });

  await check('what cannot be told is said in words, what was known stays, and a refused page is not asked for again', async () => {
    provoked.push(/net::ERR_|status of 503/);
    mock.steer({ fail: 'tenants' });
    await page.until('the words', `/^Loading the tenants failed: the queue store did not answer/.test(document.getElementById('tenants-note').textContent) && /did not answer/.test(${noteOf})`);
    await page.evaluate('scrollTo(0, 0)');
    await shot(page, 'tenants-error', false);
    const kept = await page.evaluate(`document.querySelectorAll('#tenants-body > tr:not(.modules-row)').length`);
    mock.steer({ fail: null });
    await page.until('all well again', `document.getElementById('tenants-note').textContent === '' && ${noteOf} === ''`, 15_000);
    mock.steer({ fail: 'leave' });
    await page.until('the refusal', `/needs the scope/.test(document.getElementById('tenants-note').textContent) && /needs the scope/.test(${noteOf})`);
    const asked = () => mock.requests.filter((request) => /GET \/api\/v1\/(tenants\?|notifications\/batches\?)/.test(request)).length;
    const before = asked();
    await page.until('a further second of requests', `(async () => { await new Promise((r) => setTimeout(r, 2500)); return true; })()`);
    const again = asked() - before;
    mock.steer({ fail: null });
    for (const form of ['tenants', 'batches']) await page.evaluate(`document.getElementById('${form}-filter').requestSubmit(), true`);
    await page.until('all well again', `document.getElementById('tenants-note').textContent === '' && ${noteOf} === ''`, 15_000);
    return [...(kept === 50 ? [] : [`${kept} tenants are left`]), ...(again === 0 ? [] : [`${again} further requests after a refusal`])];
  });

  await page.scheme('dark');
  await open();
  await page.evaluate(`${rowOf('acme')}.querySelector('.toggle').click()`);
  await page.until('its modules', `document.querySelectorAll('#tenants-body .modules tbody > tr').length === 2`);
  await check('tenants, dark: text contrast is AA', () => page.evaluate(contrast));
  await shot(page, 'tenants-dark');
  await page.scheme('light');

  await page.size(390, 844, { mobile: true });
  await open();
  await check('tenants, 390 px wide: nothing sticks out, with the modules of one', async () => {
    await page.evaluate(`${rowOf('acme')}.querySelector('.toggle').click()`);
    await page.until('its modules', `document.querySelectorAll('#tenants-body .modules tbody > tr').length === 2`);
    await shot(page, 'tenants-390', false);
    const faults = await page.evaluate(overflow);
    await page.evaluate(`document.getElementById('batches').scrollIntoView()`);
    await shot(page, 'batches-390', false);
    return faults;
  });
  await page.size(1400, 1000);
}
