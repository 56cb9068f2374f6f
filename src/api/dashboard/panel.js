// One throttle on the page: its chart, its numbers, the reason for its rate, its knobs.

import { call, get, throttlePath } from './api.js';
import { drawSparkline, prepare } from './chart.js';
import { ChartView, swatch } from './chartview.js';
import { serverNow } from './clock.js';
import { createThrottle } from './create.js';
import { ask, signature } from './dialog.js';
import { h, keyed, setAttr, setText, show } from './dom.js';
import { ago, clock, count, duration, finite, number, percent, rate, UNKNOWN, unixSeconds } from './format.js';
import { History, HISTORY_FIRST } from './history.js';
import { KnobForm } from './knobform.js';
import { Lanes } from './lanes.js';
import { knobSummary, valuesOf } from './knobs.js';
import { Past } from './past.js';
import { OVERLOAD } from './plot.js';
import { signalStyle } from './palette.js';
import { recall } from './settings.js';
import { facts, isApiLimit, latest } from './state.js';
import { isMissing, JOBS_WAIT, verdict } from './trouble.js';
import { endOffer, offerUndo } from './undo.js';
import { jobsAddress } from './views.js';
import { auditLine, handSentence, isObstacle, isOfSentence, knobValue, learnedQuota, turnsSlots } from './words.js';

/**
 * The interval at which the sentence is requested, in seconds. It is also requested with every
 * decision; an outdated sentence is replaced by a simpler one.
 */
const ASK_EVERY_S = 10;
const SENTENCE_S = 25;
/** @param {string} name */
const isPausedText = (name) => `${name} is paused.`;
/** The note beside the rate of a throttle that grants nothing, by its state. @type {Record<string, string>} */
const STILL = { stopped: 'no job starts', no_writes: 'no job starts', refused: 'nothing is granted', debt: 'nothing is granted' };

/** @param {string} name */
export function panelId(name) {
  return `throttle-${encodeURIComponent(name)}`;
}

