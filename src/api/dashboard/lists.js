// Tables of rows that come with the stream: decisions and failures.

import { call } from './api.js';
import { signature } from './dialog.js';
import { h, keyed, setText, show } from './dom.js';
import { clock, rate, UNKNOWN } from './format.js';
import { jobAddress } from './views.js';
import { breakerText, unitOf } from './words.js';

const DECISION_ROWS = 40;
const FAILURE_ROWS = 30;

/**
 * Builds a cell that carries the name of its column, which the layout for phones shows.
 * @param {string} label @param {any} content @param {string} [kind]
 */
export function cell(label, content, kind) {
  return h('td', { 'data-label': label, class: kind }, content);
}

/**
 * Shows a sentence in place of a table without rows: until this is called the page waits for the
 * server, after it there are none.
 * @param {HTMLElement} body @param {HTMLElement} empty @param {number} rows
 */
export function showRows(body, empty, rows) {
  if (empty.dataset.text) setText(empty, empty.dataset.text);
  show(empty, rows === 0);
  show(/** @type {HTMLElement} */ (body.parentElement), rows > 0);
}

/** The words in place of a list that is refused, so that nobody waits for it or takes it for empty. */
const REFUSED = 'This token may not read this list.';

/** Says in place of a table that the token may not read it. @param {HTMLElement} body @param {HTMLElement} empty */
export function showRefused(body, empty) {
  empty.dataset.text = REFUSED;
  showRows(body, empty, 0);
}

/**
 * Returns an answer; without one, the sentence that tells of no rows says that the token may not read them.
 * @param {any} answer null if it was refused @param {HTMLElement} empty
 */
export function readable(answer, empty) {
  if (answer === null) empty.dataset.text = REFUSED;
  return answer;
}

/**
 * @param {HTMLElement} body of the table
 * @param {HTMLElement} empty shown without rows
 * @param {import('./state.js').Decision[]} decisions
 * @param {string} throttle only this one, or all if empty
 * @param {number} now
 */
export function showDecisions(body, empty, decisions, throttle, now) {
  const rows = decisions.filter((d) => !throttle || d.throttle === throttle).slice(0, DECISION_ROWS);
  showRows(body, empty, rows.length);
  keyed(body, rows, (d) => String(d.id), (d) => {
    // A step that the shown digits do not reveal is not drawn as one.
    const [from, to] = [rate(d.previous_rps), rate(d.rps)];
    const isStep = d.previous_rps !== null && d.previous_rps !== undefined && from !== to;
    const arrow = !isStep ? '=' : (d.rps ?? 0) > d.previous_rps ? '↑' : '↓';
    return h('tr', { class: d.breaker === 'open' ? 'alarming' : undefined },
      cell('at', clock(d.t, now), 'num'),
      cell('throttle', d.throttle),
      cell('rate', h('span', null, h('span', { class: 'arrow', 'aria-hidden': 'true' }, arrow), isStep ? ` ${from} → ` : ' ', h('b', null, to), unitOf(d)), 'num rate'),
      cell('limits', d.limiting ? d.limiting.replaceAll('_', ' ') : UNKNOWN),
      cell('breaker', breakerText(d.breaker)),
      cell('reason', d.reason ?? '', 'wide'));
  });
}

/**
 * @param {HTMLElement} body
 * @param {HTMLElement} empty
 * @param {import('./state.js').Failure[]} failures
 * @param {number} now
 */
export function showFailures(body, empty, failures, now) {
  const rows = failures.slice(0, FAILURE_ROWS);
  showRows(body, empty, rows.length);
  keyed(body, rows, (f) => `${f.job_id}/${f.attempt}/${f.at}`, (f) => {
    const lane = f.key ? `${f.throttle} / ${f.key}` : f.throttle;
    const job = h('a', { class: 'num', href: jobAddress(f.job_id) }, String(f.job_id));
    return h('tr', { class: f.outcome === 'dead' ? 'alarming' : undefined },
      cell('at', clock(f.t, now), 'num'),
      cell('job', job),
      cell('kind', f.kind),
      cell('lane', lane, 'wrap'),
      cell('attempt', h('span', null, h('span', { class: 'num' }, String(f.attempt)), ' ', h('span', { class: 'outcome' }, f.outcome))),
      cell('error', f.error ?? '', 'wide'),
      cell('', f.outcome === 'dead' ? retryButton(f.job_id) : null, 'act'));
  });
}

/** @param {number} id */
function retryButton(id) {
  const button = h('button', { type: 'button', class: 'change', 'aria-label': `Retry job ${id}` }, 'Retry');
  button.addEventListener('click', async () => {
    const body = await signature({ title: `Retry job ${id}?`, action: 'Retry', text: 'It becomes ready at once and runs when its throttle allows.' });
    if (!body) return;
    button.disabled = true;
    try {
      await call('POST', `/api/v1/jobs/${id}/retry`, { body });
      setText(button, 'Ready again');
    } catch (error) {
      setText(button, /** @type {any} */ (error).message);
      button.disabled = false;
    }
    // What came of it is its name now.
    button.removeAttribute('aria-label');
  });
  return button;
}
