// Updates a waiting job: a question for its fields, of which those that differ are sent.

import { call } from './api.js';
import { ask } from './dialog.js';
import { argumentsOf, numberOf } from './enqueuejob.js';

/** The fields that a person can change, with the text of each in a job as it is. */
const FIELDS = /** @type {const} */ (['throttle', 'key', 'priority', 'max_attempts', 'cost', 'timeout', 'tags', 'args']);
/** The fields that are numbers. */
const NUMBERS = ['priority', 'max_attempts', 'cost', 'timeout'];
/** The fields that are none when they are empty. */
const CLEARED = ['timeout', 'tags'];

/** Returns the fields of a job as a person types them. @param {any} job @returns {Record<string, string>} */
export function typedFields(job) {
  return {
    throttle: job.throttle, key: job.key, priority: String(job.priority), max_attempts: String(job.max_attempts), cost: String(job.cost),
    timeout: job.timeout_s ? String(job.timeout_s) : '', tags: (job.tags ?? []).join(', '), args: '',
  };
}

/**
 * Returns the change that makes a job as it was typed: only the fields that differ.
 * @param {any} job @param {Record<string, string>} answer
 */
export function changeOf(job, answer) {
  const before = typedFields(job);
  /** @type {Record<string, any>} */
  const change = {};
  for (const name of FIELDS) {
    const text = answer[name];
    if (text === before[name]) continue;
    if (text === '' && CLEARED.includes(name)) change[name] = null;
    else if (NUMBERS.includes(name)) change[name] = numberOf(text);
    else if (name === 'tags') change[name] = text.split(',').map((tag) => tag.trim()).filter(Boolean);
    else change[name] = name === 'args' ? argumentsOf(text) : text;
  }
  if (Object.keys(change).length === 0) throw new Error('Nothing differs from the job as it is.');
  return change;
}

/**
 * Asks for the fields of a waiting job, and updates it. Returns what was done, or null if the person
 * changes nothing; a refusal is told in the question, which keeps what was typed.
 * @param {any} job
 * @returns {Promise<string | null>}
 */
export async function updateJob(job) {
  const before = typedFields(job);
  /** @type {string[]} */
  let changed = [];
  const answer = await ask({
    title: `Update job ${job.id}?`, action: 'Update', text: 'It keeps its number, its time, its attempts and its unique key.',
    fields: [
      { name: 'throttle', label: 'throttle', value: before.throttle },
      { name: 'key', label: 'key', unit: 'optional', value: before.key },
      { name: 'priority', label: 'priority', value: before.priority, hint: '0 runs first, 3 last' },
      { name: 'max_attempts', label: 'attempts before it is dead', value: before.max_attempts },
      { name: 'cost', label: 'cost', unit: 'tokens', value: before.cost },
      { name: 'timeout', label: 'timeout', unit: 'seconds', value: before.timeout, hint: 'empty for that of its kind' },
      { name: 'tags', label: 'tags', unit: 'optional', value: before.tags, hint: 'separated by commas' },
      { name: 'args', label: 'new arguments', unit: 'optional', lengthMax: '1000000', hint: 'a JSON object in place of the old one; empty to keep it' },
    ],
    act: async (answer) => {
      const change = changeOf(job, answer);
      changed = Object.keys(change);
      const { by, why } = answer;
      await call('PATCH', `/api/v1/jobs/${job.id}`, { body: { ...change, by, ...(why ? { why } : {}) } });
    },
  });
  return answer && `Updated: ${changed.join(', ')}.`;
}
