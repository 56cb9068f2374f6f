// The entry point of the page: connects the stream, the state and the parts.

import { get, getAllowed, oneAtATime, refreshPart, refusalText, session } from './api.js';
import { AuditLog } from './audit.js';
import { Batches } from './batches.js';
import { Channels } from './channels.js';
import { Cursor } from './chartview.js';
import { serverNow, tellTime } from './clock.js';
import { createThrottle } from './create.js';
import { enqueueJob } from './enqueuejob.js';
import { Crons } from './crons.js';
import { Groups } from './groups.js';
import { watchPreview } from './preview.js';
import { Suppressions } from './suppressions.js';
import { WorkerList } from './workerlist.js';
import { h, keyed, scrollToPart, setAttr, setText, show } from './dom.js';
import { Failures } from './failures.js';
import { count, finite, rate } from './format.js';
import { Header, isQueueLost } from './header.js';
import { JobList } from './joblist.js';
import { JobPage } from './jobpage.js';
import { filterText } from './jobwords.js';
import { RunningJobs } from './jobs.js';
import { Keyboard } from './keys.js';
import { readable, showDecisions, showFailures } from './lists.js';
import { Live } from './live.js';
import { clearFailure, noteFailure } from './notes.js';
import { Notifications } from './notifications.js';
import { forgetPalette } from './palette.js';
import { Panel } from './panel.js';
import { PauseAll } from './pauseall.js';
import { Pools } from './pools.js';
import { Recipients } from './recipients.js';
import { radioSetting } from './settings.js';
import { apply, emptyState, isApiLimit, isStoreLost, latest, limitsText, ordered, totalReady } from './state.js';
import { Tenants } from './tenants.js';
import { ThrottleRows } from './throttlerows.js';
import { Totals } from './totals.js';
import { byTrouble, featured, isWithoutWork, JOBS_WAIT, sums } from './trouble.js';
import { Unserved } from './unserved.js';
import { placeOf } from './views.js';
import { auditLine, breakerText, unitOf } from './words.js';

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
/** The most throttles that the overview shows as panels, and the most quiet ones as rows. */
const FEATURED = 6;
const QUIET_ROWS = 12;
/** The time for which a throttle keeps its panel after its trouble, in seconds, so that none comes and goes. */
const LINGERS_S = 60;
/** The most rows of the list of throttles that are shown without a click. */
const THROTTLE_ROWS = 100;
/** The views, each with the element of its page. @type {Record<string, string>} */
const PAGES = {
  overview: 'main', throttles: 'throttles-page', jobs: 'jobs-page', job: 'job-page', failures: 'failures-page', schedules: 'schedules-page', pools: 'pools-page', tenants: 'tenants-page', recipients: 'recipients-page', audit: 'audit-page',
};

const $ = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

const state = emptyState();
const cursor = new Cursor();
/** @type {Map<string, Panel>} */
const panels = new Map();
const dirty = new Set();
/** The parts of which a message has told: before that nobody knows that a list is empty. @type {Set<string>} */
const told = new Set();
let windowS = 120;
let showAll = false;
/** The last time at which each throttle was in trouble, in unix seconds. @type {Map<string, number>} */
const troubledAt = new Map();
/** What the last requests said about the server. @type {import('./header.js').Server} */
const server = { unreachable: false, refused: { stream: '', throttles: '', queue: '' } };
let place = placeOf(location.hash);
let { view } = place;
/** What failed last for each note, to be asked again. @type {Map<HTMLElement, () => Promise<void>>} */
const failedQuestions = new Map();
/** The list of jobs that was last shown, to which a job leads back. */
let jobsHash = '#jobs';
let drawnAt = 0;
let frame = 0;
let askSoon = 0;
/** The list of throttles may be long, and each tick may ask for it. */
const askThrottlesOnce = oneAtATime(askThrottles);
/** The place of the link of the visible view, in pixels. */
let linkLeft = -1;

