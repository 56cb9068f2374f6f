// The texts of the knob form as a PATCH, and the answers of the server as texts beside the fields.
// Pure. The server checks the ranges: only "is it a number at all" is decided here.

import { serverNow } from './clock.js';

/**
 * @typedef {{ group: string, name: string, label: string, unit: string, hint: string, kind: 'number' | 'choice' | 'time' | 'text' | 'flag', choices?: string[], optional?: boolean }} Field
 */

/**
 * The groups of the form, in its order; a folded group holds what is seldom changed, and one of the
 * governor is left out for a throttle without one.
 * @type {{ name: string, title: string, isFolded?: boolean, isOfGovernor?: boolean }[]}
 */
export const GROUPS = [
  { name: 'rate', title: 'rate' },
  { name: 'governor', title: 'governor', isOfGovernor: true },
  { name: 'key', title: 'per key' },
  { name: 'slots', title: 'concurrency' },
  { name: 'over', title: 'over the limit' },
  { name: 'advanced', title: 'advanced', isFolded: true },
];

/** @type {Field[]} */
export const FIELDS = [
  { group: 'rate', name: 'rps', label: 'rps', unit: 'tokens/s', hint: '0 stops, -1 is unlimited', kind: 'number' },
  { group: 'rate', name: 'burst', label: 'burst', unit: 'windows', hint: 'tokens at once after an idle period', kind: 'number' },
  { group: 'rate', name: 'window', label: 'window', unit: 's', hint: 'length of a window', kind: 'number' },
  { group: 'rate', name: 'windows', label: 'windows', unit: 'tokens/s', hint: 'at most so many within any so many seconds: 10/1 1000/3600', kind: 'text' },
  { group: 'rate', name: 'capacity', label: 'capacity', unit: 'tokens/s', hint: 'limits the rate, -1 is no limit', kind: 'number' },
  { group: 'rate', name: 'cost_factor', label: 'cost_factor', unit: '', hint: '2 lets each job cost twice as much', kind: 'number' },
  { group: 'governor', name: 'mode', label: 'mode', unit: '', hint: 'what sets rps', kind: 'choice', choices: ['auto', 'manual', 'shadow', 'off'] },
  { group: 'governor', name: 'manual_until_ms', label: 'manual until', unit: '', hint: '30m, 2h or 14:30; empty for no end', kind: 'time', optional: true },
  { group: 'governor', name: 'min', label: 'min', unit: 'tokens/s', hint: 'lowest rate that the governor sets', kind: 'number' },
  { group: 'governor', name: 'max', label: 'max', unit: 'tokens/s', hint: 'highest rate that the governor sets', kind: 'number' },
  { group: 'governor', name: 'safe_rps', label: 'safe_rps', unit: 'tokens/s', hint: 'in force while rps is unknown', kind: 'number' },
  { group: 'key', name: 'key_rps', label: 'key_rps', unit: 'tokens/s', hint: 'of each key, -1 is unlimited', kind: 'number' },
  { group: 'key', name: 'key_burst', label: 'key_burst', unit: 'windows', hint: 'tokens of each key at once; 0 spaces them evenly', kind: 'number' },
  { group: 'key', name: 'key_windows', label: 'key_windows', unit: 'tokens/s', hint: 'the same for each key: 3/5', kind: 'text' },
  { group: 'slots', name: 'concurrency', label: 'concurrency', unit: 'jobs', hint: 'at once, -1 is unlimited', kind: 'number' },
  { group: 'slots', name: 'key_concurrency', label: 'key_concurrency', unit: 'jobs', hint: 'of each key at once', kind: 'number' },
  { group: 'slots', name: 'weight', label: 'weight', unit: '', hint: 'share relative to other throttles', kind: 'number' },
  { group: 'over', name: 'over_limit', label: 'over_limit', unit: '', hint: 'for jobs that cannot run at once', kind: 'choice', choices: ['wait', 'drop', 'merge'] },
  { group: 'over', name: 'max_backlog', label: 'max_backlog', unit: 'jobs', hint: 'waiting in a lane; empty for no limit', kind: 'number', optional: true },
  { group: 'over', name: 'on_backlog', label: 'on_backlog', unit: '', hint: 'above max_backlog', kind: 'choice', choices: ['signal', 'reject'] },
  { group: 'over', name: 'max_cost', label: 'max_cost', unit: 'tokens', hint: 'of one job', kind: 'number', optional: true },
  { group: 'advanced', name: 'parent', label: 'parent', unit: '', hint: 'a throttle that gives its tokens too; empty for none', kind: 'text', optional: true },
  { group: 'advanced', name: 'borrow', label: 'borrow', unit: '', hint: 'spare tokens of the parent, beyond its own rate', kind: 'flag', choices: ['no', 'yes'] },
  { group: 'advanced', name: 'on_429', label: 'on_429', unit: '', hint: 'when a server refuses', kind: 'choice', choices: ['active-informed', 'active-naive', 'passive-informed', 'passive-naive'] },
  { group: 'advanced', name: 'trust_scope', label: 'trust_scope', unit: '', hint: 'widest scope that an answer slows down', kind: 'choice', choices: ['key', 'throttle', 'account'] },
  { group: 'advanced', name: 'max_pause', label: 'max_pause', unit: 's', hint: 'after a refusal; empty for the default', kind: 'number', optional: true },
  { group: 'advanced', name: 'on_store_loss', label: 'on_store_loss', unit: '', hint: 'while Redis does not answer', kind: 'choice', choices: ['closed', 'open', 'local'] },
];

