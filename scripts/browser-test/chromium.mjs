// Headless Chromium by the DevTools protocol over a pipe (file descriptors 3 and 4): Node.js only,
// without a WebSocket.

import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

const PLACES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome', '/usr/bin/google-chrome-stable',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'];
const COMMAND_MS = 20_000;

/** @returns {string | null} */
export function findChromium() {
  return [process.env.CHROMIUM, ...PLACES].find((place) => place && existsSync(place)) ?? null;
}

/** A running browser. */
export class Chromium {
  static async start() {
    const binary = findChromium();
    if (!binary) throw new Error('no chromium found: install it (apt-get install chromium) or set CHROMIUM to its path');
    const profile = mkdtempSync(path.join(tmpdir(), 'flyball-browser-'));
    const child = spawn(binary, ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-default-apps',
      '--disable-features=Translate,OptimizationHints,MediaRouter', '--hide-scrollbars', '--remote-debugging-pipe',
      `--user-data-dir=${profile}`, 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    const browser = new Chromium(child, profile);
    await browser.send('Browser.getVersion');
    return browser;
  }

  constructor(child, profile) {
    this.child = child;
    this.profile = profile;
    this.next = 1;
    this.pending = new Map();
    this.listeners = new Set();
    let rest = '';
    child.stdio[4].setEncoding('utf8');
    child.stdio[4].on('data', (chunk) => {
      const messages = (rest + chunk).split('\0');
      rest = messages.pop();
      for (const text of messages) this.receive(JSON.parse(text));
    });
    child.on('exit', () => {
      for (const { reject } of this.pending.values()) reject(new Error('chromium ended'));
      this.pending.clear();
    });
    child.stdio[3].on('error', () => {});
  }

  receive(message) {
    const waiting = this.pending.get(message.id);
    if (!waiting) {
      for (const listener of this.listeners) listener(message);
      return;
    }
    this.pending.delete(message.id);
    clearTimeout(waiting.timer);
    if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
    else waiting.resolve(message.result);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.pending.delete(id);
        reject(new Error(`${method}: no answer within ${COMMAND_MS / 1000} s`));
      }, COMMAND_MS);
      this.pending.set(id, { resolve, reject, timer, method });
      this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  async page() {
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId, targetId);
    for (const domain of ['Page', 'Runtime', 'Network', 'Log', 'DOM', 'Accessibility']) await page.send(`${domain}.enable`);
    return page;
  }

  async close() {
    await this.send('Browser.close').catch(() => {});
    await new Promise((resolve) => {
      if (this.child.exitCode !== null) resolve();
      this.child.once('exit', resolve);
      setTimeout(() => this.child.kill('SIGKILL'), 3_000).unref();
    });
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  }
}

/** One tab: what it logged, what it asked for, and hands to use it. */
export class Page {
  constructor(browser, sessionId, targetId) {
    this.browser = browser;
    this.sessionId = sessionId;
    this.targetId = targetId;
    this.errors = [];
    this.requests = [];
    browser.listeners.add((message) => {
      if (message.sessionId === sessionId) this.event(message);
    });
  }

  event({ method, params }) {
    if (method === 'Runtime.exceptionThrown') {
      const { exceptionDetails: d } = params;
      this.errors.push(`exception: ${d.exception?.description ?? d.text}`);
    }
    if (method === 'Runtime.consoleAPICalled' && (params.type === 'error' || params.type === 'warning')) {
      this.errors.push(`console.${params.type}: ${params.args.map((a) => a.value ?? a.description).join(' ')}`);
    }
    if (method === 'Log.entryAdded' && params.entry.level === 'error') this.errors.push(`log: ${params.entry.text} ${params.entry.url ?? ''}`);
    if (method === 'Network.requestWillBeSent') this.requests.push({ url: params.request.url, method: params.request.method, headers: params.request.headers });
  }

  send(method, params = {}) {
    return this.browser.send(method, params, this.sessionId);
  }

  async open(url) {
    await this.send('Page.navigate', { url });
    await this.until('the page to load', 'document.readyState === "complete"');
  }

  /** Opens an address as a new document, although only its hash may differ from the present one. */
  async fresh(url) {
    await this.open('about:blank');
    await this.open(url);
  }

  async size(width, height, { mobile = false, scale = 1 } = {}) {
    await this.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: scale, mobile });
    await this.send('Emulation.setTouchEmulationEnabled', { enabled: mobile });
  }

  /** The system's colour scheme, as the page sees it. */
  scheme(value) {
    return this.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }, { name: 'prefers-reduced-motion', value: 'reduce' }] });
  }

  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(`${exceptionDetails.exception?.description ?? exceptionDetails.text} in ${expression.slice(0, 120)}`);
    return result.value;
  }

  /** Waits for a condition with a deadline; never for a fixed time. */
  async until(what, expression, within_ms = 8_000) {
    const end = Date.now() + within_ms;
    for (;;) {
      const value = await this.evaluate(expression).catch(() => false);
      if (value) return value;
      if (Date.now() > end) throw new Error(`waited ${within_ms / 1000} s for ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  async key(key, { shift = false } = {}) {
    const codes = { Tab: 9, Enter: 13, Escape: 27, ' ': 32, ArrowLeft: 37, ArrowUp: 38, ArrowRight: 39, ArrowDown: 40, Home: 36, End: 35 };
    const text = key === 'Enter' ? '\r' : key.length === 1 ? key : undefined;
    const common = { key, code: key === ' ' ? 'Space' : key, windowsVirtualKeyCode: codes[key] ?? key.charCodeAt(0), modifiers: shift ? 8 : 0 };
    await this.send('Input.dispatchKeyEvent', { type: text ? 'keyDown' : 'rawKeyDown', text, ...common });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...common });
  }

  async type(text) {
    await this.send('Input.insertText', { text });
  }

  async mouse(x, y, type = 'mouseMoved') {
    await this.send('Input.dispatchMouseEvent', { type, x, y, button: type === 'mouseMoved' ? 'none' : 'left', clickCount: type === 'mouseMoved' ? 0 : 1 });
  }

  async screenshot({ full = true } = {}) {
    const { data } = await this.send('Page.captureScreenshot', { format: 'png', captureBeyondViewport: full });
    return Buffer.from(data, 'base64');
  }
}
