// What is done to many jobs at once, step by step; paths and sentences for it. Pure but for the calls that it is handed.

import { throttlePath } from './api.js';
import { clock, duration, number, unixSeconds } from './format.js';

/** A walk that takes more steps than this is given up; what it has done is done. */
const STEPS_MAX = 10_000;

/**
 * The path of one lane. A path cannot hold an empty part, so the lane of jobs without a key is a lone minus, and a key of minuses
 * only has one more.
 * @param {string} throttle @param {string} key
 */
export function keyPath(throttle, key) {
  return `${throttlePath(throttle)}/keys/${/^-*$/.test(key) ? `${key}-` : encodeURIComponent(key)}`;
}

/** What was learned of a key, in words. @param {{ rps: number | null, probing: boolean } | null | undefined} learned */
function learnedState(learned) {
  if (!learned) return '';
  if (learned.rps === null) return learned.probing ? 'on trial after a refusal' : '';
  if (learned.rps <= 1 / 60) return 'waits for its quota';
  return `learned ${learned.rps >= 0.1 ? `${number(learned.rps)}/s` : `one in ${duration(1 / learned.rps)}`}${learned.probing ? ', on trial' : ''}`;
}

/**
 * How a lane stands, in words.
 * @param {any} lane @param {number} now unix seconds
 */
export function laneState(lane, now) {
  if (!lane.paused) return learnedState(lane.learned);
  const why = lane.paused.why ? `: ${lane.paused.why}` : '';
  return lane.paused.until ? `paused until ${clock(unixSeconds(lane.paused.until), now)}${why}` : `paused${why}`;
}

/**
 * Repeats a bounded step until it says that it has seen everything; answers how many jobs were changed.
 * @param {(start: string | null) => Promise<{ jobs: number, next: string | null }>} step
 * @param {(jobs: number) => void} told
 */
export async function walk(step, told) {
  let jobs = 0;
  let start = null;
  for (let n = 0; n < STEPS_MAX; n += 1) {
    const done = await step(start);
    jobs += done.jobs;
    start = done.next;
    if (!start) break;
    told(jobs);
  }
  return jobs;
}

/**
 * The filter of dead letters as the API takes it. `%` and `_` that a person types stand for themselves.
 * @param {{ throttle: string, kind: string, key: string, error: string }} typed
 * @returns {Record<string, string>}
 */
export function deadFilter({ throttle, kind, key, error }) {
  /** @type {Record<string, string>} */
  const filter = {};
  if (throttle) filter.throttle = throttle;
  if (kind) filter.kind = kind;
  if (key) filter.key = key;
  if (error) filter.error_like = `%${error.replace(/[\\%_]/g, (c) => `\\${c}`)}%`;
  // At least one is asked for: any error is all of them.
  if (Object.keys(filter).length === 0) filter.error_like = '%';
  return filter;
}

/**
 * The filter in words.
 * @param {{ throttle: string, kind: string, key: string, error: string }} typed
 */
export function deadFilterText({ throttle, kind, key, error }) {
  const parts = [throttle && `of throttle ${throttle}`, kind && `of kind ${kind}`, key && `with key ${key}`, error && `with "${error}" in the error`];
  return parts.filter(Boolean).join(', ');
}
