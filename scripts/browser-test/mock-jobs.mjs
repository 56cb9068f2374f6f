// The jobs of the mock: lists by filter, one job with its attempts, and changes of one and of many.

const iso = (t) => new Date(t * 1000).toISOString();
/** The jobs that a bulk change takes in one step, so that it needs several. */
const STEP = 20;
const LIVE = ['ready', 'running', 'scheduled', 'retryable'];
/** A text that becomes a script if a page puts it into HTML. */
export const HOSTILE = '<img src=x onerror="window.hacked=1">';

const ERRORS = ['https://old.example.org: certificate has expired', 'POST https://hooks.example.com/in answered 502 Bad Gateway', 'POST https://hooks.example.com/in answered 502 Bad Gateway'];

/** Returns the test of a filter of jobs. @param {(name: string) => any} given */
function matcher(given) {
  const like = given('error_like');
  const pattern = like ? new RegExp(`^${like.replace(/\\(.)|%/g, (all, literal) => (literal ? `\u0001${literal.charCodeAt(0)}\u0002` : '\u0003')).replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replaceAll('\u0003', '[^]*').replace(/\u0001(\d+)\u0002/g, (_, code) => String.fromCharCode(Number(code)).replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))}$`) : null;
  const trace = given('trace');
  return (job) => ['throttle', 'kind', 'key', 'state'].every((name) => !given(name) || job[name] === given(name)) && (!pattern || pattern.test(job.last_error ?? '')) && (!trace || job.traceparent?.includes(trace));
}

export class MockJobs {
  /** @param {number} now unix seconds @param {() => any[]} running the running jobs of now */
  constructor(now, running) {
    this.now = now;
    this.running = running;
    const job = (id, state, more) => ({ id, kind: 'http', throttle: 'webhooks', key: `customer-${id % 9}`, tenant: '', state, priority: 1, attempt: 0, max_attempts: 10, cost: 1, created_at: iso(now - 300), due_at: null, ended_at: null, last_error: null, max_attempts: 10, tags: [], ...more });
    const many = (n, first, make) => Array.from({ length: n }, (_, i) => make(first - i, i));
    this.stored = [
      ...many(120, 7600002000, (id, i) => job(id, 'ready', { created_at: iso(now - 2 * i) })),
      ...many(12, 7600001600, (id) => job(id, 'retryable', { attempt: 3, due_at: iso(now + 3600), last_error: ERRORS[1] })),
      ...many(8, 7600001500, (id, i) => job(id, 'scheduled', { throttle: 'notify.sms', kind: 'notification', created_at: iso(now - 200_000), due_at: iso(now + 40_000_000 + i), last_error: ERRORS[1] })),
      ...many(70, 7600000900, (id, i) => job(id, 'dead', { kind: i % 4 ? 'http' : 'mail', throttle: i % 4 ? 'webhooks' : 'notify.sms', key: `customer-${i % 9}`, attempt: 10, created_at: iso(now - 400 * i), ended_at: iso(now - 390 * i), last_error: i === 1 ? `job ${id} said ${HOSTILE}` : ERRORS[i % 3] })),
      ...many(30, 7600000700, (id, i) => job(id, 'completed', { attempt: 1, ended_at: iso(now - 200), traceparent: i === 3 ? '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' : null })),
    ];
  }

  all() {
    return [...this.running(), ...this.stored].sort((a, b) => b.id - a.id);
  }

  /** @param {URLSearchParams} query @param {string} path */
  list(query, path) {
    const limit = Number(query.get('limit') ?? 100);
    const match = matcher((name) => query.get(name));
    const isRecent = (job) => !query.get('created_after') || job.created_at >= query.get('created_after');
    const rest = this.all().filter((job) => match(job) && isRecent(job)).filter((job) => job.id < Number(query.get('before') ?? Infinity));
    const page = rest.slice(0, limit);
    const next = new URLSearchParams(query);
    next.set('before', String(page.at(-1)?.id ?? 0));
    const counts = query.get('counts') === 'true' ? { counts: { completed: 1204331, cancelled: 12 } } : {};
    return { jobs: page, next: rest.length > limit ? `${path}?${next}` : null, ...counts };
  }

  /** Changes all jobs of a filter in steps. @param {string} path @param {any} order */
  many(path, order) {
    const verb = path.split('/').at(-1);
    const states = path.includes('/dead/') ? ['dead'] : order.state ? [order.state] : LIVE;
    const fits = matcher((name) => (name === 'state' ? null : order[name]));
    const match = (job) => states.includes(job.state) && fits(job);
    const found = this.stored.filter(match);
    if (order.dry_run) return { jobs: found.length, requested: 0, dry_run: true, more: false, next: null };
    const taken = found.slice(0, STEP);
    for (const job of taken) Object.assign(job, { state: verb === 'requeue' ? 'ready' : 'cancelled' });
    return { jobs: taken.length, requested: 0, dry_run: false, more: found.length > STEP, next: found.length > STEP ? 'on' : null };
  }

  /** Changes one job; returns the title of a refusal, or null. @param {number} id @param {'retry' | 'cancel' | 'discard' | 'reschedule'} verb @param {string | null} at the time of a reschedule */
  change(id, verb, at = null) {
    const job = this.stored.find((one) => one.id === id);
    if (!job) return null;
    const allowed = { retry: ['dead', 'retryable', 'scheduled'], cancel: LIVE, discard: ['dead'], reschedule: ['ready', 'scheduled', 'retryable'] }[verb];
    if (!allowed.includes(job.state)) return `job ${id} is ${job.state}`;
    Object.assign(job, verb === 'reschedule' ? { state: 'scheduled', due_at: at } : { state: verb === 'retry' ? 'ready' : 'cancelled' });
    return null;
  }

  /** Updates a waiting job; returns the text of a refusal, or null. @param {number} id @param {any} change */
  update(id, { by, why, args, ...fields }) {
    const job = this.stored.find((one) => one.id === id);
    if (job && fields.priority > 3) return 'must be a whole number from 0 to 3 (0 runs first)';
    Object.assign(job ?? {}, fields);
    return null;
  }

  /** @param {number} id @param {number} now unix seconds */
  show(id, now) {
    const found = this.all().find((job) => job.id === id);
    if (!found) return null;
    const isRunning = found.state === 'running';
    const attempts = Array.from({ length: isRunning ? 0 : found.attempt }, (_, i) => ({ attempt: i + 1, outcome: i + 1 === found.max_attempts ? 'dead' : 'failed', worker: 'worker-1', started_at: iso(now - 300 + i), finished_at: iso(now - 299.2 + i), error: `${found.last_error}\nattempt ${i + 1}: ${'a long answer '.repeat(12)}` }));
    const done = Math.round((now * 37) % 50000);
    return { ...found, args: { url: 'https://hooks.example.com/in', note: HOSTILE, body: { invoice: 17, lines: [1, 2, 3] } }, unique: true, timeout_s: 60, traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', result: found.state === 'completed' ? { status: 200 } : null,
      worker: isRunning ? 'worker-2' : null, started_at: isRunning ? found.created_at : null, heartbeat_age_s: isRunning ? 1.5 : null, cancelling: false, attempts,
      progress: found.kind === 'reindex' ? { done, total: 50000, percent: done / 500, note: `about ${Math.ceil((50000 - done) / 2400)} min left`, at: iso(now) } : null,
      waiting: found.state === 'ready' ? { reason: 'The throttle webhooks gives 50 tokens a second and 311 jobs of its lane are before this one.', until: iso(now + 6) } : null };
  }
}
