// Creates a throttle: a question for its name and its rate.

import { call, throttlePath, warningsText } from './api.js';
import { ask } from './dialog.js';
import { parseNumber } from './knobs.js';
import { throttleAddress } from './views.js';

/**
 * Asks for what is missing, and creates the throttle. Returns what was done, or null if the person
 * changes nothing; a refusal is told in the question, which keeps what was typed.
 * @param {string} name empty to ask for it
 * @returns {Promise<string | null>}
 */
export async function createThrottle(name) {
  const rps = { name: 'rps', label: 'rps', unit: 'tokens/s', value: '10', hint: '0 stops, -1 is unlimited' };
  let created = name;
  let warnings = '';
  const answer = await ask({
    title: name ? `Create ${name}?` : 'Create a throttle', action: 'Create',
    text: name ? 'Its waiting jobs run as its rate allows.' : 'Jobs name it and pass it at its rate. All other knobs begin with their defaults.',
    fields: name ? [rps] : [{ name: 'name', label: 'name', hint: 'letters, digits and . _ - / : { }' }, rps],
    act: async ({ name: typed = name, rps: text, ...signed }) => {
      const value = parseNumber(text);
      if (!typed) throw new Error('A throttle needs a name.');
      if (value === null) throw new Error(`rps: "${text}" is not a number such as 12.5.`);
      warnings = warningsText(await call('PATCH', `${throttlePath(typed)}?create=true`, { body: { ...signed, rps: value } }));
      created = typed;
    },
  });
  if (!answer) return null;
  location.hash = throttleAddress(created);
  return `Created ${created}.${warnings}`;
}
