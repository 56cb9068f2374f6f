// The form that edits knobs: it sends only the edited fields, guarded by the sequence number that
// the person has seen.

import { ApiError, get, patchThrottle, throttlePath, warningsText } from './api.js';
import { fill, h, setText, show } from './dom.js';
import { conflicts, fieldText, FIELDS, GROUPS, placeProblem, readEdits, valuesOf, wording } from './knobs.js';
import { recall, remember } from './settings.js';
import { clock } from './format.js';
import { knobValue } from './words.js';

const NAMES = FIELDS.map((field) => field.name);
/** @param {string} name of a field of the form */
const fieldOf = (name) => /** @type {import('./knobs.js').Field} */ (FIELDS.find((field) => field.name === name));
/**
 * The most attempts of an edit: if the governor writes between our read and our write, the edit is
 * repeated with the newer number.
 */
const TRIES = 4;

export class KnobForm {
  /**
   * @param {string} name of the throttle
   * @param {{ changed: (detail: any) => void, wanted: () => void }} on `changed` gets each newer throttle, `wanted` opens the form
   */
  constructor(name, on) {
    this.name = name;
    this.on = on;
    /** @type {any} */
    this.detail = null;
    /** @type {Record<string, any> | null} values when the edit began */
    this.base = null;
    /** @type {Record<string, { input: any, error: HTMLElement, newer: HTMLElement, row: HTMLElement, unit: HTMLElement, hint: HTMLElement }>} */
    this.fields = {};
    this.busy = false;
    /** The buttons outside the form that send through it. @type {HTMLButtonElement[]} */
    this.quickButtons = [];
    this.build();
  }

