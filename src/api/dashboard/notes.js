// Errors in the notes of the page: each goes when what it was about succeeds.

import { setText } from './dom.js';

/** What failed last in each note. @type {WeakMap<HTMLElement, string>} */
const failed = new WeakMap();

/** Says in a note why something failed. @param {HTMLElement} note @param {string} text */
export function noteFailure(note, text) {
  setText(note, text);
  // Some characters are shown as others.
  failed.set(note, note.textContent ?? '');
}

/** Empties a note that still says why something failed. @param {HTMLElement} note */
export function clearFailure(note) {
  if (failed.get(note) === note.textContent) setText(note, '');
  failed.delete(note);
}

/** Does something, and says in a note why it failed. @param {HTMLElement} note @param {() => Promise<unknown>} question */
export async function noting(note, question) {
  try {
    await question();
    clearFailure(note);
  } catch (error) {
    noteFailure(note, /** @type {any} */ (error).message);
  }
}
