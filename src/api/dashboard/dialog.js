// One question at a time, in a dialog of the page: the action, its author, and its reason.

import { refusalText } from './api.js';
import { fill, h, setText, show } from './dom.js';
import { recall, remember } from './settings.js';

/**
 * @typedef {{ name: string, label: string, value?: string, hint?: string, unit?: string, lengthMax?: string }} Asked
 */

/** @type {any} */
let dialog = null;

/**
 * Asks; resolves to the signature and the fields, or to null if the person cancels.
 * @param {{ title: string, text?: string, action: string, danger?: boolean, fields?: Asked[], isSigned?: boolean, keep?: string, act?: (answer: Record<string, string>) => Promise<void> }} question
 *   without `isSigned` neither the author nor a reason is asked for; `keep` is the text of the button that changes nothing;
 *   while `act` throws, the question stays open with what was typed, and says why
 * @returns {Promise<Record<string, string> | null>}
 */
export function ask({ title, text = '', action, danger = false, fields = [], isSigned = true, keep = 'Cancel', act }) {
  dialog ??= document.body.appendChild(h('dialog', { class: 'ask', 'aria-labelledby': 'ask-title' }));
  const input = (/** @type {Asked} */ field) => h('div', { class: 'field' },
    h('label', { for: `ask-${field.name}` }, field.label, field.unit ? h('span', { class: 'unit' }, field.unit) : null),
    h('input', { id: `ask-${field.name}`, name: field.name, type: 'text', autocomplete: 'off', value: field.value ?? '', required: field.name === 'by', maxlength: field.lengthMax ?? '300' }),
    field.hint ? h('p', { class: 'hint' }, field.hint) : null);
  const author = [{ name: 'by', label: 'your name', value: recall('who', '') }, { name: 'why', label: 'why', unit: 'optional' }];
  const all = isSigned ? [...fields, ...author] : fields;
  const go = h('button', { type: 'submit', class: danger ? 'primary danger' : 'primary' }, action);
  const refusal = h('p', { class: 'error', role: 'alert', hidden: true });
  const form = h('form', { method: 'dialog' },
    h('h2', { id: 'ask-title' }, title), text ? h('p', null, text) : null,
    ...all.map(input), refusal,
    h('div', { class: 'buttons' }, go, h('button', { type: 'button', onclick: () => dialog.close('') }, keep)));
  fill(dialog, form);
  dialog.returnValue = '';
  dialog.showModal();
  // The first missing field gets the focus. If none is missing, the button does.
  (all.map(({ name }) => form.elements.namedItem(name)).find((element) => !element.value && element.name !== 'why') ?? go).focus();
  return new Promise((resolve) => {
    let isActing = false;
    form.addEventListener('submit', async (/** @type {Event} */ event) => {
      /** @type {Record<string, string>} */
      const answer = {};
      for (const { name } of all) answer[name] = form.elements.namedItem(name).value.trim();
      if (isSigned) remember('who', answer.by);
      if (!answer.why) delete answer.why;
      if (!act) {
        resolve(answer);
        return;
      }
      event.preventDefault();
      go.disabled = isActing = true;
      // It may have been left meanwhile, or another question be open in its place.
      const isOpen = () => dialog.open && form.isConnected;
      try {
        await act(answer);
        resolve(answer);
        if (isOpen()) dialog.close('');
      } catch (error) {
        if (!isOpen()) resolve(null);
        setText(refusal, refusalText(error));
        show(refusal, true);
        // On a phone the end of a long question is out of sight.
        refusal.scrollIntoView({ block: 'nearest' });
      } finally {
        go.disabled = isActing = false;
      }
    });
    const closed = () => {
      // The end of an earlier question may arrive when this one is already open.
      if (dialog.open) return;
      // A request under way is not undone by leaving, so its end is the answer.
      if (isActing) return;
      dialog.removeEventListener('close', closed);
      resolve(null);
    };
    dialog.addEventListener('close', closed);
  });
}

/**
 * Returns the author of an action that undoes or frees: the name that this browser stores, or else
 * the answer to the question.
 * @param {{ title: string, text?: string, action: string }} question
 */
export async function signature(question) {
  const by = recall('who', '');
  return by ? { by } : ask(question);
}
