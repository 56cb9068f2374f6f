// A Flyball worker in JavaScript for Node.js 20 or newer: no dependencies, types in JSDoc that TypeScript checks.
//
//     FLYBALL_URL=http://127.0.0.1:8080 FLYBALL_TOKEN=... node worker.mjs
//
// Replace `render` and `kinds`. A handler returns the result of its job, or throws Snooze, Throttled or Dead; any
// other error is a failed attempt. Between two steps it calls `job.step`, which stores the place from which a later
// attempt goes on, and throws if the job must stop.
import { hostname } from "node:os";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";

const url = process.env.FLYBALL_URL ?? "http://127.0.0.1:8080";
const name = process.env.WORKER_NAME ?? `${hostname()}-${process.pid}`;
const leaseS = Number(process.env.LEASE_S ?? 30);
let stopping = false;

/** The job runs again later; no attempt is used. */
export class Snooze extends Error { constructor(/** @type {number} */ forS) { super(); this.forS = forS; } }
/** The receiver asked to wait. */
export class Throttled extends Error { constructor(/** @type {number=} */ waitS) { super(); this.waitS = waitS; } }
/** The job can never succeed. */
export class Dead extends Error {}
/** The job is cancelled, or this worker stops. */
class Stopped extends Error {}
/** The job goes on elsewhere: the lease is lost. */
class Lost extends Error {}

/** Posts a body; repeats what Flyball could not do for the moment.
 * @param {string} path @param {object} body @returns {Promise<any>} */
async function call(path, body) {
  /** @type {Record<string, string>} */
  const headers = { "content-type": "application/json" };
  if (process.env.FLYBALL_TOKEN) headers.authorization = `Bearer ${process.env.FLYBALL_TOKEN}`;
  for (;;) {
    let answer;
    try {
      const signal = AbortSignal.timeout(15_000);
      answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (answer.ok) return await answer.json();
    } catch (error) {
      // No connection: the server restarts, or is away.
      if (stopping) throw error;
      console.log(`${path}: ${error}; trying again`);
      await sleep(1000);
      continue;
    }
    if (answer.status === 409) throw new Lost(await answer.text());
    if (answer.status !== 429 && answer.status !== 503) {
      throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
    }
    await sleep(1000 * Number(answer.headers.get("retry-after") ?? 1));
  }
}

/**
 * @typedef {{id: number, lease: string, kind: string, args: any, attempt: number,
 *   checkpoint: {cursor: any, done: number} | null}} Claimed
 * @typedef {(job: Job) => Promise<unknown>} Handler
 */

/** A job that this worker holds. Its lease is extended in the background until it ends. */
export class Job {
  /** @type {Error | undefined} */
  #state;

  /** @param {Claimed} claimed */
  constructor(claimed) {
    this.claimed = claimed;
    this.args = claimed.args;
  }

  /** @param {object} more */
  async heartbeat(more = {}) {
    const answer = await this.#post("heartbeat", more);
    if (answer.cancelled) this.#state = new Stopped();
  }

  /** Stores the place from which a later attempt goes on; throws if the job must stop here.
   * @param {unknown} checkpoint @param {{done: number, total?: number, note?: string}} progress */
  async step(checkpoint, progress) {
    await this.heartbeat({ checkpoint, progress });
    if (this.#state || stopping) throw this.#state ?? new Stopped();
  }

  /** @param {Handler} handler */
  async run(handler) {
    const beat = () => this.heartbeat().catch((error) => { if (error instanceof Lost) this.#state = error; });
    const beating = setInterval(beat, (leaseS * 1000) / 3);
    const end = await this.#attempt(handler).finally(() => clearInterval(beating));
    console.log(`job ${this.claimed.id} is ${(await this.#post(...end)).state}`);
  }

  /** @param {Handler} handler @returns {Promise<[string, object]>} */
  async #attempt(handler) {
    try {
      return ["complete", { result: await handler(this) }];
    } catch (error) {
      return this.#endOf(error);
    }
  }

  /** @param {unknown} error @returns {[string, object]} */
  #endOf(error) {
    if (error instanceof Snooze) return ["snooze", { for_s: error.forS }];
    if (error instanceof Throttled) return ["throttled", { retry_after_s: error.waitS }];
    if (error instanceof Dead) return ["fail", { error: error.message, retry: false }];
    if (error instanceof Stopped) return ["release", {}];
    if (error instanceof Lost) throw error;
    return ["fail", { error: String(error) }];
  }

  /** @param {string} verb @param {object} more */
  #post(verb, more) {
    return call(`/api/v1/jobs/${this.claimed.id}/${verb}`, { lease: this.claimed.lease, ...more });
  }
}

/** Renders pages: the example of a long job. Its arguments can ask for every kind of end. @type {Handler} */
async function render(job) {
  const { args, claimed } = job, at = claimed.checkpoint?.cursor ?? 0, pages = args.pages ?? 1;
  if (at === 0 && (args.snooze_s ?? args.refused_s) !== undefined) {
    await job.heartbeat({ checkpoint: 1 });
    throw args.snooze_s === undefined ? new Throttled(args.refused_s) : new Snooze(args.snooze_s);
  }
  if (args.dead) throw new Dead(args.dead);
  for (let page = at; page < pages; page++) {
    await sleep(1000 * (args.page_s ?? 0));
    console.log(`job ${claimed.id} attempt ${claimed.attempt} page ${page}`);
    await job.step(page + 1, { done: page + 1, total: pages, note: `page ${page + 1}` });
  }
  return { pages, worker: name };
}

/** @type {Record<string, Handler>} */
const kinds = { render };

process.on("SIGTERM", () => { stopping = true; });
console.log(`worker ${name} asks ${url} for ${Object.keys(kinds).join(", ")}`);
while (!stopping) {
  const claim = { worker: name, host: hostname(), kinds: Object.keys(kinds), lease_s: leaseS, wait_s: 2 };
  for (const claimed of (await call("/api/v1/claim", claim)).jobs) {
    await new Job(claimed).run(kinds[claimed.kind]).catch((error) => {
      if (!(error instanceof Lost)) throw error;
      console.log(`job ${claimed.id} is lost`);
    });
  }
}
