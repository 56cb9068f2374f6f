// Changes of many jobs of the list: of those that a person selects, and of all that match.

import { call } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { fill, h, setText, show } from './dom.js';
import { count } from './format.js';
import { askChange, changeJob, CHANGES } from './jobchange.js';
import { allows, bulkChanges, filterText } from './jobwords.js';
import { endedAfter, walk } from './operate.js';

/** The jobs that one request of a bulk change takes. */
const STEP = 5_000;
const DONE = { requeue: 'Requeued', discard: 'Discarded', cancel: 'Cancelled' };
/** @type {Record<string, string>} */
const TEXTS = {
  requeue: 'They start again with all their attempts, as fast as their throttles allow.',
  discard: 'They are discarded permanently; their history stays until it is pruned.',
  cancel: 'Waiting jobs will not run, and the handlers of running ones are asked to stop.',
};

/**
 * Counts the jobs of a bulk change, asks, and makes it step by step; returns what was done, or null
 * if the person changes nothing.
 * @param {{ verb: 'requeue' | 'discard' | 'cancel', path: string, body: Record<string, any> }} change
 * @param {{ what: string, text: string, told: (text: string) => void }} words `what` names the jobs, `text` tells which they are
 * @returns {Promise<string | null>}
 */
export async function changeAll({ verb, path, body }, { what, text, told }) {
  const found = await call('POST', path, { body: { ...body, dry_run: true } });
  if (found.jobs === 0) return 'Nothing matches.';
  const many = `${count(found.jobs)}${found.more ? ' or more' : ''} ${what}`;
  const action = `${verb[0].toUpperCase()}${verb.slice(1)} all`;
  const signed = await ask({ title: `${action.replace(' all', '')} ${many}?`, action, danger: verb !== 'requeue', keep: verb === 'cancel' ? 'Keep' : 'Cancel', text: `${text ? `All ${text}. ` : ''}${TEXTS[verb]}` });
  if (!signed) return null;
  let [done, requested] = [0, 0];
  const step = async (/** @type {string | null} */ start) => {
    const answer = await call('POST', path, { body: { ...body, ...signed, limit: STEP, ...(start ? { start } : {}) } });
    done += answer.jobs;
    requested += answer.requested ?? 0;
    return answer;
  };
  try {
    await walk(step, (n) => told(`${DONE[verb]} ${count(n)} …`));
  } catch (error) {
    throw endedAfter(error, done + requested, doneText(DONE[verb], done, requested));
  }
  return doneText(DONE[verb], done, requested);
}

/**
 * Says what became of jobs: a running one is not cancelled yet, but asked to stop.
 * @param {string} word @param {number} done @param {number} requested
 */
export function doneText(word, done, requested) {
  if (requested === 0) return `${word} ${count(done)}.`;
  const asked = `sked ${count(requested)} running ${requested === 1 ? 'job' : 'jobs'} to stop.`;
  return done === 0 ? `A${asked}` : `${word} ${count(done)}, and a${asked}`;
}

export class JobBulk {
  /**
   * @param {{ bar: HTMLElement, note: HTMLElement }} place
   * @param {{ changed: () => void }} on
   */
  constructor(place, on) {
    this.place = place;
    this.on = on;
    /** @type {Set<number>} */
    this.selected = new Set();
    /** @type {Map<number, string>} the state of each job of the list */
    this.states = new Map();
    this.busy = false;
    this.count = h('b', { class: 'num' });
    this.some = /** @type {('retry' | 'cancel' | 'discard')[]} */ (['retry', 'cancel', 'discard']).map((verb) => ({
      verb, button: h('button', { type: 'button', onclick: () => this.changeSome(verb) }, `${verb[0].toUpperCase()}${verb.slice(1)} …`),
    }));
    this.clear = h('button', { type: 'button', class: 'link', onclick: () => { this.forget(); this.on.changed(); } }, 'Clear');
    this.chosen = h('span', { class: 'buttons' }, this.count, ...this.some.map(({ button }) => button), this.clear);
    this.matching = h('span', { class: 'buttons' });
    fill(place.bar, this.chosen, this.matching);
    this.draw();
  }

