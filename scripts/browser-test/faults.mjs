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
}
