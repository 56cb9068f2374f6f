// The entry point of the page: connects the stream, the state and the parts.

import { get } from './api.js';
import { Batches } from './batches.js';
import { Channels } from './channels.js';
import { Cursor } from './chartview.js';
import { Crons } from './crons.js';
import { DeadLetters } from './dead.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { ago, clock, count, rate, UNKNOWN } from './format.js';
import { JobLookup, RunningJobs } from './jobs.js';
import { showAudit, showDecisions, showFailures } from './lists.js';
import { Live } from './live.js';
import { Notifications } from './notifications.js';
import { forgetPalette } from './palette.js';
import { Panel, panelId } from './panel.js';
import { PauseAll } from './pauseall.js';
import { Pools } from './pools.js';
import { viewOf } from './poolwords.js';
import { Recipients } from './recipients.js';
import { radioSetting } from './settings.js';
import { apply, emptyState, facts, isApiLimit, limitsText, ordered, totalReady } from './state.js';
import { Tenants } from './tenants.js';
import { Unserved } from './unserved.js';
import { auditLine, breakerText, standing, unitOf } from './words.js';

/**
 * The shortest time between two drawings of the page, in milliseconds; ticks come once per second.
 */
const FRAME_MS = 300;
const POLL_THROTTLES_MS = 5_000;
const POLL_JOBS_MS = 3_000;
const POLL_PAUSE_MS = 3_000;
const POLL_POOLS_MS = 1_000;
const POLL_TENANTS_MS = 2_000;
/** The interval of requests for schedules and dead jobs, which change slowly, in milliseconds. */
const POLL_SLOW_MS = 10_000;
/**
 * The time after which a hidden page closes its stream, in milliseconds; the history fills the gap
 * when it is shown again.
 */
const HIDDEN_MS = 30_000;
/** The most throttles without a governor that are shown without a click. */
const PLAIN_PANELS = 12;
/** The most chips above the panels, so that they stay readable. */
const CHIPS = 48;
/** The views, each with the element of its page. */
const PAGES = [['throttles', 'main'], ['pools', 'pools-page'], ['tenants', 'tenants-page'], ['recipients', 'recipients-page']];

const $ = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

const state = emptyState();
const cursor = new Cursor();
/** @type {Map<string, Panel>} */
const panels = new Map();
const dirty = new Set(['throttles', 'decisions', 'failures', 'audit', 'phase']);
let windowS = 120;
let showAll = false;
let unreachable = false;
let view = viewOf(location.hash);
/** The server's clock minus ours, in seconds, by the last tick. */
let skew = 0;
let drawnAt = 0;
let frame = 0;
let askSoon = 0;

const lookup = new JobLookup({ form: $('lookup'), input: $('lookup-id'), result: $('lookup-result') });
const running = new RunningJobs({ body: $('running'), empty: $('running-empty'), more: $('running-more'), look: (id) => lookup.open(id) });

const dead = new DeadLetters({
  form: $('dead-filter'), body: $('dead'), empty: $('dead-empty'), note: $('dead-note'), requeue: $('dead-requeue'), discard: $('dead-discard'), look: (id) => lookup.open(id),
});
const crons = new Crons({ body: $('crons'), empty: $('crons-empty'), note: $('crons-note'), look: (id) => lookup.open(id) });
const unserved = new Unserved({ notice: $('unserved'), list: $('unserved-list'), more: $('unserved-more') });
const pauseAll = new PauseAll({ button: $('pause-all'), notice: $('all-paused'), text: $('all-paused-text') });

const channels = new Channels({ section: $('channels'), body: $('channels-body'), empty: $('channels-empty'), note: $('channels-note') });
const notifications = new Notifications({
  section: $('notifications'), form: $('notifications-filter'), body: $('notifications-body'), empty: $('notifications-empty'), note: $('notifications-note'), more: $('notifications-more'),
});
const pools = new Pools(
  { list: $('pools-list'), empty: $('no-pools'), waiting: $('pools-waiting'), dot: $('pools-dot'), word: $('pools-word') },
  { messages: (pool, account) => notifications.of(pool, account), drawn: () => schedule() },
);

