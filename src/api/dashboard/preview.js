// The next occurrences of a cron expression, before a schedule is made of it.

import { get } from './api.js';
import { setText } from './dom.js';

/** Returns the path of a preview. @param {string} expression @param {string} zone */
export function previewPath(expression, zone) {
  const query = new URLSearchParams({ expression });
  if (zone) query.set('time_zone', zone);
  return `/api/v1/cron-next?${query}`;
}

/** Shows the occurrences of the form's expression in `note`. @param {any} form @param {HTMLElement} note */
export function watchPreview(form, note) {
  form.addEventListener('submit', async (/** @type {Event} */ event) => {
    event.preventDefault();
    const typed = (/** @type {string} */ name) => form.elements.namedItem(name).value.trim();
    try {
      const { upcoming, time_zone: zone } = await get(previewPath(typed('expression'), typed('zone')));
      const shown = upcoming.map((/** @type {string} */ at) => new Date(at).toLocaleString('en-GB', { timeZone: zone, dateStyle: 'medium', timeStyle: 'medium' }));
      setText(note, shown.length > 0 ? `${shown.join(' · ')} (${zone})` : 'It has no occurrence.');
    } catch (error) {
      setText(note, /** @type {any} */ (error).message);
    }
  });
}
