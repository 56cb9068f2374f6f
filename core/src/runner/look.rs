//! Looks before a claim: which of the first jobs of each lane this worker serves.

use std::collections::HashMap;

use super::lane::LaneWalk;
use super::shared::WorkerContext;
use crate::jobs::postgres::{Batch, SeenJob};
use crate::jobs::{Error, LaneClaim, LaneCursor};

/// Jobs that one look reads, in all its lanes together.
const LOOK_JOBS: i64 = 2000;

/// Fewest jobs that a look reads in each lane, besides those to take.
const MIN_LANE_JOBS: i64 = 8;

/// Claims jobs that this worker serves; returns them with the walk through each lane.
pub(super) async fn claim_served(
    shared: &WorkerContext,
    worker_id: i32,
    fence: i64,
    lanes: &[LaneClaim],
) -> Result<(Batch, HashMap<i64, LaneWalk>), Error> {
    let (places, walks) = look(shared, lanes).await?;
    let queue = &shared.queue;
    let batch = queue.claim_looked_at(worker_id, fence, &places).await?;
    Ok((batch, walks))
}

/// Drops jobs of the lanes that this worker serves and that are no newer than `newest`, as far as
/// one look finds them; returns their number by kind.
pub(super) async fn drop_served(
    shared: &WorkerContext,
    worker_id: i32,
    lanes: &[i64],
    newest: i64,
) -> Result<Vec<(String, u64)>, Error> {
    let jobs = LOOK_JOBS / lanes.len().max(1) as i64;
    let lanes: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(*lane, jobs as i32))
        .collect();
    let (mut places, _) = look(shared, &lanes).await?;
    places.retain(|(_, place)| place.job_id <= newest);
    shared.queue.drop_looked_at(worker_id, &places).await
}

/// Looks at the first jobs of each lane, and at more of those in which too few are for this worker.
async fn look(
    shared: &WorkerContext,
    lanes: &[LaneClaim],
) -> Result<(Vec<(i64, LaneCursor)>, HashMap<i64, LaneWalk>), Error> {
    let most = lanes.iter().map(|lane| lane.jobs).max().unwrap_or(0);
    let first = i64::from(most) + MIN_LANE_JOBS;
    let (mut places, mut walks) = (Vec::new(), HashMap::new());
    let mut open = lanes.to_vec();
    for is_first in [true, false] {
        let window = match is_first {
            true => first,
            false => first.max(LOOK_JOBS / open.len().max(1) as i64),
        };
        let kinds = shared.runs.names();
        let seen = shared.queue.look(&open, window, kinds).await?;
        let mut lookers: HashMap<i64, LaneLook> = open
            .iter()
            .map(|lane| (lane.lane_id, LaneLook::new(lane)))
            .collect();
        for one in &seen {
            if let Some(looker) = lookers.get_mut(&one.lane_id)
                && looker.see(one, |one| is_served(shared, one))
            {
                places.push((one.lane_id, one.place));
            }
        }
        open.clear();
        for (lane_id, looker) in lookers {
            let walk = looker.walk(window);
            if looker.left > 0 && !walk.is_end {
                open.push(LaneClaim {
                    jobs: looker.left,
                    after: walk.to,
                    ..LaneClaim::first(lane_id, 0)
                });
            }
            let whole: &mut LaneWalk = walks.entry(lane_id).or_default();
            *whole = LaneWalk {
                passed: whole.passed + walk.passed,
                newest: whole.newest.max(walk.newest),
                ..walk
            };
        }
        if open.is_empty() {
            break;
        }
    }
    Ok((places, walks))
}

/// Returns true if this worker serves the job. A job that is in no day any more is the claim's to
/// end.
fn is_served(shared: &WorkerContext, one: &SeenJob) -> bool {
    // The other tenants' jobs are for other brokers, so that nobody need hear of them.
    if let Some(broker) = &shared.broker
        && !broker.has_tenant(&one.tenant)
    {
        return false;
    }
    one.job
        .as_ref()
        .is_none_or(|(throttle, kind)| shared.serves_job(throttle, kind, one.args.as_ref()))
}

/// A look into one lane.
struct LaneLook {
    /// Jobs still to take.
    left: i32,
    seen: i64,
    /// True if a job was seen behind the last one to take.
    has_more: bool,
    walk: LaneWalk,
}

impl LaneLook {
    fn new(lane: &LaneClaim) -> Self {
        let walk = LaneWalk {
            to: lane.after,
            ..LaneWalk::default()
        };
        Self {
            left: lane.jobs,
            seen: 0,
            has_more: false,
            walk,
        }
    }

    /// Takes in the next job of the lane; returns true if it is to be taken. Jobs behind the last
    /// one to take are left to the next look.
    fn see(&mut self, one: &SeenJob, is_served: impl FnOnce(&SeenJob) -> bool) -> bool {
        self.seen += 1;
        if self.left == 0 {
            self.has_more = true;
            return false;
        }
        self.walk.to = one.place;
        self.walk.newest = self.walk.newest.max(one.place.job_id);
        let is_taken = is_served(one);
        if is_taken {
            self.left -= 1;
        } else {
            self.walk.passed += 1;
        }
        is_taken
    }

    fn walk(&self, window: i64) -> LaneWalk {
        LaneWalk {
            is_end: !self.has_more && self.seen < window,
            ..self.walk
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(jobs: i32, served: &[bool], window: i64) -> LaneWalk {
        let mut looker = LaneLook::new(&LaneClaim::first(1, jobs));
        for (job_id, is_served) in (1..).zip(served) {
            let place = LaneCursor {
                priority: 1,
                job_id,
            };
            let one = SeenJob {
                lane_id: 1,
                place,
                tenant: String::new(),
                job: None,
                args: None,
            };
            looker.see(&one, |_| *is_served);
        }
        looker.walk(window)
    }

    #[test]
    fn a_look_ends_where_it_saw_no_job_behind_those_that_it_takes() {
        assert!(walk(1, &[true], 9).is_end);
        assert!(walk(2, &[false, true], 9).is_end);
        assert!(!walk(1, &[true, false], 9).is_end, "one is behind");
        assert!(!walk(1, &[false, false], 2).is_end, "there may be more");
        assert_eq!(walk(1, &[false, true, false], 9).passed, 1);
    }
}