const batches = new Batches({
  section: $('batches'), form: $('batches-filter'), body: $('batches-body'), empty: $('batches-empty'), note: $('batches-note'), leave: $('batches-leave'), more: $('batches-more'),
});
const tenants = new Tenants(
  {
    form: $('tenants-filter'), body: $('tenants-body'), empty: $('tenants-empty'), none: $('no-tenants'), panel: $('tenants-panel'), note: $('tenants-note'), more: $('tenants-more'), dot: $('tenants-dot'), word: $('tenants-word'),
  },
  { batches: (tenant) => batches.of(tenant), drawn: () => schedule() },
);

const recipients = new Recipients({
  counts: $('held-counts'), countsNote: $('held-note'), form: $('digests-filter'), body: $('digests-body'), empty: $('digests-empty'), note: $('digests-note'), more: $('digests-more'),
  check: $('recipient-check'), found: $('recipient-found'), foundNote: $('recipient-note'),
  history: $('recipient-history'), historyBody: $('history-body'), historyEmpty: $('history-empty'),
});

const live = new Live({
  message: (message) => take(message),
  phase: (phase) => take({ type: 'phase', data: phase }),
  connected: () => {
    askThrottles();
    askLists();
  },
});

/** @param {{ type: string, data: any }} message */
function take(message) {
  const isNews = message.type === 'decision' || message.type === 'audit';
  const before = isNews && message.type === 'decision' ? state.throttles.get(message.data.throttle)?.decisions.at(-1) : null;
  const touched = apply(state, message);
  if (message.type === 'tick' && state.lastTick !== null) skew = state.lastTick - Date.now() / 1000;
  if (touched.has('unknown') || message.type === 'audit') askThrottlesSoon();
  if (isNews && !document.hidden) announce(message, before ?? null);
  for (const part of touched) dirty.add(part);
  if (touched.size) schedule();
}

/** Schedules one drawing, only while the page is visible. */
function schedule() {
  if (frame || document.hidden) return;
  const wait = Math.max(0, drawnAt + FRAME_MS - performance.now());
  frame = window.setTimeout(() => requestAnimationFrame(draw), wait);
}

function draw() {
  frame = 0;
  drawnAt = performance.now();
  const now = Date.now() / 1000 + skew;
  drawHeader(now);
  drawThrottles(now);
  drawViews();
  if (view === 'pools') pools.draw(state.throttles);
  if (view === 'tenants') {
    tenants.draw();
    channels.draw();
    batches.draw();
  }
  if (view === 'recipients') recipients.draw();
  if (dirty.has('decisions')) showDecisions($('decisions'), $('decisions-empty'), state.decisions, $('decisions-throttle').value, now);
  if (dirty.has('failures')) showFailures($('failures'), $('failures-empty'), state.failures, (id) => lookup.open(id), now);
  if (dirty.has('audit')) showAudit($('audit'), $('audit-empty'), state.audit, now);
  dirty.clear();
}

