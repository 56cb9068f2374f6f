// Colours for canvases, read from the style sheet, which defines light and dark.

const NAMES = ['ink', 'muted', 'line', 'grid', 'surface', 'achieved', 'alarm', 'note', 'calm', 'signal-1', 'signal-2', 'signal-3',
  'signal-4'];

/** @type {Record<string, string> | null} */
let cached = null;

/** The dash patterns of the signals, so that no line is recognized by its colour alone. */
export const SIGNAL_DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

/**
 * Returns the colours as the browser computed them. A custom property keeps its `light-dark()`
 * text; a probe's colour does not.
 * @returns {Record<string, string>}
 */
export function palette() {
  if (cached) return cached;
  const probe = document.createElement('i');
  probe.hidden = true;
  document.body.append(probe);
  /** @type {Record<string, string>} */
  const colours = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  colours.font = getComputedStyle(document.body).fontFamily;
  probe.remove();
  cached = colours;
  return colours;
}

/** Clears the cached colours after a change of the theme. */
export function forgetPalette() {
  cached = null;
}

/**
 * Returns a colour and a dash pattern for the i-th signal of a throttle.
 * @param {number} i
 */
export function signalStyle(i) {
  return { colour: `signal-${(i % 4) + 1}`, dash: SIGNAL_DASHES[i % SIGNAL_DASHES.length] };
}

/**
 * Builds diagonal hatching, for spans that must be distinguishable without colour.
 * @param {CanvasRenderingContext2D} ctx
 * @param {string} colour
 * @param {number} step_px
 * @param {number} width_px
 */
export function hatch(ctx, colour, step_px, width_px) {
  const scale = window.devicePixelRatio || 1;
  const size = Math.max(2, Math.round(step_px * scale));
  const tile = document.createElement('canvas');
  tile.width = size;
  tile.height = size;
  const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext('2d'));
  pen.strokeStyle = colour;
  pen.lineWidth = width_px * scale;
  pen.lineCap = 'square';
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift - 1, size + 1);
    pen.lineTo(shift + size + 1, -1);
    pen.stroke();
  }
  const pattern = /** @type {CanvasPattern} */ (ctx.createPattern(tile, 'repeat'));
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}
