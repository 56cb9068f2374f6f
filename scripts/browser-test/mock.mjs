// A mock of Flyball's API with changing data, for work on the dashboard and for its test. Node.js
// only, no dependencies.
//
//   node scripts/browser-test/mock.mjs [--port 8099] [--phase steady|open|recovered]
//     [--empty] [--token TOKEN]
//
// The story repeats: a reindex cruises at its setpoint, its documents get ten times harder, the breaker trips, probes, and the
// governor finds the new rate. POST /__mock {"fail": "down" | "401" | "stream" | "pools" | "tenants" | "leave" | "delete" | "pause" | "lists" | null, "edit": {"throttle", "by", "knobs"},
// "story": "open"} makes it misbehave.

import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import path from 'node:path';

import { MockJobs } from './mock-jobs.mjs';
import { MockPools } from './mock-pools.mjs';
import { MockRecipients, gates } from './mock-recipients.mjs';
import { MockTenants } from './mock-tenants.mjs';

const DASHBOARD = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../src/api/dashboard');
export const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
  + "base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8', '.svg': 'image/svg+xml' };
const HISTORY_S = 600;
/** Where in the story's circle the present is, by name. */
const PHASES = { steady: 100, open: 118, probing: 140, recovered: 260 };
const STORY_S = 320;

const iso = (t) => new Date(t * 1000).toISOString();

/** Small repeatable noise, so that two runs show the same picture. */
function noise(seed) {
  let x = seed;
  return () => {
    x = (x * 1664525 + 1013904223) % 4294967296;
    return x / 4294967296 - 0.5;
  };
}

class World {
  constructor({ phase = 'steady', empty = false } = {}) {
    this.empty = empty;
    this.rnd = noise(7);
    this.seq = 1;
    this.decisionId = 0;
    this.ticks = [];
    this.decisions = [];
    this.failures = [];
    this.audit = [];
    this.listeners = new Set();
    this.throttles = new Map();
    this.lanes = new Map();
    this.mayChange = true;
    /** @type {MockJobs | null} */
    this.stored = null;
    this.crons = [];
    this.paused = null;
    this.unserved = [];
    this.workers = [];
    /** The number of live workers in the ticks. */
    this.live = 3;
    /** True if the token is of a tenant. */
    this.isTenants = false;
    /** The throttles that are in no tick. */
    this.silent = [];
    /** 'lost' while Redis does not answer; 'untold' if the ticks do not say so. */
    this.store = '';
    /** True while Postgres accepts no writes. */
    this.unwritable = false;
    this.pools = null;
    this.tenants = null;
    this.recipients = null;
    this.addLimits();
    const now = Math.floor(Date.now() / 1000);
    this.now = now - HISTORY_S;
    this.clock = PHASES[phase] - HISTORY_S;
    if (!empty) this.populate();
    while (this.now < now) this.step();
    if (!empty) {
      this.stored = new MockJobs(now, () => this.jobs());
      this.pools = new MockPools(now);
      this.tenants = new MockTenants(now);
      this.recipients = new MockRecipients(now);
      const past = (s, entry) => this.audit.unshift({ at: iso(now - s), ...entry });
      past(1900, { actor: 'tom', action: 'throttle.set', subject: 'webhooks', before: { rps: 20 }, after: { rps: 50 }, why: 'customer asked for more' });
      past(48, { actor: 'anna', action: 'throttle.set', subject: 'reindex', before: { max: 1000 }, after: { max: 2000 }, why: 'new disks' });
    }
  }

  /** The limits of the API itself are there on a fresh server too. */
  addLimits() {
    const knobs = { manual_until_ms: null, burst: 1, window: 1, min: 1, max: 6000, safe_rps: 5, capacity: -1, capacity_reason: '', key_rps: -1, key_burst: 1, on_store_loss: 'local', borrow: false, on_429: 'active-informed', over_limit: 'wait', concurrency: -1, key_concurrency: -1, weight: 1, max_backlog: null, on_backlog: 'signal', valid_until_ms: null, by: 'flyball', at_ms: this.now * 1000, why: '' };
    for (const name of ['acquire', 'denied', 'ops', 'read', 'stream', 'write']) {
      this.throttles.set(`api:${name}`, { name: `api:${name}`, mode: 'manual', parent: null, paused: false, knobs: { ...knobs, rps: 6000 }, signals: null, breaker: null, ready: 0, scheduled: 0, running: 0, dead: 0, achieved: 0, share: 0, problems: [], seq: this.seq++ });
    }
  }