  /** Offers the changes of all jobs of a filter. @param {import('./jobwords.js').JobQuery} query */
  of(query) {
    this.query = query;
    const changes = bulkChanges(query, serverNow());
    fill(this.matching, ...changes.map(({ verb }) => h('button', { type: 'button', onclick: () => this.changeMatching(verb) }, `${verb[0].toUpperCase()}${verb.slice(1)} all that match …`)));
  }

  /** @param {number} id @param {boolean} isChosen */
  select(id, isChosen) {
    if (isChosen) this.selected.add(id);
    else this.selected.delete(id);
    this.draw();
  }

  /** @param {any[]} jobs @param {boolean} isChosen */
  selectAll(jobs, isChosen) {
    for (const { id } of jobs) this.select(id, isChosen);
    this.on.changed();
  }

  /** Keeps the selection to the jobs of the list. @param {any[]} jobs */
  keep(jobs) {
    this.states = new Map(jobs.map(({ id, state }) => [id, state]));
    for (const id of this.selected) if (!this.states.has(id)) this.selected.delete(id);
    this.draw();
  }

  forget() {
    this.selected.clear();
    this.draw();
  }

  /** Returns the selected jobs whose state allows a change. @param {'retry' | 'cancel' | 'discard'} verb */
  allowed(verb) {
    return [...this.selected].filter((id) => allows(verb, this.states.get(id) ?? ''));
  }

  draw() {
    show(this.chosen, this.selected.size > 0);
    setText(this.count, `${count(this.selected.size)} selected`);
    for (const { verb, button } of this.some) {
      show(button, this.allowed(verb).length > 0);
      button.disabled = this.busy;
    }
  }

  /** @param {'retry' | 'cancel' | 'discard'} verb */
  async changeSome(verb) {
    const ids = this.allowed(verb);
    const signed = await askChange(verb, ids.length === 1 ? `job ${ids[0]}` : `${count(ids.length)} jobs`);
    if (!signed) return;
    await this.work(async () => {
      let [done, requested] = [0, 0];
      let refused = '';
      for (const id of ids) {
        try {
          const job = await changeJob(verb, id, signed);
          if (verb === 'cancel' && job?.state === 'running') requested += 1;
          else done += 1;
        } catch (error) {
          const { status, message } = /** @type {any} */ (error);
          // A job that has moved on meanwhile is skipped; without the server or the permission, none works.
          if (status !== 404 && status !== 409) throw endedAfter(error, done + requested, doneText(`${CHANGES[verb].done}:`, done, requested));
          refused = message;
        }
        setText(this.place.note, `${CHANGES[verb].done}: ${count(done + requested)} of ${count(ids.length)} …`);
      }
      this.forget();
      return `${doneText(`${CHANGES[verb].done}:`, done, requested)}${refused ? ` ${count(ids.length - done - requested)} left as they are: ${refused}` : ''}`;
    });
  }

  /** @param {string} verb */
  async changeMatching(verb) {
    const query = this.query;
    const change = query && bulkChanges(query, serverNow()).find((one) => one.verb === verb);
    if (!query || !change) return;
    const told = (/** @type {string} */ text) => setText(this.place.note, text);
    const { state, ...rest } = query;
    await this.work(() => changeAll(change, { what: state === 'dead' ? 'dead letters' : `${state} jobs`, text: filterText({ ...rest, state: '' }), told }));
  }

  /** @param {() => Promise<string | null>} work returns what to say */
  async work(work) {
    if (this.busy) return;
    this.busy = true;
    this.draw();
    let said;
    try {
      said = await work();
    } catch (error) {
      said = /** @type {any} */ (error).message;
    } finally {
      this.busy = false;
      this.draw();
    }
    this.on.changed();
    if (said !== null) setText(this.place.note, said);
  }
}
