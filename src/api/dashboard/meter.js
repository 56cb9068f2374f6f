// Meters: the used share of a window or a queue as a bar.

import { h, setAttr } from './dom.js';

/** Builds the meter of a window or a queue. @param {string} label */
export function meter(label) {
  return h('span', { class: 'use', role: 'meter', 'aria-label': label, 'aria-valuemin': '0', 'aria-valuemax': '100' }, h('i', null));
}

/** @param {any} element of `meter` @param {number} share @param {string} text @param {string} tone */
export function drawMeter(element, share, text, tone) {
  element.firstElementChild.style.width = `${share * 100}%`;
  setAttr(element, 'data-tone', tone);
  setAttr(element, 'aria-valuenow', String(Math.round(share * 100)));
  setAttr(element, 'aria-valuetext', text);
}
