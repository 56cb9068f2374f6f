// The client of Flyball's gateway, for browsers and for Node.js 22 and newer. No dependencies.
//
// Each message of a channel with history is handed over once and in order, over any number of lost
// connections: the client resumes after the last message that it has. Where that is not possible
// the program is told (`lost`). README.md explains the rules; flyball.d.ts has the types.

/** @typedef {import('./flyball.js').FlyballOptions} FlyballOptions */
/** @typedef {import('./flyball.js').Handlers<any>} Handlers */
/** @typedef {import('./flyball.js').State} State */
/** @typedef {import('./flyball.js').Position} Position */
/** @typedef {import('./flyball.js').ChannelEvent<any>} ChannelEvent */
/** @typedef {import('./flyball.js').InboxMessage} InboxMessage */
/** @typedef {import('./flyball.js').InboxCounts} InboxCounts */
/** @typedef {import('./flyball.js').InboxPage} InboxPage */
/** @typedef {import('./flyball.js').Lost} Lost */
/** @typedef {Record<string, any>} Frame */

const SUBPROTOCOL = 'flyball.v1';
const OWN_INBOX = '$inbox';

/** Milliseconds. */
const ACK_EVERY = 1_000;
const BACKOFF_FIRST = 1_000;
const BACKOFF_MOST = 30_000;
/** The time for a ticket and for the first frame of the server. */
const OPEN_WITHIN = 20_000;
/** The time beyond the interval of pings without any frame after which the connection is dead. */
const SILENCE_GRACE = 10_000;
/** The time for the close that follows an error. */
const FAILED_AFTER = 100;
/** The spread after a crash before a server has told its own, and the least. */
const SPREAD_LEAST = 1_000;
/** The wait of the client before it leaves by itself a server that asked it to go. */
const LEAVE_GRACE = 2_000;
/** A connection that lived as long was accepted for good. */
const SOUND_AFTER = 5_000;
/** The wait between two attempts of a subscription that the server could not serve. */
const RETRY_SUBSCRIBE = 1_000;
/** The longest name of a channel, with its tenant in front. */
const NAME_MOST = 256;
/** The least time between two newer tokens: some live so shortly that the server warns at once. */
const REFRESH_LEAST = 10_000;
/** Requests that may wait for a connection. */
const QUEUE_MOST = 1_000;
/** Events of an iterated subscription that may wait in memory; beyond it the server keeps them, or the
 * oldest are dropped if the channel has no history. */
const BUFFER_MOST = 1_000;

export class FlyballError extends Error {
  /**
   * @param {string} message
   * @param {{ code?: string, maybeDone?: boolean, permanent?: boolean, cause?: unknown }} [options]
   */
  constructor(message, { code = 'ERROR', maybeDone = false, permanent = false, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'FlyballError';
    this.code = code;
    this.maybeDone = maybeDone;
    this.permanent = permanent;
  }
}

/** Calls a handler of the program; what it throws is reported as unhandled and breaks nothing here.
 * @param {any} handlers @param {string} name @param {unknown} event */
function tell(handlers, name, event) {
  try {
    handlers?.[name]?.(event);
  } catch (error) {
    if (typeof globalThis.reportError === 'function') globalThis.reportError(error);
    else queueMicrotask(() => { throw error; });
  }
}

/** The server checks names; this keeps frames readable. The id of a recipient, of which the channel
 * of an inbox has its name, may have letters of any language.
 * @param {unknown} channel */
function checkChannel(channel) {
  const isText = typeof channel === 'string' && channel.length >= 1 && channel.length <= NAME_MOST;
  const allowed = isText && channel.startsWith(`${OWN_INBOX}/`) ? /^\P{Cc}*$/u : /^[\x20-\x7e]*$/;
  if (!isText || !allowed.test(channel)) {
    throw new TypeError(`channel: must be a text of 1 to ${NAME_MOST} characters of ASCII, or ${OWN_INBOX}/ and the id of a recipient`);
  }
}

/** A server that fails, or has signed the person out, may answer with a page in place of a ticket; to
 * Flyball that is a wrong credential. @param {unknown} ticket @returns {string} */
function checkTicket(ticket) {
  if (typeof ticket !== 'string' || !/^[\w.~-]{1,128}$/.test(ticket)) {
    throw new TypeError('ticket: its provider must return the text of a ticket, and throw if it has none');
  }
  return ticket;
}

/** @param {string} epoch @param {string} other */
const isNewer = (epoch, other) => epoch !== other && BigInt(epoch) > BigInt(other);

/** Milliseconds of a clock that only goes on; the one of the device may be set back by a year. */
const clock = () => performance.now();

/** @param {number} attempt */
const backoff = (attempt) => Math.min(BACKOFF_MOST, BACKOFF_FIRST * 2 ** Math.min(attempt - 1, 10));

class Subscription {
  /** The name on the wire: `$inbox` and names with a tenant in front are answered by another one.
   * @type {string} */
  wire;
  /** @type {'waiting' | 'joining' | 'paused' | 'live' | 'ended'} */
  phase = 'waiting';
  /** @type {Position | null} */
  position = null;
  /** True after the first confirmation. */
  isConfirmed = false;
  /** The offset that the server was last told. */
  acked = 0;
  /** The ref of the subscribe frame whose answer counts. */
  ref = '';
  /** @type {(ChannelEvent | FlyballError | null)[]} */
  buffer = [];
  /** @type {(() => void) | null} */
  wake = null;
  isIterated = false;

