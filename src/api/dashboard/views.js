// The addresses of the page: each view has one, behind the hash. Pure.

/**
 * The views in the order of the navigation, each with the letter that follows `g` on the keyboard.
 * @type {{ name: string, key: string, title: string }[]}
 */
export const VIEWS = [
  { name: 'overview', key: 'o', title: 'Overview' },
  { name: 'throttles', key: 't', title: 'Throttles' },
  { name: 'jobs', key: 'j', title: 'Jobs' },
  { name: 'failures', key: 'f', title: 'Failures' },
  { name: 'schedules', key: 's', title: 'Schedules' },
  { name: 'pools', key: 'p', title: 'Pools' },
  { name: 'tenants', key: 'n', title: 'Tenants' },
  { name: 'recipients', key: 'r', title: 'Recipients' },
  { name: 'audit', key: 'a', title: 'Audit' },
];

/** Older addresses, and those of parts of a view. @type {Record<string, string>} */
const PARTS = { groups: 'jobs', suppressions: 'recipients', notifications: 'pools', batches: 'tenants', dead: 'failures', crons: 'schedules' };

/**
 * @typedef {{ view: string, nav: string, part: string, throttle: string, job: string, query: URLSearchParams }} Place
 *   `nav` is the view whose link is marked; `part` is the id of the part of the view that the address names, or empty; `throttle` and `job` are empty unless the address names one
 */

/**
 * Reads an address.
 * @param {string} hash with its `#`
 * @returns {Place}
 */
export function placeOf(hash) {
  const [path, ...rest] = hash.replace(/^#/, '').split('?');
  const place = { view: 'overview', nav: 'overview', part: '', throttle: '', job: '', query: new URLSearchParams(rest.join('?')) };
  if (path.startsWith('throttle-')) return { ...place, view: 'throttles', nav: 'throttles', throttle: decoded(path.slice('throttle-'.length)) };
  if (path.startsWith('job/')) return { ...place, view: 'job', nav: 'jobs', job: path.slice('job/'.length) };
  const name = path.startsWith('pool-') ? 'pools' : PARTS[path] ?? path;
  return VIEWS.some((view) => view.name === name) ? { ...place, view: name, nav: name, part: path === name ? '' : path } : place;
}

/** Returns the address of a job. @param {number | string} id */
export function jobAddress(id) {
  return `#job/${id}`;
}

/** Returns the address of a throttle. @param {string} name */
export function throttleAddress(name) {
  return `#throttle-${encodeURIComponent(name)}`;
}

/**
 * Returns the address of the list of jobs with a filter; empty values are left out.
 * @param {Record<string, string | null | undefined>} filter
 */
export function jobsAddress(filter) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(filter)) if (value) query.set(name, value);
  return `#jobs${query.size > 0 ? `?${query}` : ''}`;
}

/** Decodes a name; a broken escape stands for itself. @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
