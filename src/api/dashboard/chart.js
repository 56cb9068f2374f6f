// Draws the chart of one throttle: rates, signals and ribbons on one time axis. Knows canvases, and
// no other part of the page.

import { clock, number, rate } from './format.js';
import { hatch, palette, signalStyle } from './palette.js';
import { OVERLOAD, ratio, spread } from './plot.js';
import { GAP_S } from './ribbons.js';
import { linear, logTicks, rateScale, timeTicks, ZERO_GUTTER_PX } from './scale.js';
import { breakerText } from './words.js';

const SMALL = 10.5;
/** The height above a band for its title, in CSS pixels. */
const TITLE_PX = 20;

/**
 * @typedef {import('./plot.js').Plot} Plot
 * @typedef {{ left: number, right: number, width: number, height: number, rates: Band, signals: Band | null,
 *   breaker: Band | null, decider: Band | null, foot: number, axis: number }} Layout
 * @typedef {{ top: number, bottom: number }} Band
 */

/**
 * Computes the bands of a chart for a size in CSS pixels.
 * @param {number} width
 * @param {{ signals: boolean, breaker: boolean }} has
 * @returns {Layout}
 */
export function layout(width, has) {
  const wide = width >= 560;
  const left = wide ? 58 : 46;
  const right = width - (wide ? 96 : 8);
  let y = TITLE_PX;
  const band = (/** @type {number} */ height, /** @type {number} */ gap) => {
    const found = { top: y, bottom: y + height };
    y += height + gap;
    return found;
  };
  const rates = band(has.signals ? (wide ? 168 : 140) : 112, has.signals ? 10 + TITLE_PX : 14);
  const signals = has.signals ? band(wide ? 116 : 100, 14) : null;
  const breaker = has.breaker ? band(16, 5) : null;
  // Without a governor a person decides all the time, which is no news.
  const decider = has.breaker ? band(16, 6) : null;
  return { left, right, width, height: y + 16, rates, signals, breaker, decider, foot: (decider ?? breaker ?? signals ?? rates).bottom, axis: y };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D}
 */
