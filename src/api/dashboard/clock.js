// The time of the server, by which the page tells ages and reads times: the browser's own clock may
// be wrong.

/** The server's clock minus ours, in seconds. */
let skew = 0;
let isTold = false;

/** Sets the clock by a tick, which comes as soon as it is made. @param {number} at unix seconds */
export function tellTime(at) {
  skew = at - Date.now() / 1000;
  isTold = true;
}

/** Sets the clock by the date of an answer, as long as no tick has come. @param {string | null} date */
export function guessTime(date) {
  const at = Date.parse(date ?? '');
  if (isTold || Number.isNaN(at)) return;
  const ahead = (at - Date.now()) / 1000;
  // A date has whole seconds, so it says nothing about a smaller difference.
  skew = Math.abs(ahead) > 1.5 ? ahead : 0;
}

/** Returns the time of the server in unix seconds. */
export function serverNow() {
  return Date.now() / 1000 + skew;
}
