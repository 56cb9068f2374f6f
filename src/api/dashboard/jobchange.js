// Changes of one job: retry, cancel, discard. Each is one request, signed by its author.

import { call } from './api.js';
import { ask } from './dialog.js';

/** @typedef {'retry' | 'cancel' | 'discard'} JobVerb */

/** The names of each change, before and after. @type {Record<JobVerb, { action: string, done: string, text: string }>} */
export const CHANGES = {
  retry: { action: 'Retry', done: 'Ready again', text: 'It becomes ready at once and runs when its throttle allows.' },
  cancel: { action: 'Cancel the job', done: 'Cancelled', text: 'A waiting job will not run; the handler of a running one is asked to stop, and its effects so far remain.' },
  discard: { action: 'Discard', done: 'Discarded', text: 'The dead letter ends as cancelled; its history stays until it is pruned.' },
};

/**
 * Changes one job.
 * @param {JobVerb} verb @param {number} id @param {Record<string, string>} signed
 * @returns {Promise<any>} the job as it is afterwards
 */
export function changeJob(verb, id, signed) {
  if (verb === 'cancel') return call('DELETE', `/api/v1/jobs/${id}?${new URLSearchParams(signed)}`);
  return call('POST', `/api/v1/jobs/${id}/${verb}`, { body: signed });
}

/**
 * Asks for the author of a change of one job, or of a few.
 * @param {JobVerb} verb @param {string} what such as `job 17` or `3 jobs`
 */
export function askChange(verb, what) {
  const { action, text } = CHANGES[verb];
  const title = `${verb[0].toUpperCase()}${verb.slice(1)} ${what}?`;
  return ask({ title, action, danger: verb !== 'retry', text, keep: verb === 'cancel' ? 'Keep' : 'Cancel' });
}