  /** @param {Flyball} client @param {string} channel @param {Handlers | null} handlers @param {Position | null} since */
  constructor(client, channel, handlers, since) {
    this.client = client;
    this.channel = channel;
    this.wire = channel;
    this.handlers = handlers;
    this.position = since;
    /** @type {PromiseWithResolvers<void>} */
    const { promise, resolve, reject } = deferred();
    this.ready = promise;
    this.resolve = resolve;
    this.reject = reject;
    promise.catch(() => {});
  }

  get state() {
    return this.phase === 'paused' ? 'live' : this.phase;
  }

  unsubscribe() {
    this.client._unsubscribe(this);
  }

  /** @param {ChannelEvent} event */
  give(event) {
    if (this.handlers) tell(this.handlers, event.type, event);
    else {
      if (!this.position && this.buffer.length >= BUFFER_MOST) this.#dropOldest();
      this.buffer.push(event);
      this.wake?.();
    }
  }

  /** Makes room for an event: what is dropped counts in the first one, which tells of it. */
  #dropOldest() {
    const [first] = this.buffer;
    /** @type {import('./flyball.js').Lost} */
    const told = first && 'reason' in first && first.reason === 'dropped'
      ? /** @type {any} */ (this.buffer.shift())
      : { type: 'lost', channel: this.channel, reason: 'dropped', missed: 0 };
    while (this.buffer.length > BUFFER_MOST - 2) {
      const gone = /** @type {any} */ (this.buffer.shift());
      const missed = gone.type === 'lost' ? gone.missed : 1;
      told.missed = told.missed === null || missed === null ? null : told.missed + missed;
    }
    this.buffer.unshift(told);
  }

  /** @param {FlyballError | null} error */
  end(error) {
    if (this.phase === 'ended') return;
    this.phase = 'ended';
    // Of no effect after the first confirmation.
    this.reject(error ?? new FlyballError('the subscription was ended', { code: 'CLOSED' }));
    if (this.handlers) {
      if (error) tell(this.handlers, 'error', error);
    } else {
      this.buffer.push(error);
      this.wake?.();
    }
  }

  [Symbol.asyncIterator]() {
    if (this.handlers) throw new TypeError('a subscription with handlers is not iterated');
    if (this.isIterated) throw new TypeError('a subscription is iterated once');
    this.isIterated = true;
    const events = this.#events();
    const end = events.return.bind(events);
    // One that is closed before its first event has not run, and would not end the subscription.
    events.return = (value) => {
      this.unsubscribe();
      return end(value);
    };
    return events;
  }

  async *#events() {
    try {
      for (;;) {
        const event = this.buffer.shift();
        if (event === undefined) {
          await new Promise((resolve) => { this.wake = () => resolve(undefined); });
          this.wake = null;
          continue;
        }
        if (event === null) return;
        if (event instanceof FlyballError) throw event;
        if (this.phase === 'paused' && this.buffer.length < BUFFER_MOST / 2) this.client._join(this);
        yield event;
      }
    } finally {
      this.unsubscribe();
    }
  }
}

