// The mock's tenants and batches: one at its limit with a crowd that waits, one with 1,000 modules, one
// whose queue is full, 230 more, and 10,000 batches.

const iso = (t) => new Date(t * 1000).toISOString();
const MODULES = 1_000;
const BATCHES = 10_000;
const HOSTILE = '<img src=x onerror=alert(1)>';

export class MockTenants {
  /** @param {number} now unix seconds */
  constructor(now) {
    this.now = now;
    this.begin = now;
    this.mayChange = true;
    this.tenants = [
      this.tenant('acme', { state: 'waiting', used: 100, waiting: 4_321, scheduled: 200, oldest: 95, pending: 4_700 }),
      this.tenant('bulk', { state: 'waiting', used: 37, waiting: 12, oldest: 3, pending: 49 }),
      this.tenant('crowd', { feedback: { accepted: 1_200, bounced: 4, complained: 3, unsubscribed: 0 }, state: 'queue_full', used: 100, waiting: 10_000, oldest: 5_400, pending: 10_000 }),
      this.tenant('paused', { state: 'paused', used: 0 }),
      this.tenant('quiet', { state: 'flowing', used: 12, pending: 3 }),
      this.tenant('resting', { state: 'unknown', window: null, per_module: null }),
      ...Array.from({ length: 230 }, (_, i) => this.tenant(`shop-${String(i + 1).padStart(3, '0')}`, { state: 'flowing', used: i % 90 })),
      this.tenant('unlimited', { state: 'flowing', window: null, per_module: null }),
    ];
    this.batches = Array.from({ length: BATCHES }, (_, i) => this.batch(BATCHES - i));
  }

  tenant(name, { used = 0, oldest = null, ...more }) {
    return { tenant: name, throttle: `notify:${name}`, state: 'flowing', window: { limit: 100, span_s: 60, used }, per_module: { limit: 50, span_s: 60 }, waiting: 0, scheduled: 0, oldest_waiting_s: oldest, pending: 0, pending_max: 10_000, ...more };
  }

  /** The use of channels: one tenant at both limits, one that is quiet, the operators, and Redis away. */
  channels() {
    const of = (tenant, more) => ({ tenant, connections: 0, connections_max: 1_000, messages_used: 0, messages_max: 200, messages: 0, waiting: 0, limited: 0, limited_at: null, warnings: 0, ...more });
    return [of('', { connections: 2, messages: 12 }), of('acme', { connections: 1_000, messages_used: 200, messages: 1_234_567, waiting: 4_321, limited: 87, limited_at: iso(this.now - 4), warnings: 86_000 }),
      of('quiet', { connections: 12, messages_used: 3, messages: 901 }), of('resting', { messages_used: null, messages_max: null, connections_max: null })];
  }

  window(window) {
    if (!window) return null;
    const left = 60 - ((this.now - this.begin) % 60);
    return { ...window, remaining: window.limit - window.used, next_at: window.used >= window.limit ? iso(this.now + left) : null, resets_at: window.used > 0 ? iso(this.now + left) : null };
  }

  batch(id) {
    const of = (state, counts, more = {}) => ({ id, tenant: id % 3 ? 'acme' : 'bulk', module: id % 2 ? 'web' : 'shop', state, paused_by_operators: false, recipients: Object.values(counts).reduce((n, m) => n + m, 0), counts, estimate: null,
      created_at: iso(this.begin - 40 * (BATCHES - id)), updated_at: iso(this.begin), ...more });
    if (id === BATCHES) return of('running', { sent: 50, waiting: 250 }, { tenant: 'acme', module: 'web', estimate: iso(this.begin + 318) });
    if (id === BATCHES - 1) return of('paused', { delivered: 80, failed: 10, bounced: 10, waiting: 100 }, { tenant: 'acme', module: 'shop' });
    if (id === BATCHES - 2) return of('expanding', { expanding: 500 }, { tenant: 'bulk', module: HOSTILE, estimate: iso(this.begin + 90_000) });
    if (id === BATCHES - 3) return of('cancelled', { sent: 20, cancelled: 80 });
    return of('done', { delivered: 95 - (id % 20), failed: id % 20, duplicate: 5 });
  }