  build() {
    const id = `knob-${this.name.replace(/[^a-zA-Z0-9_-]/g, (c) => `_${c.charCodeAt(0)}`)}`;
    /** @type {Record<string, { element: any, grid: HTMLElement }>} */
    this.groups = {};
    for (const { name, title, isFolded } of GROUPS) {
      const grid = h('div', { class: 'fields' });
      const element = isFolded ? h('details', { class: 'group' }, h('summary', null, title), grid) : h('fieldset', { class: 'group' }, h('legend', null, title), grid);
      this.groups[name] = { element, grid };
    }
    for (const field of FIELDS) {
      const inputId = `${id}-${field.name}`;
      const described = `${inputId}-hint ${inputId}-error`;
      const input = field.choices
        ? h('select', { id: inputId, name: field.name, 'aria-describedby': described },
          ...(field.choices ?? []).map((c) => h('option', { value: c }, c)))
        : h('input', { id: inputId, name: field.name, type: 'text', inputmode: 'text', autocomplete: 'off', spellcheck: 'false',
          'aria-describedby': described });
      input.addEventListener('input', () => this.edited(field.name));
      const error = h('p', { class: 'error', id: `${inputId}-error`, hidden: true });
      const newer = h('p', { class: 'newer', hidden: true });
      const unit = h('span', { class: 'unit' }, field.unit);
      const hint = h('p', { class: 'hint', id: `${inputId}-hint` }, field.hint);
      const row = h('div', { class: 'field' }, h('label', { for: inputId }, field.label, unit), input, hint, newer, error);
      this.fields[field.name] = { input, error, newer, row, unit, hint };
      this.groups[field.group].grid.append(row);
    }
    this.who = h('input', { id: `${id}-who`, name: 'by', type: 'text', autocomplete: 'nickname', maxlength: '80',
      'aria-describedby': `${id}-who-error` });
    this.who.value = recall('who', '');
    this.who.addEventListener('input', () => this.clearError(this.who, this.whoError));
    this.whoError = h('p', { class: 'error', id: `${id}-who-error`, hidden: true });
    this.why = h('input', { id: `${id}-why`, name: 'why', type: 'text', autocomplete: 'off', maxlength: '300' });
    this.apply = h('button', { type: 'submit', class: 'primary' }, 'Apply');
    this.discard = h('button', { type: 'button', onclick: () => this.reset('') }, 'Discard');
    this.note = h('p', { class: 'form-note', role: 'status' });
    this.conflict = h('div', { class: 'conflict', role: 'alert', hidden: true });
    const signed = h('div', { class: 'signed change operators' },
      h('div', { class: 'field' }, h('label', { for: `${id}-who` }, 'your name'), this.who, this.whoError),
      h('div', { class: 'field grow' }, h('label', { for: `${id}-why` }, 'why', h('span', { class: 'unit' }, 'optional')), this.why),
      h('div', { class: 'buttons' }, this.apply, this.discard));
    this.element = h('form', { class: 'knob-form', novalidate: true, 'aria-label': `Knobs of ${this.name}` }, ...GROUPS.map(({ name }) => this.groups[name].element), this.conflict,
      signed, this.note);
    this.element.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.submit();
    });
  }

  /** Updates the fields that are not being edited. @param {any} detail */
  update(detail) {
    if (!detail) return;
    this.detail = detail;
    const values = valuesOf(detail);
    // The mode, and the bounds of a governor, say nothing about a throttle without one.
    for (const { name, isOfGovernor } of GROUPS) show(this.groups[name].element, !isOfGovernor || Boolean(detail.governor));
    for (const field of FIELDS) {
      const { name } = field;
      const { input, row, newer, unit, hint } = this.fields[name];
      const words = wording(field, values.turned);
      setText(unit, words.unit);
      setText(hint, words.hint);
      const dirty = row.classList.contains('dirty');
      const text = fieldText(field, values);
      if (!dirty && input.value !== text && document.activeElement !== input) input.value = text;
      if (dirty) setText(newer, `now ${knobValue(name, values[name])}`);
      show(newer, dirty);
    }
    if (!this.who.value && document.activeElement !== this.who) this.who.value = recall('who', '');
  }

  /** Applies an answer at once, without waiting for the next drawing. @param {any} detail */
  take(detail) {
    this.update(detail);
    this.on.changed(detail);
  }

  /** @param {string} name */
  edited(name) {
    if (!this.base) this.base = valuesOf(this.detail);
    const { input, row, error, newer } = this.fields[name];
    row.classList.toggle('dirty', input.value !== fieldText(fieldOf(name), this.base));
    this.clearError(input, error);
    // Its button would apply what was typed before.
    show(this.conflict, false);
    setText(newer, `now ${knobValue(name, valuesOf(this.detail)[name])}`);
    show(newer, row.classList.contains('dirty'));
    if (!NAMES.some((n) => this.fields[n].row.classList.contains('dirty'))) this.base = null;
    setText(this.note, '');
  }

  /** Discards the edit. @param {string} note */
  reset(note) {
    this.base = null;
    for (const name of NAMES) {
      const { input, row, error, newer } = this.fields[name];
      row.classList.remove('dirty');
      this.clearError(input, error);
      show(newer, false);
      input.value = fieldText(fieldOf(name), valuesOf(this.detail));
    }
    this.why.value = '';
    show(this.conflict, false);
    setText(this.note, note);
  }

  /** Returns the author and the reason of the edit. Without a name nothing is sent. */
  signature() {
    const by = this.who.value.trim();
    if (by) {
      remember('who', by);
      return { by, ...(this.why.value.trim() ? { why: this.why.value.trim() } : {}) };
    }
    this.on.wanted();
    this.showError(this.who, this.whoError, 'enter your name, for the audit log');
    this.who.focus();
    return null;
  }

  async submit() {
    if (this.busy || !this.detail) return;
    /** @type {Record<string, string>} */
    const texts = {};
    for (const name of NAMES) if (this.fields[name].row.classList.contains('dirty')) texts[name] = this.fields[name].input.value;
    const { body, errors } = readEdits(texts, valuesOf(this.detail));
    this.placeErrors(errors);
    if (Object.keys(errors).length) return;
    if (Object.keys(body).length === 0) {
      this.reset('Nothing was changed.');
      return;
    }
    const signature = this.signature();
    if (signature) await this.send({ ...body, ...signature }, this.base ?? valuesOf(this.detail));
  }

  /**
   * Sends the one field of a button: pause, resume, hand over. The answer to the question supplies
   * author and reason.
   * @param {Record<string, any>} body
   * @param {() => Promise<Record<string, string> | null>} question
   * @returns {Promise<boolean>} true if it was applied
   */
  async quick(body, question) {
    if (this.busy || !this.detail) return false;
    const signed = await question();
    return signed ? this.send({ ...body, ...signed }, valuesOf(this.detail), (note) => setText(this.note, note)) : false;
  }

  /**
   * @param {Record<string, any>} body
   * @param {Record<string, any>} base values that the person saw
   * @param {(note: string) => void} [applied] is called at the end of a change that is not of the form, whose edit goes on
   * @returns {Promise<boolean>} true if it was applied
   */
  async send(body, base, applied = (note) => this.reset(note)) {
    this.setBusy(true);
    show(this.conflict, false);
    const edited = Object.keys(body).filter((name) => name !== 'by' && name !== 'why');
    try {
      for (let attempt = 1; ; attempt += 1) {
        const newer = conflicts(base, valuesOf(this.detail), edited);
        if (newer.length) {
          this.showConflict(newer, base, body, applied);
          return false;
        }
        try {
          const changed = await patchThrottle(this.name, body, this.detail.seq);
          this.take(changed);
          applied(`Applied ${edited.map((n) => (n === 'paused' ? (body.paused ? 'pause' : 'resume') : n)).join(', ')}.${warningsText(changed)}`);
          return true;
        } catch (error) {
          if (!(error instanceof ApiError) || error.status !== 409 || attempt === TRIES) throw error;
          this.take(await get(throttlePath(this.name)));
        }
      }
    } catch (error) {
      this.fail(error);
      return false;
    } finally {
      this.setBusy(false);
    }
  }

  /** @param {any} error */
  fail(error) {
    const { fields, rest } = placeProblem(error.problem ?? { detail: error.message }, [...NAMES, 'by', 'why']);
    this.on.wanted();
    this.placeErrors(fields);
    if (fields.by) this.showError(this.who, this.whoError, fields.by);
    const lines = [...rest, ...(fields.why ? [`why: ${fields.why}`] : [])];
    setText(this.note, error.status === 401 ? 'The server requires a token: sign in, then apply again.' : lines.join('; '));
  }

  /**
   * Shows the values of an edit by another person, so that this person can decide.
   * @param {string[]} names
   * @param {Record<string, any>} base
   * @param {Record<string, any>} body
   * @param {(note: string) => void} applied
   */
  showConflict(names, base, body, applied) {
    this.on.wanted();
    const now = valuesOf(this.detail);
    const { by, at_ms: atMs, why } = this.detail.knobs ?? {};
    const rows = names.map((name) => h('li', null, h('b', null, name), ` is now ${knobValue(name, now[name])}; it was ${knobValue(name, base[name])}`,
      name in body ? ` when you began; your value is ${knobValue(name, body[name])}` : ' when you began'));
    const mine = h('button', { type: 'button', onclick: () => this.send(body, valuesOf(this.detail), applied) }, 'Apply my values');
    const theirs = h('button', { type: 'button', onclick: () => this.reset('The newer values were kept.') }, 'Keep the newer values');
    fill(this.conflict, h('p', null, `${by || 'Somebody'} changed this while you were editing`, atMs ? ` (${clock(atMs / 1000)}${why ? `, '${why}'` : ''})` : '', '.'),
      h('ul', null, ...rows), h('div', { class: 'buttons' }, mine, theirs));
    show(this.conflict, true);
    mine.focus();
  }

  /** @param {Record<string, string>} errors */
  placeErrors(errors) {
    let first = null;
    for (const name of NAMES) {
      const { input, error } = this.fields[name];
      if (errors[name]) {
        this.showError(input, error, errors[name]);
        const folded = input.closest('details.group');
        if (folded) folded.open = true;
        first ??= input;
      } else {
        this.clearError(input, error);
      }
    }
    first?.focus();
  }

  /** @param {HTMLElement} input @param {HTMLElement} place @param {string} text */
  showError(input, place, text) {
    input.setAttribute('aria-invalid', 'true');
    setText(place, text);
    show(place, true);
  }

  /** @param {HTMLElement} input @param {HTMLElement} place */
  clearError(input, place) {
    input.removeAttribute('aria-invalid');
    show(place, false);
  }

  /** @param {boolean} busy */
  setBusy(busy) {
    this.busy = busy;
    for (const button of [this.apply, ...this.quickButtons]) button.disabled = busy;
    if (busy) setText(this.note, 'Sending …');
    else if (this.note.textContent === 'Sending …') setText(this.note, '');
  }
}