export function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const w = Math.round(width * scale);
  const hgt = Math.round(height * scale);
  if (canvas.width !== w || canvas.height !== hgt) {
    canvas.width = w;
    canvas.height = hgt;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return ctx;
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {Layout} at
 * @param {Plot} data
 * @param {number} from unix seconds
 * @param {number} to unix seconds
 */
export function drawChart(ctx, at, data, from, to) {
  const colours = palette();
  const x = linear(from, to, at.left, at.right);
  ctx.font = `${SMALL}px ${colours.font}`;
  ctx.lineJoin = 'round';
  drawTimeAxis(ctx, at, x, from, to, colours);
  drawRates(ctx, at, data, x, colours);
  if (at.signals) drawSignals(ctx, at, at.signals, data, x, colours);
  if (at.breaker) drawRibbon(ctx, at, at.breaker, 'breaker', data.breaker, x, colours);
  if (at.decider) drawRibbon(ctx, at, at.decider, 'decider', data.decider, x, colours);
  drawFailed(ctx, at, data, x, colours);
  drawEdits(ctx, at, data, x, colours);
}

/** @typedef {(t: number) => number} X */

/**
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {X} x @param {number} from @param {number} to
 * @param {Record<string, string>} colours
 */
function drawTimeAxis(ctx, at, x, from, to, colours) {
  ctx.textAlign = 'center';
  ctx.textBaseline = 'top';
  ctx.lineWidth = 1;
  const ticks = timeTicks(from, to, at.right - at.left);
  const minutes = ticks.every((t) => t % 60 === 0);
  for (const t of ticks) {
    const px = Math.round(x(t)) + 0.5;
    ctx.strokeStyle = colours.grid;
    line(ctx, px, at.rates.top, px, at.rates.bottom);
    if (at.signals) line(ctx, px, at.signals.top, px, at.signals.bottom);
    ctx.fillStyle = colours.muted;
    const text = minutes ? clock(t).slice(0, 5) : clock(t);
    const half = ctx.measureText(text).width / 2;
    if (px - half >= at.left - 12 && px + half <= at.width) ctx.fillText(text, px, at.axis);
  }
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Plot} data @param {X} x
 * @param {Record<string, string>} colours
 */
function drawRates(ctx, at, data, x, colours) {
  const { top, bottom } = at.rates;
  const y = rateScale(data.domain, top, bottom);
  const most = Math.max(2, Math.floor((bottom - top) / 24));
  for (const value of logTicks(data.domain, most)) axisLine(ctx, at, y(value), rate(value), colours);
  axisLine(ctx, at, bottom, '0', colours, colours.line);
  if (data.points.some((p) => (data.measure.knob(p) ?? 0) < 0)) axisLine(ctx, at, top + 2, '∞', colours);
  bandTitle(ctx, at.left, top, data.measure.title, colours);
  // A cut marks the gap between zero and the logarithmic part, because the distance there has no
  // meaning.
  ctx.strokeStyle = colours.muted;
  ctx.lineWidth = 1;
  const cut = bottom - ZERO_GUTTER_PX / 2;
  line(ctx, at.left - 4, cut + 2, at.left + 4, cut - 1);
  line(ctx, at.left - 4, cut + 5, at.left + 4, cut + 2);

  ctx.save();
  clip(ctx, at, top - 2, bottom + 2);
  ctx.fillStyle = colours.achieved;
  ctx.globalAlpha = 0.12;
  area(ctx, data.points, data.measure.done, x, y, bottom);
  ctx.globalAlpha = 1;
  ctx.strokeStyle = colours.achieved;
  ctx.lineWidth = 1.6;
  trace(ctx, data.points, data.measure.done, x, y, false);
  ctx.strokeStyle = colours.ink;
  ctx.lineWidth = 1.8;
  trace(ctx, data.points, data.measure.knob, x, y, true);
  ctx.restore();

  const last = data.points.at(-1);
  if (!last) return;
  endLabels(ctx, at, at.rates, [
    { value: data.measure.knob(last), y, colour: colours.ink, text: 'knob' },
    { value: data.measure.done(last), y, colour: colours.achieved, text: data.measure.doneName },
  ]);
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Band} band @param {Plot} data @param {X} x
 * @param {Record<string, string>} colours
 */
function drawSignals(ctx, at, band, data, x, colours) {
  const { top, bottom } = band;
  const linearY = linear(0, data.top, bottom, top);
  const y = (/** @type {number} */ v) => Math.max(top, linearY(v));
  const overload = y(OVERLOAD);

  // The range from the setpoint to 1.2 of it, which a steady loop may use.
  ctx.fillStyle = colours.calm;
  ctx.globalAlpha = 0.14;
  ctx.fillRect(at.left, overload, at.right - at.left, y(1) - overload);
  ctx.globalAlpha = 1;

  ctx.save();
  clip(ctx, at, top, overload);
  data.signalNames.forEach((name) => {
    ctx.fillStyle = colours.alarm;
    ctx.globalAlpha = 0.16;
    area(ctx, data.points, (p) => ratio(p, name), x, y, overload);
    ctx.globalAlpha = 0.55;
    ctx.fillStyle = hatch(ctx, colours.alarm, 7, 1);
    area(ctx, data.points, (p) => ratio(p, name), x, y, overload);
    ctx.globalAlpha = 1;
  });
  ctx.restore();

  drawSignalAxis(ctx, at, band, data, y, colours);

  ctx.save();
  clip(ctx, at, top - 1, bottom + 1);
  data.signalNames.forEach((name, i) => {
    const style = signalStyle(i);
    ctx.strokeStyle = colours[style.colour];
    ctx.lineWidth = 1.8;
    ctx.setLineDash(style.dash);
    trace(ctx, data.points, (p) => ratio(p, name), x, y, false);
    ctx.setLineDash([]);
  });
  ctx.restore();
  drawClipped(ctx, at, band, data, x, colours);

  const last = data.points.at(-1);
  if (!last) return;
  const labels = data.signalNames.map((name, i) => ({
    value: ratio(last, name),
    y,
    colour: colours[signalStyle(i).colour],
    text: name,
  }));
  endLabels(ctx, at, band, labels);
}

/**
 * Draws the axis of the signals: setpoint and trip levels are labelled first; whole multiples fill
 * the room that is left.
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Band} band @param {Plot} data @param {(v: number) => number} y
 * @param {Record<string, string>} colours
 */
function drawSignalAxis(ctx, at, band, data, y, colours) {
  const wide = at.left > 50;
  bandTitle(ctx, at.left, band.top, wide ? 'signals, as multiples of their setpoints' : 'signals ÷ setpoints', colours);
  axisLine(ctx, at, band.bottom, '0', colours, colours.line);
  const taken = [y(1), band.bottom];
  const free = (/** @type {number} */ py) => taken.every((other) => Math.abs(other - py) >= 12);
  for (const trip of data.trips) {
    if (trip > data.top) continue;
    const py = y(trip);
    ctx.setLineDash([5, 4]);
    axisLine(ctx, at, py, free(py) ? `trip ${number(trip)}×` : '', colours, colours.alarm, colours.alarm);
    ctx.setLineDash([]);
    taken.push(py);
  }
  for (let v = 2; v < data.top; v += 1) if (free(y(v))) axisLine(ctx, at, y(v), `${v}×`, colours);
  axisLine(ctx, at, y(1), wide ? 'setpoint' : '1×', colours, colours.ink, colours.ink);
}

/**
 * Marks a signal above the ceiling with its peak, once per stretch; of overlapping marks it draws
 * the first.
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Band} band @param {Plot} data @param {X} x
 * @param {Record<string, string>} colours
 */
function drawClipped(ctx, at, band, data, x, colours) {
  /** @type {[number, number][]} */
  const taken = [];
  data.signalNames.forEach((name, i) => {
    /** @type {{ t: number, peak: number } | null} */
    let stretch = null;
    const finish = () => {
      if (!stretch) return;
      const px = x(stretch.t);
      if (px >= at.left && px <= at.right) {
        ctx.fillStyle = colours[signalStyle(i).colour];
        const text = `▲ ${number(stretch.peak)}×`;
        const width = ctx.measureText(text).width;
        const room = at.right - px > width + 8;
        const start = room ? px - 4 : px + 4 - width;
        if (taken.every(([from, to]) => start > to || start + width < from)) {
          taken.push([start - 4, start + width + 4]);
          ctx.textAlign = 'left';
          ctx.textBaseline = 'bottom';
          halo(ctx, text, start, band.top - 4, colours);
        }
      }
      stretch = null;
    };
    for (const point of data.points) {
      const v = ratio(point, name);
      if (v !== null && v > data.top) {
        if (!stretch || v > stretch.peak) stretch = { t: point.t, peak: v };
      } else {
        finish();
      }
    }
    finish();
  });
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Band} band @param {string} name
 * @param {import('./ribbons.js').Span[]} found @param {X} x @param {Record<string, string>} colours
 */
function drawRibbon(ctx, at, band, name, found, x, colours) {
  const middle = (band.top + band.bottom) / 2;
  const height = band.bottom - band.top;
  ctx.fillStyle = colours.muted;
  ctx.textAlign = 'right';
  ctx.textBaseline = 'middle';
  ctx.fillText(name, at.left - 6, middle);
  ctx.strokeStyle = colours.grid;
  ctx.lineWidth = 1;
  line(ctx, at.left, middle, at.right, middle);
  for (const span of found) {
    const start = Math.max(at.left, x(span.from));
    const width = Math.min(at.right, x(span.to)) - start;
    if (width <= 0) continue;
    const look = ribbonLook(name, span.value, ctx, colours);
    ctx.fillStyle = colours.surface;
    ctx.fillRect(start, band.top, width, height);
    ctx.globalAlpha = look.alpha;
    ctx.fillStyle = look.fill;
    ctx.fillRect(start, band.top, Math.max(1, width - 1), height);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = look.edge;
    ctx.strokeRect(start + 0.5, band.top + 0.5, Math.max(0.5, width - 2), height - 1);
    const text = name === 'breaker' ? breakerText(span.value) : span.value;
    if (ctx.measureText(text).width + 8 > width) continue;
    ctx.fillStyle = look.text;
    ctx.textAlign = 'left';
    if (look.hatched) halo(ctx, text, start + 5, middle + 0.5, colours);
    else ctx.fillText(text, start + 5, middle + 0.5);
  }
}

/**
 * Returns the look of a span, whose colour, hatching and text all have the same meaning.
 * @param {string} ribbon @param {string} value @param {CanvasRenderingContext2D} ctx @param {Record<string, string>} colours
 */
function ribbonLook(ribbon, value, ctx, colours) {
  if (ribbon === 'breaker') {
    if (value === 'open') return { fill: colours.alarm, alpha: 1, edge: colours.alarm, text: colours.surface, hatched: false };
    if (value === 'half_open') {
      return { fill: hatch(ctx, colours.note, 6, 1.5), alpha: 0.5, edge: colours.note, text: colours.ink, hatched: true };
    }
    return { fill: colours.calm, alpha: 0.18, edge: colours.line, text: colours.muted, hatched: false };
  }
  if (value === 'stale' || value === 'safe rps') {
    return { fill: hatch(ctx, colours.alarm, 6, 1.2), alpha: 0.6, edge: colours.alarm, text: colours.ink, hatched: true };
  }
  if (value === 'paused' || value === 'manual' || value === 'off' || value.startsWith('shadow')) {
    return { fill: hatch(ctx, colours.muted, 6, 0.8), alpha: 0.45, edge: colours.line, text: colours.ink, hatched: true };
  }
  return { fill: colours.ink, alpha: 0.07, edge: colours.line, text: colours.ink, hatched: false };
}

/**
 * Draws a flag for each edit of a knob by a person.
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Plot} data @param {X} x @param {Record<string, string>} colours
 */
function drawEdits(ctx, at, data, x, colours) {
  let labelled = Infinity;
  for (const edit of [...data.edits].sort((a, b) => b.t - a.t)) {
    const px = Math.round(x(edit.t)) + 0.5;
    if (px < at.left || px > at.right) continue;
    ctx.strokeStyle = colours.ink;
    ctx.globalAlpha = 0.6;
    ctx.setLineDash([1, 3]);
    line(ctx, px, at.rates.top, px, at.foot);
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
    ctx.fillStyle = colours.ink;
    ctx.beginPath();
    ctx.moveTo(px - 4, at.rates.top - 3);
    ctx.lineTo(px + 4, at.rates.top - 3);
    ctx.lineTo(px, at.rates.top + 4);
    ctx.fill();
    const width = ctx.measureText(edit.actor).width + 10;
    const room = Math.min(labelled, at.right) - px > width;
    if (!room && labelled - px < width) continue; // Flags close together are one person's row of edits; the newest has the name.
    labelled = room ? px : px - width;
    ctx.textBaseline = 'top';
    ctx.textAlign = room ? 'left' : 'right';
    halo(ctx, edit.actor, px + (room ? 6 : -6), at.rates.top - 2, colours);
  }
}

/**
 * Draws the crosshair on the overlay: a line, and a dot on every trace.
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Plot} data @param {number} from @param {number} to
 * @param {import('./state.js').Point} point
 */
export function drawCrosshair(ctx, at, data, from, to, point) {
  const colours = palette();
  const px = linear(from, to, at.left, at.right)(point.t);
  ctx.strokeStyle = colours.ink;
  ctx.lineWidth = 1;
  ctx.globalAlpha = 0.7;
  line(ctx, px, at.rates.top - 4, px, at.foot + 2);
  ctx.globalAlpha = 1;
  const rates = rateScale(data.domain, at.rates.top, at.rates.bottom);
  dot(ctx, px, data.measure.done(point), rates, colours.achieved, colours);
  dot(ctx, px, data.measure.knob(point), rates, colours.ink, colours);
  if (!at.signals) return;
  const { top } = at.signals;
  const y = linear(0, data.top, at.signals.bottom, top);
  data.signalNames.forEach((name, i) => {
    dot(ctx, px, ratio(point, name), (v) => Math.max(top, y(v)), colours[signalStyle(i).colour], colours);
  });
}

/**
 * Draws a line without axes, for use beside a number.
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} width
 * @param {number} height
 * @param {import('./state.js').Point[]} points
 * @param {(p: import('./state.js').Point) => number | null} valueOf
 * @param {number} from
 * @param {number} to
 */
export function drawSparkline(ctx, width, height, points, valueOf, from, to) {
  const colours = palette();
  const peak = Math.max(1, ...points.map((p) => valueOf(p) ?? 0));
  const x = linear(from, to, 0, width - 2);
  const y = linear(0, peak, height - 1.5, 3);
  ctx.strokeStyle = colours.line;
  ctx.lineWidth = 1;
  line(ctx, 0, height - 0.5, width, height - 0.5);
  ctx.fillStyle = colours.muted;
  ctx.globalAlpha = 0.15;
  area(ctx, points, valueOf, x, y, height - 1);
  ctx.globalAlpha = 1;
  ctx.strokeStyle = colours.muted;
  ctx.lineWidth = 1.3;
  trace(ctx, points, valueOf, x, y, false);
}

// === strokes ===

/**
 * Draws a tick at the foot of the rates for each attempt that failed.
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Plot} data
 * @param {X} x @param {Record<string, string>} colours
 */
function drawFailed(ctx, at, data, x, colours) {
  ctx.fillStyle = colours.alarm;
  for (const t of data.failed) ctx.fillRect(Math.max(at.left, x(t) - 0.75), at.rates.bottom - 7, 1.5, 7);
}

/** @param {CanvasRenderingContext2D} ctx @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 */
function line(ctx, x1, y1, x2, y2) {
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
}

/** @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {number} top @param {number} bottom */
function clip(ctx, at, top, bottom) {
  ctx.beginPath();
  ctx.rect(at.left, top, at.right - at.left, bottom - top);
  ctx.clip();
}

/**
 * Splits points into stretches without a gap and without a missing value.
 * @param {import('./state.js').Point[]} points
 * @param {(p: import('./state.js').Point) => number | null} valueOf
 */
function stretches(points, valueOf) {
  /** @type {{ t: number, v: number }[][]} */
  const found = [];
  let before = -Infinity;
  for (const p of points) {
    const v = valueOf(p);
    if (v !== null) {
      if (p.t - before > GAP_S || !found.length) found.push([]);
      found[found.length - 1].push({ t: p.t, v });
      before = p.t;
    }
  }
  return found;
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {import('./state.js').Point[]} points
 * @param {(p: import('./state.js').Point) => number | null} valueOf @param {X} x @param {(v: number) => number} y
 * @param {boolean} stepped
 */
function trace(ctx, points, valueOf, x, y, stepped) {
  ctx.beginPath();
  for (const run of stretches(points, valueOf)) {
    let py = y(run[0].v);
    ctx.moveTo(x(run[0].t) - (run.length === 1 ? 1 : 0), py);
    for (const { t, v } of run) {
      if (stepped) ctx.lineTo(x(t), py);
      py = y(v);
      ctx.lineTo(x(t), py);
    }
  }
  ctx.stroke();
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {import('./state.js').Point[]} points
 * @param {(p: import('./state.js').Point) => number | null} valueOf @param {X} x @param {(v: number) => number} y
 * @param {number} base
 */
function area(ctx, points, valueOf, x, y, base) {
  ctx.beginPath();
  for (const run of stretches(points, valueOf)) {
    ctx.moveTo(x(run[0].t), base);
    for (const { t, v } of run) ctx.lineTo(x(t), Math.min(base, y(v)));
    ctx.lineTo(x(run[run.length - 1].t), base);
    ctx.closePath();
  }
  ctx.fill();
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {number} y @param {string} text
 * @param {Record<string, string>} colours @param {string} [stroke] @param {string} [ink]
 */
function axisLine(ctx, at, y, text, colours, stroke = colours.grid, ink = colours.muted) {
  const py = Math.round(y) + 0.5;
  ctx.strokeStyle = stroke;
  ctx.lineWidth = 1;
  line(ctx, at.left, py, at.right, py);
  ctx.fillStyle = ink;
  ctx.textAlign = 'right';
  ctx.textBaseline = 'middle';
  ctx.fillText(text, at.left - 6, py);
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {number} x @param {number} y the band's top @param {string} text
 * @param {Record<string, string>} colours
 */
function bandTitle(ctx, x, y, text, colours) {
  ctx.fillStyle = colours.muted;
  ctx.textAlign = 'left';
  ctx.textBaseline = 'bottom';
  ctx.fillText(text, x, y - 5);
}

/**
 * Draws text with an outline in the background colour, so that a line below does not cut it.
 * @param {CanvasRenderingContext2D} ctx @param {string} text @param {number} x @param {number} y
 * @param {Record<string, string>} colours
 */
function halo(ctx, text, x, y, colours) {
  ctx.save();
  ctx.strokeStyle = colours.surface;
  ctx.lineWidth = 4;
  ctx.lineJoin = 'round';
  ctx.strokeText(text, x, y);
  ctx.restore();
  ctx.fillText(text, x, y);
}

/**
 * Draws names at the right end of their lines, where there is room for them.
 * @param {CanvasRenderingContext2D} ctx @param {Layout} at @param {Band} band
 * @param {{ value: number | null, y: (v: number) => number, colour: string, text: string }[]} labels
 */
function endLabels(ctx, at, band, labels) {
  const room = at.width - at.right - 8;
  if (room < 40) return;
  const known = labels.filter((l) => l.value !== null);
  const places = spread(known.map((l) => l.y(/** @type {number} */ (l.value))), 13, band.top - 4, band.bottom + 6);
  ctx.textAlign = 'left';
  ctx.textBaseline = 'middle';
  known.forEach((label, i) => {
    ctx.fillStyle = label.colour;
    ctx.fillText(fit(ctx, label.text, room), at.right + 7, places[i]);
  });
}

/** @param {CanvasRenderingContext2D} ctx @param {string} text @param {number} room */
function fit(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  let cut = text;
  while (cut.length > 1 && ctx.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
  return `${cut}…`;
}

/**
 * @param {CanvasRenderingContext2D} ctx @param {number} px @param {number | null} value @param {(v: number) => number} y
 * @param {string} colour @param {Record<string, string>} colours
 */
function dot(ctx, px, value, y, colour, colours) {
  if (value === null) return;
  ctx.beginPath();
  ctx.arc(px, y(value), 3.5, 0, Math.PI * 2);
  ctx.fillStyle = colour;
  ctx.fill();
  ctx.strokeStyle = colours.surface;
  ctx.lineWidth = 1.5;
  ctx.stroke();
}
