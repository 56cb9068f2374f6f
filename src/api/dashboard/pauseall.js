// The pause of everything: one button in the header, and a line with its author.

import { call, get } from './api.js';
import { ask, signature } from './dialog.js';
import { setAttr, setText, show } from './dom.js';
import { clock } from './format.js';

export class PauseAll {
  /** @param {{ button: any, notice: HTMLElement, text: HTMLElement }} place */
  constructor({ button, notice, text }) {
    this.button = button;
    this.notice = notice;
    this.text = text;
    /** @type {any} */
    this.paused = null;
    button.addEventListener('click', () => this.turn());
  }

  /**
   * Refreshes the state. Failures are left to the caller, which knows whether the server answers at
   * all.
   */
  async refresh() {
    this.draw((await get('/api/v1/pause')).paused);
  }

  /** @param {any} paused */
  draw(paused) {
    this.paused = paused;
    show(this.button, true);
    setText(this.button, paused ? 'Resume everything' : 'Pause everything');
    setAttr(this.button, 'class', paused ? 'primary change' : 'change');
    show(this.notice, Boolean(paused));
    if (paused) setText(this.text, `Everything is paused${paused.by ? ` by ${paused.by}` : ''} since ${clock(paused.since, Date.now() / 1000)}${paused.why ? `: ${paused.why}` : ''}. No worker claims a job; running jobs continue.`);
  }

  async turn() {
    try {
      if (this.paused) {
        const signed = await signature({ title: 'Resume everything?', action: 'Resume everything', text: 'Workers claim jobs of all throttles again.' });
        if (signed) this.draw((await call('POST', '/api/v1/resume', { body: signed })).paused);
        return;
      }
      const answer = await ask({ title: 'Pause everything?', action: 'Pause everything', danger: true, text: 'No worker claims a job of any throttle until you resume. Running jobs continue, and new jobs are accepted.' });
      if (answer) this.draw((await call('POST', '/api/v1/pause', { body: answer })).paused);
    } catch (error) {
      show(this.notice, true);
      setText(this.text, /** @type {any} */ (error).message);
    }
  }
}
