// The mock's recipients: messages that gates hold and have collected, open digests, and one recipient with
// a history.

const iso = (t) => new Date(t * 1000).toISOString();
const GATES = ['deadline', 'suppression', 'preferences', 'dedup', 'digest', 'local_time', 'quiet_hours', 'caps', 'pool'];
const HOSTILE = '<img src=x onerror=alert(1)>';

/** The gates in their order, of which one decided, or none. */
export function gates(decides, finding, more) {
  const at = GATES.indexOf(decides);
  return GATES.map((gate, n) => ({ gate, finding: n < at || at < 0 ? 'passed' : n === at ? finding : 'not_reached', rule: '', until: null, ...(n === at ? more : {}) }));
}

export class MockRecipients {
  /** @param {number} now unix seconds */
  constructor(now) {
    this.now = now;
    this.mayChange = true;
    const digest = (id, more) => ({ id, tenant: 'acme', type: 'new-comment', channel: 'email', recipient: `user-${id}`, to: 'a***@e***.com', actor: '', opened_at: iso(now - 1200), closes_at: iso(now + 600 * id),
      items: 3 * id, gate: '', rule: '', ...more });
    this.digests = [digest(1, {}), digest(2, { gate: 'quiet_hours', rule: '22:00-08:00 Europe/Berlin' }), digest(3, { recipient: HOSTILE, actor: 'bob' })];
    const past = (id, state, minutes, more = {}) => ({ id, state, category: 'marketing', gate: '', rule: '', accepted_at: iso(now - 60 * minutes), changed_at: iso(now - 60 * minutes + 9), until: null, ...more });
    this.history = [
      past(905, 'queued', 2, { gate: 'quiet_hours', rule: '22:00-08:00 Europe/Berlin', until: iso(now + 5400) }),
      past(904, 'capped', 30, { gate: 'caps', rule: 'per_day 2 per 1d', until: iso(now + 7200) }),
      past(903, 'delivered', 90),
      past(902, 'duplicate', 95, { gate: 'dedup', rule: 'of 901' }),
      past(901, 'delivered', 96, { category: HOSTILE }),
      past(900, 'opted_out', 400, { gate: 'preferences', rule: 'the category news by email' }),
    ];
  }

  /** @param {number} now */
  step(now) {
    this.now = now;
  }

  check(params) {
    if (params.get('recipient') === 'nobody') return [400, null, 'to must be given, because the recipient has no profile'];
    const known = params.get('recipient') === 'user-7' || params.has('to');
    const cap = { allowed: false, remaining: 0, resetAt: iso(this.now + 7200), rule: 'per_day', cap: '2 per 1d', is_of_actor: false, reserved: 1, sent_at: [iso(this.now - 5760), iso(this.now - 5400)] };
    return [200, {
      allowed: !known, remaining: known ? 0 : 2, resetAt: iso(this.now + (known ? 7200 : 0)), rule: 'per_day', rules: known ? [cap] : [{ ...cap, allowed: true, remaining: 2, reserved: 0, sent_at: [] }],
      quiet_until: known ? iso(this.now + 5400) : null, quiet_rule: known ? '22:00-08:00 Europe/Berlin' : '', suppressed: false, preference: { wanted: true, rule: '' }, to: known ? 'a***@e***.com' : '',
      digests: [], held: known ? [{ id: 905, gate: 'quiet_hours', rule: '22:00-08:00 Europe/Berlin', until: iso(this.now + 5400) }] : [], history: known ? this.history : [],
      forecast: { at: iso(this.now), is_of_digest: false, sentence: known ? 'is refused by per_day 2 per 1d' : 'passes all gates', gates: known ? gates('caps', 'waits', { rule: 'per_day 2 per 1d', until: iso(this.now + 7200) }) : gates('', ''), goes_at: null },
    }];
  }

  explain(id) {
    const one = this.history.find((message) => message.id === id);
    const way = (sentence, steps, planned = null) => ({ id, sentence: `message ${id} ${sentence}`, gates: steps, first_planned_at: planned, planned_at: planned, digest: null, forecast: null });
    if (!one || !one.gate) return way('passes all gates', gates('', ''));
    const decided = { rule: one.rule, since: one.changed_at, until: one.until };
    const sources = {
      quiet_hours: { of: 'profile', place: '', by: 'ann', at: iso(this.now - 86_400) },
      caps: { of: 'rules', place: 'recipients.toml, line 12', by: '', at: iso(this.now - 3_600) },
      preferences: { of: 'defaults', place: '', by: HOSTILE, at: iso(this.now - 7_200) },
    };
    const finding = one.state === 'queued' ? 'waits' : 'ended';
    return way(`${finding === 'waits' ? 'waits for' : `ended as ${one.state} at`} ${one.gate}`, gates(one.gate, finding, { ...decided, set_by: sources[one.gate], duplicate_of: one.gate === 'dedup' ? 901 : undefined }), finding === 'waits' ? one.until : null);
  }

  /** @param {string} method @param {string} path @param {URLSearchParams} params */
  answer(method, path, params) {
    if (path === '/api/v1/gates') {
      return [200, { held: [{ name: 'quiet_hours', messages: 1_204, next_at: iso(this.now + 5400) }], collected: [{ name: 'new-comment', messages: 31, digests: 3, next_at: iso(this.now + 600) }], more: false }];
    }
    if (path === '/api/v1/digests') {
      const tenant = params.get('tenant');
      return [200, { at: iso(this.now), digests: this.digests.filter((one) => !tenant || one.tenant === tenant), may_change: this.mayChange, next: null }];
    }
    if (path === '/api/v1/recipients/check') return this.check(params);
    if (method === 'POST' && /\/replan$/.test(path)) return [200, { messages: 1 }];
    const [, id] = /^\/api\/v1\/notifications\/(\d+)\/explain$/.exec(path) ?? [];
    return id ? [200, this.explain(Number(id))] : null;
  }
}
