//! The pace of tenants at their limit.
//!
//! A limit of 200 messages in any second may be used by 200 at once and then by none for a second.
//! Such a burst to a thousand readers keeps the process busy, and the messages of others behind it.
//! Waiting messages go in small steps instead, ten in a second, at the same rate.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::tenant_mark::TenantMark;

/// The time between two steps of a tenant at its limit.
const STEP_EVERY: Duration = Duration::from_millis(100);

/// The shortest pause of a tenant whose limit admitted nothing.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// The shortest time between two reports that messages of a tenant wait, and the longest wait until
/// a limit that admitted nothing is asked again, because it may have been raised.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The tenants at their limit.
#[derive(Debug, Default)]
pub struct LimitedTenants(HashMap<String, LimitedTenant>);

#[derive(Clone, Copy, Debug)]
struct LimitedTenant {
    mark: TenantMark,
    /// The time before which nothing is asked for.
    next_at: Instant,
    /// The messages per second that the limit admits.
    per_second: f64,
    reported_at: Instant,
}

impl LimitedTenant {
    /// Returns true if the wait was reported, and the rate read, a second ago or longer.
    fn is_old(&self, now: Instant) -> bool {
        self.reported_at + REPORT_EVERY <= now
    }
}

/// The tenants whose next step is due, or the time until one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextSteps {
    pub tenants: Vec<String>,
    /// The time until the first step, if none is due.
    pub wait: Duration,
}

/// The request that a tenant may make of its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Nothing for this time.
    Wait(Duration),
    /// This many messages.
    Ask(u32),
}

/// The end of a step of a tenant whose messages wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedStep {
    /// The time until the next step.
    pub wait: Duration,
    /// The time for which messages wait, if it must be reported to the gateways.
    pub reported: Option<Duration>,
}

impl LimitedTenants {
    /// Returns what the limit of a tenant may be asked for; `waiting` messages of it wait.
    pub fn pace(&self, tenant: &str, waiting: u32, now: Instant) -> Pace {
        match self.0.get(tenant) {
            None => Pace::Ask(waiting),
            Some(limited) if limited.next_at > now => Pace::Wait(limited.next_at - now),
            Some(limited) => Pace::Ask(waiting.min(step_of(limited.per_second))),
        }
    }

    /// Returns true if the rate of a tenant is not known, or not read for a second.
    pub fn needs_rate(&self, tenant: &str, now: Instant) -> bool {
        self.0.get(tenant).is_none_or(|limited| limited.is_old(now))
    }

    /// Notes that `left` messages of a tenant wait on after it asked for messages: for the next
    /// step, or for `wait` if its limit admitted fewer than were asked for. `per_second` is the
    /// rate of its limit, if it was read.
    pub fn note(
        &mut self,
        tenant: &str,
        left: u32,
        wait: Option<Duration>,
        per_second: Option<f64>,
        now: Instant,
    ) -> PacedStep {
        let known = self.0.get(tenant).copied();
        let per_second = per_second
            .or(known.map(|limited| limited.per_second))
            .unwrap_or(1.0);
        // A step that came late does not move those after it, so that the rate is that of the limit.
        let in_turn = known.map_or(now, |limited| limited.next_at) + STEP_EVERY;
        let next_at = match wait {
            Some(wait) => now + wait.clamp(WAIT_MIN, REPORT_EVERY),
            None => in_turn.max(now + STEP_EVERY / 2),
        };
        let is_due = known.is_none_or(|limited| limited.is_old(now));
        let until_clear = Duration::from_secs_f64(f64::from(left) / per_second.max(1.0));
        // The wait that the limit gives is reported, however soon that is asked again.
        let longest = wait.unwrap_or_default().max(next_at - now);
        let reported = is_due.then(|| until_clear.min(REPORT_EVERY).max(longest));
        let reported_at = match known {
            Some(limited) if !is_due => limited.reported_at,
            _ => now,
        };
        let limited = LimitedTenant {
            mark: known.map_or_else(|| TenantMark::of(tenant), |limited| limited.mark),
            next_at,
            per_second,
            reported_at,
        };
        self.0.insert(tenant.to_owned(), limited);
        PacedStep {
            wait: next_at - now,
            reported,
        }
    }

    /// Puts the next step of a tenant off.
    pub fn postpone(&mut self, tenant: &str, wait: Duration, now: Instant) {
        if let Some(limited) = self.0.get_mut(tenant) {
            limited.next_at = now + wait;
        }
    }

    /// Returns true if the tenant with this mark is at its limit.
    pub fn has_mark(&self, mark: TenantMark) -> bool {
        self.0.values().any(|limited| limited.mark == mark)
    }

