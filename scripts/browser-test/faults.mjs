// The checks of what the page says and keeps when something goes wrong, on the mock.

/** Checks the page while the server, the store, a request or the browser's clock is at fault. */
export async function faultChecks({ page, url, mock, provoked, check, shot, answer, contrast, overflow }) {
  const live = async (hash = '') => {
    await page.fresh(`${url}/${hash}`);
    await page.until('the page', `document.getElementById('phase').dataset.phase === 'live' && document.querySelector('section.throttle, .throttle-link')`, 15_000);
  };
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

  await check('a pause of everything that fails keeps its question, and a resume says why', async () => {
    provoked.push(/status of (404|503)/, /net::ERR_INCOMPLETE_CHUNKED_ENCODING .*\/stream$/);
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
}
