// The settings that this browser stores: the theme, the time window, and the author of edits.

/**
 * @param {string} name
 * @param {string} fallback
 */
export function recall(name, fallback) {
  try {
    return localStorage.getItem(`flyball.${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
export function remember(name, value) {
  try {
    localStorage.setItem(`flyball.${name}`, value);
  } catch {
    // Without storage the page works, but does not remember the setting.
  }
}

/**
 * Connects a group of radio buttons to a stored setting.
 * @param {HTMLElement} group
 * @param {string} name
 * @param {string} fallback
 * @param {(value: string) => void} changed called at once with the remembered value
 */
export function radioSetting(group, name, fallback, changed) {
  const inputs = /** @type {HTMLInputElement[]} */ ([...group.querySelectorAll('input')]);
  const kept = recall(name, fallback);
  const value = inputs.some((input) => input.value === kept) ? kept : fallback;
  for (const input of inputs) {
    input.checked = input.value === value;
    input.addEventListener('change', () => {
      remember(name, input.value);
      changed(input.value);
    });
  }
  changed(value);
}
