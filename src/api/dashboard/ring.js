// A bounded history: the newest points in order of time, without the oldest.

/**
 * A ring of points that carry a time `t` in unix seconds, ascending.
 * @template {{ t: number }} P
 */
export class Ring {
  /** @param {number} capacity the most points that are kept */
  constructor(capacity) {
    this.capacity = capacity;
    /** @type {P[]} */
    this.slots = [];
    this.start = 0;
  }

  get length() {
    return this.slots.length;
  }

  /**
   * Returns the i-th point from the oldest.
   * @param {number} i
   * @returns {P}
   */
  at(i) {
    return this.slots[(this.start + i) % this.slots.length];
  }

  /** @returns {P | undefined} */
  get last() {
    return this.length ? this.at(this.length - 1) : undefined;
  }

  /**
   * Adds a point; one that is not newer than the last is refused, so a replayed history is
   * harmless.
   * @param {P} point
   * @returns {boolean} true if it was taken
   */
  push(point) {
    const last = this.last;
    if (last && point.t <= last.t) return false;
    if (this.slots.length < this.capacity) {
      this.slots.push(point);
    } else {
      this.slots[this.start] = point;
      this.start = (this.start + 1) % this.capacity;
    }
    return true;
  }

  /**
   * Returns the index of the first point at or after `t`; `length` if there is none.
   * @param {number} t
   */
  lowerBound(t) {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at(middle).t < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * Returns the points from `from` to `to`, and one neighbour on each side so that lines reach the
   * edges.
   * @param {number} from
   * @param {number} to
   * @returns {P[]}
   */
  between(from, to) {
    const first = Math.max(0, this.lowerBound(from) - 1);
    const end = Math.min(this.length, this.lowerBound(to) + 1);
    const found = [];
    for (let i = first; i < end; i += 1) found.push(this.at(i));
    return found;
  }

  /**
   * Returns the point nearest to `t`, if it is within `within` seconds.
   * @param {number} t
   * @param {number} within
   * @returns {P | null}
   */
  nearest(t, within) {
    const i = this.lowerBound(t);
    let best = null;
    for (const j of [i - 1, i]) {
      if (j < 0 || j >= this.length) continue;
      const point = this.at(j);
      if (Math.abs(point.t - t) > within) continue;
      if (!best || Math.abs(point.t - t) < Math.abs(best.t - t)) best = point;
    }
    return best;
  }
}
