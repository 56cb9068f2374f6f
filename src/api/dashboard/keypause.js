// The pause of one key, from its lane or from one of its jobs, with an offer to undo it.

import { call, warningsText } from './api.js';
import { ask } from './dialog.js';
import { clock } from './format.js';
import { parseNumber } from './knobs.js';
import { keyPath } from './operate.js';
import { recall } from './settings.js';
import { offerUndo } from './undo.js';

/**
 * Asks for how long, and pauses a key. Returns what was done, or null if the person changes
 * nothing.
 * @param {string} throttle @param {string} key empty for the lane without a key
 * @param {() => void} changed is called after an undo
 * @returns {Promise<string | null>}
 */
export async function pauseKey(throttle, key, changed = () => {}) {
  const name = key || 'the lane without a key';
  const path = keyPath(throttle, key);
  /** @type {any} */
  let paused;
  const answer = await ask({
    title: `Pause ${name}?`, action: 'Pause',
    text: `Its jobs of throttle ${throttle} wait without using slots; other lanes continue. Running jobs finish.`,
    fields: [{ name: 'minutes', label: 'for', unit: 'minutes', value: '10' }],
    act: async ({ minutes: typed, ...signed }) => {
      const minutes = parseNumber(typed);
      if (minutes === null) throw new Error(`for: "${typed}" is not a number of minutes such as 10.`);
      paused = await call('POST', `${path}/pause`, { body: { ...signed, seconds: minutes * 60 } });
    },
  });
  if (!answer) return null;
  const said = `Paused until ${clock(paused.until)}.${warningsText(paused)}`;
  offerUndo(`${name} of ${throttle}: ${said}`, async () => {
    await call('POST', `${path}/resume`, { body: { by: recall('who', '') } });
    changed();
    return `${name} of ${throttle} is resumed.`;
  });
  return said;
}
