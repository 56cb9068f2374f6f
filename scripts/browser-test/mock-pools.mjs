// The mock's pools of accounts and their messages: 500 accounts in all states, a pool with none
// available, one without limits, a small one.

const iso = (t) => new Date(t * 1000).toISOString();
const MESSAGES = 130;

const account = (name, more = {}) => ({ name, state: 'flowing', until_ms: null, why: '', limit_rps: -1, learned_rps: null, refused: 0, failures: 0, changed_at_ms: 0, ...more });

export class MockPools {
  /** @param {number} now unix seconds */
  constructor(now) {
    this.now = now;
    this.events = new Map();
    this.pools = [this.many(), this.gone(), this.small(), this.unlimited()];
    this.messages = Array.from({ length: MESSAGES }, (_, i) => this.message(i));
  }

  many() {
    const soon = (s) => (this.now + s) * 1000;
    const accounts = Array.from({ length: 500 }, (_, i) => {
      const one = account(`twilio-${String(i + 1).padStart(3, '0')}`, { limit_rps: 1000 });
      if ((i % 17 === 5 && i % 25 !== 12) || i === 499) return { ...one, state: 'blocked', until_ms: soon(40 + i), why: '429 20429: Too Many Requests', refused: 3 + (i % 9), changed_at_ms: soon(-3 * i) };
      if (i % 25 === 12) return { ...one, state: 'open', until_ms: soon(20 + i), why: '401 20003: Authenticate', failures: 5, changed_at_ms: soon(-2 * i) };
      if (i % 83 === 40) return { ...one, state: 'probing', why: '503: Service Unavailable', failures: 5, changed_at_ms: soon(-30) };
      if (i % 31 === 7) return { ...one, learned_rps: 420 + i / 10, refused: 11 };
      return one;
    });
    this.events.set('sms', accounts.filter((a) => a.state === 'open').slice(0, 20).map((a, i) => ({ account: a.name, from: i % 2 ? 'half_open' : 'closed', to: 'open', reason: a.why, at: iso(this.now - 15 - 40 * i) })));
    return { name: 'sms', provider: 'twilio', channel: 'sms', shedding: true, rps: 1000, accounts };
  }

  gone() {
    const until = (s) => (this.now + s) * 1000;
    const accounts = [account('mail-main', { state: 'blocked', until_ms: until(600), why: '429: Too many requests', limit_rps: 100, refused: 40 }),
      account('mail-spare', { state: 'blocked', until_ms: until(12), why: '421 4.7.0 try again later, rate limit', limit_rps: 100, refused: 12 }),
      account('mail-old', { state: 'open', until_ms: until(90), why: '403: account suspended', limit_rps: 50, failures: 1, changed_at_ms: until(-400) })];
    this.events.set('mail', [{ account: 'mail-old', from: 'closed', to: 'open', reason: '403: account suspended', at: iso(this.now - 400) }]);
    return { name: 'mail', provider: 'sendgrid', channel: 'email', shedding: true, accounts };
  }

  small() {
    const until = (s) => (this.now + s) * 1000;
    const accounts = Array.from({ length: 8 }, (_, i) => account(`workspace-${i + 1}`, { limit_rps: 100 }));
    Object.assign(accounts[1], { learned_rps: 42, refused: 17 });
    Object.assign(accounts[3], { state: 'blocked', until_ms: until(75), why: '429 ratelimited', refused: 2 });
    Object.assign(accounts[4], { state: 'open', until_ms: until(28), why: 'time-out after 10 s', failures: 5, changed_at_ms: until(-2) });
    Object.assign(accounts[6], { state: 'probing', why: '500 internal_error', failures: 5, changed_at_ms: until(-31) });
    this.events.set('notify.chat', [{ account: 'workspace-5', from: 'closed', to: 'open', reason: 'time-out after 10 s', at: iso(this.now - 2) }]);
    return { name: 'notify.chat', provider: 'slack', channel: 'chat', shedding: false, accounts };
  }

  unlimited() {
    this.events.set('notify.push', []);
    return { name: 'notify.push', provider: 'apns', channel: 'push', shedding: true, accounts: [account('team-one'), account('team-two')] };
  }

