// A Flyball worker in TypeScript without dependencies. Node.js 23.6 or newer runs it as it is; older ones run what
// `tsc` or a bundler makes of it.
//
//     FLYBALL_URL=http://127.0.0.1:8080 FLYBALL_TOKEN=... node worker.ts
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
const CLAIM = "/api/v1/claim";
let stopping = false;

/** The job runs again later; no attempt is used. */
export class Snooze extends Error { forS: number; constructor(forS: number) { super(); this.forS = forS; } }
/** The receiver asked to wait. */
export class Throttled extends Error { waitS?: number; constructor(waitS?: number) { super(); this.waitS = waitS; } }
/** The job can never succeed. */
export class Dead extends Error {}
/** The job is cancelled, or this worker stops. */
class Stopped extends Error {}
/** The job goes on elsewhere: the lease is lost. */
class Lost extends Error {}

/** Posts a body; repeats what Flyball, or a proxy before it, could not do for the moment. */
async function call(path: string, body: object): Promise<any> {
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (process.env.FLYBALL_TOKEN) headers.authorization = `Bearer ${process.env.FLYBALL_TOKEN}`;
  for (;;) {
    let answer: Response;
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
    if (![429, 502, 503, 504].includes(answer.status)) {
      throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
    }
    if (stopping && path === CLAIM) return { jobs: [] };
    // A proxy may answer with a date.
    await sleep(1000 * (Number(answer.headers.get("retry-after")) || 1));
  }
}

/** A job as `POST /api/v1/claim` answers it. */
export interface Claimed {
  id: number;
  lease: string;
  kind: string;
  args: any;
  attempt: number;
  checkpoint: { cursor: any; done: number } | null;
}
export type Handler = (job: Job) => Promise<unknown>;
/** The verb of the call that ends a job, and its body. */
type End = [verb: string, body: object];

/** A job that this worker holds. Its lease is extended in the background until it ends. */
export class Job {
  readonly claimed: Claimed;
  readonly args: any;
  #state?: Error;

  constructor(claimed: Claimed) {
    this.claimed = claimed;
    this.args = claimed.args;
  }

  async heartbeat(more: object = {}): Promise<void> {
    const answer = await this.#post("heartbeat", more);
    if (answer.cancelled) this.#state = new Stopped();
  }

  /** Stores the place from which a later attempt goes on; throws if the job must stop here. */
  async step(checkpoint: unknown, progress: { done: number; total?: number; note?: string }): Promise<void> {
    await this.heartbeat({ checkpoint, progress });
    if (this.#state || stopping) throw this.#state ?? new Stopped();
  }

  async run(handler: Handler): Promise<void> {
    const beat = () => this.heartbeat().catch((error) => { if (error instanceof Lost) this.#state = error; });
    const beating = setInterval(beat, (leaseS * 1000) / 3);
    const ended = await this.#attempt(handler).finally(() => clearInterval(beating));
    console.log(`job ${this.claimed.id} is ${ended.state}`);
  }

  async #attempt(handler: Handler): Promise<any> {
    try {
      return await this.#post("complete", { result: await handler(this) });
    } catch (error) {
      return this.#post(...this.#endOf(error));
    }
  }

  #endOf(error: unknown): End {
    if (error instanceof Snooze) return ["snooze", { for_s: error.forS }];
    if (error instanceof Throttled) return ["throttled", { retry_after_s: error.waitS }];
    if (error instanceof Dead) return ["fail", { error: short(error.message) || "dead", retry: false }];
    if (error instanceof Stopped) return ["release", {}];
    if (error instanceof Lost) throw error;
    // Also a result that is too long.
    return ["fail", { error: short(String(error)) }];
  }

  #post(verb: string, more: object): Promise<any> {
    return call(`/api/v1/jobs/${this.claimed.id}/${verb}`, { lease: this.claimed.lease, ...more });
  }
}

/** The first thousand characters of an error: more than 4000 bytes of it would be refused. */
const short = (error: string): string => Array.from(error).slice(0, 1000).join("");

/** Renders pages: the example of a long job. Its arguments can ask for every kind of end. */
async function render(job: Job): Promise<unknown> {
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

const kinds: Record<string, Handler> = { render };

process.on("SIGTERM", () => { stopping = true; });
console.log(`worker ${name} asks ${url} for ${Object.keys(kinds).join(", ")}`);
while (!stopping) {
  const claim = { worker: name, host: hostname(), kinds: Object.keys(kinds), lease_s: leaseS, wait_s: 2 };
  for (const claimed of (await call(CLAIM, claim)).jobs as Claimed[]) {
    await new Job(claimed).run(kinds[claimed.kind]).catch((error) => {
      if (!(error instanceof Lost)) throw error;
      console.log(`job ${claimed.id} is lost`);
    });
  }
}
