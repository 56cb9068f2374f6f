// The stream of server-sent events: open while the page is visible, watched, and reopened when it
// breaks.

import { refusalOf, refusalText } from './api.js';

const PATH = '/api/v1/stream';
/** The events of the stream; each is one JSON document. */
const EVENTS = ['history', 'tick', 'decision', 'failure', 'audit'];
/**
 * The silence after which the page reports that the connection is lost, in milliseconds; ticks come
 * each second.
 */
const QUIET_MS = 4_500;
/** The silence after which the page opens a new stream, in milliseconds. */
const STALLED_MS = 15_000;
const RETRY_MS = [1_000, 2_000, 4_000, 8_000];

/**
 * @typedef {{ message: (message: { type: string, data: any }) => void, phase: (phase: import('./state.js').Phase) => void,
 *   refused: (why: string) => void, connected: () => void }} Handlers `refused` gets why there is no stream, empty if it is not refused
 */

export class Live {
  /** @param {Handlers} handlers */
  constructor(handlers) {
    this.handlers = handlers;
    /** @type {EventSource | null} */
    this.source = null;
    this.retries = 0;
    this.timer = 0;
    this.heardAt = 0;
    this.denied = false;
  }

  open() {
    this.close();
    this.heardAt = performance.now();
    const source = new EventSource(PATH);
    this.source = source;
    for (const type of EVENTS) {
      source.addEventListener(type, (event) => {
        this.heard();
        let data;
        try {
          data = JSON.parse(/** @type {MessageEvent} */ (event).data);
        } catch {
          return; // A cut-off event is no event; the next tick tells the whole truth again.
        }
        this.handlers.message({ type, data });
      });
    }
    source.addEventListener('open', () => {
      this.heard();
      this.handlers.connected();
    });
    source.addEventListener('error', () => {
      if (this.source === source) this.lost();
    });
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** Checks the stream each second: one that is open but silent counts as lost. */
  watch() {
    if (!this.source) return;
    const silence = performance.now() - this.heardAt;
    if (silence > STALLED_MS) this.open();
    if (silence > QUIET_MS && !this.denied) this.handlers.phase('lost');
  }

  heard() {
    this.heardAt = performance.now();
    this.retries = 0;
    this.denied = false;
    this.handlers.refused('');
    this.handlers.phase('live');
  }

  /** Asks why there is no stream with an ordinary request, because EventSource reports no status. */
  async lost() {
    const delay = RETRY_MS[Math.min(this.retries, RETRY_MS.length - 1)];
    this.retries += 1;
    this.close();
    if (!this.denied) this.handlers.phase('lost');
    this.timer = setTimeout(() => this.open(), delay + Math.random() * 500);
    const error = await refusalOf(PATH);
    // The stream may have come meanwhile.
    if (this.retries === 0) return;
    this.denied = error?.status === 401;
    if (this.denied) this.handlers.phase('unauthorized');
    this.handlers.refused(error && error.status > 0 && !this.denied ? refusalText(error) : '');
  }
}