/** @param {number} now */
function drawHeader(now) {
  const age = state.lastTick === null ? null : now - state.lastTick;
  const words = {
    connecting: 'connecting',
    live: 'live',
    lost: age === null ? 'reconnecting' : `reconnecting, last data ${ago(age)}`,
    unauthorized: 'signed out',
  };
  const phase = state.phase === 'live' && state.lastTick === null ? 'connecting' : state.phase;
  setText($('phase-text'), words[phase]);
  setAttr($('phase'), 'data-phase', phase);
  setText($('workers'), state.workers === null ? UNKNOWN : count(state.workers));
  setText($('running-total'), state.runningTotal === null ? UNKNOWN : count(state.runningTotal));
  setText($('ready-total'), count(totalReady(state) ?? (state.known ? 0 : null)));
  const open = [...state.throttles.values()].some((t) => t.ring.last?.breaker === 'open');
  document.title = open ? 'Breaker open · Flyball' : 'Flyball';

  show($('signed-out'), state.phase === 'unauthorized');
  const away = state.phase === 'lost' && (unreachable || (age !== null && age > 8));
  show($('away'), away);
  if (away) {
    setText($('away-text'), state.lastTick === null
      ? 'The server does not answer. Retrying.'
      : `The server does not answer. The data is from ${clock(state.lastTick, now)}; retrying.`);
  }
  document.body.classList.toggle('old', state.phase !== 'live' && state.lastTick !== null);
}

/** @param {number} now */
function drawThrottles(now) {
  const all = ordered(state);
  const limits = all.filter((t) => isApiLimit(t));
  const work = all.filter((t) => !isApiLimit(t));
  const idle = state.known && work.length === 0;
  show($('no-throttles'), idle);
  show($('lists'), state.known);
  show($('waiting'), !state.known && all.length === 0 && state.phase !== 'unauthorized');
  const governed = work.filter((t) => t.detail?.governor || t.ring.last?.breaker);
  const plain = work.filter((t) => !governed.includes(t));
  const shown = showAll ? plain : plain.slice(0, PLAIN_PANELS);
  place($('governed'), governed);
  place($('plain'), shown);
  show($('api-limits'), limits.length > 0);
  setText($('api-limits-text'), limitsText(limits));
  const unfolded = $('api-limits').open ? limits : [];
  place($('api-throttles'), unfolded);
  for (const [name, panel] of panels) {
    if (state.throttles.has(name) && [...governed, ...shown, ...unfolded].some((t) => t.name === name)) continue;
    panel.remove();
    panels.delete(name);
  }
  show($('plain-head'), plain.length > 0 && governed.length > 0);
  show($('show-all'), shown.length < plain.length);
  setText($('show-all'), `Show all ${count(plain.length)} throttles`);

  // The right edge is the last tick. When ticks stop, time continues and the gap shows.
  const silent = state.lastTick === null || now - state.lastTick > 3;
  const to = silent ? now : /** @type {number} */ (state.lastTick);
  const time = { from: to - windowS, to, now, depthAge: state.depthAge };
  for (const t of [...governed, ...shown, ...unfolded]) panels.get(t.name)?.update(t, time);
  drawOverview(work);
  drawFilter(all);
}

/** @param {HTMLElement} parent @param {import('./state.js').Throttle[]} throttles */
function place(parent, throttles) {
  for (const { name } of throttles) {
    if (!panels.has(name)) panels.set(name, new Panel(name, { cursor, changed: (detail) => take({ type: 'throttle', data: detail }), deleted: (text) => { setText($('aloud'), text); askThrottles(); } }));
  }
  const wanted = throttles.map((t) => /** @type {Panel} */ (panels.get(t.name)).element);
  wanted.forEach((element, i) => {
    if (parent.children[i] !== element) parent.insertBefore(element, parent.children[i] ?? null);
  });
}

/**
 * Draws one chip per throttle, as an overview and a link.
 * @param {import('./state.js').Throttle[]} all
 */
function drawOverview(all) {
  show($('overview'), all.length > 1);
  keyed($('overview-list'), all.filter((t) => panels.has(t.name)).slice(0, CHIPS), (t) => t.name, (t) => {
    const tone = h('span', { class: 'dot', 'aria-hidden': 'true' });
    const text = h('span', { class: 'num' });
    const word = h('span', { class: 'word' });
    const row = h('li', null, h('a', { href: `#${panelId(t.name)}` }, tone, h('b', null, t.name), text, word));
    Object.assign(row, { tone, text, word });
    return row;
  }, (row, t) => {
    const current = facts(t);
    const stand = standing(current);
    setAttr(row.tone, 'data-tone', stand.tone);
    setText(row.text, `${rate(current.achieved)}/s`);
    setText(row.word, stand.text);
  });
}