export class Panel {
  /**
   * @param {string} name
   * @param {{ cursor: import('./chartview.js').Cursor, changed: (detail: any) => void, deleted: (text: string) => void }} page
   */
  constructor(name, { cursor, changed, deleted }) {
    this.name = name;
    this.deleted = deleted;
    this.wasUnfolded = false;
    /** True while its jobs wait, though not for its tokens. */
    this.waits = false;
    /** @type {any} */
    this.detail = null;
    this.chart = new ChartView(name, cursor);
    this.form = new KnobForm(name, { changed, wanted: () => { this.knobs.open = true; } });

    this.standing = h('span', { class: 'badge' });
    this.mode = h('span', { class: 'badge quiet' });
    this.parent = h('span', { class: 'parent' });
    /** @type {ReturnType<typeof facts> | null} */
    this.facts = null;
    this.pause = h('button', { type: 'button', onclick: () => this.turnPause() }, 'Pause');
    this.hand = h('button', { type: 'button', class: 'operators', onclick: () => this.turnMode() });
    this.free = h('button', { type: 'button', onclick: () => this.endWait() });
    this.form.quickButtons = [this.free, this.pause, this.hand];
    this.create = h('button', { type: 'button', class: 'operators', hidden: true, 'aria-label': `Create throttle ${name}`, onclick: () => createThrottle(this.name) }, 'Create throttle …');
    this.reason = h('p', { class: 'reason' });
    this.problems = h('ul', { class: 'problems', hidden: true });
    this.findings = h('ul', { class: 'problems', hidden: true, 'aria-label': 'findings of the watchdogs' });

    this.knobRate = h('b', { class: 'num' });
    this.knobUnit = h('i', null, '/s');
    this.knobNote = h('span', { class: 'sub' });
    this.achieved = h('b', { class: 'num' });
    this.achievedNote = h('span', { class: 'sub' });
    this.quota = h('b', { class: 'num' });
    this.quotaUnit = h('i', null, '/s');
    this.quotaNote = h('span', { class: 'sub' });
    this.quotaReadout = h('div', { class: 'readout quota', hidden: true }, h('span', { class: 'label' }, 'learned quota'), h('span', { class: 'value' }, this.quota, this.quotaUnit), this.quotaNote);
    this.signals = h('ul', { class: 'signals' });
    const link = (/** @type {string} */ state) => h('a', { class: 'num quiet', href: jobsAddress({ state, throttle: name }), 'aria-label': `Jobs of ${name} that are ${state}` });
    this.depth = { ready: link('ready'), scheduled: link('scheduled'), running: link('running'), dead: link('dead') };
    this.oldest = h('p', { class: 'sub oldest' });
    this.spark = h('canvas', { class: 'spark', 'aria-hidden': 'true' });
    this.edit = h('p', { class: 'audit-line' });
    this.knobSummary = h('span', { class: 'knob-values' });
    this.knobs = h('details', { class: 'drawer' }, h('summary', null, h('span', { class: 'drawer-title' }, 'Knobs'), this.knobSummary), this.form.element);
    this.delete = h('button', { type: 'button', 'aria-label': `Delete ${name}`, onclick: () => this.askDelete() }, 'Delete …');
    this.deleteError = h('p', { class: 'error', role: 'alert', hidden: true });
    this.deleteRow = h('div', { class: 'delete change operators', hidden: true }, this.delete, this.deleteError);
    this.knobs.append(this.deleteRow);
    this.lanes = new Lanes(name);
    /** @type {{ text: string, at: number, decision: any } | null} why the throttle runs as it does, as the server last said */
    this.said = null;
    this.askedAt = 0;
    this.now = serverNow();
    this.historyLimit = HISTORY_FIRST;
    this.history = new History(name, (limit) => { this.historyLimit = limit; this.askWhy(); });
    this.whySentence = h('p', null);
    this.whyText = h('div', { class: 'why' }, this.whySentence, this.history.element);
    this.whyDrawer = h('details', { class: 'drawer', ontoggle: () => this.askWhy() },
      h('summary', null, h('span', { class: 'drawer-title' }, 'Why'), h('span', { class: 'knob-values' }, 'the reason in one sentence, and the last decisions with every term')), this.whyText);

    this.past = new Past(name);
    this.pastDrawer = h('details', { class: 'drawer', ontoggle: () => { if (this.pastDrawer.open) this.past.ask(); } },
      h('summary', null, h('span', { class: 'drawer-title' }, 'History'), h('span', { class: 'knob-values' }, 'attempts, requests and tokens of the last hours, from Prometheus')), this.past.element);

    const titleId = `${panelId(name)}-title`;
    this.element = h('section', { class: 'panel throttle', id: panelId(name), 'aria-labelledby': titleId },
      h('div', { class: 'panel-head' },
        h('div', { class: 'title' }, h('h2', { id: titleId }, name), this.standing, this.mode, this.parent),
        h('div', { class: 'buttons change' }, this.create, this.free, this.pause, this.hand)),
      this.reason, this.problems, this.findings,
      h('div', { class: 'panel-body' }, this.chart.element,
        h('div', { class: 'side' },
          h('div', { class: 'readouts' },
            h('div', { class: 'readout' }, h('span', { class: 'label' }, 'knob'), h('span', { class: 'value' }, this.knobRate, this.knobUnit), this.knobNote),
            h('div', { class: 'readout' }, h('span', { class: 'label' }, 'achieved'), h('span', { class: 'value achieved' }, this.achieved, h('i', null, '/s')), this.achievedNote),
            this.quotaReadout),
          this.signals,
          h('div', { class: 'depth' },
            h('dl', null, ...Object.entries(this.depth).map(([label, value]) => h('div', null, h('dt', null, label), h('dd', null, value)))),
            this.oldest,
            h('div', { class: 'spark-row' }, h('span', { class: 'label' }, 'ready'), this.spark)))),
      this.edit, this.knobs, this.lanes.element, this.whyDrawer, this.pastDrawer);
  }

  /** Unfolds the knobs the first time that the panel is alone on its view. */
  unfoldOnce() {
    if (!this.wasUnfolded) this.knobs.open = true;
    this.wasUnfolded = true;
  }