  populate() {
    const base = { manual_until_ms: null, burst: 1, window: 1, min: 1, max: 2000, safe_rps: 5, capacity: -1, capacity_reason: '', key_rps: -1, key_burst: 1, on_store_loss: 'closed', borrow: false, on_429: 'active-informed', trust_scope: 'key', max_pause: null, over_limit: 'wait', concurrency: -1, key_concurrency: -1, weight: 1, max_backlog: null, on_backlog: 'signal', valid_until_ms: null, by: 'governor', at_ms: this.now * 1000, why: '' };
    const add = (name, mode, knobs, more = {}) => this.throttles.set(name, { name, mode, parent: null, paused: false, knobs: { ...base, ...knobs }, signals: null, breaker: null, ready: 0, scheduled: 0, running: 0, dead: 0, achieved: 0, share: 0, problems: [], seq: this.seq++, ...more });
    add('reindex', 'auto', { rps: 240 }, { ready: 42000, breaker: 'closed', limiting: 'search-load', reason: '', signals: { 'search-load': { value: 0.9, setpoint: 1, trip: 2 }, 'store-latency': { value: 40, setpoint: 80, trip: 240 } } });
    add('notify.sms', 'auto', { rps: 28, min: 0.5, max: 100, safe_rps: 1, key_rps: 1, on_store_loss: 'local' }, { parent: 'notify', ready: 310, scheduled: 12, dead: 3, breaker: 'closed', limiting: 'idle', reason: '', signals: { 'provider-429': { value: 0.01, setpoint: 0.02, trip: 0.2 } } });
    add('notify.push', 'auto', { rps: -1, concurrency: 42, min: 1, max: 500 }, { actuator: 'concurrency', parent: null, ready: 90, breaker: 'closed', limiting: 'answers', reason: 'answers reads 0.1, setpoint 0.1 (2 s old): holding 42 slots', signals: { answers: { value: 0.1, setpoint: 0.1, trip: 0.2 } } });
    add('webhooks', 'manual', { rps: 50, by: 'tom', why: 'customer asked for more', key_rps: 2 }, { ready: 1204, scheduled: 31, dead: 2 });
    add('mail.import', 'manual', { rps: 5, by: 'redis-cli', why: '' }, { ready: 87, problems: [{ field: 'rps', message: '"ten" is not a number; running at safe_rps 5' }], bad: true });
    const seeded = { by: 'pool', why: 'from the settings of the pool' };
    add('sms', 'manual', { rps: 500000, capacity: 450000, capacity_reason: '450 of 500 accounts are available: 30 blocked, 20 with an open breaker', ...seeded });
    add('mail', 'manual', { rps: 250, capacity: 0, capacity_reason: 'no account is available: 2 blocked, 1 with an open breaker', ...seeded });
    add('notify.chat', 'manual', { rps: 800, ...seeded });
    add('default', 'off', { rps: -1, by: '' }, { ready: 0 });
    const lane = (key, depth, oldest, more = {}) => ({ key, depth, oldest_ready_s: depth ? oldest : null, weight: 1, paused: null, learned: null, first_seen: iso(this.now - 86400 * 3), ...more });
    this.lanes.set('webhooks', [
      lane('customer-7', 611, 5400, { paused: { until: iso(this.now + HISTORY_S + 540), why: '429 from hooks.example.com' } }),
      ...Array.from({ length: 130 }, (_, i) => lane(`customer-${100 + i}`, 130 - i, 40 + i, i === 3 ? { weight: 2.5 } : i === 1 ? { learned: { rps: 0.4, probing: false, refused: 31 } } : i === 2 ? { learned: { rps: 0, probing: false, refused: 4 } } : {})),
      lane('', 4, 2),
    ]);
    const cron = (name, expression, more) => ({ name, expression, time_zone: 'Europe/Berlin', kind: 'http', throttle: 'default', key: '', paused: false, next_at: iso(this.now + HISTORY_S + 5000), last_at: iso(this.now - 80000), last_job_id: 7600000123, problem: null, ...more });
    this.crons = [cron('nightly-report', '30 2 * * MON-FRI'), cron('sweep', '*/5 * * * *', { time_zone: 'UTC', next_at: iso(this.now + HISTORY_S + 90), key: 'house' }), cron('import', '@hourly', { paused: true, next_at: null, problem: 'there is no kind "imprt"; known kinds: http, reindex' })];
  }

  /** One second of the world. */
  step() {
    this.now += 1;
    this.clock += 1;
    const story = ((this.clock % STORY_S) + STORY_S) % STORY_S;
    for (const t of this.throttles.values()) {
      if (t.name === 'reindex') this.reindex(t, story);
      else if (t.name === 'notify.sms') this.notify(t, story);
      else this.plain(t);
    }
    this.pools?.step(this.now);
    this.tenants?.step(this.now);
    this.recipients?.step(this.now);
    const tick = this.tick();
    this.ticks.push(tick);
    if (this.ticks.length > HISTORY_S) this.ticks.shift();
    this.emit('tick', tick);
    if (!this.empty && this.now % 23 === 0) this.fail(story);
  }

  effective(t) {
    if (t.paused || t.breaker === 'open') return 0;
    const rate = t.bad ? t.knobs.safe_rps : t.knobs.rps;
    return t.knobs.capacity >= 0 && (rate < 0 || rate > t.knobs.capacity) ? t.knobs.capacity : rate;
  }

