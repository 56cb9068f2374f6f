/** The place of a message in its channel: what a program keeps to resume after it. */
export interface Position {
  epoch: string;
  offset: number;
}

/** A message of a channel. */
export interface Message<T = unknown> {
  type: 'message';
  channel: string;
  data: T;
  /** The id that the publisher got. */
  id: string;
  /** The place in the channel; absent for channels without history. */
  position?: Position;
}

/** Messages of a channel were missed and will not come. The program must read its state anew. */
export interface Lost {
  type: 'lost';
  channel: string;
  /**
   * `not_kept`: they are no longer in the history. `no_history`: the channel keeps none, and the
   * connection was away. `dropped`: the channel keeps none, and this connection or its loop read too
   * slowly; or the message is too large to be sent, or the recipient of the inbox was erased.
   */
  reason: 'not_kept' | 'no_history' | 'dropped';
  /** The number of missed messages, if it is known. */
  missed: number | null;
}

/** The server has confirmed a subscription; again after each reconnection. */
export interface Subscribed {
  type: 'subscribed';
  channel: string;
  /** True if the messages since the last one follow. */
  recovered: boolean;
  /** The number of messages that follow from the history. */
  missed: number;
}

/** An element of an iterated subscription. */
export type ChannelEvent<T = unknown> = Message<T> | Lost;

export interface Handlers<T = unknown> {
  message(message: Message<T>): void;
  /** Required: a program that ignores lost messages shows what is no longer true. */
  lost(lost: Lost): void;
  subscribed?(subscribed: Subscribed): void;
  /** The server reads the history for us because we read slowly; nothing is missing. */
  lag?(lag: { channel: string }): void;
  /** The subscription has ended: the server refused it, or the client gave up. */
  error?(error: FlyballError): void;
}

export interface SubscribeOptions {
  /** The last message that the program has, to get those after it. */
  since?: Position;
}

export interface Subscription<T = unknown> extends AsyncIterable<ChannelEvent<T>> {
  readonly channel: string;
  readonly state: 'waiting' | 'joining' | 'live' | 'ended';
  /** The last message that was handed over, or the place at which the subscription began. */
  readonly position: Position | null;
  /** Resolves at the first confirmation; rejects if the subscription ends before it. */
  readonly ready: Promise<void>;
  unsubscribe(): void;
}

export type State =
  /** A ticket is being fetched or the connection is being opened. */
  | { name: 'connecting'; attempt: number }
  | { name: 'open'; session: string }
  /** The connection is lost and the next attempt has a time. */
  | {
      name: 'waiting';
      attempt: number;
      retryInMs: number;
      /** The close code; 1006 if there was none. */
      code: number;
      reason: string;
      /** True if the device has no network; an attempt comes as soon as it has. */
      offline: boolean;
      /** The failure of the ticket or token provider or of the class of the connection, if that was the reason. */
      error?: unknown;
    }
  /** It does not come back; `error` is absent after `close()`. */
  | { name: 'closed'; error?: FlyballError };

/** A warning of the server; the connection stays open. */
export interface Warning {
  code: 'WS_RATE_LIMITED' | 'TOKEN_EXPIRES' | (string & {});
  message: string;
}

export interface FlyballOptions {
  /** The server: `https://…` or `wss://…`, with or without the path `/api/v1/ws`. */
  url: string | URL;
  /**
   * Returns a ticket for one connection: your server asks `POST /api/v1/ws/tickets` with its token.
   * One that throws is asked again later, and so is one that returns what can be no ticket.
   * To give up instead of trying again, throw a `FlyballError` with `permanent: true`.
   */
  ticket?: () => string | Promise<string>;
  /** A token, or its provider, which is asked again before the token expires. For servers. */
  token?: string | (() => string | Promise<string>);
  /** Called at each change of the state. */
  onstate?: (state: State) => void;
  onwarning?: (warning: Warning) => void;
  /** The class of the connection; `globalThis.WebSocket` if absent. */
  WebSocket?: typeof WebSocket;
}

export class FlyballError extends Error {
  constructor(message: string, options?: { code?: string; maybeDone?: boolean; permanent?: boolean; cause?: unknown });
  /**
   * The code of the server's error frame, or `CLOSED`, `CONNECTION_LOST`, `TOO_LARGE`, `QUEUE_FULL`,
   * `SAME_CHANNEL`, `GAVE_UP`.
   */
  readonly code: string;
  /** True if the request may have been carried out; false if it was certainly not. */
  readonly maybeDone: boolean;
  readonly permanent: boolean;
}

export type InboxState = 'unseen' | 'seen' | 'read' | 'archived';

/** `unread` are the unseen and the seen ones; `unarchived` puts archived ones back. */
export type InboxMark = 'seen' | 'read' | 'unread' | 'archived' | 'unarchived';

/** Some messages, or all up to one and including it, or all that came until a time (RFC 3339). */
export type InboxChange = ({ ids: string[] } | { allUpTo: string }) & { as: InboxMark };

export interface InboxMessage {
  id: string;
  notification_id: number;
  category: string;
  template_id: string | null;
  actor: string | null;
  subject: string | null;
  body: string;
  data: unknown;
  state: InboxState;
  created_at: string;
  seen_at: string | null;
  read_at: string | null;
  archived_at: string | null;
}

/** The counts of an inbox, without archived messages. */
export interface InboxCounts {
  unseen: number;
  unread: number;
}

export interface InboxPage {
  messages: InboxMessage[];
  /** The cursor of the next page; `null` at the end. */
  next: string | null;
  counts: InboxCounts;
}

export interface Inbox {
  /** A page, newest first; without a state all messages but the archived ones. */
  list(query?: { cursor?: string | null; limit?: number; state?: InboxState | 'unread'; category?: string }): Promise<InboxPage>;
  mark(change: InboxChange): Promise<InboxCounts>;
  counts(): Promise<InboxCounts>;
  /** Called for each message that arrives. */
  onmessage: ((message: InboxMessage) => void) | null;
  /**
   * Called when the counts change: by a message, or by a mark here or on another device. `marked` is
   * `null` after several marks that are told together: list anew.
   */
  oncounts: ((counts: InboxCounts & { marked?: InboxChange | null }) => void) | null;
  /** Called when messages may have been missed: list anew. */
  onlost: ((lost: Lost) => void) | null;
  /** Called when the inbox cannot be followed, for example because the ticket names no recipient. */
  onerror: ((error: FlyballError) => void) | null;
}

export class Flyball {
  constructor(options: FlyballOptions);
  readonly state: State;
  readonly inbox: Inbox;
  subscribe<T = unknown>(channel: string, handlers: Handlers<T>, options?: SubscribeOptions): Subscription<T>;
  /** Without handlers the subscription is iterated: `for await (const event of subscription)`. */
  subscribe<T = unknown>(channel: string, options?: SubscribeOptions): Subscription<T>;
  unsubscribe(channel: string): void;
  /**
   * Publishes a message. One that waits for a connection is sent once there is one; one that was
   * sent is never sent again: if the connection is lost before the answer, the promise rejects with
   * `maybeDone: true`.
   */
  publish(channel: string, data: unknown): Promise<{ id: string }>;
  close(): void;
}
