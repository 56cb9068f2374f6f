// The words of jobs: the filter of the list and its address, the request that it makes, what a
// state allows, and the bodies of changes of many. Pure.

import { contains } from './operate.js';

/** The states, each with what it waits for or how it ended. @type {{ name: string, title: string }[]} */
export const STATES = [
  { name: '', title: 'all' }, { name: 'ready', title: 'ready' }, { name: 'running', title: 'running' }, { name: 'scheduled', title: 'scheduled' },
  { name: 'retryable', title: 'retryable' }, { name: 'dead', title: 'dead' }, { name: 'completed', title: 'completed' }, { name: 'cancelled', title: 'cancelled' },
];
/** The spans of the filter by time, in seconds. @type {Record<string, number>} */
export const SPANS = { '1h': 3_600, '24h': 86_400, '7d': 604_800 };
/** The fields of the filter, in the order of its address. */
export const FILTERS = ['state', 'kind', 'throttle', 'key', 'group', 'since', 'error', 'trace', 'unique_key', 'args', 'tag'];

/**
 * @typedef {{ state: string, kind: string, throttle: string, key: string, group: string, since: string, error: string, trace: string, unique_key: string, args: string, tag: string }} JobQuery
 *   `args` is a JSON object that the arguments contain, or a path such as `$.customer.id == 17`
 */

/**
 * Reads the filter of an address; what is unknown is left out. A key may begin with a blank, and is not
 * that of another customer without it.
 * @param {URLSearchParams} query
 * @returns {JobQuery}
 */
export function jobQuery(query) {
  const exact = (/** @type {string} */ name) => query.get(name) ?? '';
  const value = (/** @type {string} */ name) => exact(name).trim();
  const state = STATES.some(({ name }) => name === value('state')) ? value('state') : '';
  const since = value('since') in SPANS ? value('since') : '';
  return { state, kind: value('kind'), throttle: value('throttle'), key: exact('key'), group: value('group'), since, error: value('error'), trace: value('trace'), unique_key: exact('unique_key'), args: value('args'), tag: exact('tag') };
}

/**
 * Returns the filters that all requests share, as the API names them. What a person types as an error
 * stands for itself.
 * @param {JobQuery} filter
 * @returns {Record<string, string>}
 */
function shared({ kind, throttle, key, group, error, trace, unique_key, args, tag }) {
  const isPath = args.startsWith('$') || args.startsWith('exists');
  const given = { kind, throttle, key, group, error_like: error && contains(error), trace, unique_key, [isPath ? 'args_path' : 'args']: args, tags: tag && JSON.stringify([tag]) };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value));
}

/**
 * Returns the same for a body, in which a group is a number and arguments are JSON. Text that is no JSON
 * goes as it is, and the API says what is wrong with it.
 * @param {JobQuery} filter
 * @returns {Record<string, any>}
 */
function sharedBody(filter) {
  const { group, args, tags, ...rest } = shared(filter);
  return { ...rest, ...(tags ? { tags: json(tags) } : {}), ...(group ? { group: json(group) } : {}), ...(args ? { args: json(args) } : {}) };
}

/** @param {string} text */
function json(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * Returns the path of the first page.
 * @param {JobQuery} filter @param {number} limit @param {number} now unix seconds
 */
export function jobsPath(filter, limit, now) {
  const query = new URLSearchParams({ limit: String(limit), ...(filter.state ? { state: filter.state } : {}), ...shared(filter) });
  const after = sinceTime(filter.since, now);
  if (after) query.set('created_after', after);
  return `/api/v1/jobs?${query}`;
}

/** Returns the beginning of a span that ends now, or null without one. @param {string} since @param {number} now unix seconds */
function sinceTime(since, now) {
  return SPANS[since] ? new Date((now - SPANS[since]) * 1000).toISOString() : null;
}

/** The states that a change applies to. */
const APPLIES = { retry: ['dead', 'retryable', 'scheduled'], cancel: ['ready', 'running', 'scheduled', 'retryable'], discard: ['dead'], reschedule: ['ready', 'scheduled', 'retryable'], update: ['ready', 'scheduled', 'retryable'] };

/**
 * Returns true if a state allows a change.
 * @param {'retry' | 'cancel' | 'discard' | 'reschedule' | 'update'} verb @param {string} state
 */
export function allows(verb, state) {
  return APPLIES[verb].includes(state);
}

/**
 * Returns the changes of all jobs of a filter, each with the path and the body of its request. The
 * API requeues and discards dead jobs, and cancels live ones.
 * @param {JobQuery} filter @param {number} now unix seconds
 * @returns {{ verb: 'requeue' | 'discard' | 'cancel', path: string, body: Record<string, any> }[]}
 */
export function bulkChanges(filter, now) {
  const { state, since } = filter;
  const body = sharedBody(filter);
  // The routes of dead jobs filter by the time of death, and the list by that of enqueueing.
  if (state === 'dead' && !since) {
    // The API requires at least one filter: `%` matches any error.
    const named = Object.keys(body).length > 0 ? body : { error_like: '%' };
    return /** @type {const} */ (['requeue', 'discard']).map((verb) => ({ verb, path: `/api/v1/dead/${verb}`, body: named }));
  }
  if (!allows('cancel', state)) return [];
  const after = sinceTime(since, now);
  return [{ verb: 'cancel', path: '/api/v1/jobs/cancel', body: { state, ...body, ...(after ? { created_after: after } : {}) } }];
}

/** Describes a filter, for questions. @param {JobQuery} filter */
export function filterText({ state, kind, throttle, key, group, since, error, trace, unique_key, args, tag }) {
  const parts = [state, throttle && `of throttle ${throttle}`, kind && `of kind ${kind}`, key && `with key ${key}`, group && `of group ${group}`, since && `enqueued within ${since}`, error && `with "${error}" in the error`, trace && `of trace ${trace}`, unique_key && `with unique key ${unique_key}`, args && `with arguments ${args}`, tag && `with tag ${tag}`];
  return parts.filter(Boolean).join(', ');
}

/** The severity of a state; null for one that is neither good nor bad. @param {string} state @returns {'alarm' | 'calm' | 'note' | null} */
export function jobTone(state) {
  if (state === 'dead') return 'alarm';
  if (state === 'retryable') return 'note';
  return state === 'completed' || state === 'running' ? 'calm' : null;
}

/** Names the lane of a job. @param {{ throttle: string, key: string }} job */
export function laneText({ throttle, key }) {
  return key ? `${throttle} / ${key}` : throttle;
}