  reindex(t, story) {
    const cost = story >= 110 && story < 290 ? 10 : 1;
    const rate = this.effective(t);
    t.achieved += (Math.min(rate, 400) * (1 + this.rnd() * 0.04) - t.achieved) * 0.6;
    if (t.achieved < 0.05) t.achieved = 0;
    const load = (t.achieved * cost) / 250;
    const s = t.signals['search-load'];
    const tau = load > s.value ? 4 : 9;
    s.value = Math.max(0.05, s.value + (load - s.value) / tau + this.rnd() * 0.05);
    t.signals['store-latency'].value = 30 + 40 * Math.min(3, s.value) + this.rnd() * 9;
    t.share = t.paused ? 0 : 0.94 + this.rnd() * 0.06;
    t.ready = Math.max(2000, t.ready - t.achieved * 0.2);
    t.running = Math.round(Math.min(16, t.achieved / 12 + 1));
    if (t.paused || t.mode !== 'auto') return;
    const before = t.knobs.rps;
    if (t.breaker === 'closed' && s.value > s.trip) {
      t.breaker = 'open';
      t.openedAt = this.now;
      t.resume = 24;
      this.decide(t, before, 0, 'search-load', `search-load ${s.value.toFixed(2)} is above its trip level ${s.trip}: stopped, until it has drained`);
      t.knobs.rps = 0;
    } else if (t.breaker === 'open' && this.now - t.openedAt > 22) {
      t.breaker = 'half_open';
      t.probeAt = this.now;
      t.knobs.rps = 2;
      this.decide(t, 0, 2, 'search-load', `search-load drained to ${s.value.toFixed(2)}: one probe at 2 rps`);
    } else if (t.breaker === 'half_open' && this.now - t.probeAt > 12) {
      t.breaker = 'closed';
      t.knobs.rps = 8;
      this.decide(t, 2, 8, 'search-load', 'the probe went well: slow start at 8 rps towards the modelled 24');
    } else if (t.breaker === 'closed' && this.now % 5 === 0) {
      const error = 1 - s.value;
      const next = Math.min(t.knobs.max, Math.max(t.knobs.min, before * Math.exp(Math.max(-0.5, Math.min(0.16, error * 0.45)))));
      t.knobs.rps = Number(next.toFixed(2));
      const word = Math.abs(error) < 0.05 ? 'holding' : error > 0 ? 'room to grow' : 'easing off';
      this.decide(t, before, t.knobs.rps, story % 60 > 48 && story < 110 ? 'store-latency' : 'search-load', `search-load ${s.value.toFixed(2)} of 1.0: ${word}`, { p: error * 0.4, i: Math.log(before), error });
    }
    if (t.knobs.rps !== before) Object.assign(t, { seq: this.seq++ }).knobs.at_ms = this.now * 1000;
  }

  notify(t, story) {
    const rate = this.effective(t);
    const wanted = 11 + 6 * Math.sin(this.now / 40);
    t.achieved += (Math.min(rate, wanted) - t.achieved) * 0.4 + this.rnd() * 0.4;
    t.achieved = Math.max(0, t.achieved);
    t.share = 0.04;
    t.ready = Math.max(0, Math.round(20 + 15 * Math.sin(this.now / 25)));
    t.running = 3;
    t.signals['provider-429'].value = 0.008 + this.rnd() * 0.006;
    t.signals['provider-429'].stale = story > 200 && story < 230;
    t.signals['provider-429'].age_s = t.signals['provider-429'].stale ? 40 + (story - 200) : 3;
    if (t.mode === 'auto' && this.now % 15 === 0) {
      const stale = t.signals['provider-429'].stale;
      this.decide(t, t.knobs.rps, t.knobs.rps, stale ? 'stale' : 'idle', stale ? 'provider-429 has no fresh reading: holding' : 'the queue, not the rate, is the limit: no growth while idle');
    }
  }

  plain(t) {
    const rate = this.effective(t);
    const wanted = t.name === 'default' ? 1.2 : 400;
    t.achieved += (Math.min(rate < 0 ? Infinity : rate, wanted) * (1 + this.rnd() * 0.05) - t.achieved) * 0.6;
    t.share = rate < 0 || t.stuck ? 0 : 0.99;
    if (t.stuck) t.achieved = 0;
    t.ready = Math.max(0, t.ready + (t.name === 'webhooks' ? this.rnd() * 40 : 0));
    t.running = t.actuator ? Math.round(36 + 6 * Math.sin(this.now / 15)) : t.name === 'webhooks' ? 9 : t.name === 'default' ? 0 : 1;
  }

  decide(t, previous, rps, limiting, reason, terms = {}) {
    t.limiting = limiting;
    t.reason = reason;
    t.decidedAt = this.now;
    const d = { id: (this.decisionId += 1), throttle: t.name, at: iso(this.now), rps, previous_rps: previous, breaker: t.breaker, mode: t.mode, limiting, reason, terms };
    this.decisions.unshift(d);
    this.decisions.length = Math.min(this.decisions.length, 1000);
    this.emit('decision', d);
  }

