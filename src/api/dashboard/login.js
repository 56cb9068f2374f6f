// Returns to the requested view after signing in: a browser keeps the fragment of the form's
// address through the redirect. The name that signs changes stays in this browser.

import { recall, remember } from './settings.js';

const who = /** @type {HTMLInputElement} */ (document.getElementById('who'));
who.value = recall('who', '');
for (const form of document.forms) {
  form.action += location.hash;
  form.addEventListener('submit', () => remember('who', who.value.trim()));
}