  /** Returns true while a person works with the panel, so that it should stay where it is. */
  isInUse() {
    return this.element.contains(document.activeElement) || this.element.matches(':has(details[open])');
  }

  /** Pauses after a question for name and reason; resumes at once if the name is known. */
  async turnPause() {
    const { name } = this;
    if (this.facts?.paused) {
      const text = 'Its jobs run again as its rate allows, from an empty bucket; a refusal of a server, and a debt, end too.';
      if (await this.form.quick({ paused: false }, () => signature({ title: `Resume ${name}?`, action: 'Resume', text }))) endOffer(isPausedText(name));
      return;
    }
    const text = 'No job of this throttle starts until it is resumed. Running jobs continue, and new jobs are accepted.';
    const isPaused = await this.form.quick({ paused: true }, () => ask({ title: `Pause ${name}?`, action: 'Pause', danger: true, text }));
    if (!isPaused) return;
    offerUndo(isPausedText(name), async () => {
      this.form.take(await call('PATCH', throttlePath(name), { body: { paused: false, by: recall('who', '') } }));
      return `${name} is resumed.`;
    });
  }

  /** Ends the throttle's own refusal or debt, which is what resuming one that is not paused does. */
  async endWait() {
    const { name } = this;
    const question = this.detail?.refusal
      ? { title: `End the refusal of ${name}?`, action: 'End the refusal', text: 'Its jobs run again although the server that refused one asked it to wait longer; it may refuse the next one too.' }
      : { title: `Clear the debt of ${name}?`, action: 'Clear the debt', text: 'Its jobs run again, from an empty bucket. What they cost beyond its rate is not made up for.' };
    // The button goes with what it ended.
    if (await this.form.quick({ paused: false }, () => ask(question))) this.pause.focus();
  }

  /** Switches the throttle between the governor and manual mode. */
  turnMode() {
    const { name } = this;
    const byHand = this.facts?.mode === 'auto';
    const question = byHand
      ? { title: `Take manual control of ${name}?`, action: 'Take control', text: 'The governor changes nothing until it gets control again.' }
      : { title: `Return ${name} to the governor?`, action: 'Return', text: 'It continues from the rate in force.' };
    return this.form.quick({ mode: byHand ? 'manual' : 'auto' }, () => signature(question));
  }

  /** Deletes the throttle after a question for name and reason; waiting jobs are kept. */
  async askDelete() {
    const { name } = this;
    const answer = await ask({ title: `Delete ${name}?`, action: 'Delete', danger: true, text: 'Its knobs are deleted. While jobs wait for it, you are asked again.' });
    if (!answer) return;
    show(this.deleteError, false);
    this.delete.disabled = true;
    try {
      const deleted = await this.deleteWith(answer).catch((error) => this.deleteAnyway(error, answer));
      if (!deleted) return;
      const { waiting } = deleted;
      const jobs = `${count(waiting.jobs)}${waiting.more ? ' or more' : ''} ${waiting.jobs === 1 ? 'job' : 'jobs'}`;
      this.deleted(`${name} is deleted; ${waiting.jobs || waiting.more ? `${jobs} of it wait until it is created again` : 'it has no waiting jobs'}.`);
    } catch (error) {
      setText(this.deleteError, /** @type {any} */ (error).message);
      show(this.deleteError, true);
    } finally {
      this.delete.disabled = false;
    }
  }

  /** @param {Record<string, string>} query */
  deleteWith(query) {
    return call('DELETE', `${throttlePath(this.name)}?${new URLSearchParams(query)}`);
  }

  /**
   * Asks again if waiting jobs are what the deletion was refused for, and deletes all the same;
   * null if the person keeps the throttle. Another refusal is thrown.
   * @param {any} error @param {Record<string, string>} signed
   */
  async deleteAnyway(error, signed) {
    if (error.status !== 409 || !/with force/.test(error.message)) throw error;
    const jobs = /^(1 job waits|\d+\+? jobs wait)\b/.exec(error.message)?.[0] ?? 'jobs wait';
    const text = 'They are kept, but none of them starts until the throttle is created again.';
    const answer = await ask({ title: `Delete ${this.name} although ${jobs}?`, action: 'Delete anyway', danger: true, isSigned: false, keep: 'Keep it', text });
    return answer ? this.deleteWith({ ...signed, force: 'true' }) : null;
  }