  fail(story) {
    const rows = [
      { kind: 'http', throttle: 'webhooks', key: 'customer-19', attempt: 3, outcome: 'failed', error: 'POST https://hooks.example.com/in answered 502 Bad Gateway' },
      { kind: 'notification', throttle: 'notify.sms', key: 'tenant-4', attempt: 1, outcome: 'throttled', error: '429, Retry-After 5' },
      { kind: 'http', throttle: 'webhooks', key: 'customer-7', attempt: 10, outcome: 'dead', error: 'https://old.example.org: certificate has expired' },
      { kind: 'reindex', throttle: 'reindex', key: '', attempt: 1, outcome: 'lost', error: 'its worker died' },
    ];
    const row = rows[Math.floor(this.now / 23) % rows.length];
    const f = { job_id: 7600000000 + (this.now % 100000), at: iso(this.now), ...row };
    if (f.outcome === 'dead') this.throttles.get('webhooks').dead += 1;
    this.failures.unshift(f);
    this.failures.length = Math.min(this.failures.length, 100);
    this.emit('failure', f);
  }

  state(t) {
    if (t.paused) return 'paused';
    if (t.knobs.concurrency === 0) return 'stopped';
    if (t.refusal) return 'refused';
    if (this.unwritable && !t.name.startsWith('api:')) return 'no_writes';
    if (t.bad) return 'safe_rps';
    const rate = this.effective(t);
    return rate === 0 ? 'stopped' : rate < 0 ? 'unlimited' : 'flowing';
  }

  signals(t) {
    return Object.entries(t.signals ?? {}).map(([name, s]) => ({ name, kind: name.includes('429') ? 'ratio' : name.includes('latency') ? 'latency' : 'load', value: s.stale ? null : s.value, setpoint: s.setpoint, trip: s.trip, at: iso(this.now - 3), age_s: s.age_s ?? (this.now % 5) + 0.4, stale: Boolean(s.stale), proposed_rps: null, learned_quota: name.includes('429') ? { rps: 40.2, at: iso(this.now - 240), refused_share: 0.021 } : null }));
  }

  tick() {
    const throttles = {};
    for (const t of this.throttles.values()) {
      if (this.silent.includes(t.name)) continue;
      throttles[t.name] = this.store ? { rps: null, effective_rps: null, concurrency: null, achieved_rps: null, limiting_share: null, mode: t.mode, state: 'unknown', breaker: null, ready: Math.round(t.ready), running: t.running, dead: t.dead, oldest_ready_s: 95, signals: {} } : { rps: t.knobs.rps, effective_rps: this.effective(t), concurrency: t.knobs.concurrency, achieved_rps: Math.max(0, t.achieved), limiting_share: t.share, mode: t.mode, state: this.state(t), breaker: t.breaker, ready: Math.round(t.ready), running: t.running, dead: t.dead, oldest_ready_s: t.ready > 0 ? 95 + t.ready / 50 : null, signals: Object.fromEntries(this.signals(t).map(({ name, value, setpoint, trip, age_s, stale }) => [name, { value, setpoint, trip, age_s, stale }])) };
    }
    return { at: this.now, throttles, running_total: [...this.throttles.values()].reduce((n, t) => n + t.running, 0), workers: this.empty ? 1 : this.live, depth_age_s: 1.2, ...(this.store === 'untold' ? {} : { store_lost: this.store === 'lost' }), queue_unwritable: this.unwritable };
  }

  show(t) {
    return { name: t.name, mode: t.mode, parent: t.parent, paused: t.paused, seq: t.seq, knobs: t.knobs, effective_rps: this.effective(t), achieved_rps: t.achieved, limiting_share: t.share, state: this.state(t), problems: t.problems, refusal: t.refusal ?? null, debt_until: null,
      depth: { ready: Math.round(t.ready), scheduled: t.scheduled, running: t.running, dead: t.dead, oldest_ready_s: t.ready > 0 ? 95 + t.ready / 50 : null, at: iso(this.now - 1) },
      governor: t.signals && { actuator: t.actuator ?? 'rps', unit: t.actuator ? 'slots' : 'rps', breaker: t.breaker, limiting: t.limiting, reason: t.reason, at: iso(t.decidedAt ?? this.now), signals: this.signals(t),
        findings: [{ finding: 'idle', since: iso(this.now - 900), sentence: 'nobody waits for tokens while 120 jobs wait' }], gain_factor: 1 } };
  }

  /** A person's edit: what the API does with a PATCH. */
  edit(t, body) {
    const { by, why, mode, paused, ...knobs } = body;
    const before = {};
    const after = {};
    const set = (target, name, value) => {
      before[name] = target[name];
      after[name] = value;
      target[name] = value;
    };
    for (const [name, value] of Object.entries(knobs)) set(t.knobs, name, value);
    if (mode !== undefined) set(t, 'mode', mode);
    if (paused !== undefined) set(t, 'paused', paused);
    if (paused === false) t.refusal = null;
    if (knobs.rps !== undefined) Object.assign(t, { bad: false, problems: [] });
    Object.assign(t.knobs, { by: by || 'api', at_ms: Math.round(Date.now()), why: why ?? '' });
    t.seq = this.seq++;
    const entry = { at: new Date().toISOString(), actor: by || 'api', action: 'throttle.set', subject: t.name, before, after, why: why ?? null };
    this.audit.unshift(entry);
    this.emit('audit', entry);
  }