/** @param {import('./state.js').Throttle[]} all */
function drawFilter(all) {
  const select = $('decisions-throttle');
  const names = ['', ...all.filter((t) => t.detail?.governor || t.decisions.length).map((t) => t.name)];
  keyed(select, names, (name) => name, (name) => h('option', { value: name }, name || 'all throttles'));
  show(select.parentElement, names.length > 2);
}

/**
 * Announces changes of state for screen readers, not each step of a number.
 * @param {{ type: string, data: any }} message
 * @param {import('./state.js').Decision | null} before
 */
function announce({ type, data }, before) {
  if (type === 'audit') {
    if (data.actor !== 'governor') setText($('aloud'), `${data.subject}: ${auditLine({ ...data, t: Date.parse(data.at) / 1000 })}`);
  } else if (!before || before.breaker !== data.breaker || before.limiting !== data.limiting || before.mode !== data.mode) {
    setText($('aloud'), `${data.throttle}: ${unitOf(data) ? 'knob' : 'rate'} ${rate(data.rps)}${unitOf(data)}, breaker ${breakerText(data.breaker)}. ${data.reason ?? ''}`);
  }
}

// === pages ===

/** Draws the links to the pages that have something to show. */
function drawViews() {
  const pages = [['pools', pools], ['tenants', tenants], ['recipients', recipients]].map(([name, part]) => ({ name, part, isShown: part.known() > 0 || view === name }));
  show($('views'), pages.some((page) => page.isShown));
  for (const { name, part, isShown } of pages) {
    show($(`view-${name}`), isShown);
    part.drawNav();
  }
}

/** Shows the view of the address; a throttle's panel may be among those that are not shown yet. */
function route() {
  const before = view;
  view = viewOf(location.hash);
  for (const [name, page] of PAGES) {
    show($(page), view === name);
    setAttr($(`view-${name}`), 'aria-current', view === name ? 'page' : null);
  }
  const named = location.hash.slice(1);
  if (named.startsWith('throttle-') && !document.getElementById(named)) {
    if (decodeURIComponent(named).startsWith('throttle-api:')) $('api-limits').open = true;
    else showAll = true;
  }
  setAttr($('sign-in'), 'href', `/login${location.hash}`);
  if (view === 'pools') askPools(true);
  if (view === 'recipients') ask(() => recipients.refresh());
  if (view === 'tenants') for (const part of [tenants, channels, batches]) ask(() => part.refresh());
  draw();
  if (before === view) return;
  const target = document.getElementById(named);
  if (target) target.scrollIntoView();
  else scrollTo(0, 0);
}

/**
 * Refreshes the pools: each second on their page, otherwise at intervals to show whether one needs
 * attention.
 * @param {boolean} isHere
 */
async function askPools(isHere) {
  await ask(() => pools.refresh());
  if (isHere) await ask(() => notifications.refresh());
}

// === requests ===

/** Runs a request and records whether the server answers. @param {() => Promise<void>} question */
async function ask(question) {
  try {
    await question();
    unreachable = false;
  } catch (error) {
    const { status } = /** @type {any} */ (error);
    if (status === 401) take({ type: 'phase', data: 'unauthorized' });
    else if (status === undefined) throw error;
    unreachable = status === 0;
    schedule();
  }
}

function askThrottles() {
  return ask(async () => take({ type: 'throttles', data: await get('/api/v1/throttles') }));
}

function askThrottlesSoon() {
  clearTimeout(askSoon);
  askSoon = window.setTimeout(askThrottles, 150);
}

