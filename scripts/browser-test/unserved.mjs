// The checks of the notice of jobs that no live worker serves, on the mock.

const HOSTILE = '<img src=x onerror=alert(1)>';

/** @param {number} now in unix seconds */
const jobs = (now) => [
  { throttle: 'notify:acme', kind: 'notification', needs: ['channel sms'], jobs: 12_400, since: new Date((now - 5_400) * 1000).toISOString(), remedy: 'no live worker serves channel sms; add [pools.<name>] to the settings of a worker, or name its pool with --pools' },
  { throttle: 'mail', kind: null, needs: [], jobs: 310, since: new Date((now - 90) * 1000).toISOString(), remedy: 'no live worker serves the throttle mail; start one without --throttles, or with a pattern that stands for it' },
  { throttle: `a-${'very-long-name-'.repeat(6)}end`, kind: HOSTILE, needs: [], jobs: 1, since: null, remedy: 'no live worker serves the kind; start a worker that does' },
  ...Array.from({ length: 4 }, (_, i) => ({ throttle: `t${i}`, kind: 'report', needs: [], jobs: 4 - i, since: null, remedy: 'no live worker serves the kind report; start a worker that does' })),
];

/** Checks the notice on a desktop and a phone, and that it goes when its jobs are served. */
export async function unservedChecks({ page, url, mock, check, shot, contrast, overflow }) {
  const lines = `[...document.querySelectorAll('#unserved-list li')].map((line) => line.textContent)`;
  const shown = async () => {
    await page.open(`${url}/`);
    await page.until('the notice and the page', `!document.getElementById('unserved').hidden && document.querySelector('section.throttle')`);
  };

  await check('what nobody serves is told with its number, age and remedy', async () => {
    mock.steer({ unserved: jobs(Date.now() / 1000) });
    await shown();
    const faults = [];
    const [first, second, third, ...rest] = await page.evaluate(lines);
    if (!/^12,400 jobs of kind notification, throttle notify:acme, the oldest from 1 h 30 min ago: no live worker serves channel sms; add \[pools\.<name>\]/.test(first)) faults.push(first);
    if (!/^310 jobs of throttle mail, the oldest from .* ago: .*--throttles/.test(second)) faults.push(second);
    if (!third.includes(HOSTILE)) faults.push(third);
    if (rest.length !== 2 || await page.evaluate(`document.getElementById('unserved-more').textContent`) !== 'And 2 more: flyball status lists them.') faults.push(`${rest.length + 3} lines`);
    await shot(page, 'unserved-1400', false);
    return [...faults, ...await page.evaluate(contrast), ...await page.evaluate(overflow)];
  });

  await page.size(390, 844, { mobile: true });
  await check('390 px wide: the notice sticks out nowhere', async () => {
    await shown();
    await shot(page, 'unserved-390', false);
    return page.evaluate(overflow);
  });
  await page.size(1400, 1000);

  await check('once they are served the notice goes', async () => {
    mock.steer({ unserved: [] });
    await page.open(`${url}/`);
    await page.until('the page', `document.getElementById('phase').dataset.phase === 'live'`);
    await page.until('no notice', `document.getElementById('unserved').hidden`);
  });
}