  jobs() {
    if (this.empty) return [];
    const job = (id, kind, throttle, key, age) => ({ id, kind, throttle, key, state: 'running', priority: 1, attempt: 1, max_attempts: 10, cost: 1, created_at: iso(this.now - age), due_at: null, last_error: null });
    return [job(7612345678, 'reindex', 'reindex', '', 900), job(7612345699, 'reindex', 'reindex', 'tenant-9', 420), ...Array.from({ length: 9 }, (_, i) => job(7612346000 + ((this.now * 3 + i * 7) % 900), 'http', 'webhooks', `customer-${i}`, 1))];
  }

  /** Makes a throttle with the knobs of a limit of the API, if there is none. @param {string} name */
  create(name) {
    const [like] = this.throttles.values();
    if (!this.throttles.has(name)) this.throttles.set(name, { ...like, name, knobs: { ...like.knobs, rps: 1 }, seq: this.seq++ });
  }

  emit(type, data) {
    for (const listener of this.listeners) listener(type, data);
  }
}

const problem = (status, title, errors = [], detail = title) => ({ status, body: { type: 'about:blank', title, status, detail, code: title.replaceAll(' ', '_'), errors } });

function validate(body) {
  const errors = [];
  for (const [name, value] of Object.entries(body)) {
    const bad = (message) => errors.push({ pointer: `/${name}`, message });
    if (['min', 'max', 'safe_rps', 'burst', 'window'].includes(name) && !(typeof value === 'number' && value >= 0 && value <= 1e6)) bad(`${value} is not allowed: use a number from 0 to 1000000`);
    if (['rps', 'key_rps', 'capacity'].includes(name) && !(typeof value === 'number' && (value === -1 || (value >= 0 && value <= 1e6)))) bad(`${value} is not allowed: use 0 to 1000000, or -1 for unlimited`);
    if (name === 'mode' && !['auto', 'manual', 'shadow', 'off'].includes(value)) bad(`"${value}" is not a mode: use auto, manual, shadow or off`);
  }
  return errors;
}

/**
 * Starts the mock; resolves to its url and means to steer it.
 * @param {{ port?: number, phase?: string, empty?: boolean, token?: string }} options
 */
