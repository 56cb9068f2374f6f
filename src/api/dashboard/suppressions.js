// Suppressions: recipients that get no messages on a channel, by their digests; one form looks one up,
// suppresses it, or allows messages again.

import { call, get } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { h, keyed, setText, show } from './dom.js';
import { clock, unixSeconds } from './format.js';
import { cell, showRefused, showRows } from './lists.js';
import { noting } from './notes.js';
import { showNew, unique } from './pages.js';

const ROWS = 50;
const PATH = '/api/v1/suppressions';

/** Returns the query of one recipient. @param {string} channel @param {string} recipient */
export function ofRecipient(channel, recipient) {
  return `${PATH}?channel=${encodeURIComponent(channel)}&recipient=${encodeURIComponent(recipient)}`;
}

/** @param {any} one */
const keyOf = (one) => `${one.channel}:${one.recipient_digest}`;

export class Suppressions {
  /** @param {{ form: any, body: HTMLElement, empty: HTMLElement, note: HTMLElement, more: any }} place */
  constructor(place) {
    this.place = place;
    /** @type {any[]} */
    this.rows = [];
    /** @type {string | null} */
    this.next = null;
    place.form.addEventListener('submit', (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const wish = /** @type {any} */ (event.submitter)?.value ?? 'look';
      this.act(wish);
    });
    place.more.addEventListener('click', () => noting(place.note, async () => {
      if (!this.next) return;
      const answer = await get(this.next);
      this.rows = unique([...this.rows, ...answer.suppressions], keyOf);
      this.next = answer.next ?? null;
      await showNew(place.body, () => this.draw());
    }));
  }

  async refresh() {
    const answer = await get(`${PATH}?limit=${ROWS}`);
    this.rows = answer.suppressions ?? [];
    this.next = answer.next ?? null;
    this.draw();
  }

  /** Says that the token may not read them. */
  refused() {
    showRefused(this.place.body, this.place.empty);
  }

  draw() {
    const { body, empty, more } = this.place;
    showRows(body, empty, this.rows.length);
    setText(empty, 'No recipient is suppressed.');
    show(more, Boolean(this.next));
    keyed(body, this.rows, keyOf, (one) => h('tr', null,
      cell('since', clock(unixSeconds(one.created_at), serverNow()), 'num'),
      cell('channel', one.channel),
      cell('digest', h('code', null, one.recipient_digest.slice(0, 16)), 'num'),
      cell('reason', one.reason || 'none', 'wide'),
      cell('pool', [one.pool, one.account].filter(Boolean).join(' / '))));
  }

  /** Looks up, suppresses or allows the typed recipient. @param {string} wish */
  async act(wish) {
    const { form, note } = this.place;
    const channel = form.elements.namedItem('channel').value;
    const recipient = form.elements.namedItem('recipient').value.trim();
    try {
      setText(note, await this.done(wish, channel, recipient));
      if (wish !== 'look') await this.refresh().catch(() => {}); // The change was made all the same.
    } catch (error) {
      setText(note, /** @type {any} */ (error).message);
    }
  }

  /** @param {string} wish @param {string} channel @param {string} recipient */
  async done(wish, channel, recipient) {
    if (wish === 'look') {
      const { suppressions } = await get(ofRecipient(channel, recipient));
      const one = suppressions[0];
      return one ? `It is suppressed on ${channel} since ${clock(unixSeconds(one.created_at), serverNow())}: ${one.reason || 'no reason was given'}.` : `It is not suppressed on ${channel}.`;
    }
    const is = wish === 'add';
    const signed = await ask(is
      ? { title: `Suppress ${recipient} on ${channel}?`, action: 'Suppress', text: 'It gets no messages on this channel until somebody allows them again.' }
      : { title: `Allow messages to ${recipient} again?`, action: 'Allow', danger: true, text: `It may have asked for none, or ${channel} may not reach it.` });
    if (!signed) return '';
    if (is) {
      const { changed } = await call('POST', PATH, { body: { channel, recipient, ...signed } });
      return changed ? `It gets no messages on ${channel} any more.` : 'It was suppressed already.';
    }
    const query = new URLSearchParams(signed);
    const { changed } = await call('DELETE', `${ofRecipient(channel, recipient)}&${query}`);
    return changed ? `It may get messages on ${channel} again.` : 'It was not suppressed.';
  }
}
