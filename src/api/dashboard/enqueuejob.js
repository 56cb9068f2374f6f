// Enqueues a job: a question for its kind, its place and its arguments.

import { call, warningsText } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { parseTime } from './knobs.js';
import { jobAddress } from './views.js';

/**
 * Asks for a job, and enqueues it. Returns what was done, or null if the person changes nothing; a
 * refusal is told in the question, which keeps what was typed.
 * @returns {Promise<string | null>}
 */
export async function enqueueJob() {
  /** @type {any} */
  let job = null;
  await ask({
    title: 'Enqueue a job', action: 'Enqueue', isSigned: false,
    act: async (answer) => { job = await call('POST', '/api/v1/jobs', { body: jobOf(answer) }); },
    fields: [
      { name: 'kind', label: 'kind' },
      { name: 'args', label: 'arguments', value: '{}', lengthMax: '1000000', hint: 'a JSON object, such as {"customer": 17}' },
      { name: 'throttle', label: 'throttle', unit: 'optional' },
      { name: 'key', label: 'key', unit: 'optional' },
      { name: 'priority', label: 'priority', unit: 'optional', hint: '0 runs first, 3 last; 1 if it is left out' },
      { name: 'run_at', label: 'run at', unit: 'optional', hint: '30m, 2h, 14:30 or 2027-01-31T09:00' },
    ],
  });
  if (!job) return null;
  location.hash = jobAddress(job.id);
  return `${job.duplicate ? `Job ${job.id} was there already.` : `Enqueued job ${job.id}.`}${warningsText(job)}`;
}

/**
 * Returns the job of the fields that were filled in.
 * @param {Record<string, string>} answer
 */
export function jobOf(answer) {
  if (!answer.kind) throw new Error('A job needs a kind.');
  /** @type {Record<string, any>} */
  const job = {};
  for (const name of ['kind', 'throttle', 'key']) if (answer[name]) job[name] = answer[name];
  if (answer.run_at) {
    const at = parseTime(answer.run_at, serverNow() * 1000);
    // A text that is no time is left to the server, which says what is allowed.
    job.run_at = at === null ? answer.run_at : new Date(at).toISOString();
  }
  if (answer.priority) job.priority = numberOf(answer.priority);
  job.args = argumentsOf(answer.args || '{}');
  return job;
}

/** Returns the number of a text. A text that is no number, or empty, is left to the server. @param {string} text */
export function numberOf(text) {
  return text !== '' && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Returns the arguments that a person typed. @param {string} text */
export function argumentsOf(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`arguments: ${/** @type {Error} */ (error).message}.`);
  }
}