const header = new Header({ phase: $('phase'), phaseText: $('phase-text'), signedOut: $('signed-out'), away: $('away'), awayText: $('away-text'), storeLost: $('store-lost'), storeText: $('store-lost-text'), queueLost: $('queue-lost'), queueText: $('queue-lost-text'), behind: $('behind'), enqueue: $('enqueue-job'), aloud: $('phase-aloud'), own: $('totals-own') });
const running = new RunningJobs({ body: $('running'), empty: $('running-empty'), more: $('running-more'), note: $('running-note') });
const jobList = new JobList({
  tabs: $('jobs-tabs'), timed: $('jobs-timed'), form: $('jobs-filter'), note: $('jobs-note'), body: $('jobs-body'), empty: $('jobs-empty'), more: $('jobs-more'), bar: $('jobs-bar'), all: $('jobs-all'), lookup: $('lookup'), lookupNote: $('lookup-note'),
});
const jobPage = new JobPage({ title: $('job-title'), badge: $('job-badge'), result: $('job-result'), note: $('job-note'), buttons: $('job-buttons') });
const failures = new Failures({ dead: $('dead'), deadEmpty: $('dead-empty'), deadNote: $('dead-note'), deadMore: $('dead-more'), said: $('dead-said'), recent: $('errors'), recentEmpty: $('errors-empty'), recentNote: $('errors-note') });
const crons = new Crons({ body: $('crons'), empty: $('crons-empty'), note: $('crons-note') });
watchPreview($('cron-preview'), $('cron-preview-note'));
const groups = new Groups({ form: $('groups-filter'), body: $('groups-body'), empty: $('groups-empty'), note: $('groups-note'), more: $('groups-more') });
const workerList = new WorkerList({ body: $('workers-body'), empty: $('workers-empty') });
const suppressions = new Suppressions({ form: $('suppression'), body: $('suppressions-body'), empty: $('suppressions-empty'), note: $('suppressions-note'), more: $('suppressions-more') });
const audit = new AuditLog({ form: $('audit-filter'), body: $('audit'), empty: $('audit-empty'), note: $('audit-note') });
const totals = new Totals({ workers: $('workers'), workersWord: $('workers-word'), running: $('running-total'), ready: $('ready-total'), dead: $('dead-total'), failing: $('failing-total'), oldest: $('oldest-total') });
const quietRows = new ThrottleRows($('quiet-rows'), $('quiet-empty'));
const throttleRows = new ThrottleRows($('throttle-rows'), $('throttle-empty'));
const unserved = new Unserved({ notice: $('unserved'), title: $('unserved-title'), list: $('unserved-list'), more: $('unserved-more'), aloud: $('aloud') }, () => schedule());
const pauseAll = new PauseAll({ button: $('pause-all'), notice: $('all-paused'), text: $('all-paused-text') }, { answered: (answer) => take({ type: 'leave', data: answer }), lost: (why) => { server.refused.queue = why; schedule(); } });

const channels = new Channels({ section: $('channels'), body: $('channels-body'), empty: $('channels-empty'), note: $('channels-note') });
const notifications = new Notifications({
  section: $('notifications'), form: $('notifications-filter'), body: $('notifications-body'), empty: $('notifications-empty'), note: $('notifications-note'), more: $('notifications-more'),
}, () => recipients.mayChange);
const pools = new Pools(
  { list: $('pools-list'), empty: $('no-pools'), waiting: $('pools-waiting'), name: $('pools-name'), dot: $('pools-dot'), word: $('pools-word') },
  { messages: (pool, account) => notifications.of(pool, account), hasMessages: () => notifications.pages.isRead, drawn: () => schedule() },
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
  // A stream ends some seconds after its session, and ticks come until then.
  phase: (phase) => take({ type: 'phase', data: session.isDenied ? 'unauthorized' : phase }),
  refused: (why) => {
    server.refused.stream = why;
    schedule();
  },
  connected: () => {
    askThrottlesOnce();
    askLists();
  },
});

/** @param {{ type: string, data: any }} message */
function take(message) {
  const isNews = message.type === 'decision' || message.type === 'audit';
  const before = isNews && message.type === 'decision' ? state.throttles.get(message.data.throttle)?.decisions.at(-1) : null;
  const touched = apply(state, message);
  if (message.type === 'tick' && state.lastTick !== null) tellTime(state.lastTick);
  if ((touched.has('unknown') && !state.storeLost) || message.type === 'audit') askThrottlesSoon();
  if (isNews && !document.hidden) announce(message, before ?? null);
  if (message.type === 'audit' && view === 'audit') ask(() => audit.refresh(), $('audit-note'));
  for (const part of touched) for (const parts of [dirty, told]) parts.add(part);
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
  const now = serverNow();
  header.draw(state, server, now);
  unserved.draw(state.workers, totalReady(state) ?? 0, now, isQueueLost(state, server));
  drawThrottles(now);
  drawViews();
  if (view === 'pools') pools.draw(state.throttles);
  if (view === 'tenants') {
    tenants.draw();
    channels.draw();
    batches.draw();
  }
  if (view === 'recipients') recipients.draw();
  if (!state.known && !isStoreLost(state)) return;
  if (dirty.has('decisions') && told.has('decisions')) showDecisions($('decisions'), $('decisions-empty'), state.decisions, $('decisions-throttle').value, now);
  if (dirty.has('failures') && told.has('failures')) showFailures($('failures'), $('failures-empty'), state.failures, now);
  dirty.clear();
}

