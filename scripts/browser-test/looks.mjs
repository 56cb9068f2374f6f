// Searches for the faults that every page may have; most run inside the page.

/** Texts whose contrast with what lies behind them is under WCAG AA. */
export const POOR_CONTRAST = `(() => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const ground = (element) => { for (let e = element; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255, 255]; };
  const faults = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility({ visibilityProperty: true }) || element.closest('.aloud, .skip, :disabled, option, noscript')) continue;
    const style = getComputedStyle(element);
    const a = light(rgba(style.color)); const b = light(ground(element));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) faults.set(element.className || element.tagName, ratio.toFixed(2) + ':1 for "' + element.textContent.trim().slice(0, 40) + '" (' + (element.className || element.tagName) + ')');
  }
  return [...faults.values()];
})()`;

/** Elements that stick out of the page sideways, unless something clips or scrolls them. */
export const OVERFLOW = `(() => {
  const wide = document.documentElement.clientWidth;
  const faults = [];
  if (document.documentElement.scrollWidth > wide) faults.push('the page is ' + document.documentElement.scrollWidth + ' px wide in ' + wide);
  for (const element of document.querySelectorAll('body *')) {
    const { right, left, width } = element.getBoundingClientRect();
    if (!width || (right <= wide + 1 && left >= -1) || !element.checkVisibility() || element.closest('.aloud, .skip, thead, legend, svg')) continue;
    let clipped = false;
    for (let e = element.parentElement; e && e !== document.body; e = e.parentElement) if (getComputedStyle(e).overflowX !== 'visible') clipped = true;
    if (!clipped) faults.push((element.className || element.tagName) + ' ends at ' + Math.round(right));
  }
  return faults.slice(0, 8);
})()`;

/** Interactive elements that cannot be told by a screen reader. */
export async function namelessControls(page) {
  const { nodes } = await page.send('Accessibility.getFullAXTree');
  const roles = new Set(['button', 'textbox', 'combobox', 'slider', 'radio', 'link', 'searchbox', 'checkbox']);
  return nodes.filter((n) => !n.ignored && roles.has(n.role?.value) && !n.name?.value?.trim())
    .map((n) => `a ${n.role.value} has no name`);
}
