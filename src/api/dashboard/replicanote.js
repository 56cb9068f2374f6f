// A note about lists that are read from a replica. Pure.

import { duration } from './format.js';

/** The lag in seconds from which a reader must know of it. */
const NOTED_S = 3;

/**
 * Describes the lag of the replica; null if lists are as good as new, or are read from the primary.
 * @param {{ lag_s: number | null, used: boolean } | null} replica
 * @returns {string | null}
 */
export function replicaNote(replica) {
  if (!replica?.used || replica.lag_s === null || replica.lag_s < NOTED_S) return null;
  return `Lists and counts are read from a replica that lags by ${duration(replica.lag_s)}: later changes are not shown yet.`;
}