  remove() {
    this.chart.remove();
    this.lanes.remove();
    this.element.remove();
  }

  /**
   * @param {import('./state.js').Throttle} throttle
   * @param {{ from: number, to: number, now: number, depthAge: number | null, isStoreLost: boolean }} time unix seconds; and how old counted figures are
   */
  update(throttle, time) {
    this.now = time.now;
    this.detail = throttle.detail;
    const detail = throttle.detail;
    const last = latest(throttle);
    const governor = detail?.governor ?? null;
    this.element.classList.toggle('plain', !governor && !last?.breaker);
    this.chart.update(throttle, time.from, time.to);

    const now = facts(throttle);
    this.facts = now;
    const { paused, mode } = now;
    const stand = verdict(throttle, time.now, time.isStoreLost);
    this.waits = stand.text === JOBS_WAIT;
    setText(this.standing, stand.text);
    setAttr(this.standing, 'data-tone', stand.tone);
    // Without a governor no mode changes anything.
    setText(this.mode, mode);
    show(this.mode, mode !== '' && Boolean(governor || last?.breaker));
    setText(this.parent, detail?.parent ? `child of ${detail.parent}` : '');
    setText(this.pause, paused ? 'Resume' : 'Pause');
    setAttr(this.pause, 'aria-label', `${paused ? 'Resume' : 'Pause'} ${this.name}`);
    const hand = mode === 'auto' ? 'Take manual control' : 'Return to the governor';
    setText(this.hand, hand);
    setAttr(this.hand, 'aria-label', `${hand}: ${this.name}`);
    show(this.hand, Boolean(governor));
    show(this.create, isMissing(throttle));
    show(this.pause, !isMissing(throttle));
    // What a throttle above it waits for ends there.
    const wait = detail?.refusal ? 'End the refusal' : detail?.debt_until ? 'Clear the debt' : '';
    show(this.free, wait !== '' && ['refused', 'debt'].includes(now.state));
    setText(this.free, `${wait} …`);
    setAttr(this.free, 'aria-label', `${wait}: ${this.name}`);
    show(this.knobs, !isMissing(throttle));

    this.updateReason(throttle, now.mode, time.now);
    this.updateNumbers(detail, last, { ...now, failed: stand.failed }, time);
    this.updateQuota(governor, time.now);
    this.updateSignals(last, governor);
    if (detail) this.form.update(detail);
    show(this.deleteRow, Boolean(detail?.knobs) && !isApiLimit(throttle));
    const values = valuesOf(detail);
    setText(this.knobSummary, detail ? knobSummary(values, knobValue, Boolean(governor)) : '');
    const edit = throttle.edits.find((e) => e.actor !== 'governor');
    setText(this.edit, edit ? auditLine(edit, time.now) : '');
    // The sentence of a throttle without a governor names its last edit already, unless it was of another knob.
    show(this.edit, Boolean(edit) && (Boolean(governor) || !isOfSentence(detail, /** @type {any} */ (edit))));
    this.drawSpark(throttle, time);
    this.lastDecision = throttle.decisions.at(-1)?.id;
    if (this.whyDrawer.open && this.lastDecision !== this.whyFor) this.askWhy();
    else if (this.isExplained() && this.chart.seen && (this.lastDecision !== this.saidFor || time.now - this.askedAt > ASK_EVERY_S)) this.askSentence(time.now);
  }

  /** Returns true if the server knows more of the reason for the rate, or of what jobs wait for, than the page. */
  isExplained() {
    return Boolean(this.detail?.governor) || isObstacle(this.facts?.state ?? '') || this.waits;
  }