    /// Returns the tenants at their limit.
    pub fn tenants(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns the next steps; `None` if no tenant is at its limit.
    pub fn next(&self, now: Instant) -> Option<NextSteps> {
        let first = self.0.values().map(|limited| limited.next_at).min()?;
        let due = self.0.iter().filter(|(_, limited)| limited.next_at <= now);
        Some(NextSteps {
            tenants: due.map(|(tenant, _)| tenant.clone()).collect(),
            wait: first.saturating_duration_since(now),
        })
    }

    /// Forgets a tenant whose messages have all gone.
    pub fn clear(&mut self, tenant: &str) {
        self.0.remove(tenant);
    }
}

/// Returns the messages of one step of a limit.
fn step_of(per_second: f64) -> u32 {
    (per_second * STEP_EVERY.as_secs_f64()).ceil().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_limit_goes_in_steps_at_its_rate() {
        let (mut limited, begun) = (LimitedTenants::default(), Instant::now());
        assert_eq!(limited.pace("acme", 500, begun), Pace::Ask(500));
        let wait = Duration::from_millis(900);
        let step = limited.note("acme", 300, Some(wait), Some(200.0), begun);
        assert_eq!((step.wait, step.reported), (wait, Some(REPORT_EVERY)));
        assert_eq!(limited.pace("acme", 300, begun), Pace::Wait(wait));

        let mut now = begun + wait;
        let mut moved = 0;
        for late_ms in [0, 10, 30, 5, 0, 0, 20, 0, 0, 0] {
            let late = now + Duration::from_millis(late_ms);
            assert_eq!(limited.pace("acme", 300 - moved, late), Pace::Ask(20));
            moved += 20;
            let step = limited.note("acme", 300 - moved, None, None, late);
            now = late + step.wait;
        }
        assert_eq!((moved, now - begun), (200, wait + Duration::from_secs(1)));
    }

    #[test]
    fn a_wait_is_reported_once_a_second_and_no_longer_than_it_is() {
        let (mut limited, begun) = (LimitedTenants::default(), Instant::now());
        let mut reported = Vec::new();
        for step in 0..25_u32 {
            let now = begun + STEP_EVERY * step;
            let left = 500 - 20 * step;
            reported.extend(limited.note("acme", left, None, Some(200.0), now).reported);
        }
        assert_eq!(
            reported,
            [
                Duration::from_secs(1),
                Duration::from_secs(1),
                Duration::from_millis(500)
            ]
        );
        limited.clear("acme");
        assert!(limited.needs_rate("acme", begun));
    }

    #[test]
    fn a_limit_that_admits_nothing_for_an_hour_says_so_and_is_asked_each_second() {
        let (mut limited, now) = (LimitedTenants::default(), Instant::now());
        let hour = Duration::from_secs(3600);
        let step = limited.note("acme", 5, Some(hour), Some(1.0), now);
        assert_eq!((step.wait, step.reported), (REPORT_EVERY, Some(hour)));
        assert_eq!(limited.pace("acme", 5, now + REPORT_EVERY), Pace::Ask(1));
    }

    #[test]
    fn a_small_limit_goes_one_by_one_and_waits_as_the_limit_says() {
        let (mut limited, now) = (LimitedTenants::default(), Instant::now());
        limited.note("acme", 5, Some(Duration::from_millis(1)), Some(2.0), now);
        let later = now + WAIT_MIN;
        assert_eq!(limited.pace("acme", 5, later), Pace::Ask(1));
        let wait = Duration::from_millis(480);
        let step = limited.note("acme", 5, Some(wait), None, later);
        assert_eq!(step.wait, wait);
    }

    #[test]
    fn the_next_steps_are_those_that_are_due_or_the_time_until_one_is() {
        let (mut limited, now) = (LimitedTenants::default(), Instant::now());
        assert_eq!(limited.next(now), None);
        let late = Duration::from_millis(700);
        limited.note("acme", 5, Some(late), Some(200.0), now);
        limited.note("zeta", 5, Some(late * 2), Some(200.0), now);
        let next = |tenants: &[&str], wait| NextSteps {
            tenants: tenants.iter().map(ToString::to_string).collect(),
            wait,
        };
        assert_eq!(limited.next(now), Some(next(&[], late)));
        let none = Duration::ZERO;
        assert_eq!(limited.next(now + late), Some(next(&["acme"], none)));

        limited.postpone("acme", late, now + late);
        limited.postpone("other", late, now + late);

        let longest = REPORT_EVERY - late;
        assert_eq!(limited.next(now + late), Some(next(&[], longest)));
        limited.clear("zeta");
        assert_eq!(limited.tenants(), ["acme"]);
        let has_mark = ["acme", "zeta"].map(|tenant| limited.has_mark(TenantMark::of(tenant)));
        assert_eq!(has_mark, [true, false]);
    }
}