/** The fields that are not knobs, left out of differences. */
const BOOKKEEPING = new Set(['seq', 'term', 'by', 'at', 'at_ms', 'why', 'valid_until', 'valid_until_ms', 'capacity_reason']);

/**
 * Returns the current values of a throttle as the form uses them.
 * @param {any} detail a throttle as the API shows it
 * @returns {Record<string, any>}
 */
export function valuesOf(detail) {
  const turned = detail?.governor?.actuator;
  return { ...(detail?.knobs ?? {}), mode: detail?.mode, paused: detail?.paused, parent: detail?.parent ?? null, ...(turned ? { turned } : {}) };
}

/**
 * Summarizes the knobs in a line: the rate, and those that limit something or were set otherwise
 * than they begin.
 * @param {Record<string, any>} values @param {(name: string, value: any) => string} text formats a value
 * @param {boolean} isGoverned
 */
export function knobSummary(values, text, isGoverned) {
  const shown = FIELDS.filter(({ group, name }) => {
    if (name === 'rps') return true;
    if (name === 'mode' || (group === 'governor' && !isGoverned)) return false;
    if (['min', 'max'].includes(name)) return true;
    const value = values[name] ?? null;
    return value !== null && value !== UNSET[name];
  });
  return shown.map(({ name, label }) => `${label} ${text(name, values[name])}`).join(' · ');
}

/** The values of knobs that limit nothing. @type {Record<string, any>} */
const UNSET = {
  burst: 1, window: 1, windows: '', capacity: -1, cost_factor: 1, safe_rps: 1, key_rps: -1, key_burst: 1, key_windows: '', concurrency: -1, key_concurrency: -1, weight: 1, over_limit: 'wait',
  on_backlog: 'signal', max_cost: 1000, borrow: false, on_429: 'active-informed', trust_scope: 'key', on_store_loss: 'closed',
};

/**
 * Returns the unit and the hint of a field. If the governor sets `concurrency`, its bounds are in
 * slots.
 * @param {Field} field
 * @param {string | undefined} turned the knob that the governor turns
 * @returns {{ unit: string, hint: string }}
 */
export function wording(field, turned) {
  if (turned !== 'concurrency') return { unit: field.unit, hint: field.hint };
  if (field.name === 'min' || field.name === 'max') return { unit: 'slots', hint: field.hint };
  if (field.name === 'mode') return { unit: field.unit, hint: 'what sets concurrency' };
  if (field.name === 'concurrency') return { unit: 'slots', hint: field.hint };
  return { unit: field.unit, hint: field.hint };
}

/**
 * Parses a number, or returns null. Surrounding spaces are accepted; commas are refused because
 * they have two meanings.
 * @param {string} text
 * @returns {number | null}
 */
export function parseNumber(text) {
  const trimmed = text.trim();
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(trimmed)) return null;
  const value = Number(trimmed);
  return Number.isFinite(value) ? value : null;
}

/** The units of a time span, in milliseconds. */
const SPANS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/**
 * Parses a future time to unix milliseconds, or returns null: a span such as 30m, a time of today
 * or tomorrow such as 14:30, or a date with its time.
 * @param {string} text
 * @param {number} now unix milliseconds
 * @returns {number | null}
 */
export function parseTime(text, now) {
  const trimmed = text.trim();
  const span = /^(\d+(?:\.\d+)?)\s*([smhd])$/.exec(trimmed);
  if (span) return Math.round(now + Number(span[1]) * SPANS[/** @type {keyof typeof SPANS} */ (span[2])]);
  const hour = /^([01]?\d|2[0-3]):([0-5]\d)$/.exec(trimmed);
  if (hour) {
    const at = new Date(now);
    at.setHours(Number(hour[1]), Number(hour[2]), 0, 0);
    if (at.getTime() <= now) at.setDate(at.getDate() + 1);
    return at.getTime();
  }
  const at = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d/.test(trimmed) ? Date.parse(trimmed) : NaN;
  return Number.isNaN(at) ? null : at;
}