  /** @param {import('./state.js').Throttle} throttle @param {string} mode @param {number} now */
  updateReason({ detail, decisions, edits }, mode, now) {
    const decision = decisions.at(-1);
    const governor = detail?.governor;
    const at = decision?.t ?? unixSeconds(governor?.at);
    // A sentence from before the newest decision may be outdated.
    if (this.isExplained() && this.said && this.said.decision === decision?.id && now - this.said.at < SENTENCE_S) {
      setText(this.reason, this.said.text);
      this.updateProblems(detail, mode, now);
      return;
    }
    const byHand = detail && (!governor || mode === 'manual' || mode === 'off');
    const text = byHand ? handSentence(detail, now, edits.find((e) => e.actor !== 'governor' && e.action.startsWith('throttle.'))) : decision?.reason ?? governor?.reason ?? '';
    const age = !byHand && at !== null && at !== undefined ? ago(now - at) : '';
    const waits = this.waits ? 'Jobs wait, though not for its tokens: workers are busy, or a limit of keys, slots or a parent holds them back.' : '';
    setText(this.reason, [waits, text, age && `(${age})`].filter(Boolean).join(' '));
    this.updateProblems(detail, mode, now);
  }

  /** @param {any} detail @param {string | undefined} mode @param {number} now */
  updateProblems(detail, mode, now) {
    const problems = detail?.problems ?? [];
    show(this.problems, problems.length > 0);
    keyed(this.problems, problems, (p) => `${p.field} ${p.message}`, (p) => h('li', null, h('b', null, p.field), ` ${p.message}`));
    const governs = mode !== 'manual' && mode !== 'off';
    const findings = governs ? detail?.governor?.findings ?? [] : [];
    show(this.findings, findings.length > 0);
    keyed(this.findings, findings, (f) => `${f.finding} ${f.sentence}`, (f) => h('li', null, h('b', null, f.finding), ` since ${clock(unixSeconds(f.since), now)}: ${f.sentence}`));
  }

  /**
   * @param {any} detail @param {import('./state.js').Point | null} last @param {ReturnType<typeof facts> & { failed: number }} current
   * @param {{ now: number, depthAge: number | null }} time
   */
  updateNumbers(detail, last, { rps: knob, effective, achieved, share, failed, state }, { now, depthAge }) {
    const slots = turnsSlots(detail) ? finite(detail.knobs?.concurrency) : null;
    // Slots, a throttle above, a refusal, a debt or a database may stop one that has a rate.
    const obstacle = STILL[state];
    const isStill = effective === 0 || Boolean(obstacle);
    setText(this.knobUnit, slots === null ? '/s' : ' slots');
    const shown = slots !== null && effective !== 0 ? slots : effective;
    setText(this.knobRate, rate(shown));
    this.knobRate.parentElement.classList.toggle('word', shown !== null && shown < 0);
    setText(this.knobNote, slots !== null ? `jobs at once · ${effective !== null && effective < 0 ? 'no rate limit' : `at most ${rate(effective)}/s`}` : obstacle && effective !== 0 ? obstacle : knob !== null && effective !== null && Math.abs(knob - effective) > 0.005 * Math.abs(knob) ? `knob: ${rate(knob)}` : effective === null ? '' : 'in effect');
    setText(this.achieved, rate(achieved));
    // A throttle that stands still has no share worth a figure.
    setText(this.achievedNote, share === null || isStill ? '' : `${percent(share)} token-limited`);
    setAttr(this.achievedNote, 'title', 'share of the time in which jobs waited for tokens');
    setText(this.depth.ready, count(last?.ready ?? detail?.depth?.ready));
    setText(this.depth.scheduled, count(detail?.depth?.scheduled));
    setText(this.depth.running, count(last?.running ?? detail?.depth?.running));
    const dead = last?.dead ?? detail?.depth?.dead;
    setText(this.depth.dead, count(dead));
    this.depth.dead.classList.toggle('alarming', dead > 0);
    // A count of a long queue takes a while, so the figure is shown with its age.
    const counted = unixSeconds(detail?.depth?.at);
    const age = last?.ready === null || last?.ready === undefined ? null : depthAge;
    const waited = last ? last.oldest : finite(detail?.depth?.oldest_ready_s);
    const since = age ?? (counted === null ? null : now - counted);
    setText(this.oldest, [
      waited === null ? '' : `oldest ready ${duration(waited)}`,
      failed > 0 ? `${count(failed)} failed in the last minute` : '',
      since === null ? 'not counted yet' : `counted ${ago(since)}`,
    ].filter(Boolean).join(' · '));
  }

