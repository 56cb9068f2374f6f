// A gateway for tests of the client: the server side of RFC 6455 and of `flyball.v1`, with faults.

import { createHash } from 'node:crypto';
import { createServer } from 'node:http';

const KEY_SUFFIX = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';

/** Encodes a frame of a server: final and without a mask. */
function encoded(opcode, payload) {
  const { length } = payload;
  const head = length < 126 ? Buffer.from([0x80 | opcode, length])
    : length < 65_536 ? Buffer.from([0x80 | opcode, 126, length >> 8, length & 255])
      : Buffer.concat([Buffer.from([0x80 | opcode, 127, 0, 0, 0, 0]), Buffer.from([length >>> 24, (length >> 16) & 255, (length >> 8) & 255, length & 255])]);
  return Buffer.concat([head, payload]);
}

/** One connection. */
class Connection {
  /** Frames that came, without pongs and acks. */
  received = [];
  pongs = 0;
  acks = [];
  /** Channels with the offset of the next message. */
  cursors = new Map();
  #rest = Buffer.alloc(0);
  #parts = [];

  constructor(gateway, socket, url) {
    this.gateway = gateway;
    this.socket = socket;
    this.url = url;
    socket.on('data', (chunk) => this.#read(chunk));
    socket.on('error', () => {});
    socket.on('close', () => gateway.connections.delete(this));
  }

  send(frame) {
    if (!this.isClosing && !this.socket.destroyed) this.socket.write(encoded(1, Buffer.from(JSON.stringify(frame))));
  }

  close(code, reason = '') {
    if (this.isClosing) return;
    this.isClosing = true;
    this.socket.write(encoded(8, Buffer.concat([Buffer.from([code >> 8, code & 255]), Buffer.from(reason)])));
    this.cursors.clear();
  }

  #read(chunk) {
    let rest = Buffer.concat([this.#rest, chunk]);
    while (rest.length >= 6) {
      let [length, at] = [rest[1] & 127, 2];
      if (length === 126) [length, at] = [rest.readUInt16BE(2), 4];
      else if (length === 127) [length, at] = [Number(rest.readBigUInt64BE(2)), 10];
      if (rest.length < at + 4 + length) break;
      if (!(rest[1] & 128)) throw new Error('a frame of a client has no mask');
      const mask = rest.subarray(at, at + 4);
      const payload = Buffer.from(rest.subarray(at + 4, at + 4 + length)).map((byte, i) => byte ^ mask[i & 3]);
      const [isLast, opcode] = [rest[0] & 128, rest[0] & 15];
      rest = rest.subarray(at + 4 + length);
      if (opcode === 8) {
        if (this.isClosing) this.socket.end();
        else this.socket.end(encoded(8, payload));
        this.isClosing = true;
      }
      if (this.isClosing) continue;
      if (opcode === 9) this.socket.write(encoded(10, payload));
      else if (opcode < 3) {
        this.#parts.push(payload);
        if (isLast) this.gateway.take(this, JSON.parse(Buffer.concat(this.#parts.splice(0)).toString()));
      }
    }
    this.#rest = rest;
  }
}

/** A small gateway whose channels are in memory, so that they outlive its connections. */
export class FakeGateway {
  connections = new Set();
  /** Every connection since the start. */
  all = [];
  channels = new Map();
  hello = { ping_s: 25, resume_window_s: 10, limits: { message_bytes: 65_536, subscriptions: 50 } };
  /** Answers a frame in place of the gateway; returns true if it did. */
  onframe = () => false;
  /** Returns how often a message is sent to a connection now: 0 loses it, 2 repeats it. */
  copies = () => 1;
  /** The status with which upgrades are refused, or 0. */
  refuses = 0;
  /** The close code with which connections end at once, or 0. */
  closes = 0;
  #port = 0;
  #ids = 0;

  static async start() {
    const gateway = new FakeGateway();
    await gateway.listen();
    return gateway;
  }

  listen() {
    // Every request is for a ticket.
    this.server = createServer((request, response) => response.writeHead(201).end(JSON.stringify({ ticket: 't', expires_in_s: 30 })));
    this.sockets = new Set();
    this.server.on('connection', (socket) => {
      this.sockets.add(socket);
      socket.on('close', () => this.sockets.delete(socket));
    });
    this.server.on('upgrade', (request, socket) => this.#upgrade(request, socket));
    return new Promise((resolve) => this.server.listen(this.#port, '127.0.0.1', () => {
      this.#port = this.server.address().port;
      this.url = `http://127.0.0.1:${this.#port}`;
      resolve();
    }));
  }

  /** Dies like a killed process: no close frame, nobody listens. */
  async die() {
    const closed = new Promise((resolve) => this.server.close(resolve));
    for (const socket of this.sockets) socket.destroy();
    await closed;
  }

  get last() {
    return this.all.at(-1);
  }

  #upgrade(request, socket) {
    if (this.refuses) {
      socket.end(`HTTP/1.1 ${this.refuses} Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`);
      return;
    }
    const accept = createHash('sha1').update(request.headers['sec-websocket-key'] + KEY_SUFFIX).digest('base64');
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n`
      + `Sec-WebSocket-Protocol: ${request.headers['sec-websocket-protocol']}\r\n\r\n`);
    const connection = new Connection(this, socket, new URL(request.url, this.url));
    this.connections.add(connection);
    this.all.push(connection);
    if (this.closes) connection.close(this.closes, 'as the test wants');
    else if (connection.url.searchParams.has('ticket')) this.#greet(connection);
  }

  #greet(connection) {
    connection.isGreeted = true;
    connection.send({ type: 'hello', session: `s${this.all.length}`, ...this.hello });
  }

  take(connection, frame) {
    if (frame.type === 'pong') connection.pongs += 1;
    else if (frame.type === 'ack') connection.acks.push(frame);
    else {
      connection.received.push(frame);
      if (!this.onframe(connection, frame)) this.answer(connection, frame);
    }
  }

  /** The channel of a name; the server knows the own inbox by another. */
  channel(name) {
    const wire = name === '$inbox' ? '$inbox/u1' : name;
    if (!this.channels.has(wire)) this.channels.set(wire, { wire, epoch: 1, first: 1, messages: [], hasHistory: !wire.startsWith('presence.') });
    return this.channels.get(wire);
  }

  answer(connection, frame) {
    const { ref } = frame;
    if (frame.type === 'refresh') {
      if (connection.isGreeted) connection.send({ type: 'refreshed', expires_at: null, ref });
      else this.#greet(connection);
    } else if (frame.type === 'subscribe') {
      const channel = this.channel(frame.channel);
      const { wire, epoch, first, messages } = channel;
      const offset = first - 1 + messages.length;
      if (!channel.hasHistory) {
        connection.cursors.set(wire, Infinity);
        connection.send({ type: 'subscribed', channel: wire, recovered: false, missed: 0, ref });
        return;
      }
      const { since } = frame;
      const recovered = since !== undefined && since.epoch === String(epoch) && since.offset + 1 >= first && since.offset <= offset;
      const missed = recovered ? offset - since.offset : 0;
      connection.send({ type: 'subscribed', channel: wire, recovered, missed, epoch: String(epoch), offset, ref });
      connection.cursors.set(wire, recovered ? since.offset + 1 : offset + 1);
      this.#deliver(connection, channel);
    } else if (frame.type === 'unsubscribe') {
      const { wire } = this.channel(frame.channel);
      connection.cursors.delete(wire);
      connection.send({ type: 'unsubscribed', channel: wire, ref });
    } else if (frame.type === 'publish') {
      connection.send({ type: 'published', id: this.publish(frame.channel, frame.data), ref });
    } else {
      connection.send({ type: 'error', code: 'BAD_FRAME', message: `type: "${frame.type}" is not a type of frame`, ref });
    }
  }

  publish(name, data) {
    const channel = this.channel(name);
    const id = String(++this.#ids);
    channel.messages.push({ id, data });
    for (const connection of this.connections) {
      if (!connection.cursors.has(channel.wire)) continue;
      if (channel.hasHistory) this.#deliver(connection, channel);
      else connection.send({ type: 'message', channel: name, id, data });
    }
    return id;
  }

  #deliver(connection, channel) {
    for (;;) {
      const offset = connection.cursors.get(channel.wire);
      const message = channel.messages[offset - channel.first];
      if (!message) return;
      connection.cursors.set(channel.wire, offset + 1);
      const { wire, epoch } = channel;
      for (let copies = this.copies(connection, offset); copies > 0; copies -= 1) {
        connection.send({ type: 'message', channel: wire, epoch: String(epoch), offset, ...message });
      }
    }
  }
}

/** The real clock, for tests that replace it. */
const realTimeout = setTimeout;
const realNow = Date.now.bind(Date);

/** Waits for a condition; tests with a clock of their own use it too. */
export async function until(what, condition, within_ms = 10_000) {
  const end = realNow() + within_ms;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (realNow() > end) throw new Error(`waited ${within_ms} ms for ${what}`);
    await new Promise((resolve) => realTimeout(resolve, 5));
  }
}

/** Numbers from 0 to 1 that are the same in every run. */
export function randoms(seed) {
  let x = Math.imul(seed, 2_654_435_761) >>> 0;
  return () => {
    x = (Math.imul(x, 1_664_525) + 1_013_904_223) >>> 0;
    return x / 4_294_967_296;
  };
}