export async function startMock({ port = 0, phase = 'steady', empty = false, token = undefined } = {}) {
  let world = new World({ phase, empty });
  let fail = null;
  /** The problem that answers requests of a path, by the path. */
  let refused = {};
  /** The delay of answers about jobs, in milliseconds. */
  let slow = 0;
  const streams = new Set();
  const requests = [];
  /** The bodies of the jobs that were enqueued, and of the updates of jobs. */
  const enqueued = [];
  const updated = [];
  const timer = setInterval(() => {
    const now = Math.floor(Date.now() / 1000);
    while (world.now < now) world.step();
  }, 250);

  const steer = (order) => {
    if ('fail' in order) {
      fail = order.fail;
      if (fail) for (const stream of streams) stream.destroy();
    }
    if ('mayChange' in order) world.tenants.mayChange = world.recipients.mayChange = order.mayChange;
    if ('reader' in order) world.mayChange = !order.reader;
    if ('failures' in order) for (const failure of order.failures) world.emit('failure', { at: iso(Date.now() / 1000), ...failure });
    if ('slow' in order) slow = order.slow;
    if (order.refused) world.throttles.get(order.refused).refusal = { until: iso(world.now + 3600), why: 'answered 429' };
    if (order.stuck) {
      Object.assign(world.throttles.get(order.stuck), { stuck: true, ready: 50 });
      for (const { throttles } of world.ticks) Object.assign(throttles[order.stuck], { limiting_share: 0, achieved_rps: 0, ready: 50, oldest_ready_s: 95 });
    }
    if ('live' in order) world.live = order.live;
    if ('isTenants' in order) world.isTenants = order.isTenants;
    if (order.knobs) Object.assign(world.throttles.get(order.knobs.throttle).knobs, order.knobs.to);
    if (order.unserved) world.unserved = order.unserved;
    if (order.workers) world.workers = order.workers;
    if (order.silent) world.silent = order.silent;
    if ('store' in order) world.store = order.store;
    if ('unwritable' in order) world.unwritable = order.unwritable;
    if (order.refuse) {
      refused = order.refuse;
      for (const stream of streams) stream.destroy();
    }
    if (order.set) Object.assign(world.throttles.get(order.set.throttle), order.set.to);
    if (order.phase || order.empty !== undefined) {
      world = new World({ phase: order.phase ?? 'steady', empty: Boolean(order.empty) });
      for (const stream of streams) stream.destroy();
    }
    if (order.edit) world.edit(world.throttles.get(order.edit.throttle), { by: order.edit.by, why: order.edit.why, ...order.edit.knobs });
  };

  const server = createServer(async (request, response) => {
    const url = new URL(request.url, 'http://mock');
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString();
    requests.push(`${request.method} ${request.url}`);
    const send = (status, body, type = 'application/json') => {
      response.writeHead(status, { 'content-type': type, 'content-security-policy': CSP, 'cache-control': 'no-store', 'x-content-type-options': 'nosniff' });
      response.end(typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body));
    };
    const refuse = ({ status, body }) => send(status, body, 'application/problem+json');
    try {
      const p = url.pathname;
      if (p === '/__mock') {
        steer(JSON.parse(text));
        return send(200, {});
      }
      if (p === '/login' && request.method === 'POST') {
        const right = new URLSearchParams(text).get('token') === token;
        if (right) response.setHeader('set-cookie', `flyball=${token}; HttpOnly; SameSite=Strict; Path=/`);
        response.setHeader('location', '/');
        if (right) return send(303, '', 'text/plain');
        const page = await readFile(path.join(DASHBOARD, 'login.html'), 'utf8');
        return send(401, page.replace('<!--error-->', 'The token is not valid.'), TYPES['.html']);
      }
      if (p === '/' || p === '/login' || p.startsWith('/assets/')) {
        const file = p === '/' ? 'index.html' : p === '/login' ? 'login.html' : path.basename(p);
        const bytes = await readFile(path.join(DASHBOARD, file)).catch(() => null);
        return bytes ? send(200, bytes, TYPES[path.extname(file)]) : send(404, 'no such file', 'text/plain');
      }
      if (fail === 'down') return request.socket.destroy();
      const signedIn = !token || request.headers.cookie?.includes(`flyball=${token}`);
      if (fail === '401' || !signedIn) return refuse(problem(401, 'a valid token is required'));
      if (refused[p]) return refuse(problem(...refused[p]));
      if (world.store && p.startsWith('/api/v1/throttles')) return refuse(problem(503, 'throttles unavailable', [], 'throttle store unavailable: connection refused'));
      if (p.endsWith('/history')) {
        const key = url.searchParams.get('key');
        const range = { '1h': 3600, '6h': 21600, '24h': 86400 }[url.searchParams.get('range')];
        const step = range / 240;
        const wave = (high, shift) => Array.from({ length: 240 }, (_, n) => ({ at: world.now - range + n * step, value: high * (1 + Math.sin(n / 17 + shift)) })).filter((_, n) => n < 90 || n > 110);
        const heights = key ? {} : { allowed: 1200, refused: 240, completed: 1100, throttled: 30, failed: 4 };
        const series = ['allowed', 'refused', 'completed', 'throttled', 'failed', 'achieved_rps'].map((name, n) => ({ name, unit: '1/min', points: heights[name] ? wave(heights[name], n) : [] }));
        return send(200, { throttle: 'webhooks', key, range_s: range, step_s: step, series, problem: null });
      }
      if (p === '/api/v1/stream') {
        if (fail === 'stream') return refuse(problem(503, 'no stream now'));
        response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'content-security-policy': CSP });
        let id = 0;
        const write = (type, data) => response.write(`${type === 'tick' ? `id: ${(id += 1)}\n` : ''}event: ${type}\ndata: ${JSON.stringify(data)}\n\n`);
        write('history', { may_change: world.mayChange, may_enqueue: world.mayChange, ticks: world.ticks });
        const here = world;
        here.listeners.add(write);
        streams.add(request.socket);
        request.socket.on('close', () => {
          here.listeners.delete(write);
          streams.delete(request.socket);
        });
        return undefined;
      }
      if (world.isTenants && /^\/api\/v1\/(pause|pools|gates|decisions|workers|crons|suppressions|channels)\b/.test(p)) return refuse(problem(403, 'not allowed', [], `${request.method} ${p} is for operators; token acme is of a tenant`));
      const limit = Number(url.searchParams.get('limit') ?? 100);
      if (p === '/api/v1/throttles') return send(200, { at: iso(world.now), may_change: world.mayChange, may_enqueue: world.mayChange, throttles: [...world.throttles.values()].map((t) => world.show(t)) });
      if (p === '/api/v1/decisions') return send(200, { decisions: world.decisions.slice(0, limit) });
      if (fail === 'lists' && /^\/api\/v1\/(jobs|audit|failures)/.test(p)) return refuse(problem(503, 'no answer', [], 'the queue store did not answer'));
      if (p === '/api/v1/failures') return send(200, { failures: world.failures.slice(0, limit) });
      if (p === '/api/v1/audit') return send(200, { entries: world.audit.slice(0, limit) });
      if (p === '/api/v1/workers') return send(200, { workers: world.workers, unserved: world.unserved });
      if (slow && /^\/api\/v1\/(jobs|failures|audit|pause)/.test(p)) await new Promise((resolve) => setTimeout(resolve, slow));
      if (p === '/api/v1/jobs/cancel' || p.startsWith('/api/v1/dead/')) return send(200, world.stored.many(p, JSON.parse(text)));
      if (p === '/api/v1/pause' || p === '/api/v1/resume') {
        const order = text ? JSON.parse(text) : {};
        if (fail === 'pause' && request.method === 'POST') return refuse(problem(503, 'no answer', [], 'the queue store did not answer'));
        if (request.method === 'POST') world.paused = p.endsWith('pause') ? { since: iso(world.now), by: order.by ?? 'api', why: order.why ?? '' } : null;
        return send(200, { paused: world.paused, changed: request.method === 'POST' });
      }
      const ofRecipients = world.recipients?.answer(request.method, p, url.searchParams);
      if (ofRecipients) return ofRecipients[2] ? refuse(problem(ofRecipients[0], ofRecipients[2])) : send(ofRecipients[0], ofRecipients[1]);
      if (p === '/api/v1/gates') return send(200, { held: [], collected: [], more: false });
      if (p === '/api/v1/digests') return send(200, { at: iso(world.now), digests: [], may_change: true, next: null });
      if (/^\/api\/v1\/notifications\/\d+\/explain$/.test(p)) {
        return send(200, { sentence: 'the message passes all gates', gates: gates(''), first_planned_at: null, planned_at: null, digest: null, forecast: null });
      }
      if (p === '/api/v1/channels') return send(200, { at: iso(world.now), next: null, tenants: world.tenants ? world.tenants.channels() : [] });
      if (/^\/api\/v1\/(tenants|notifications\/batches)/.test(p)) {
        if (fail === 'tenants') return refuse(problem(503, 'no answer', [], 'the queue store did not answer'));
        if (fail === 'leave') return refuse(problem(403, 'the token lacks a scope', [], `GET ${p} needs the scope ops:read; token page has jobs:read`));
        const found = world.tenants?.answer(request.method, p, url.searchParams);
        const [status, body, title] = found ?? [200, { at: iso(world.now), tenants: [], batches: [], may_change: true, next: null }];
        return title ? refuse(problem(status, title)) : send(status, body);
      }
      if (/^\/api\/v1\/(pools|notifications)/.test(p)) {
        if (fail === 'pools') return refuse(problem(503, 'no answer', [], 'the queue store did not answer'));
        const missing = (title) => [404, null, title];
        const [status, body, title] = world.pools?.answer(request.method, p, url.searchParams, text ? JSON.parse(text) : {}, missing) ?? [200, { pools: [], notifications: [], next: null }];
        return title ? refuse(problem(status, title)) : send(status, body);
      }
      if (p === '/api/v1/groups') return send(200, { groups: [], next: null });
      if (p === '/api/v1/suppressions') return send(200, { suppressions: [], next: null });
      if (p === '/api/v1/crons') return send(200, { crons: world.crons });
      const cron = p.match(/^\/api\/v1\/crons\/([^/]+)(?:\/(run|pause|resume))?$/);
      if (cron) {
        const one = world.crons.find((c) => c.name === decodeURIComponent(cron[1]));
        if (!one) return refuse(problem(404, 'schedule not found'));
        if (request.method === 'DELETE') {
          world.crons = world.crons.filter((c) => c !== one);
          return send(204, '');
        }
        if (cron[2] === 'run') return send(201, { id: 7600000777, duplicate: false });
        if (cron[2]) Object.assign(one, { paused: cron[2] === 'pause', next_at: cron[2] === 'pause' ? null : iso(world.now + 3600) });
        return send(200, one);
      }
      const lanes = p.match(/^\/api\/v1\/throttles\/([^/]+)\/lanes$/);
      if (lanes) {
        const name = decodeURIComponent(lanes[1]);
        const wanted = url.searchParams.get('key');
        const all = (world.lanes.get(name) ?? []).map((lane) => ({ ...lane, counted_at: iso(world.now - 2) }))
          .filter((lane) => wanted === null || lane.key === (wanted === '-' ? '' : wanted));
        if (url.searchParams.get('order') === 'key') all.sort((a, b) => (a.key < b.key ? -1 : 1));
        else all.sort((a, b) => b.depth - a.depth);
        const from = Number(url.searchParams.get('after') ?? 0);
        url.searchParams.set('after', String(from + limit));
        return send(200, { throttle: name, at: iso(world.now), lanes: all.slice(from, from + limit), next: all.length > from + limit ? `${p}${url.search}` : null });
      }
      const lane = p.match(/^\/api\/v1\/throttles\/([^/]+)\/keys\/([^/]+)(?:\/(pause|resume|jobs))?$/);
      if (lane) {
        const key = lane[2] === '-' ? '' : decodeURIComponent(lane[2]);
        const one = (world.lanes.get(decodeURIComponent(lane[1])) ?? []).find((l) => l.key === key);
        if (!one) return refuse(problem(404, 'lane not found'));
        const order = text ? JSON.parse(text) : {};
        if (lane[3] === 'pause') one.paused = { until: iso(world.now + order.seconds), why: order.why ?? '' };
        if (lane[3] === 'resume') one.paused = null;
        if (lane[3] === 'jobs') {
          const dry = url.searchParams.get('dry_run') === 'true';
          const jobs = dry ? one.depth : Math.min(one.depth, 300);
          if (!dry) one.depth -= jobs;
          if (one.depth === 0) one.oldest_ready_s = null;
          return send(200, { jobs, requested: 0, dry_run: dry, more: false, next: !dry && one.depth > 0 ? 'on' : null });
        }
        if (request.method === 'PATCH') one.weight = order.weight;
        return send(200, { ...one, until: one.paused?.until ?? null, waiting: { jobs: one.depth, more: false } });
      }
      if (p === '/api/v1/jobs' && request.method === 'POST') {
        const { kind } = JSON.parse(text);
        enqueued.push(text);
        if (kind === 'nobody-runs-it') return refuse(problem(422, 'invalid fields', [{ pointer: '#/kind', message: 'is not a registered kind' }]));
        return send(201, { id: 7600000899, duplicate: false });
      }
      if (p === '/api/v1/jobs') return send(200, world.stored ? world.stored.list(url.searchParams, p) : { jobs: [], next: null });
      let match = p.match(/^\/api\/v1\/jobs\/(\d+)(?:\/(retry|discard|reschedule))?$/);
      if (match) {
        const id = Number(match[1]);
        const verb = request.method === 'DELETE' ? 'cancel' : match[2];
        if (request.method === 'PATCH') {
          const wrong = world.stored?.update(id, JSON.parse(text));
          updated.push(text);
          if (wrong) return refuse(problem(422, 'invalid fields', [{ pointer: '#/priority', message: wrong }]));
        }
        const refused = verb ? world.stored?.change(id, verb, verb === 'reschedule' ? JSON.parse(text).run_at : null) : null;
        if (refused) return refuse(problem(409, 'wrong state', [], refused));
        const job = world.stored?.show(id, world.now);
        return job ? send(200, job) : refuse(problem(404, 'job not found', [], `there is no job ${id}`));
      }
      match = p.match(/^\/api\/v1\/throttles\/([^/]+)(\/why)?$/);
      if (match && request.method === 'PATCH' && url.searchParams.get('create') === 'true') world.create(decodeURIComponent(match[1]));
      const t = match && world.throttles.get(decodeURIComponent(match[1]));
      if (!t) return refuse(problem(404, 'not found'));
      if (match[2]) {
        const limit = Number(new URL(request.url, 'http://mock').searchParams.get('limit') ?? 20);
        const own = world.decisions.filter((d) => d.throttle === t.name).slice(0, limit);
        if (t.stuck) return send(200, { throttle: t.name, sentence: `${t.knobs.rps} rps, set manually. All 5 slots of ${t.name} (its knob concurrency) are in use.`, decisions: own });
        if (t.knobs.concurrency === 0) return send(200, { throttle: t.name, sentence: `${t.knobs.rps} rps, set manually. No job starts, because the knob concurrency of ${t.name} is 0.`, decisions: own });
        return send(200, { throttle: t.name, sentence: `${world.effective(t)} rps, ${t.reason || 'set manually'}.`, decisions: own });
      }
      if (request.method === 'DELETE') {
        if (fail === 'delete') return refuse(problem(409, 'the resource is in use', [], `${t.name} is the parent of others`));
        if (Math.round(t.ready) > 0 && url.searchParams.get('force') !== 'true') return refuse(problem(409, 'the resource is in use', [], `${Math.round(t.ready)} jobs wait for throttle ${t.name}, and would wait until it is created again; cancel the jobs or empty its lanes first, or delete it with force=true; nothing was deleted`));
        world.throttles.delete(t.name);
        return send(200, { throttle: t.name, waiting: { jobs: Math.round(t.ready), more: false } });
      }
      if (request.method === 'PATCH') {
        const body = JSON.parse(text);
        const errors = validate(body);
        if (errors.length) return refuse(problem(422, 'the knobs were refused', errors));
        const seen = request.headers['if-match'];
        if (seen !== undefined && seen !== `"${t.seq}"`) return refuse(problem(409, 'somebody was faster', [], `seq is ${t.seq}, not ${seen}`));
        world.edit(t, body);
      }
      return send(200, { ...world.show(t), ...(request.method === 'PATCH' && world.unwritable ? { warnings: ['the change was made, but writing it to the audit log failed'] } : {}) });
    } catch (error) {
      return refuse(problem(500, String(error)));
    }
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    requests,
    enqueued,
    updated,
    steer,
    close: () => {
      clearInterval(timer);
      server.close();
      server.closeAllConnections();
    },
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const option = (name, fallback) => {
    const i = process.argv.indexOf(`--${name}`);
    return i < 0 ? fallback : process.argv[i + 1];
  };
  const mock = await startMock({ port: Number(option('port', 8099)), phase: option('phase', 'steady'), empty: process.argv.includes('--empty'), token: option('token') });
  console.log(`mock of Flyball at ${mock.url}`);
}
