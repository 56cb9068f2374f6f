// The words of jobs: the filter of the list and its address, the request that it makes, what a
// state allows, and the bodies of changes of many. Pure.

import { deadFilter } from './operate.js';

/** The states, each with what it waits for or how it ended. @type {{ name: string, title: string }[]} */
export const STATES = [
  { name: '', title: 'all' }, { name: 'ready', title: 'ready' }, { name: 'running', title: 'running' }, { name: 'scheduled', title: 'scheduled' },
  { name: 'retryable', title: 'retryable' }, { name: 'dead', title: 'dead' }, { name: 'completed', title: 'completed' }, { name: 'cancelled', title: 'cancelled' },
];
/** The spans of the filter by time, in seconds. @type {Record<string, number>} */
export const SPANS = { '1h': 3_600, '24h': 86_400, '7d': 604_800 };
/** The fields of the filter, in the order of its address. */
export const FILTERS = ['state', 'kind', 'throttle', 'key', 'since', 'error'];

/** @typedef {{ state: string, kind: string, throttle: string, key: string, since: string, error: string }} JobQuery */

/**
 * Reads the filter of an address; what is unknown is left out.
 * @param {URLSearchParams} query
 * @returns {JobQuery}
 */
export function jobQuery(query) {
  const value = (/** @type {string} */ name) => (query.get(name) ?? '').trim();
  const state = STATES.some(({ name }) => name === value('state')) ? value('state') : '';
  const since = value('since') in SPANS ? value('since') : '';
  return { state, kind: value('kind'), throttle: value('throttle'), key: value('key'), since, error: state === 'dead' ? value('error') : '' };
}

/**
 * Returns the path of the first page.
 * @param {JobQuery} filter @param {number} limit @param {number} now unix seconds
 */
export function jobsPath({ state, kind, throttle, key, since }, limit, now) {
  const query = new URLSearchParams({ limit: String(limit) });
  for (const [name, value] of Object.entries({ state, kind, throttle, key })) if (value) query.set(name, value);
  const after = sinceTime(since, now);
  if (after) query.set('created_after', after);
  return `/api/v1/jobs?${query}`;
}

/** Returns the beginning of a span that ends now, or null without one. @param {string} since @param {number} now unix seconds */
function sinceTime(since, now) {
  return SPANS[since] ? new Date((now - SPANS[since]) * 1000).toISOString() : null;
}

/** The states that a change applies to. */
const APPLIES = { retry: ['dead', 'retryable', 'scheduled'], cancel: ['ready', 'running', 'scheduled', 'retryable'], discard: ['dead'] };

/**
 * Returns true if a state allows a change.
 * @param {'retry' | 'cancel' | 'discard'} verb @param {string} state
 */
export function allows(verb, state) {
  return APPLIES[verb].includes(state);
}

/**
 * Returns the changes of all jobs of a filter, each with the path and the body of its request. The
 * API requeues and discards dead jobs, and cancels live ones.
 * @param {JobQuery} filter @param {number} now unix seconds
 * @returns {{ verb: 'requeue' | 'discard' | 'cancel', path: string, body: Record<string, string> }[]}
 */
export function bulkChanges(filter, now) {
  const { state, kind, throttle, key, since } = filter;
  // The routes of dead jobs filter by the time of death, and the list by that of enqueueing.
  if (state === 'dead' && !since) {
    return /** @type {const} */ (['requeue', 'discard']).map((verb) => ({ verb, path: `/api/v1/dead/${verb}`, body: deadFilter(filter) }));
  }
  if (!allows('cancel', state)) return [];
  /** @type {Record<string, string>} */
  const body = { state };
  for (const [name, value] of Object.entries({ kind, throttle, key, created_after: sinceTime(since, now) })) if (value) body[name] = value;
  return [{ verb: 'cancel', path: '/api/v1/jobs/cancel', body }];
}

/** Describes a filter, for questions. @param {JobQuery} filter */
export function filterText({ state, kind, throttle, key, since, error }) {
  const parts = [state, throttle && `of throttle ${throttle}`, kind && `of kind ${kind}`, key && `with key ${key}`, since && `enqueued within ${since}`, error && `with "${error}" in the error`];
  return parts.filter(Boolean).join(', ');
}

/** The severity of a state. @param {string} state @returns {'alarm' | 'calm' | 'note'} */
export function jobTone(state) {
  if (state === 'dead') return 'alarm';
  return state === 'completed' || state === 'running' ? 'calm' : 'note';
}

/** Names the lane of a job. @param {{ throttle: string, key: string }} job */
export function laneText({ throttle, key }) {
  return key ? `${throttle} / ${key}` : throttle;
}