/** @template T @returns {PromiseWithResolvers<T>} */
function deferred() {
  /** @type {any} */
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
}

class Inbox {
  /** @type {((message: InboxMessage) => void) | null} */
  #onmessage = null;
  /** @type {((counts: InboxCounts) => void) | null} */
  #oncounts = null;
  /** @type {((lost: Lost) => void) | null} */
  onlost = null;
  /** @type {((error: FlyballError) => void) | null} */
  onerror = null;
  #client;
  /** @type {Subscription | null} */
  #live = null;

  /** @param {Flyball} client */
  constructor(client) {
    this.#client = client;
  }

  get onmessage() { return this.#onmessage; }

  set onmessage(handler) {
    this.#onmessage = handler;
    this.#follow();
  }

  get oncounts() { return this.#oncounts; }

  set oncounts(handler) {
    this.#oncounts = handler;
    this.#follow();
  }

  /** @param {{ cursor?: string | null, limit?: number, state?: string, category?: string }} [query] @returns {Promise<InboxPage>} */
  async list({ cursor, limit, state, category } = {}) {
    const frame = { type: 'inbox_list', cursor: cursor ?? undefined, limit, state, category };
    const { messages, next, counts } = await this.#client._request(frame, true);
    return { messages, next: next ?? null, counts };
  }

  /** @param {{ ids?: string[], allUpTo?: string, as: string }} change @returns {Promise<InboxCounts>} */
  async mark({ ids, allUpTo, as }) {
    if ((ids === undefined) === (allUpTo === undefined)) throw new TypeError('mark: give either ids or allUpTo');
    const { unseen, unread } = await this.#client._request({ type: 'inbox_mark', ids, all_up_to: allUpTo, as }, true);
    return { unseen, unread };
  }

  /** @returns {Promise<InboxCounts>} */
  async counts() {
    return (await this.list({ limit: 1 })).counts;
  }

  #follow() {
    if (!this.#onmessage && !this.#oncounts) {
      this.#live?.unsubscribe();
      this.#live = null;
    } else if (!this.#live || this.#live.phase === 'ended') {
      this.#live = this.#client._subscribe(OWN_INBOX, {
        message: ({ data }) => {
          const { type, message, unseen, unread, as, ids, all_up_to: allUpTo } = /** @type {any} */ (data);
          if (type === 'message') tell(this, 'onmessage', message);
          if (type === 'message') tell(this, 'oncounts', { unseen, unread });
          if (type !== 'counts') return;
          const marked = as === null ? null : ids ? { as, ids } : { as, allUpTo };
          tell(this, 'oncounts', { unseen, unread, marked });
        },
        lost: (lost) => tell(this, 'onlost', lost),
        error: (error) => tell(this, 'onerror', error),
      }, null);
    }
  }
}

export class Flyball {
  /** @type {State} */
  #state = { name: 'connecting', attempt: 0 };
  #options;
  #url;
  #WebSocket;
  /** @type {WebSocket | null} */
  #socket = null;
  /** True after the first frame of the server. */
  #isOpen = false;
  /** Counts connections, so that what belongs to an earlier one is known. */
  #generation = 0;
  #attempt = 0;
  /** True after a new credential was asked for because the last was refused. */
  #isSecondCredential = false;
  #spread = SPREAD_LEAST;
  #pingMs = 25_000;
  #messageBytes = 65_536;
  #openedAt = 0;
  /** The time before which a server that stops wants nobody back. */
  #leaveAt = 0;
  /** The time before which no newer token is sent. */
  #refreshAt = 0;
  #refs = 0;
  /** The channels by the name that the program uses. @type {Map<string, Subscription>} */
  #subscriptions = new Map();
  /** Requests that wait for an answer or for a connection, in order.
   * @type {Map<string, { text: string, isRepeatable: boolean, isSent: boolean, resolve: (frame: Frame) => void, reject: (error: FlyballError) => void }>} */
  #requests = new Map();
  /** @type {Record<string, ReturnType<typeof setTimeout> | undefined>} */
  #timers = {};
  /** @type {(() => void) | null} */
  #stopListening = null;