async function askLists() {
  await ask(async () => take({ type: 'decisions', data: await get('/api/v1/decisions?limit=200') }));
  await ask(async () => take({ type: 'failures', data: await get('/api/v1/failures?limit=50') }));
  await ask(async () => take({ type: 'audits', data: await get('/api/v1/audit?limit=50') }));
}

/**
 * Repeats a request while the page is visible and signed in.
 * @param {() => Promise<void>} question @param {number} each_ms
 */
function poll(question, each_ms) {
  setInterval(() => {
    if (!document.hidden && state.phase !== 'unauthorized') question();
  }, each_ms);
}

// === start ===

function start() {
  radioSetting($('theme'), 'theme', 'auto', (value) => {
    if (value === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
    forgetPalette();
    schedule();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    forgetPalette();
    schedule();
  });
  radioSetting($('window'), 'window', '120', (value) => {
    windowS = Number(value);
    schedule();
  });
  $('decisions-throttle').addEventListener('change', () => {
    dirty.add('decisions');
    schedule();
  });
  $('api-limits').addEventListener('toggle', () => schedule());
  $('show-all').addEventListener('click', () => {
    showAll = true;
    schedule();
  });
  for (const element of document.querySelectorAll('[data-origin]')) {
    element.textContent = (element.textContent ?? '').replaceAll('http://127.0.0.1:8080', location.origin);
  }
  let hiddenTimer = 0;
  document.addEventListener('visibilitychange', () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = window.setTimeout(() => live.close(), HIDDEN_MS);
    } else {
      if (!live.source) live.open();
      for (const part of ['decisions', 'failures', 'audit']) dirty.add(part);
      schedule();
    }
  });
  setInterval(() => {
    if (document.hidden) return;
    live.watch();
    if (state.phase !== 'live') schedule(); // Ticks draw by themselves; without them the ages must still grow.
  }, 1_000);
  poll(askThrottles, POLL_THROTTLES_MS);
  poll(() => ask(() => running.refresh()), POLL_JOBS_MS);
  poll(() => ask(() => pauseAll.refresh()), POLL_PAUSE_MS);
  poll(() => ask(() => dead.refresh()), POLL_SLOW_MS);
  poll(() => ask(() => unserved.refresh()), POLL_SLOW_MS);
  poll(() => ask(() => crons.refresh()), POLL_SLOW_MS);
  poll(() => ask(() => pools.refresh()), POLL_SLOW_MS);
  poll(async () => { if (view === 'pools') await ask(() => pools.refresh()); }, POLL_POOLS_MS);
  poll(async () => { if (view === 'pools') await ask(() => notifications.refresh()); }, POLL_JOBS_MS);
  poll(async () => { if (view !== 'tenants') await ask(() => tenants.refresh()); }, POLL_SLOW_MS);
  poll(async () => { if (view === 'tenants') await ask(() => tenants.refresh()); }, POLL_TENANTS_MS);
  poll(async () => { if (view === 'tenants') await ask(() => batches.refresh()); }, POLL_JOBS_MS);
  poll(async () => { if (view === 'tenants') await ask(() => channels.refresh()); }, POLL_TENANTS_MS);
  poll(async () => { if (view !== 'recipients') await ask(() => recipients.refresh()); }, POLL_SLOW_MS);
  poll(async () => { if (view === 'recipients') await ask(() => recipients.refresh()); }, POLL_TENANTS_MS);
  setInterval(() => { if (!document.hidden && view === 'tenants') schedule(); }, 1_000); // Countdowns go on between answers.
  $('skip').addEventListener('click', () => $(Object.fromEntries(PAGES)[view]).focus());
  addEventListener('hashchange', route);
  route();
  if (view !== 'pools') askPools(false);
  if (view !== 'tenants') ask(() => tenants.refresh());
  if (view !== 'recipients') ask(() => recipients.refresh());
  askThrottles();
  for (const part of [running, pauseAll, dead, crons, unserved]) ask(() => part.refresh());
  live.open();
  schedule();
}

start();
