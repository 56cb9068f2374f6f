// The last hour, six hours or day of one throttle, as Prometheus has it: requests and attempts a minute.

import { get, throttlePath } from './api.js';
import { fill, h, setAttr, setText, show } from './dom.js';
import { clock, number } from './format.js';

export const RANGES = ['1h', '6h', '24h'];

/** The charts: title and the series in each, with what they mean. */
const CHARTS = [
  { title: 'requests for tokens a minute', series: { allowed: 'allowed (200)', refused: 'refused (429)' } },
  { title: 'attempts of jobs a minute', series: { completed: 'completed', throttled: 'refused by a server (429)', failed: 'failed' } },
  { title: 'tokens a second', series: { achieved_rps: 'taken' } },
];

const WIDTH = 600;
const HEIGHT = 110;

/** @typedef {{ at: number, value: number }} Point a time in unix seconds and the value then */

/**
 * Returns the path of a line; a gap of more than two steps interrupts it. Pure.
 * @param {Point[]} points ascending
 * @param {{ from: number, to: number, top: number, step: number }} axes
 */
export function linePath(points, { from, to, top, step }) {
  let path = '';
  let before = -Infinity;
  for (const { at, value } of points) {
    const x = (WIDTH * (at - from)) / (to - from);
    const y = HEIGHT - (HEIGHT * value) / top;
    path += `${at - before > 2 * step ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`;
    before = at;
  }
  return path;
}

/** @param {string} name @param {Record<string, string>} attributes */
function svg(name, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export class Past {
  /** @param {string} name of the throttle */
  constructor(name) {
    this.name = name;
    this.range = RANGES[0];
    this.buttons = RANGES.map((range) => h('button', { type: 'button', 'aria-pressed': 'false', 'aria-label': `${range} of ${name}`, onclick: () => this.ask(range) }, range));
    this.key = h('input', { type: 'text', placeholder: 'all keys', maxlength: '512', 'aria-label': `Key of ${name}`, onchange: () => this.ask(this.range) });
    this.note = h('p', { class: 'sub', role: 'status' });
    this.charts = h('div', { class: 'past-charts' });
    this.element = h('div', { class: 'past' }, h('div', { class: 'buttons' }, ...this.buttons, this.key), this.note, this.charts);
  }

  /** @param {string} [range] */
  async ask(range = this.range) {
    this.range = range;
    this.buttons.forEach((button, n) => setAttr(button, 'aria-pressed', String(RANGES[n] === range)));
    const key = this.key.value.trim();
    const query = new URLSearchParams({ range, ...(key ? { key } : {}) });
    const asked = `${query}`;
    this.asked = asked;
    try {
      const found = await get(`${throttlePath(this.name)}/history?${query}`);
      // An answer to an older question comes too late.
      if (this.asked === asked) this.draw(found);
    } catch (error) {
      this.say(/** @type {any} */ (error).message);
    }
  }

  /** @param {string} text */
  say(text) {
    setText(this.note, text);
    show(this.note, text !== '');
  }

  /** @param {any} found */
  draw(found) {
    const times = found.series.flatMap((/** @type {any} */ one) => one.points.map((/** @type {Point} */ { at }) => at));
    if (found.problem) this.say(`Prometheus: ${found.problem}`);
    else if (times.length === 0) this.say(found.key ? 'Prometheus has nothing of this key: name the throttle in the setting key_metrics.' : 'Prometheus has nothing of this throttle yet: let it scrape /metrics of every process.');
    else this.say('');
    const to = Math.max(...times);
    const from = to - found.range_s;
    const of = (/** @type {string} */ name) => found.series.find((/** @type {any} */ one) => one.name === name)?.points ?? [];
    const charts = CHARTS.map(({ title, series }) => ({ title, lines: Object.entries(series).map(([name, label]) => ({ name, label, points: of(name) })) }));
    fill(this.charts, ...charts.filter(({ lines }) => lines.some(({ points }) => points.length > 0)).map(({ title, lines }) => chart(title, lines, { from, to, step: found.step_s })));
  }
}

/**
 * @param {string} title
 * @param {{ name: string, label: string, points: Point[] }[]} lines
 * @param {{ from: number, to: number, step: number }} time
 */
function chart(title, lines, { from, to, step }) {
  const peak = Math.max(...lines.flatMap(({ points }) => points.map(({ value }) => value)), 0);
  const top = peak > 0 ? peak * 1.05 : 1;
  const drawn = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${title}, at most ${number(peak)}` });
  for (const { name, points } of lines) drawn.append(svg('path', { d: linePath(points, { from, to, top, step }), class: `line-${name}`, 'vector-effect': 'non-scaling-stroke' }));
  const legend = lines.filter(({ points }) => points.length > 0).map(({ name, label, points }) => h('li', { class: `line-${name}` }, `${label}: ${number(points.at(-1)?.value ?? 0)}`));
  return h('figure', null,
    h('figcaption', null, title, h('span', { class: 'sub' }, `at most ${number(peak)}`)),
    drawn,
    h('div', { class: 'past-time sub' }, h('span', null, clock(from, to)), h('span', null, clock(to, to))),
    h('ul', null, ...legend));
}