  /** @param {number} now */
  step(now) {
    this.now = now;
  }

  modules(name, params) {
    const limit = Number(params.get('limit') ?? 50);
    const size = name === 'bulk' ? MODULES : name === 'acme' ? 3 : name === 'quiet' ? 0 : 1;
    const module = (i) => {
      const waits = name === 'acme' ? [4_000, 321, 0][i] : name === 'bulk' && i < 12 ? 1 : 0;
      const used = waits ? 50 : i % 50;
      const window = this.window({ limit: 50, span_s: 60, used });
      const word = name === 'acme' ? ['web', 'shop', HOSTILE][i] : `module-${String(i).padStart(4, '0')}`;
      return { module: word, state: waits ? 'waiting' : 'flowing', window, waiting: waits, oldest_waiting_s: waits ? 60 + i : null, counted_at: iso(this.now - 2), next_at: window.next_at, paused: null };
    };
    let all = Array.from({ length: size }, (_, i) => module(i));
    if (params.get('order') === 'depth') all = all.filter((one) => one.waiting > 0);
    if (params.get('module')) all = all.filter((one) => one.module === params.get('module'));
    return { tenant: name, at: iso(this.now), modules: all.slice(0, limit), next: all.length > limit ? '/api/v1/tenants/more' : null };
  }

  /**
   * @param {string} method @param {string} path @param {URLSearchParams} params
   * @returns {[number, any, string?] | null} the status, the body, and the title of a problem
   */
  answer(method, path, params) {
    const named = params.get('tenant');
    if (path === '/api/v1/tenants') {
      const limit = Number(params.get('limit') ?? 50);
      const found = this.tenants.filter((one) => !named || one.tenant === named);
      const tenants = found.slice(0, limit).map((one) => ({ ...one, window: this.window(one.window), counted_at: iso(this.now - 2) }));
      return [200, { at: iso(this.now), tenants, next: found.length > limit ? '/api/v1/tenants?after=x' : null }];
    }
    const modules = path.match(/^\/api\/v1\/tenants\/([^/]+)\/modules$/);
    if (modules) return [200, this.modules(decodeURIComponent(modules[1]), params)];
    if (path === '/api/v1/notifications/batches') {
      const limit = Number(params.get('limit') ?? 20);
      const before = Number(params.get('before') ?? Infinity);
      const found = this.batches.filter((one) => one.id < before && ['tenant', 'module', 'state'].every((field) => !params.get(field) || one[field] === params.get(field)));
      const batches = found.slice(0, limit);
      params.set('before', String(batches.at(-1)?.id ?? 0));
      return [200, { at: iso(this.now), batches, may_change: this.mayChange, may_overrule: true, next: found.length > limit ? `${path}?${params}` : null }];
    }
    const one = path.match(/^\/api\/v1\/notifications\/batches\/(\d+)(?:\/(pause|resume|cancel))?$/);
    if (!one) return null;
    const batch = this.batches.find((each) => each.id === Number(one[1]));
    if (!batch) return [404, null, 'batch not found'];
    if (method === 'POST' && !this.mayChange) return [403, null, 'the token lacks a scope'];
    if (!one[2]) return [200, batch];
    if (batch.state === 'cancelled' && one[2] !== 'cancel') return [409, null, 'the batch is cancelled'];
    if (one[2] === 'pause') Object.assign(batch, { state: 'paused', paused_by_operators: true });
    if (one[2] === 'resume') Object.assign(batch, { state: 'running', paused_by_operators: false });
    if (one[2] !== 'cancel') return [200, { state: batch.state }];
    const { waiting = 0, expanding = 0, queued = 0, cancelled = 0, ...ended } = batch.counts;
    batch.counts = { ...ended, cancelled: waiting + expanding + queued + cancelled };
    Object.assign(batch, { state: 'cancelled', estimate: null });
    return [200, { state: 'cancelled', sent: batch.recipients - batch.counts.cancelled, cancelled: batch.counts.cancelled, too_late: 0, ended: {} }];
  }
}