/** @param {number} now */
function drawThrottles(now) {
  const all = ordered(state);
  const limits = all.filter((t) => isApiLimit(t));
  const work = all.filter((t) => !isApiLimit(t));
  const judged = byTrouble(work, now, isStoreLost(state));
  const { dead, failing, oldest } = sums(judged);
  totals.draw({ workers: state.workers, running: state.runningTotal, ready: totalReady(state) ?? (state.known ? 0 : null), dead, failing, oldest }, state.known);
  // The right edge is the last tick. When ticks stop, time continues and the gap shows.
  const silent = state.lastTick === null || now - state.lastTick > 3;
  const to = silent ? now : /** @type {number} */ (state.lastTick);
  const time = { from: to - windowS, to, now, depthAge: state.depthAge, isStoreLost: isStoreLost(state) };

  show($('no-throttles'), isWithoutWork(state, work));
  // Without the list of throttles the rest of the page may be known.
  const isAnswered = state.known || isStoreLost(state);
  show($('lists'), isAnswered);
  show($('waiting'), !isAnswered && !isRefused() && all.length === 0 && state.phase !== 'unauthorized');
  /** @type {import('./state.js').Throttle[]} */
  let shown = [];
  if (view === 'overview') shown = drawOverview(judged, time);
  if (view === 'throttles') shown = drawThrottleList(judged, limits, time);
  if (view === 'jobs') drawJobCounts(work);
  for (const [name, panel] of panels) {
    if (shown.some((t) => t.name === name)) continue;
    panel.remove();
    panels.delete(name);
  }
  for (const t of shown) panels.get(t.name)?.update(t, time);
  drawFilter(all);
}

/** Returns true if the server refuses the stream or the list of throttles. */
function isRefused() {
  return server.refused.stream !== '' || server.refused.throttles !== '';
}

/** @typedef {import('./throttlerows.js').Judged} Judged */
/** @typedef {{ from: number, to: number, now: number, depthAge: number | null, isStoreLost: boolean }} Time */

/**
 * Draws the overview: panels of throttles in trouble and of governed ones, and a row for each of
 * the others. Returns the throttles that have a panel.
 * @param {Judged[]} judged @param {Time} time
 */
function drawOverview(judged, time) {
  for (const { throttle, verdict } of judged) if (verdict.rank < 2) troubledAt.set(throttle.name, time.now);
  // A panel that a person works with stays although its throttle is quiet again.
  const used = judged.filter(({ throttle }) => panels.get(throttle.name)?.isInUse());
  const lingering = judged.filter(({ throttle: { name } }) => panels.has(name) && time.now - (troubledAt.get(name) ?? -Infinity) < LINGERS_S);
  const shown = [...new Set([...featured(judged, FEATURED), ...used, ...lingering])];
  const rest = judged.filter((one) => !shown.includes(one));
  placePanels($('governed'), shown.map(({ throttle }) => throttle), used.length > 0);
  show($('quiet'), rest.length > 0);
  setText($('quiet-title'), rest.some(({ verdict }) => verdict.rank < 2 || verdict.text === JOBS_WAIT) ? 'Other throttles' : 'Quiet throttles');
  setText($('quiet-all'), rest.length > QUIET_ROWS ? `All ${count(judged.length)} throttles` : 'All throttles');
  quietRows.draw(rest.slice(0, QUIET_ROWS), time);
  return shown.map(({ throttle }) => throttle);
}

/**
 * Draws the list of throttles, or the panel of the one that the address names. Returns the
 * throttles that have a panel.
 * @param {Judged[]} judged @param {import('./state.js').Throttle[]} limits @param {Time} time
 */
