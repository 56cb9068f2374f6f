// Recipients: messages that gates hold or have collected, open digests, and the state of one
// recipient.

import { call, get, getAllowed } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { fill, h, keyed, setAttr, setText, show } from './dom.js';
import { clock, count, unixSeconds } from './format.js';
import { drawGates, drawWay } from './gateline.js';
import { capText, checkPath, digestsPath, gateWord, heldText, mostOf, pastText, whoText } from './gatewords.js';
import { cell, showRows } from './lists.js';
import { drawMeter, meter } from './meter.js';
import { Pages } from './pages.js';
import { deliveryText, deliveryTone, inTime } from './poolwords.js';

const ROWS = 50;
const FIELDS = ['channel', 'who', 'category', 'actor', 'tenant'];

export class Recipients {
  /** @param {{ counts: HTMLElement, countsNote: HTMLElement, form: any, body: HTMLElement, empty: HTMLElement, note: HTMLElement, more: any, check: any, found: HTMLElement, foundNote: HTMLElement, history: HTMLElement, historyBody: HTMLElement, historyEmpty: HTMLElement }} place */
  constructor(place) {
    this.place = place;
    /** @type {{ held: import('./gatewords.js').Held[], collected: import('./gatewords.js').Held[], more: boolean } | null} */
    this.counts = null;
    /** True if the token may not read the counts of all tenants. */
    this.isCountless = false;
    this.pages = new Pages('digests');
    /** True if the token may not read digests; then only a person's click asks again. */
    this.denied = false;
    /** True if the token may change digests and messages. */
    this.mayChange = false;
    /** The answer about the recipient that was asked for last. @type {any} */
    this.found = null;
    /** Its id and its tenant, unless it was asked for by address. @type {{ id: string, tenant: string } | null} */
    this.askedFor = null;
    /** The ways of its messages that are open; null while one is read. @type {Map<number, any>} */
    this.ways = new Map();
    /** The count of questions about a recipient. */
    this.looks = 0;
    this.asked = 0;
    place.form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.restart();
    });
    place.more.addEventListener('click', () => this.pages.askNext(place, () => this.draw()));
    place.check.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.look();
    });
  }

  tenant() {
    return this.place.form.elements.namedItem('tenant').value.trim();
  }

  restart() {
    this.pages.restart();
    this.denied = false;
    return this.refresh().catch(() => {}); // The note says what is wrong.
  }

  /**
   * Refreshes the counts and the digests. Failures are left to the caller, which knows whether the
   * server answers at all.
   */
  async refresh() {
    if (this.denied) return;
    this.asked += 1;
    const asked = this.asked;
    try {
      const [digests] = await Promise.all([get(digestsPath(this.tenant(), ROWS)), this.readCounts()]);
      if (asked !== this.asked) return;
      this.pages.takeFirst(digests);
      this.mayChange = digests.may_change === true;
      setText(this.place.note, '');
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      this.denied = status === 403;
      setText(this.place.note, message);
      throw error;
    } finally {
      this.draw();
    }
  }

  async readCounts() {
    if (this.isCountless) return;
    const counts = await getAllowed('/api/v1/gates');
    // Tokens of tenants see their digests without the counts of all tenants.
    if (counts === null) this.isCountless = true;
    else this.counts = counts;
  }

  /** The number of held and collected messages at the last look, for the navigation. */
  known() {
    const held = this.counts?.held.reduce((sum, one) => sum + one.messages, 0) ?? 0;
    return held + this.pages.newest.length;
  }

  // Held messages are in order, so the navigation marks nothing.
  drawNav() {}

  draw() {
    const { next, isRead, offset } = this.pages;
    const now = (Date.now() + offset) / 1000;
    this.drawCounts(now);
    const { body, empty, more } = this.place;
    const rows = this.pages.rows((a, b) => a.closes_at.localeCompare(b.closes_at) || a.id - b.id);
    showRows(body, empty, rows.length);
    setText(empty, !isRead ? 'Waiting for the server …' : this.tenant() ? 'No digest of that tenant is open.' : 'No digest is open.');
    show(more, Boolean(next) && rows.length > 0);
    keyed(body, rows, (digest) => String(digest.id), (digest) => digestRow(digest), (row, digest) => drawDigest(row, digest, now));
    show(this.place.history, Boolean(this.found));
    if (this.found) {
      this.drawFound(now);
      this.drawHistory(now);
    }
  }

  /** @param {number} now */
  drawCounts(now) {
    const { held = [], collected = [], more = false } = this.counts ?? {};
    const items = [...held.map((one) => ({ one, word: `held by ${gateWord(one.name)}` })), ...collected.map((one) => ({ one, word: `collected in ${one.name}` }))];
    keyed(this.place.counts, items, ({ word }) => word, ({ word }) => {
      const parts = { number: h('dd', { class: 'num' }), more: h('dd', { class: 'sub num' }) };
      return Object.assign(h('div', null, h('dt', null, word), parts.number, parts.more), { parts });
    }, (row, { one }) => {
      setText(row.parts.number, count(one.messages));
      setText(row.parts.more, heldText(one, now));
    });
    const none = this.isCountless ? 'Counts are for operators; the open digests of this tenant are below.' : this.counts === null ? 'Waiting for the server …' : 'No message is held or collected.';
    setText(this.place.countsNote, items.length === 0 ? none : more ? 'There are more than were counted.' : '');
  }

  async look() {
    const { check, foundNote } = this.place;
    const typed = Object.fromEntries(FIELDS.map((name) => [name, check.elements.namedItem(name).value.trim()]));
    const { who, ...filter } = typed;
    const isId = check.elements.namedItem('by').value === 'id';
    this.looks += 1;
    const look = this.looks;
    try {
      this.ways.clear();
      const found = await get(checkPath({ ...filter, [isId ? 'recipient' : 'to']: who }));
      // A later question is about another recipient.
      if (look !== this.looks) return;
      this.found = found;
      this.askedFor = isId ? { id: who, tenant: typed.tenant } : null;
      setText(foundNote, '');
    } catch (error) {
      if (look !== this.looks) return;
      this.found = null;
      fill(this.place.found);
      setText(foundNote, /** @type {any} */ (error).message);
    }
    this.draw();
  }

  /** @param {number} now */
  drawFound(now) {
    const found = this.found;
    const until = unixSeconds(found.quiet_until);
    const gates = h('div', null);
    drawGates(gates, found.forecast.gates, now);
    const facts = [
      ['address', found.to || 'none'],
      ['caps', found.remaining === null ? 'no cap' : found.allowed ? `${count(found.remaining)} left` : `none left until ${clock(unixSeconds(found.resetAt), now)} (${found.rule})`],
      ['quiet hours', until === null ? 'not now' : `until ${clock(until, now)}, ${inTime(until * 1000, now * 1000)} (${found.quiet_rule})`],
      ['suppressed', found.suppressed ? 'yes' : 'no'],
      ['preference', found.preference.rule ? `${found.preference.rule}: ${found.preference.wanted ? 'wanted' : 'not wanted'}` : 'none'],
    ];
    const replan = this.askedFor && found.held.length > 0 && h('button', { type: 'button', onclick: () => this.replan() }, 'Plan held messages again …');
    fill(this.place.found,
      h('p', { class: 'way' }, `A message now ${found.forecast.sentence}.`), gates,
      h('dl', { class: 'facts' }, ...facts.map(([name, text]) => h('div', null, h('dt', null, name), h('dd', { class: 'num' }, text)))),
      found.rules.length > 0 && h('ul', { class: 'caps' }, ...found.rules.map((/** @type {any} */ cap) => capItem(cap, now))),
      found.held.length > 0 && h('h3', null, 'Held messages'),
      found.held.length > 0 && h('ul', { class: 'history' }, ...found.held.map((/** @type {any} */ one) => h('li', { class: 'num' },
        `${clock(unixSeconds(one.until), now)}: message ${one.id}, ${gateWord(one.gate)} (${one.rule})`))),
      replan,
      found.digests.length > 0 && h('h3', null, 'Open digests'),
      found.digests.length > 0 && h('ul', { class: 'history' }, ...found.digests.map((/** @type {any} */ one) => h('li', { class: 'num' },
        `${clock(unixSeconds(one.closes_at), now)}: ${one.type}, ${count(one.items)} ${one.items === 1 ? 'item' : 'items'}`))));
  }

  /** @param {number} now */
  drawHistory(now) {
    const { historyBody, historyEmpty } = this.place;
    /** @type {import('./gatewords.js').PastMessage[]} */
    const messages = this.found.history;
    showRows(historyBody, historyEmpty, messages.length);
    const rows = messages.flatMap((message) => [{ message, isWay: false }, ...(this.ways.has(message.id) ? [{ message, isWay: true }] : [])]);
    keyed(historyBody, rows, ({ message, isWay }) => `${message.id}${isWay ? '/way' : ''}`,
      ({ message, isWay }) => (isWay ? h('tr', { class: 'attempts-row' }, h('td', { colspan: '5' }, h('div', { class: 'gate-way' }))) : this.pastRow(message)),
      (row, { message, isWay }) => {
        if (isWay) drawWay(row.querySelector('.gate-way'), this.ways.get(message.id), now);
        else this.drawPast(row, message, now);
      });
  }

  /** @param {import('./gatewords.js').PastMessage} message */
  pastRow(message) {
    const parts = { id: h('button', { type: 'button', class: 'link num', onclick: () => this.toggleWay(message.id) }, String(message.id)), state: h('span', { class: 'badge' }), gate: h('span', null), changed: h('span', { class: 'num' }) };
    return Object.assign(h('tr', null,
      cell('accepted', h('span', { class: 'pair' }, h('span', { class: 'num' }, clock(unixSeconds(message.accepted_at), serverNow())), h('span', { class: 'sub' }, message.category))),
      cell('message', parts.id), cell('state', parts.state), cell('gate', parts.gate, 'wide'), cell('changed', parts.changed)), { parts });
  }

  /** @param {any} row @param {import('./gatewords.js').PastMessage} message @param {number} now */
  drawPast({ parts }, message, now) {
    setText(parts.state, deliveryText(message));
    setAttr(parts.state, 'data-tone', deliveryTone(message.state));
    setText(parts.gate, pastText(message, now));
    setText(parts.changed, clock(unixSeconds(message.changed_at), now));
    setAttr(parts.id, 'aria-expanded', String(this.ways.has(message.id)));
    setAttr(parts.id, 'aria-label', `Way of message ${message.id} through its gates`);
  }

  /** @param {number} id */
  async toggleWay(id) {
    if (!this.ways.delete(id)) {
      this.ways.set(id, null);
      this.draw();
      try {
        this.ways.set(id, await get(`/api/v1/notifications/${id}/explain`));
      } catch (error) {
        this.ways.set(id, { fault: /** @type {any} */ (error).message });
      }
    }
    this.draw();
  }

  async replan() {
    const { id, tenant } = /** @type {any} */ (this.askedFor);
    const answer = await ask({ title: `Plan the messages of ${id} again?`, action: 'Plan again', isSigned: false, keep: 'Keep the plan',
      text: 'They go at the times that the profile and the rules give now, which can be sooner or later than shown before.' });
    if (!answer) return;
    let note;
    try {
      const { messages } = await call('POST', `/api/v1/recipients/${encodeURIComponent(id)}/replan`, { body: tenant ? { tenant } : {} });
      note = `${count(messages)} messages are planned again.`;
    } catch (error) {
      note = /** @type {any} */ (error).message;
    }
    await this.look();
    setText(this.place.foundNote, note);
  }
}

