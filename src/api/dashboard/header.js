// The line with the state of the connection, and the notices below the header: what is missing, and
// what works all the same.

import { setAttr, setText, show } from './dom.js';
import { ago, clock, duration } from './format.js';
import { replicaNote } from './replicanote.js';
import { facts, isStoreLost, mayChange, mayEnqueue } from './state.js';

/** The age of the last tick from which a lost stream is told in a notice, in seconds. */
const AWAY_S = 8;

/**
 * @typedef {import('./state.js').State} State
 * @typedef {{ unreachable: boolean, refused: { stream: string, throttles: string, queue: string } }} Server
 *   what the last requests said: that there was no answer, and why the stream, the list of throttles and what Postgres stores are refused, each empty if it is not
 */

/** Returns the age of the last tick in seconds, or null before the first. @param {State} state @param {number} now unix seconds */
function ageOf({ lastTick }, now) {
  return lastTick === null ? null : now - lastTick;
}

/**
 * Describes the connection in a few words.
 * @param {State} state @param {Server} server @param {number} now unix seconds
 * @returns {{ phase: string, text: string }}
 */
export function phaseOf(state, { refused }, now) {
  const age = ageOf(state, now);
  const phase = state.phase === 'live' && age === null ? 'connecting' : state.phase;
  const without = [isStoreLost(state) && 'Redis', refused.queue ? 'Postgres' : state.queueUnwritable && 'writes to Postgres'].filter(Boolean).join(' and ');
  if (phase === 'live' && without) return { phase: 'impaired', text: `live, without ${without}` };
  const lost = refused.stream ? 'no live data' : 'reconnecting';
  const words = { connecting: 'connecting', live: 'live', lost: age === null ? lost : `${lost}, last data ${ago(age)}`, unauthorized: 'signed out' };
  return { phase, text: words[phase] };
}

/**
 * Says what the server does not give, and why; null if nothing is missing.
 * @param {State} state @param {Server} server @param {number} now unix seconds
 */
export function awayText(state, { unreachable, refused }, now) {
  if (state.phase === 'unauthorized') return null;
  const isLost = state.phase === 'lost';
  const stream = isLost ? refused.stream : '';
  // The notice of the lost store says why there is no list of throttles.
  const throttles = isStoreLost(state) ? '' : refused.throttles;
  const age = ageOf(state, now);
  const parts = [stream && `No live data: ${sentence(stream)}`, throttles && `No list of throttles: ${sentence(throttles)}`].filter(Boolean);
  if (parts.length === 0) {
    if (!isLost || !(unreachable || (age !== null && age > AWAY_S))) return null;
    parts.push('The server does not answer.');
  }
  if (isLost && state.lastTick !== null) return `${parts.join(' ')} The data is from ${clock(state.lastTick, now)}; retrying.`;
  return `${parts.join(' ')} Retrying.`;
}

/** @param {string} text */
function sentence(text) {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/**
 * Returns true while Postgres does not answer or accepts no writes, so that no job starts.
 * @param {State} state @param {Server} [server]
 */
export function isQueueLost({ queueUnwritable }, server) {
  return queueUnwritable || Boolean(server?.refused.queue);
}

/** Says what the loss of the store means, or null while it answers. @param {State} state @param {Server} [server] */
export function storeText(state, server) {
  if (!isStoreLost(state)) return null;
  const kept = isQueueLost(state, server) ? '' : ' Postgres keeps the queue: jobs are accepted and wait, and jobs, failures, schedules and the pause of everything work.';
  return 'Knobs cannot be changed, and without an answer the state of throttles is unknown. Each throttle follows its knob on_store_loss: with closed, the default, none of its jobs starts.'
    + `${kept}${state.storeRefusal ? ` The server says: ${sentence(state.storeRefusal)}` : ''}`;
}

/**
 * Says what it means that Postgres does not answer or accepts no writes, or null while it does both.
 * @param {State} state @param {Server} server
 */
export function queueText(state, server) {
  const { phase, depthAge } = state;
  const { queue } = server.refused;
  if (!isQueueLost(state, server) || phase === 'unauthorized') return null;
  // Lists are read while only writes are refused.
  const counts = depthAge === null ? '' : ` The counts of jobs are ${duration(depthAge)} old${queue ? ', and lists no newer' : ''}.`;
  const cause = queue ? `The server says: ${sentence(queue)}` : 'flyball doctor says why.';
  return `Meanwhile jobs are neither accepted nor started, running ones continue, and workers cannot report that they live.${counts} ${cause}`;
}

export class Header {
  /**
   * @param {{ phase: HTMLElement, phaseText: HTMLElement, signedOut: HTMLElement, away: HTMLElement, awayText: HTMLElement, storeLost: HTMLElement, storeText: HTMLElement, queueLost: HTMLElement, queueText: HTMLElement, behind: HTMLElement, enqueue: HTMLElement, aloud: HTMLElement, own: HTMLElement }} place
   */
  constructor(place) {
    this.place = place;
  }

  /** @param {State} state @param {Server} server @param {number} now unix seconds */
  draw(state, server, now) {
    const { place } = this;
    const { phase, text } = phaseOf(state, server, now);
    // Ages and lags go on all the time, so the beginning alone is announced.
    if (phase !== place.phase.dataset.phase) setText(place.aloud, text);
    setText(place.phaseText, text);
    setAttr(place.phase, 'data-phase', phase);
    const isOpen = [...state.throttles.values()].some((t) => facts(t).breaker === 'open');
    document.title = isStoreLost(state) ? 'Redis lost · Flyball' : server.refused.queue ? 'Postgres lost · Flyball' : state.queueUnwritable ? 'No writes to Postgres · Flyball' : isOpen ? 'Breaker open · Flyball' : 'Flyball';
    show(place.signedOut, state.phase === 'unauthorized');
    for (const [notice, line, said] of /** @type {[HTMLElement, HTMLElement, string | null][]} */ ([
      [place.away, place.awayText, awayText(state, server, now)],
      [place.storeLost, place.storeText, storeText(state, server)],
      [place.queueLost, place.queueText, queueText(state, server)],
      [place.behind, place.behind, replicaNote(state.replica)],
    ])) {
      if (notice === place.behind && said !== null && notice.hidden) setText(place.aloud, said);
      show(notice, said !== null);
      if (said !== null) setText(line, said);
    }
    document.body.classList.toggle('reader', !mayChange(state));
    document.body.classList.toggle('tenant', state.isOfTenant);
    show(place.own, state.isOfTenant);
    show(place.enqueue, mayEnqueue(state));
    document.body.classList.toggle('old', state.phase !== 'live' && state.lastTick !== null);
  }
}