  /**
   * Shows the learned quota that takes effect first, which is the lowest.
   * @param {any} governor @param {number} now
   */
  updateQuota(governor, now) {
    const found = learnedQuota(governor);
    show(this.quotaReadout, found !== null);
    if (!found) return;
    setText(this.quota, rate(found.rps));
    setText(this.quotaUnit, governor.unit === 'slots' ? ' slots' : '/s');
    setText(this.quotaNote, `${ago(now - (unixSeconds(found.at) ?? now))}, ${percent(found.refused_share)} refused`);
    setAttr(this.quotaNote, 'title', `learned by ${found.signal} from refusals`);
  }

  /** @param {import('./state.js').Point | null} last @param {any} governor */
  updateSignals(last, governor) {
    /** @type {Record<string, any>} */
    const found = {};
    for (const s of governor?.signals ?? []) found[s.name] = s;
    for (const [name, s] of Object.entries(last?.signals ?? {})) found[name] = { ...found[name], ...s };
    const names = Object.keys(found).sort();
    show(this.signals, names.length > 0);
    keyed(this.signals, names, (name) => name, (name) => {
      const parts = { value: h('b', { class: 'num' }), of: h('span', { class: 'sub num' }), age: h('span', { class: 'sub age' }), meter: h('div', { class: 'meter' }, h('i', null), h('u', null)) };
      const row = h('li', null, h('span', { class: 'name' }, swatch(signalStyle(names.indexOf(name))), h('span', null, name)), h('span', { class: 'reading' }, parts.value, parts.of), parts.meter, parts.age);
      row.parts = parts;
      return row;
    }, (row, name) => {
      const s = found[name];
      const multiple = s.value !== null && s.setpoint > 0 && !s.stale ? s.value / s.setpoint : null;
      setText(row.parts.value, number(s.value));
      setText(row.parts.of, ` of ${number(s.setpoint)}`);
      setText(row.parts.age, s.stale ? `stale, ${duration(s.age_s)} old` : `${duration(s.age_s)} old`);
      row.classList.toggle('stale', Boolean(s.stale));
      row.classList.toggle('over', multiple !== null && multiple > OVERLOAD);
      row.parts.meter.firstElementChild.style.width = `${Math.min(100, ((multiple ?? 0) / 2) * 100)}%`;
    });
  }

  /** @param {import('./state.js').Throttle} throttle @param {{ from: number, to: number }} time */
  drawSpark({ ring }, { from, to }) {
    if (!this.chart.seen) return;
    const width = this.spark.parentElement.clientWidth - 46;
    if (width < 40) return;
    const height = this.element.classList.contains('plain') ? 26 : 40;
    drawSparkline(prepare(this.spark, width, height), width, height, ring.between(from, to), (p) => p.ready, from, to);
  }

  /** Requests the sentence alone, for the line under the name. @param {number} now */
  async askSentence(now) {
    this.saidFor = this.lastDecision;
    this.askedAt = now;
    try {
      const decision = this.lastDecision;
      this.take(await get(`${throttlePath(this.name)}/why?limit=1`), now, decision);
    } catch {
      // The simpler sentence stays; the next round asks again.
    }
  }

  /** @param {any} answer @param {number} now @param {any} decision the newest when it was asked for */
  take(answer, now, decision) {
    if (answer.sentence) this.said = { text: answer.sentence, at: now, decision };
  }

  async askWhy() {
    if (!this.whyDrawer.open) return;
    this.whyFor = this.lastDecision;
    const now = this.now;
    try {
      const limit = this.historyLimit;
      const answer = await get(`${throttlePath(this.name)}/why?limit=${limit}`);
      this.take(answer, now, this.whyFor);
      setAttr(this.whySentence, 'class', null);
      setText(this.whySentence, answer.sentence ?? UNKNOWN);
      this.history.show(answer.decisions ?? [], limit, now);
    } catch (error) {
      setAttr(this.whySentence, 'class', 'error');
      setText(this.whySentence, /** @type {any} */ (error).message);
    }
  }
}