  message(i) {
    const state = ['delivered', 'sent', 'queued', 'failed', 'bounced', 'suppressed', 'delivered', 'sent'][i % 8];
    const isMail = i % 3 === 1;
    const name = isMail ? 'mail-spare' : `twilio-${String(1 + (i * 37) % 500).padStart(3, '0')}`;
    const begun = this.now - 5 - 9 * i;
    const attempt = (outcome, status, reason, n = 0) => ({ at: iso(begun + n), account: outcome === 'no_account' ? null : name, outcome, status, reason, ms: 40 + (i * 7) % 90 });
    const attempts = { delivered: [attempt('throttled', '429', 'Too Many Requests'), attempt('accepted', '201', '', 2)], sent: [attempt('accepted', '201', '')], queued: i % 16 === 2 ? [] : [attempt('no_account', '', 'all accounts of mail rest')], failed: [attempt('transient', '503', 'Service Unavailable'), attempt('permanent_request', '400', '21602: Message body is required', 3)], bounced: [attempt('accepted', '202', '')], suppressed: [] }[state];
    // The newest is of an account that captures.
    if (i === 0) Object.assign(attempts[1], { status: 'captured' });
    return { id: 7700000000 + MESSAGES - i, tenant: i % 4 ? '' : 'acme', state, channel: isMail ? 'email' : 'sms', pool: isMail ? 'mail' : 'sms', provider: isMail ? 'sendgrid' : 'twilio', account: attempts.at(-1)?.account ?? null, provider_id: null,
      to: isMail ? 'a***@e***.com' : '+15***42', category: i % 5 ? '' : 'marketing', reason: { failed: '21602: Message body is required', bounced: '550 5.1.1 no such user', suppressed: 'its recipient has unsubscribed', queued: attempts.at(-1)?.reason ?? '' }[state] ?? '',
      complained: i === 14, attempt_count: attempts.length, attempts, requeued_at: null, created_at: iso(begun), updated_at: iso(begun + 3) };
  }

  /** @param {number} now unix seconds */
  step(now) {
    this.now = now;
    for (const pool of this.pools) {
      for (const one of pool.accounts) {
        // Blocks rotate, so the overall picture stays the same.
        if (one.until_ms !== null && one.until_ms <= now * 1000) one.until_ms += pool.name === 'mail' ? 30_000 : 300_000;
      }
    }
  }

  view(pool) {
    const isThere = (one) => one.state === 'flowing' || one.state === 'probing';
    const sum = (rows) => rows.reduce((total, one) => total + one.limit_rps, 0);
    const there = pool.accounts.filter(isThere);
    const hasLimit = pool.accounts.every((one) => one.limit_rps >= 0);
    const back = Math.min(...pool.accounts.map((one) => one.until_ms ?? Infinity));
    return { name: pool.name, provider: pool.provider, channel: pool.channel, shedding: pool.shedding, capacity_rps: hasLimit ? sum(there) : there.length ? null : 0, configured_rps: hasLimit ? sum(pool.accounts) : null,
      available: there.length, available_at_ms: there.length === 0 && back < Infinity ? back : null, at_ms: this.now * 1000, accounts: pool.accounts };
  }

  /** Answers what is asked of pools and messages, or null for another path. */
  answer(method, path, query, body, missing) {
    if (path === '/api/v1/pools') return [200, { pools: this.pools.map((pool) => this.view(pool)) }];
    const one = path.match(/^\/api\/v1\/pools\/([^/]+)(?:\/accounts\/([^/]+)\/resume)?$/);
    if (one) {
      const pool = this.pools.find((p) => p.name === decodeURIComponent(one[1]));
      if (!pool) return missing('pool not found');
      if (!one[2]) return [200, { ...this.view(pool), events: this.events.get(pool.name) }];
      const account = pool.accounts.find((a) => a.name === decodeURIComponent(one[2]));
      if (!account) return missing('account not found');
      const changed = account.state !== 'flowing';
      if (account.state === 'open') this.events.get(pool.name).unshift({ account: account.name, from: 'open', to: 'closed', reason: `resumed by ${body.by}`, at: iso(this.now) });
      Object.assign(account, { state: 'flowing', until_ms: null, why: '', failures: 0, changed_at_ms: changed ? this.now * 1000 : account.changed_at_ms });
      return [200, { changed }];
    }
    const cancelled = path.match(/^\/api\/v1\/notifications\/(\d+)\/cancel$/);
    if (cancelled && method === 'POST') {
      const message = this.messages.find((m) => m.id === Number(cancelled[1]));
      if (!message) return missing('notification not found');
      if (message.state !== 'queued') return [409, null, 'wrong state'];
      Object.assign(message, { state: 'failed', reason: `cancelled by ${body.by}` });
      return [200, { id: message.id, state: 'cancelled' }];
    }
    if (path !== '/api/v1/notifications') return null;
    const limit = Number(query.get('limit') ?? 100);
    const fits = (message) => ['state', 'channel', 'pool', 'account', 'tenant'].every((name) => !query.get(name) || message[name] === query.get(name)) && message.id < Number(query.get('cursor') ?? Infinity);
    const found = this.messages.filter(fits);
    const page = found.slice(0, limit);
    query.set('cursor', String(page.at(-1)?.id ?? 0));
    return [200, { notifications: page, next: found.length > limit ? `${path}?${query}` : null }];
  }
}
