// The pause of everything: one button in the header, and a line with its author.

import { call, get, refusalText } from './api.js';
import { serverNow } from './clock.js';
import { ask } from './dialog.js';
import { setAttr, setText, show } from './dom.js';
import { clock } from './format.js';
import { recall } from './settings.js';

export class PauseAll {
  /**
   * @param {{ button: any, notice: HTMLElement, text: HTMLElement }} place
   * @param {{ answered: (answer: any) => void, lost: (why: string) => void }} on `lost` gets why Postgres does not answer, empty if it does
   */
  constructor({ button, notice, text }, on) {
    this.button = button;
    this.notice = notice;
    this.text = text;
    this.on = on;
    /** @type {any} */
    this.paused = null;
    /** Why everything could not be resumed, until it is tried again. */
    this.refusal = '';
    button.addEventListener('click', () => this.turn());
  }

  /**
   * Refreshes the state. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    const answer = await get('/api/v1/pause').catch((error) => {
      if (error.status > 0) this.on.lost(error.problem?.code === 'queue_unavailable' ? refusalText(error) : '');
      // The pause of everything is for operators, so this is the token of a tenant.
      if (error.problem?.code === 'not_allowed') this.on.answered({ is_of_tenant: true });
      throw error;
    });
    this.on.lost('');
    this.on.answered(answer);
    this.draw(answer.paused);
  }

  /** @param {any} paused */
  draw(paused) {
    this.paused = paused;
    if (!paused) this.refusal = '';
    show(this.button, true);
    setText(this.button, paused ? 'Resume everything' : 'Pause everything');
    setAttr(this.button, 'class', paused ? 'primary change' : 'change');
    show(this.notice, Boolean(paused));
    if (!paused) return;
    const refused = this.refusal ? ` It was not resumed: ${this.refusal}` : '';
    setText(this.text, `Everything is paused${paused.by ? ` by ${paused.by}` : ''} since ${clock(paused.since, serverNow())}${paused.why ? `: ${paused.why}` : ''}. No worker claims a job; running jobs continue.${refused}`);
  }

  /** Pauses after a question; resumes at once if the name is known. */
  async turn() {
    if (!this.paused) {
      await ask({
        title: 'Pause everything?', action: 'Pause everything', danger: true, text: 'No worker claims a job of any throttle until you resume. Running jobs continue, and new jobs are accepted.',
        act: (answer) => this.send('pause', answer),
      });
      return;
    }
    const by = recall('who', '');
    if (!by) {
      await ask({ title: 'Resume everything?', action: 'Resume everything', text: 'Workers claim jobs of all throttles again.', act: (answer) => this.send('resume', answer) });
      return;
    }
    try {
      await this.send('resume', { by });
    } catch (error) {
      this.refusal = refusalText(error);
      this.draw(this.paused);
    }
  }

  /** @param {'pause' | 'resume'} verb @param {Record<string, string>} body */
  async send(verb, body) {
    this.refusal = '';
    this.draw((await call('POST', `/api/v1/${verb}`, { body })).paused);
  }
}
