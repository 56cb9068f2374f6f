// The way of a message through its gates, as a line with times.

import { fill, h, setText } from './dom.js';
import { forecastText, gateWord, plannedText, sourceText, stepText } from './gatewords.js';

/**
 * Draws the gates in their order.
 * @param {HTMLElement} element @param {import('./gatewords.js').Step[]} gates @param {number} now unix seconds
 */
export function drawGates(element, gates, now) {
  fill(element, h('ol', { class: 'gates', 'aria-label': 'Gates in their order' }, ...gates.map((step) => h('li', { 'data-finding': step.finding },
    h('b', null, gateWord(step.gate)),
    h('span', { class: 'num' }, stepText(step, now)),
    step.rule && h('span', { class: 'sub' }, step.rule),
    step.set_by && h('span', { class: 'sub' }, sourceText(step, now))))));
}

/**
 * Draws an explanation: a sentence, the gates, the plan and what comes after.
 * @param {HTMLElement} element @param {import('./gatewords.js').Explanation} explained @param {number} now unix seconds
 */
export function drawExplanation(element, explained, now) {
  const gates = h('div', null);
  drawGates(gates, explained.gates, now);
  const planned = plannedText(explained, now);
  const next = forecastText(explained.forecast, now);
  fill(element, h('p', { class: 'way' }, `${explained.sentence.charAt(0).toUpperCase()}${explained.sentence.slice(1)}.`), gates,
    planned && h('p', { class: 'sub num' }, planned), next && h('p', { class: 'sub num' }, next));
}

/**
 * Draws the way of a message as far as it is read.
 * @param {HTMLElement} element @param {any} way @param {number} now unix seconds
 */
export function drawWay(element, way, now) {
  if (!way) setText(element, 'Reading its way through the gates …');
  else if (way.fault) setText(element, way.fault);
  else drawExplanation(element, way, now);
}