/**
 * Formats the value of a field for its input.
 * @param {Field} field
 * @param {Record<string, any>} values
 * @returns {string}
 */
export function fieldText(field, values) {
  const value = values[field.name] ?? null;
  if (field.kind === 'flag') return value ? 'yes' : 'no';
  if (value === null) return '';
  return field.kind === 'time' ? new Date(value).toISOString() : String(value);
}

/**
 * Converts the edited texts to a PATCH body with only the values that differ from the current ones.
 * @param {Record<string, string>} texts the edited fields only
 * @param {Record<string, any>} current
 * @param {number} [now] unix milliseconds
 * @returns {{ body: Record<string, any>, errors: Record<string, string> }}
 */
export function readEdits(texts, current, now = serverNow() * 1000) {
  /** @type {Record<string, any>} */
  const body = {};
  /** @type {Record<string, string>} */
  const errors = {};
  for (const field of FIELDS) {
    const text = texts[field.name];
    if (text === undefined) continue;
    if (field.kind === 'choice') {
      if (text !== current[field.name]) body[field.name] = text;
      continue;
    }
    if (field.kind === 'flag') {
      if ((text === 'yes') !== (current[field.name] === true)) body[field.name] = text === 'yes';
      continue;
    }
    if (field.kind === 'text') {
      if (text.trim() !== (current[field.name] ?? '')) body[field.name] = field.optional && text.trim() === '' ? null : text.trim();
      continue;
    }
    const value = field.kind === 'time' ? parseTime(text, now) : parseNumber(text);
    if (field.optional && text.trim() === '') {
      if ((current[field.name] ?? null) !== null) body[field.name] = null;
    } else if (value === null && field.kind === 'time') {
      errors[field.name] = `"${text.trim()}" is not a span such as 30m or a time such as 14:30`;
    } else if (value === null) {
      errors[field.name] = text.trim() ? `"${text.trim()}" is not a number such as 12.5` : 'a number is required';
    } else if (value !== current[field.name]) {
      body[field.name] = value;
    }
  }
  return { body, errors };
}

/**
 * Returns the edited fields that another person changed since the edit began. In auto mode the
 * governor changes its knob all the time, which is no conflict; but an edit of that knob does
 * conflict with a change of the mode.
 * @param {Record<string, any>} base values when the edit began
 * @param {Record<string, any>} current values now
 * @param {string[]} edited
 * @returns {string[]}
 */
export function conflicts(base, current, edited) {
  const turned = current.turned ?? 'rps';
  const found = edited.filter((name) => {
    if (name === turned && base.mode === 'auto' && current.mode === 'auto') return false;
    return base[name] !== current[name];
  });
  if (edited.includes(turned) && base.mode !== current.mode && !found.includes('mode')) found.push('mode');
  return found;
}

/**
 * Sorts a problem+json body into texts beside known fields and the rest.
 * @param {any} problem
 * @param {string[]} names fields that have a place of their own
 * @returns {{ fields: Record<string, string>, rest: string[] }}
 */
export function placeProblem(problem, names) {
  /** @type {Record<string, string>} */
  const fields = {};
  const rest = [];
  for (const { pointer, message } of problem?.errors ?? []) {
    const name = String(pointer ?? '').replace(/^#?\//, '').split('/')[0];
    if (names.includes(name)) fields[name] = fields[name] ? `${fields[name]}; ${message}` : String(message);
    else rest.push(name ? `${name}: ${message}` : String(message));
  }
  if (Object.keys(fields).length === 0 && rest.length === 0) {
    rest.push(problem?.detail || problem?.title || 'the server refused the edit without a reason');
  }
  return { fields, rest };
}

/**
 * Returns the knobs that an edit changed.
 * @param {any} before
 * @param {any} after
 * @returns {{ name: string, from: any, to: any }[]}
 */
export function changes(before, after) {
  const old = flat(before);
  const now = flat(after);
  const found = [];
  for (const name of Object.keys(now)) {
    if (BOOKKEEPING.has(name)) continue;
    if (JSON.stringify(old[name]) !== JSON.stringify(now[name])) found.push({ name, from: old[name], to: now[name] });
  }
  return found;
}

/** @param {any} value @returns {Record<string, any>} */
function flat(value) {
  if (!value || typeof value !== 'object') return {};
  return value.knobs && typeof value.knobs === 'object' ? { ...value, ...value.knobs, knobs: undefined } : value;
}