/** @param {import('./gatewords.js').Cap} cap @param {number} now */
function capItem(cap, now) {
  const name = cap.is_of_actor ? `${cap.rule}, of the actor` : cap.rule;
  const used = mostOf(cap) - cap.remaining;
  const bar = meter(`Cap ${name}`);
  drawMeter(bar, mostOf(cap) > 0 ? used / mostOf(cap) : 0, `${count(used)} of ${count(mostOf(cap))}`, cap.allowed ? 'calm' : 'note');
  const went = cap.sent_at.slice(-5).map((at) => clock(unixSeconds(at), now)).join(', ');
  return h('li', null, h('span', null, h('b', null, name), ' ', h('span', { class: 'sub' }, cap.cap)), bar,
    h('span', { class: 'num' }, capText(cap, now)),
    h('span', { class: 'sub num' }, [cap.reserved > 0 ? `${count(cap.reserved)} wait` : '', went ? `last went ${went}` : 'none went'].filter(Boolean).join('; ')));
}

/** @param {import('./gatewords.js').Digest} digest */
function digestRow(digest) {
  const parts = { closes: h('span', { class: 'num' }), left: h('span', { class: 'sub num' }), items: h('b', { class: 'num' }), rule: h('span', null) };
  return Object.assign(h('tr', null,
    cell('closes', h('span', { class: 'pair' }, parts.closes, parts.left)),
    cell('type', h('span', { class: 'pair' }, h('span', null, digest.type), h('span', { class: 'sub' }, digest.channel)), 'wrap'),
    cell('recipient', h('span', { class: 'pair' }, h('span', null, whoText(digest)), h('span', { class: 'sub' }, digest.tenant || 'operators')), 'wrap'),
    cell('items', parts.items),
    cell('opened', h('span', { class: 'num' }, clock(unixSeconds(digest.opened_at), serverNow()))),
    cell('kept open by', parts.rule, 'wide')), { parts });
}

/** @param {any} row @param {import('./gatewords.js').Digest} digest @param {number} now */
function drawDigest({ parts }, digest, now) {
  const at = unixSeconds(digest.closes_at);
  setText(parts.closes, clock(at, now));
  setText(parts.left, at === null ? '' : at <= now ? 'due now' : inTime(at * 1000, now * 1000));
  setAttr(parts.left, 'data-tone', at !== null && at <= now ? 'note' : null);
  setText(parts.items, count(digest.items));
  setText(parts.rule, digest.gate ? `${gateWord(digest.gate)}: ${digest.rule}` : '');
}
