//! The requests that wait on the server for tokens: one queue per throttle and key, first come,
//! first served.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::{Mutex as Lock, MutexGuard as Locked};
use tokio::sync::{Mutex, MutexGuard};

use crate::throttle::Name;

/// The most requests of one process that may wait at once; further ones are answered without
/// waiting.
const WAITING_MAX: usize = 1000;

/// The most of them that requests of one tenant take, so that others can wait too.
const TENANT_WAITING_MAX: usize = WAITING_MAX / 2;

type LineKey = (Name, String);

/// The queues of a process. A clone is another handle to the same queues.
#[derive(Clone, Debug, Default)]
pub struct WaitQueues(Arc<Lock<WaitingLines>>);

#[derive(Debug, Default)]
struct WaitingLines {
    lines: HashMap<LineKey, (Arc<Mutex<()>>, usize)>,
    waiting: usize,
    /// The number of waiting requests of each tenant that has any.
    of_tenants: HashMap<Arc<str>, usize>,
}

/// A place in a queue, released when dropped.
#[derive(Debug)]
pub struct LinePosition {
    lines: WaitQueues,
    lane: LineKey,
    tenant: Option<Arc<str>>,
    line: Arc<Mutex<()>>,
}

impl WaitQueues {
    /// Joins the queue of a key, for a caller of `tenant`; `None` if the most requests wait already,
    /// or the most of the tenant.
    pub fn join(
        &self,
        throttle: &Name,
        key: &str,
        tenant: Option<&Arc<str>>,
    ) -> Option<LinePosition> {
        let lane = (throttle.clone(), key.to_owned());
        let mut standing = self.locked();
        let of_tenant = tenant.map_or(0, |tenant| {
            standing.of_tenants.get(tenant).copied().unwrap_or(0)
        });
        if standing.waiting >= WAITING_MAX || of_tenant >= TENANT_WAITING_MAX {
            return None;
        }
        standing.waiting += 1;
        if let Some(tenant) = tenant {
            standing.of_tenants.insert(tenant.clone(), of_tenant + 1);
        }
        let (line, places) = standing.lines.entry(lane.clone()).or_default();
        *places += 1;
        Some(LinePosition {
            lines: self.clone(),
            lane,
            tenant: tenant.cloned(),
            line: line.clone(),
        })
    }

    fn locked(&self) -> Locked<'_, WaitingLines> {
        self.0.lock()
    }
}

impl LinePosition {
    /// Waits until all earlier requests have left; the turn lasts until it is dropped.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.line.lock().await
    }
}

impl Drop for LinePosition {
    fn drop(&mut self) {
        let mut standing = self.lines.locked();
        standing.waiting -= 1;
        if let Some(tenant) = &self.tenant
            && let Entry::Occupied(mut waiting) = standing.of_tenants.entry(tenant.clone())
        {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
            }
        }
        if let Entry::Occupied(mut line) = standing.lines.entry(self.lane.clone()) {
            line.get_mut().1 -= 1;
            if line.get().1 == 0 {
                line.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_lane_has_one_turn_at_a_time_and_other_lanes_have_their_own() {
        let (lines, mail) = (WaitQueues::default(), Name::new("mail").unwrap());
        let [first, second, other] = [
            lines.join(&mail, "a", None),
            lines.join(&mail, "a", None),
            lines.join(&mail, "b", None),
        ]
        .map(Option::unwrap);
        let mut context = Context::from_waker(Waker::noop());
        let turn = first.line.try_lock().unwrap();
        let mut next = pin!(second.turn());

        assert!(next.as_mut().poll(&mut context).is_pending());
        assert!(other.line.try_lock().is_ok());
        drop(turn);
        assert!(next.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn places_are_bounded_and_nothing_is_left_behind() {
        let (lines, mail) = (WaitQueues::default(), Name::new("mail").unwrap());
        let places: Vec<LinePosition> = (0..2000)
            .map_while(|i| lines.join(&mail, &(i % 7).to_string(), None))
            .collect();

        assert_eq!(places.len(), WAITING_MAX);
        drop(places);
        assert!(lines.locked().lines.is_empty() && lines.join(&mail, "", None).is_some());
    }

    #[test]
    fn a_tenant_leaves_places_to_others() {
        let (lines, mail) = (WaitQueues::default(), Name::new("mail").unwrap());
        let [acme, zeta] = ["acme", "zeta"].map(Arc::<str>::from);
        let of_acme: Vec<LinePosition> = (0..1000)
            .map_while(|i| lines.join(&mail, &i.to_string(), Some(&acme)))
            .collect();

        assert_eq!(of_acme.len(), TENANT_WAITING_MAX);
        assert!(lines.join(&mail, "", Some(&zeta)).is_some());
        assert!(lines.join(&mail, "", None).is_some());
        drop(of_acme);
        assert!(lines.join(&mail, "", Some(&acme)).is_some());
        assert!(lines.locked().of_tenants.is_empty());
    }
}
