// The offer to undo the last change: one line at the foot of the page, for a minute.

import { h, setText, show } from './dom.js';

const OFFERED_MS = 60_000;

/** @type {{ bar: any, text: HTMLElement, button: any } | null} */
let parts = null;
let timer = 0;
/** @type {(() => Promise<string>) | null} */
let undo = null;

/**
 * Says what was done and offers to undo it.
 * @param {string} text
 * @param {() => Promise<string>} work undoes the change and returns what to say
 */
export function offerUndo(text, work) {
  undo = work;
  const { bar, button } = built();
  say(text);
  button.disabled = false;
  show(button, true);
  show(bar, true);
  clearTimeout(timer);
  timer = window.setTimeout(close, OFFERED_MS);
}

/** Takes back the offer of a text, because the change was undone in another way. @param {string} text */
export function endOffer(text) {
  if (undo && parts?.text.textContent === text) close();
}

function close() {
  undo = null;
  if (parts) show(parts.bar, false);
}

function built() {
  if (parts) return parts;
  const text = h('span', null);
  const button = h('button', { type: 'button', onclick: () => run() }, 'Undo');
  const gone = h('button', { type: 'button', class: 'close', 'aria-label': 'Close', onclick: close }, '×');
  const bar = document.body.appendChild(h('div', { class: 'undo', role: 'status', hidden: true }, text, button, gone));
  parts = { bar, text, button };
  return parts;
}

async function run() {
  const { button } = built();
  const work = undo;
  if (!work) return;
  button.disabled = true;
  try {
    say(await work());
    undo = null;
    show(button, false);
  } catch (error) {
    button.disabled = false;
    say(/** @type {any} */ (error).message);
  }
}

/** @param {string} text */
function say(text) {
  setText(built().text, text);
}
