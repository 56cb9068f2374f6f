// Changes of many jobs at once, step by step, with their paths and sentences. Pure except for the
// calls that are passed in.

import { throttlePath } from './api.js';
import { clock, duration, number, unixSeconds } from './format.js';

/** The most steps of a walk; after them it stops and keeps the changes made so far. */
const STEPS_MAX = 10_000;

/**
 * Returns the path of one lane. A path cannot hold an empty part, so the lane of jobs without a key
 * is a lone minus, and a key of minuses only has one more.
 * @param {string} throttle @param {string} key
 */
export function keyPath(throttle, key) {
  return `${throttlePath(throttle)}/keys/${/^-*$/.test(key) ? `${key}-` : encodeURIComponent(key)}`;
}

/**
 * Describes the learned limits of a key.
 * @param {{ rps: number | null, probing: boolean } | null | undefined} learned
 */
function learnedState(learned) {
  if (!learned) return '';
  if (learned.rps === null) return learned.probing ? 'on trial after a refusal' : '';
  if (learned.rps <= 1 / 60) return 'waits for its quota';
  return `learned ${learned.rps >= 0.1 ? `${number(learned.rps)}/s` : `one in ${duration(1 / learned.rps)}`}${learned.probing ? ', on trial' : ''}`;
}

/**
 * Describes the state of a lane.
 * @param {any} lane @param {number} now unix seconds
 */
export function laneState(lane, now) {
  if (!lane.paused) return learnedState(lane.learned);
  const why = lane.paused.why ? `: ${lane.paused.why}` : '';
  return lane.paused.until ? `paused until ${clock(unixSeconds(lane.paused.until), now)}${why}` : `paused${why}`;
}

/**
 * Repeats a bounded step until no jobs are left; returns the number of changed jobs.
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

/** Returns the pattern of errors that contain a text; `%` and `_` in it match themselves. @param {string} text */
export function contains(text) {
  return `%${text.replace(/[\\%_]/g, (c) => `\\${c}`)}%`;
}