function drawThrottleList(judged, limits, time) {
  const { throttle: name } = place;
  const one = state.throttles.get(name);
  show($('detail-back'), name !== '');
  show($('throttle-list'), name === '');
  show($('no-throttle'), name !== '' && !one && state.known);
  setText($('no-throttle-text'), `There is no throttle ${name}.`);
  placePanels($('detail'), one ? [one] : [], false);
  show($('api-limits'), limits.length > 0 && name === '');
  setText($('api-limits-text'), limitsText(limits));
  const unfolded = $('api-limits').open && name === '' ? limits : [];
  placePanels($('api-throttles'), unfolded, false);
  if (name !== '') {
    if (one) panels.get(name)?.unfoldOnce();
    return one ? [one] : [];
  }
  const typed = $('throttles-filter').elements.namedItem('name').value.trim().toLowerCase();
  const found = judged.filter(({ throttle }) => throttle.name.toLowerCase().includes(typed));
  const rows = showAll ? found : found.slice(0, THROTTLE_ROWS);
  throttleRows.draw(rows, time);
  setText($('throttle-empty'), typed ? 'No throttle has that name.' : state.known ? 'No throttles yet.' : isStoreLost(state) || isRefused() ? 'The throttles are not known.' : 'Waiting for the server …');
  show($('show-all'), rows.length < found.length);
  setText($('show-all'), `Show all ${count(found.length)} throttles`);
  return unfolded;
}

/** Draws the number of jobs in each state, of the throttle of the filter or of all. @param {import('./state.js').Throttle[]} work */
function drawJobCounts(work) {
  const { query } = jobList;
  const of = query.throttle ? work.filter((t) => t.name === query.throttle) : work;
  const sum = (/** @type {'ready' | 'running' | 'dead' | 'scheduled'} */ name) => of.reduce((/** @type {number | null} */ total, t) => {
    const own = (name === 'scheduled' ? null : latest(t)?.[name]) ?? finite(t.detail?.depth?.[name]);
    return own === null ? total : (total ?? 0) + own;
  }, null);
  // The counts know throttles only, and a tenant's token only those of its own.
  const isCounted = filterText({ ...query, state: '', throttle: '' }) === '' && (query.throttle !== '' || !state.isOfTenant);
  jobList.drawCounts(isCounted ? { ready: sum('ready'), running: sum('running'), dead: sum('dead'), timed: sum('scheduled') } : { ready: null, running: null, dead: null, timed: null }, isCounted && !query.throttle);
  jobList.suggest($('throttle-names'), work.map((t) => t.name));
}

/**
 * Places the panels of throttles, in their order or, while one is in use, each where it is.
 * @param {HTMLElement} parent @param {import('./state.js').Throttle[]} throttles @param {boolean} isSettled
 */
