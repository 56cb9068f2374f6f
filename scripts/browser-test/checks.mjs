// Named checks: each prints whether it found faults, and the faults of all are collected.

/** @type {string[]} */
export const failures = [];

/** Runs a check that returns its faults, or throws one. @param {string} name @param {() => Promise<any>} work */
export async function check(name, work) {
  const before = failures.length;
  try {
    const found = await work();
    for (const fault of Array.isArray(found) ? found : []) failures.push(`${name}: ${fault}`);
  } catch (error) {
    failures.push(`${name}: ${/** @type {any} */ (error).message}`);
  }
  console.log(`${failures.length === before ? 'ok  ' : 'FAIL'} ${name}`);
  for (const fault of failures.slice(before)) console.log(`     ${fault}`);
}
