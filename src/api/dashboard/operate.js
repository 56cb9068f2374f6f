// Changes of many jobs at once, step by step, with their paths and sentences. Pure except for the
// calls that are passed in.

import { throttlePath } from './api.js';
import { clock, duration, number, unixSeconds } from './format.js';

/** The most steps of a walk; after them it stops and keeps the changes made so far. */
const STEPS_MAX = 10_000;

/**
 * Returns a key as a part of a path. A path cannot hold an empty part, or one of one or two dots, so these
 * have a minus behind them, and the same with minuses behind it has one more.
 * @param {string} key
 */
export function keyPart(key) {
  return /^\.{0,2}-*$/.test(key) ? `${key}-` : encodeURIComponent(key);
}

/**
 * Returns the class of a button that pauses a key: those of shared throttles are for operators. A tenant
 * sees only its own jobs, so a throttle of a tenant is its own.
 * @param {string} throttle
 */
export function pauseClass(throttle) {
  return /^(notify|ws|ws-connections|tenant):/.test(throttle) ? 'change' : 'change operators';
}

/** Returns the path of one lane. @param {string} throttle @param {string} key */
export function keyPath(throttle, key) {
  return `${throttlePath(throttle)}/keys/${keyPart(key)}`;
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

/**
 * Returns the error of a change of many that ended half-way, which says how far it came.
 * @param {any} error @param {number} jobs the changed ones @param {string} said
 */
export function endedAfter(error, jobs, said) {
  return jobs === 0 ? error : new Error(`${said} Then it ended: ${error.message}`);
}

/** The percent signs of a pattern that the API takes, besides those at its ends. */
const PERCENTS_MAX = 3;

/**
 * Returns the pattern of errors that contain a text; `%` and `_` in it match themselves, but any
 * character stands for further percent signs.
 * @param {string} text
 */
export function contains(text) {
  let free = PERCENTS_MAX;
  return `%${text.replace(/[\\_]/g, (c) => `\\${c}`).replaceAll('%', () => ((free -= 1) >= 0 ? '\\%' : '_'))}%`;
}
