// A classic script that runs before the first paint, because the chosen theme must not flash.
'use strict';

(() => {
  try {
    const chosen = localStorage.getItem('flyball.theme');
    if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage the system's preference counts.
  }
})();