function placePanels(parent, throttles, isSettled) {
  for (const { name } of throttles) {
    if (!panels.has(name)) panels.set(name, new Panel(name, { cursor, changed: (detail) => take({ type: 'throttle', data: detail }), deleted: (text) => { setText($('aloud'), text); askThrottles(); } }));
  }
  const wanted = throttles.map((t) => /** @type {Panel} */ (panels.get(t.name)).element);
  if (isSettled) {
    for (const element of wanted) if (element.parentElement !== parent) parent.append(element);
    return;
  }
  wanted.forEach((element, i) => {
    if (parent.children[i] !== element) parent.insertBefore(element, parent.children[i] ?? null);
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
  for (const name of ['overview', 'throttles', 'jobs', 'failures', 'schedules', 'audit']) setAttr($(`view-${name}`), 'aria-current', place.nav === name ? 'page' : null);
  const pages = [['pools', pools], ['tenants', tenants], ['recipients', recipients]].map(([name, part]) => ({ name, part, isShown: part.known() > 0 || view === name }));
  for (const { name, part, isShown } of pages) {
    show($(`view-${name}`), isShown);
    setAttr($(`view-${name}`), 'aria-current', place.nav === name ? 'page' : null);
    part.drawNav();
  }
  showLink();
}

/** Shows the view of the address. */
function route() {
  const before = place;
  place = placeOf(location.hash);
  ({ view } = place);
  // The panels of another view are built again there.
  if (before.view !== view || before.throttle !== place.throttle) {
    for (const panel of panels.values()) panel.remove();
    panels.clear();
  }
  for (const [name, page] of Object.entries(PAGES)) show($(page), view === name);
  setAttr($('sign-in'), 'href', `/login${location.hash}`);
  if (view === 'jobs') {
    jobsHash = location.hash || '#jobs';
    setAttr($('job-back'), 'href', jobsHash);
    jobList.open(place.query);
  }
  if (view === 'job') jobPage.open(place.job);
  askView();
  draw();
  const part = place.part ? document.getElementById(place.part) : null;
  if (part) scrollToPart(part.closest('section') ?? part, $(PAGES[view]));
  else if (before.view !== view || before.throttle !== place.throttle || before.job !== place.job) scrollTo(0, 0);
}

/** Keeps the link of the visible view in sight, because on a phone the links are a strip that scrolls. */
function showLink() {
  const link = $(`view-${place.nav}`);
  const strip = link.parentElement;
  const left = link.offsetLeft;
  if (left === linkLeft) return;
  linkLeft = left;
  strip.scrollLeft = left - strip.clientWidth / 3;
}

/** Asks for what the visible view shows. */
function askView() {
  if (view === 'overview') ask(() => running.refresh(), $('running-note'));
  if (view === 'jobs') {
    ask(() => jobList.refresh(), $('jobs-note'));
    ask(() => groups.refresh(), $('groups-note'));
    ask(() => refreshPart(workerList), $('workers-note'));
  }
  if (view === 'job') ask(() => jobPage.refresh(true), $('job-note'));
  if (view === 'failures') ask(() => failures.refresh(), $('dead-said'));
  if (view === 'schedules') ask(() => refreshPart(crons), $('crons-note'));
  if (view === 'audit') ask(() => audit.refresh(), $('audit-note'));
  if (view === 'pools') askPools(true);
  if (view === 'recipients') {
    ask(() => recipients.refresh());
    ask(() => refreshPart(suppressions), $('suppressions-note'));
  }
  if (view === 'tenants') for (const part of [tenants, channels, batches]) ask(() => part.refresh());
}

/** Asks for a throttle to create, and says what came of it. @param {string} name */
async function create(name) {
  const said = await createThrottle(name);
  if (said === null) return;
  setText($('aloud'), said);
  await askThrottles();
}

/** Asks for a job to enqueue, and says what came of it. */
async function enqueue() {
  const said = await enqueueJob();
  if (said !== null) setText($('aloud'), said);
}

/**
 * Refreshes the pools: each second on their page, otherwise at intervals to show whether one needs
 * attention.
 * @param {boolean} isHere
 */
async function askPools(isHere) {
  await ask(() => refreshPart(pools));
  if (isHere || pools.denied) await ask(() => notifications.refresh());
}

/** Returns the field that searches the visible view; without one, that of the jobs, after going there. */
function searchField() {
  const field = (/** @type {string} */ page) => /** @type {HTMLElement | null} */ ([...$(page).querySelectorAll('[data-search]')].find((one) => one.checkVisibility()) ?? null);
  const own = field(PAGES[view]);
  if (own) return own;
  location.hash = '#jobs';
  route();
  return field(PAGES.jobs);
}

// === requests ===

/**
 * Runs a request and records whether the server answers. A refusal is said in the note of the part
 * that asked, if it has one, until the part is answered.
 * @param {() => Promise<void>} question @param {HTMLElement} [note]
 */
async function ask(question, note) {
  try {
    await question();
    server.unreachable = false;
    if (!note) return;
    clearFailure(note);
    failedQuestions.delete(note);
  } catch (error) {
    const { status, message } = /** @type {any} */ (error);
    if (status === undefined) throw error;
    if (note) failedQuestions.set(note, question);
    // While there is no live data, the header says that there is no answer.
    if (note && status !== 401 && (status !== 0 || state.phase === 'live')) noteFailure(note, message);
    server.unreachable = status === 0;
    schedule();
  }
}

function askThrottles() {
  return ask(async () => {
    try {
      take({ type: 'throttles', data: await get('/api/v1/throttles') });
      server.refused.throttles = '';
    } catch (error) {
      const { status, problem } = /** @type {any} */ (error);
      const why = refusalText(error);
      server.refused.throttles = status > 0 && status !== 401 ? why : '';
      take({ type: 'store', data: problem?.code === 'throttles_unavailable' ? why : '' });
      throw error;
    }
  });
}

function askThrottlesSoon() {
  clearTimeout(askSoon);
  askSoon = window.setTimeout(askThrottlesOnce, 150);
}

async function askLists() {
  await ask(async () => take({ type: 'decisions', data: readable(await getAllowed('/api/v1/decisions?limit=200'), $('decisions-empty')) }));
  await ask(async () => take({ type: 'failures', data: readable(await getAllowed('/api/v1/failures?limit=50'), $('failures-empty')) }));
  await ask(async () => take({ type: 'audits', data: await getAllowed('/api/v1/audit?limit=50') }));
}

/**
 * Repeats a request while the page is visible and signed in, but not before the last one is answered.
 * @param {() => Promise<void>} question @param {number} each_ms
 */
function poll(question, each_ms) {
  const askOnce = oneAtATime(question);
  setInterval(() => {
    if (!document.hidden && state.phase !== 'unauthorized') askOnce();
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
  $('throttles-filter').addEventListener('input', () => schedule());
  $('throttles-filter').addEventListener('submit', (/** @type {Event} */ event) => event.preventDefault());
  for (const id of ['create-first', 'create-throttle']) $(id).addEventListener('click', () => create(''));
  $('create-named').addEventListener('click', () => create(place.throttle));
  $('enqueue-job').addEventListener('click', enqueue);
  new Keyboard({ page: () => $(PAGES[view]), search: () => searchField() });
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
      for (const part of ['decisions', 'failures']) dirty.add(part);
      schedule();
    }
  });
  // A browser may keep a page that was left, with its stream, which takes one of its few connections.
  addEventListener('pagehide', () => live.close());
  addEventListener('pageshow', (event) => {
    if (event.persisted) live.open();
  });
  setInterval(() => {
    if (document.hidden) return;
    live.watch();
    if (state.phase !== 'live') schedule(); // Ticks draw by themselves; without them the ages must still grow.
  }, 1_000);
  poll(askThrottlesOnce, POLL_THROTTLES_MS);
  poll(async () => { if (view === 'overview') await ask(() => running.refresh(), $('running-note')); }, POLL_JOBS_MS);
  poll(async () => { if (view === 'jobs' && jobList.pages === 1) await ask(() => jobList.refresh(), $('jobs-note')); }, POLL_JOBS_MS);
  poll(async () => { if (view === 'jobs') await Promise.all([ask(() => groups.refresh(), $('groups-note')), ask(() => refreshPart(workerList), $('workers-note')), jobList.pages > 1 && ask(() => jobList.refresh(), $('jobs-note'))]); }, POLL_SLOW_MS);
  poll(async () => { if (view === 'job') await ask(() => jobPage.refresh(), $('job-note')); }, POLL_JOBS_MS);
  poll(() => ask(() => refreshPart(pauseAll)), POLL_PAUSE_MS);
  poll(async () => { if (view === 'failures') await ask(() => failures.refresh(), $('dead-said')); }, POLL_SLOW_MS);
  poll(() => ask(() => refreshPart(unserved)), POLL_SLOW_MS);
  poll(async () => { if (view === 'schedules') await ask(() => refreshPart(crons), $('crons-note')); }, POLL_SLOW_MS);
  poll(async () => { for (const [note, question] of failedQuestions) if (note.checkVisibility()) ask(question, note); }, POLL_SLOW_MS);
  poll(() => ask(() => refreshPart(pools)), POLL_SLOW_MS);
  poll(async () => { if (view === 'pools') await ask(() => refreshPart(pools)); }, POLL_POOLS_MS);
  poll(async () => { if (view === 'pools') await ask(() => notifications.refresh()); }, POLL_JOBS_MS);
  poll(async () => { if (view !== 'tenants') await ask(() => tenants.refresh()); }, POLL_SLOW_MS);
  poll(async () => { if (view === 'tenants') await ask(() => batches.refresh()); }, POLL_JOBS_MS);
  poll(async () => { if (view === 'tenants') await Promise.all([tenants, channels].map((part) => ask(() => part.refresh()))); }, POLL_TENANTS_MS);
  poll(async () => { if (view !== 'recipients') await ask(() => recipients.refresh()); }, POLL_SLOW_MS);
  poll(async () => { if (view === 'recipients') await ask(() => recipients.refresh()); }, POLL_TENANTS_MS);
  setInterval(() => { if (!document.hidden && view === 'tenants') schedule(); }, 1_000); // Countdowns go on between answers.
  $('skip').addEventListener('click', () => $(PAGES[view]).focus());
  session.changed = (isDenied) => take({ type: 'phase', data: isDenied ? 'unauthorized' : 'live' });
  // Another tab may have signed in again.
  setInterval(() => { if (!document.hidden && session.isDenied) ask(() => pauseAll.refresh()); }, POLL_THROTTLES_MS);
  addEventListener('hashchange', route);
  route();
  if (view !== 'pools') askPools(false);
  if (view !== 'tenants') ask(() => tenants.refresh());
  if (view !== 'recipients') ask(() => recipients.refresh());
  askThrottlesOnce();
  for (const part of [pauseAll, unserved]) ask(() => refreshPart(part));
  live.open();
  schedule();
}

start();