  /** @param {FlyballOptions} options */
  constructor(options) {
    if (!options?.url) throw new TypeError('url: must be given, for example https://jobs.example.com');
    if (!options.ticket && !options.token) throw new TypeError('ticket or token: one must be given');
    const url = new URL(options.url);
    url.protocol = url.protocol.replace('http', 'ws');
    if (url.protocol !== 'ws:' && url.protocol !== 'wss:') throw new TypeError(`url: must begin with https: or wss:, not ${url.protocol}`);
    // No WebSocket takes a fragment.
    url.hash = '';
    if (!url.pathname.endsWith('/api/v1/ws')) url.pathname = `${url.pathname.replace(/\/$/, '')}/api/v1/ws`;
    const Socket = options.WebSocket ?? globalThis.WebSocket;
    if (!Socket) throw new TypeError('WebSocket: this platform has none; use Node.js 22 or newer, or give a class');
    this.#options = options;
    this.#url = url;
    this.#WebSocket = Socket;
    this.inbox = new Inbox(this);
    queueMicrotask(() => this.#connect());
  }

  get state() { return this.#state; }

  /** @param {string} channel @param {any} [handlers] @param {{ since?: Position }} [options] */
  subscribe(channel, handlers, options) {
    checkChannel(channel);
    const isHandled = typeof handlers?.message === 'function';
    if (!isHandled && Object.values(handlers ?? {}).some((value) => typeof value === 'function')) {
      throw new TypeError('message: must be a function');
    }
    if (isHandled && typeof handlers.lost !== 'function') {
      throw new TypeError('lost: must be a function; it is told when messages were missed');
    }
    const since = (isHandled ? options : handlers)?.since ?? null;
    if (since && !(/^\d{1,18}$/.test(since.epoch) && Number.isSafeInteger(since.offset) && since.offset >= 0)) {
      throw new TypeError('since: must be the position of a message: {epoch: digits in a text, offset: a whole number}');
    }
    return this._subscribe(channel, isHandled ? handlers : null, since && { ...since });
  }

  /** @param {string} channel */
  unsubscribe(channel) {
    this.#subscriptions.get(channel)?.unsubscribe();
  }

  /** @param {string} channel @param {unknown} data @returns {Promise<{ id: string }>} */
  async publish(channel, data) {
    checkChannel(channel);
    if (JSON.stringify(data) === undefined) throw new TypeError('data: must be a JSON value');
    const { id } = await this._request({ type: 'publish', channel, data }, false);
    return { id };
  }

  close() {
    this.#giveUp(null);
  }

  // === Subscriptions ===

  /** @param {string} channel @param {Handlers | null} handlers @param {Position | null} since */
  _subscribe(channel, handlers, since) {
    if (this.#state.name === 'closed') throw new FlyballError('the client is closed', { code: 'CLOSED' });
    if (this.#subscriptions.has(channel)) throw new TypeError(`channel: ${channel} has a subscription; end it first`);
    const subscription = new Subscription(this, channel, handlers, since);
    this.#subscriptions.set(channel, subscription);
    this._join(subscription);
    return subscription;
  }

  /** @param {Subscription} subscription */
  _unsubscribe(subscription) {
    if (subscription.phase === 'ended') return;
    const isKnown = subscription.phase === 'live' || subscription.phase === 'joining';
    this.#subscriptions.delete(subscription.channel);
    subscription.end(null);
    if (isKnown) this.#send({ type: 'unsubscribe', channel: subscription.channel });
  }

  /** Asks the server for the messages after the last one. @param {Subscription} subscription */
  _join(subscription) {
    if (!this.#isOpen) {
      subscription.phase = 'waiting';
      return;
    }
    subscription.phase = 'joining';
    subscription.ref = String(++this.#refs);
    const since = subscription.position ?? undefined;
    this.#send({ type: 'subscribe', channel: subscription.channel, since, ref: subscription.ref });
  }

  /** @param {string} wire */
  #subscribed(wire) {
    return this.#subscriptions.get(wire) ?? [...this.#subscriptions.values()].find((one) => one.wire === wire);
  }

  /** @param {Frame} frame */
  #takeSubscribed(frame) {
    const subscription = [...this.#subscriptions.values()].find((one) => one.ref === frame.ref && one.phase === 'joining');
    if (!subscription) return;
    const same = [...this.#subscriptions.values()].find((one) => one !== subscription && one.isConfirmed && one.wire === frame.channel);
    if (same) {
      // The server has one subscription for both names.
      this.#subscriptions.delete(subscription.channel);
      // It began again with this one, and what waited for it was dropped there.
      if (same.phase === 'live') this._join(same);
      subscription.end(new FlyballError(`${subscription.channel} is the same channel as ${same.channel}, which has a subscription`, { code: 'SAME_CHANNEL', permanent: true }));
      return;
    }
    subscription.wire = frame.channel;
    subscription.phase = 'live';
    const isFirst = !subscription.isConfirmed;
    const wanted = subscription.position;
    subscription.isConfirmed = true;
    if (frame.epoch === undefined) {
      subscription.position = null;
      if (!isFirst || wanted) this.#lost(subscription, 'no_history', null);
    } else if (!frame.recovered) {
      subscription.position = { epoch: frame.epoch, offset: frame.offset };
      subscription.acked = frame.offset;
      if (wanted) {
        const isSame = wanted.epoch === frame.epoch && frame.offset > wanted.offset;
        this.#lost(subscription, 'not_kept', isSame ? frame.offset - wanted.offset : null);
      } else if (!isFirst) this.#lost(subscription, 'no_history', null);
    }
    const { channel } = subscription;
    tell(subscription.handlers, 'subscribed', { type: 'subscribed', channel, recovered: frame.recovered, missed: frame.missed });
    subscription.resolve();
  }

  /** @param {Subscription} subscription @param {Lost['reason']} reason @param {number | null} missed */
  #lost(subscription, reason, missed) {
    subscription.give({ type: 'lost', channel: subscription.channel, reason, missed });
  }

  /** @param {Frame} frame */
  #takeMessage(frame) {
    const subscription = this.#subscribed(frame.channel);
    // While joining, what comes belongs to the earlier subscription and comes again.
    if (subscription?.phase !== 'live') return;
    /** @type {Position | undefined} */
    let position;
    if (frame.offset !== undefined) {
      position = this.#moved(subscription, frame);
      if (!position) return;
    }
    subscription.give({ type: 'message', channel: subscription.channel, data: frame.data, id: frame.id, position });
    if (position && subscription.buffer.length >= BUFFER_MOST && subscription.phase === 'live') {
      // The program is slower than the channel; the server keeps the rest until it has caught up.
      subscription.phase = 'paused';
      this.#send({ type: 'unsubscribe', channel: subscription.channel });
    }
  }

  /**
   * Moves a subscription on to a frame that is the next of its channel; undefined if it is not.
   * @param {Subscription} subscription @param {Frame} frame @returns {Position | undefined}
   */
  #moved(subscription, frame) {
    const last = subscription.position ?? { epoch: frame.epoch, offset: 0 };
    const isAnew = isNewer(frame.epoch, last.epoch);
    if (isNewer(last.epoch, frame.epoch) || (!isAnew && frame.offset <= last.offset)) return undefined;
    // A channel that was forgotten and is made again begins with 1.
    if (frame.offset !== (isAnew ? 1 : last.offset + 1)) {
      this._join(subscription);
      return undefined;
    }
    const position = { epoch: frame.epoch, offset: frame.offset };
    subscription.position = position;
    this.#later('ack', ACK_EVERY, () => this.#acknowledge(), true);
    return position;
  }

  #acknowledge() {
    for (const subscription of this.#subscriptions.values()) {
      const { position } = subscription;
      if (subscription.phase !== 'live' || !position || position.offset === subscription.acked) continue;
      subscription.acked = position.offset;
      this.#send({ type: 'ack', channel: subscription.channel, offset: position.offset, ref: 'ack' });
    }
  }

  // === Requests ===

  /** @param {Frame} request @param {boolean} isRepeatable true if carrying it out twice is the same as once
   * @returns {Promise<Frame>} */
  _request(request, isRepeatable) {
    return new Promise((resolve, reject) => {
      const refuse = (/** @type {string} */ code, /** @type {string} */ message) => reject(new FlyballError(message, { code }));
      if (this.#state.name === 'closed') return refuse('CLOSED', 'the client is closed');
      if (this.#requests.size >= QUEUE_MOST) return refuse('QUEUE_FULL', `${QUEUE_MOST} requests wait already; this one was not sent`);
      const ref = String(++this.#refs);
      const text = JSON.stringify({ ...request, ref });
      const bytes = new TextEncoder().encode(text).length;
      // The server would close the connection.
      if (bytes > this.#messageBytes) return refuse('TOO_LARGE', `the frame has ${bytes} bytes; at most ${this.#messageBytes} are allowed`);
      this.#requests.set(ref, { text, isRepeatable, isSent: false, resolve, reject });
      if (this.#isOpen) this.#sendRequests();
    });
  }

  #sendRequests() {
    for (const request of this.#requests.values()) {
      if (request.isSent) continue;
      request.isSent = true;
      this.#socket?.send(request.text);
    }
  }

  /** @param {Frame} frame */
  #takeAnswer(frame) {
    const request = this.#requests.get(frame.ref);
    if (!request) return;
    this.#requests.delete(frame.ref);
    request.resolve(frame);
  }

  /** @param {Frame} frame */
  #takeError({ code, message, ref }) {
    const subscription = [...this.#subscriptions.values()].find((one) => one.ref === ref && one.phase === 'joining');
    if (subscription && code === 'UNAVAILABLE') {
      subscription.phase = 'waiting';
      const generation = this.#generation;
      setTimeout(() => {
        if (generation === this.#generation && subscription.phase === 'waiting') this._join(subscription);
      }, RETRY_SUBSCRIBE * (0.5 + Math.random()));
    } else if (subscription) {
      this.#subscriptions.delete(subscription.channel);
      subscription.end(new FlyballError(message, { code, permanent: true }));
    } else {
      // Frames are answered in order, so a frame that could not be read is the oldest.
      const oldest = [...this.#requests].find(([, request]) => request.isSent)?.[0];
      const known = ref ?? (code === 'BAD_FRAME' ? oldest : undefined);
      const request = this.#requests.get(known ?? '');
      this.#requests.delete(known ?? '');
      request?.reject(new FlyballError(message, { code, maybeDone: code === 'UNAVAILABLE' }));
    }
  }

  /** @param {Frame} frame */
  #send(frame) {
    this.#socket?.send(JSON.stringify(frame));
  }

  // === The connection ===

  async #connect() {
    if (this.#state.name === 'closed') return;
    const generation = ++this.#generation;
    const isCurrent = () => generation === this.#generation;
    this.#enter({ name: 'connecting', attempt: this.#attempt });
    if (!isCurrent()) return;
    this.#later('open', OPEN_WITHIN, () => this.#ended(1006, 'the connection was not opened in time'));
    const url = new URL(this.#url);
    // Browsers hide the status of a refused connection, but not the code of one that is closed.
    url.searchParams.set('refuse', 'close');
    let token = '';
    try {
      if (this.#options.ticket) url.searchParams.set('ticket', checkTicket(await this.#options.ticket()));
      else token = await this.#token();
    } catch (error) {
      if (!isCurrent()) return;
      if (error instanceof FlyballError && error.permanent) this.#giveUp(error);
      else this.#ended(1006, 'no credential could be had', error);
      return;
    }
    if (!isCurrent()) return;
    /** @type {WebSocket} */
    let socket;
    try {
      socket = new this.#WebSocket(url, SUBPROTOCOL);
    } catch (error) {
      // A page with a policy or over https: may not open every address.
      this.#ended(1006, 'the connection could not be opened', error);
      return;
    }
    this.#socket = socket;
    if (token) socket.onopen = () => this.#send({ type: 'refresh', token });
    socket.onmessage = ({ data }) => { if (isCurrent()) this.#take(data); };
    socket.onclose = ({ code, reason }) => { if (isCurrent()) this.#ended(code, reason); };
    // Node.js tells of some failures without a close behind.
    socket.onerror = () => { if (isCurrent()) this.#later('failed', FAILED_AFTER, () => this.#ended(1006, 'the connection failed')); };
  }

  async #token() {
    const { token } = this.#options;
    const given = typeof token === 'function' ? await token() : token;
    if (typeof given !== 'string' || given === '') throw new TypeError('token: its provider must return a text');
    return given;
  }

  /** @param {unknown} data */
  #take(data) {
    /** @type {Frame} */
    let frame;
    try {
      frame = JSON.parse(String(data));
    } catch {
      this.#ended(1002, 'the server sent no JSON');
      return;
    }
    if (this.#isOpen) this.#watch();
    switch (frame.type) {
      case 'hello': this.#takeHello(frame); break;
      case 'message': this.#takeMessage(frame); break;
      case 'ping': this.#send({ type: 'pong' }); break;
      case 'subscribed': this.#takeSubscribed(frame); break;
      case 'unsubscribed': {
        // One that is live was ended by another name of its channel.
        const subscription = this.#subscribed(frame.channel);
        if (subscription?.phase === 'live') this._join(subscription);
        break;
      }
      case 'error': this.#takeError(frame); break;
      case 'gap': {
        const subscription = this.#subscribed(frame.channel);
        if (subscription?.phase !== 'live') break;
        // With an offset it stands for a message that the server cannot send.
        if (frame.offset === undefined || this.#moved(subscription, frame)) this.#lost(subscription, 'dropped', frame.missed);
        break;
      }
      case 'lag': {
        const subscription = this.#subscribed(frame.channel);
        tell(subscription?.handlers, 'lag', { channel: subscription?.channel });
        break;
      }
      case 'warning': {
        tell(this.#options, 'onwarning', { code: frame.code, message: frame.message });
        if (frame.code === 'TOKEN_EXPIRES') this.#later('refresh', Math.max(0, this.#refreshAt - clock()), () => this.#refresh(1));
        break;
      }
      case 'reconnect': {
        this.#leaveAt = clock() + frame.after_ms;
        this.#later('leave', frame.after_ms + LEAVE_GRACE, () => this.#ended(4201, 'the server stops'));
        break;
      }
      default: this.#takeAnswer(frame);
    }
  }

  /** @param {Frame} frame */
  #takeHello(frame) {
    this.#cancel('open');
    this.#isOpen = true;
    this.#openedAt = clock();
    this.#leaveAt = 0;
    this.#pingMs = frame.ping_s * 1_000;
    this.#spread = Math.max(SPREAD_LEAST, frame.resume_window_s * 1_000);
    this.#messageBytes = frame.limits?.message_bytes ?? this.#messageBytes;
    this.#watch();
    // A refusal that comes as soon as this one is not the first of its kind.
    this.#later('sound', SOUND_AFTER, () => { this.#attempt = 0; this.#isSecondCredential = false; });
    this.#enter({ name: 'open', session: frame.session });
    for (const subscription of this.#subscriptions.values()) {
      if (subscription.phase === 'waiting') this._join(subscription);
    }
    this.#sendRequests();
  }

  /** Expects a frame within the interval of pings. */
  #watch() {
    this.#later('silence', this.#pingMs + SILENCE_GRACE, () => this.#ended(1006, 'the server is silent'));
  }

  /** Sends a newer token. @param {number} attempt */
  async #refresh(attempt) {
    if (typeof this.#options.token !== 'function') return;
    const generation = this.#generation;
    this.#refreshAt = clock() + REFRESH_LEAST;
    try {
      await this._request({ type: 'refresh', token: await this.#token() }, false);
    } catch {
      // The server closes with 4001 if none comes in time, and then asks for a credential again.
      if (attempt < 8 && generation === this.#generation) this.#later('refresh', 1_000 * attempt, () => this.#refresh(attempt + 1));
    }
  }

  /** Ends the connection and plans the next. @param {number} code @param {string} reason @param {unknown} [error] */
  #ended(code, reason, error) {
    if (this.#state.name === 'closed') return;
    const lived = this.#isOpen ? clock() - this.#openedAt : 0;
    const wasOpen = this.#isOpen;
    this.#detach();
    if (code >= 4000 && code < 4100) {
      const hasAnother = Boolean(this.#options.ticket) || typeof this.#options.token === 'function';
      if (this.#isSecondCredential || !hasAnother) {
        this.#giveUp(new FlyballError(`the server closed the connection: ${reason || code}`, { code: 'GAVE_UP', permanent: true }));
        return;
      }
      this.#isSecondCredential = true;
      this.#wait(0, { code, reason, error });
      return;
    }
    this.#attempt += 1;
    let delay = Math.random() * backoff(this.#attempt);
    if (code >= 4100 && code < 4200) delay = backoff(this.#attempt) * (0.5 + Math.random() / 2);
    // At once, unless connections end as soon as they begin.
    else if (code >= 4200 && code < 4300 && (lived >= SOUND_AFTER || this.#attempt <= 2)) delay = 0;
    // All clients of a process that crashed come back now.
    else if (wasOpen && this.#attempt <= 1) delay = Math.random() * this.#spread;
    this.#wait(Math.max(delay, this.#leaveAt - clock()), { code, reason, error });
  }

  /** @param {number} delay @param {{ code: number, reason: string, error?: unknown }} why */
  #wait(delay, why) {
    const offline = globalThis.navigator?.onLine === false;
    this.#enter({ name: 'waiting', attempt: this.#attempt, retryInMs: Math.round(delay), offline, ...why });
    if (this.#isClosed()) return;
    const go = () => {
      this.#stopListening?.();
      this.#connect();
    };
    if (offline && typeof globalThis.addEventListener === 'function') {
      // The network was ours, so there is no crowd to spread.
      const online = () => this.#later('retry', Math.random() * SPREAD_LEAST, go);
      globalThis.addEventListener('online', online, { once: true });
      this.#stopListening = () => globalThis.removeEventListener('online', online);
    }
    this.#later('retry', delay, go);
  }

  #isClosed() {
    return this.#state.name === 'closed';
  }

  /** Lets go of the connection; what was sent and has no answer is repeated later or fails. */
  #detach() {
    this.#generation += 1;
    const socket = this.#socket;
    this.#socket = null;
    this.#isOpen = false;
    for (const name of ['open', 'silence', 'ack', 'leave', 'sound', 'retry', 'refresh', 'failed']) this.#cancel(name);
    this.#stopListening?.();
    this.#stopListening = null;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
      if (socket.readyState < 2) socket.close(1000);
    }
    for (const subscription of this.#subscriptions.values()) {
      // One that is paused joins when its program has caught up.
      if (subscription.phase !== 'paused') subscription.phase = 'waiting';
    }
    for (const [ref, request] of this.#requests) {
      if (!request.isSent) continue;
      request.isSent = false;
      if (request.isRepeatable) continue;
      this.#requests.delete(ref);
      request.reject(new FlyballError('the connection was lost before the answer', { code: 'CONNECTION_LOST', maybeDone: true }));
    }
  }

  /** @param {FlyballError | null} error */
  #giveUp(error) {
    if (this.#state.name === 'closed') return;
    this.#detach();
    this.#enter(error ? { name: 'closed', error } : { name: 'closed' });
    const subscriptions = [...this.#subscriptions.values()];
    const requests = [...this.#requests.values()];
    this.#subscriptions.clear();
    this.#requests.clear();
    for (const subscription of subscriptions) subscription.end(error);
    for (const { reject } of requests) reject(error ?? new FlyballError('the client was closed', { code: 'CLOSED' }));
  }

  /** @param {State} state */
  #enter(state) {
    this.#state = state;
    tell(this.#options, 'onstate', state);
  }

  /** @param {string} name @param {number} ms @param {() => void} work @param {boolean} [keep] leaves one that is planned */
  #later(name, ms, work, keep = false) {
    if (keep && this.#timers[name] !== undefined) return;
    this.#cancel(name);
    this.#timers[name] = setTimeout(() => {
      this.#timers[name] = undefined;
      work();
    }, ms);
  }

  /** @param {string} name */
  #cancel(name) {
    clearTimeout(this.#timers[name]);
    this.#timers[name] = undefined;
  }
}
