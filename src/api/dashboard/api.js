// Requests to the HTTP API, with its problems as errors.

import { guessTime } from './clock.js';

/** An error answer of the server, or a missing answer (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {any} problem the problem+json body, if there was one
   */
  constructor(status, problem) {
    super(status === 401 ? 'Your session has ended: sign in, and do it again.' : problem?.detail || problem?.title || (status ? `the server answered ${status}` : 'the server does not answer'));
    this.status = status;
    this.problem = problem;
  }
}

/** Returns the words of a refusal, with each field that was wrong. @param {unknown} error */
export function refusalText(error) {
  const { message, problem } = /** @type {any} */ (error);
  const told = (problem?.errors ?? []).map((/** @type {any} */ one) => `${String(one.pointer ?? '').replace(/^#?\//, '')}: ${one.message}`);
  if (told.length === 0) return message;
  // The words about a single fault have its own in them; without a pointer it is the whole body's.
  if (told.length === 1 && message.endsWith(`: ${problem.errors[0].message}`)) return problem.errors[0].pointer ? told[0] : message;
  return `${message}: ${told.join('; ')}`;
}

/**
 * Returns what went wrong beside a change that was made, such as its entry in the audit log, with a blank
 * in front; empty if nothing did.
 * @param {any} answer
 */
export function warningsText(answer) {
  return (answer?.warnings ?? []).map((/** @type {string} */ one) => ` Warning: ${one}.`).join('');
}

/** The state of this browser's token by the server's last answer; `changed` is told of a change. */
export const session = { isDenied: false, changed: (/** @type {boolean} */ _isDenied) => {} };

/**
 * The longest wait for an answer, in milliseconds. The server says within 15 s that Postgres does not
 * answer.
 */
const TIMEOUT_MS = 20_000;
/** The words for a change without an answer. */
const IN_DOUBT = 'The server does not answer, and the change may have been made all the same: look before you repeat it.';

/**
 * Refuses a path that a browser would shorten: a part of dots alone, such as a name that somebody chose,
 * makes it the path of another resource.
 * @param {string} path
 */
function checkPath(path) {
  const parts = path.split('?')[0].split('/');
  const dots = parts.find((part) => /^(\.|%2e){1,2}$/i.test(part));
  if (dots !== undefined) throw new ApiError(400, { detail: `The name "${decodeURIComponent(dots)}" cannot be part of an address: use the command flyball. Nothing was changed.` });
}

/** Returns the error of a request without an answer. @param {RequestInit} init */
function noAnswer({ method = 'GET' }) {
  return new ApiError(0, method === 'GET' ? null : { detail: IN_DOUBT });
}

/** Sends a request, and learns from its answer. @param {string} path @param {RequestInit} init */
async function send(path, init) {
  checkPath(path);
  let response;
  try {
    response = await fetch(path, { credentials: 'same-origin', ...init });
  } catch {
    throw noAnswer(init);
  }
  guessTime(response.headers.get('date'));
  // Too many requests are refused before anybody looks at their token.
  if (response.status === 429) return response;
  const isDenied = response.status === 401;
  if (isDenied !== session.isDenied) {
    session.isDenied = isDenied;
    session.changed(isDenied);
  }
  return response;
}

/**
 * Asks why a stream is refused, and reads nothing of one that is not.
 * @param {string} path
 * @returns {Promise<ApiError | null>} null if it is not refused
 */
export async function refusalOf(path) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), TIMEOUT_MS);
  try {
    const response = await send(path, { headers: { accept: 'text/event-stream' }, signal: stop.signal });
    return response.ok ? null : new ApiError(response.status, await response.json().catch(() => null));
  } catch (error) {
    return /** @type {ApiError} */ (error);
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

/**
 * @param {string} method
 * @param {string} path
 * @param {{ body?: any, seq?: number }} [options] `seq` is sent as If-Match
 * @returns {Promise<any>}
 */
export async function call(method, path, { body, seq } = {}) {
  /** @type {Record<string, string>} */
  const headers = { accept: 'application/json' };
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (seq !== undefined) headers['if-match'] = `"${seq}"`;
  const response = await send(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => undefined);
  if (!response.ok) throw new ApiError(response.status, answer ?? null);
  // The body is incomplete: the page is being left, or the server disconnected.
  if (answer === undefined) throw noAnswer({ method });
  return answer;
}

/** @param {string} path */
export function get(path) {
  return call('GET', path);
}

/**
 * Returns the answer at a path, or null if the token may not read it.
 * @param {string} path
 */
export function getAllowed(path) {
  return get(path).catch((error) => {
    if (error.status !== 403) throw error;
    return null;
  });
}

/** The refusals of parts that the token may not read. @type {WeakMap<object, any>} */
const denied = new WeakMap();

/**
 * Refreshes a part of the page. One that the token may not read is asked for once: another token comes with
 * another page. It may say so in place of what it would show.
 * @param {{ refresh: () => Promise<void>, refused?: () => void }} part
 */
export async function refreshPart(part) {
  if (denied.has(part)) throw denied.get(part);
  await part.refresh().catch((error) => {
    if (error.status === 403) {
      denied.set(part, error);
      part.refused?.();
    }
    throw error;
  });
}

/**
 * Returns a function that asks a question, but not before the last one is answered: a browser has few
 * connections, and a change needs one. Asked meanwhile, it waits for that answer.
 * @param {() => Promise<void>} question
 */
export function oneAtATime(question) {
  /** @type {Promise<void> | null} */
  let asking = null;
  return () => {
    asking ??= question().finally(() => { asking = null; });
    return asking;
  };
}

/**
 * Writes knobs, guarded by the sequence number that the person has seen.
 * @param {string} name
 * @param {Record<string, any>} body
 * @param {number} [seq]
 */
export function patchThrottle(name, body, seq) {
  return call('PATCH', throttlePath(name), { body, seq });
}

/** @param {string} name */
export function throttlePath(name) {
  return `/api/v1/throttles/${encodeURIComponent(name)}`;
}
