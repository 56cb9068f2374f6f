//! The messages per second that the limits of tenants admit, as they were read last.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The age at which a rate is read again.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The age at which a rate may be forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The least number of rates at which old ones are forgotten.
const KEPT_MAX: usize = 1024;

/// The rates of tenants that were read lately.
#[derive(Debug, Default)]
pub struct TenantRates {
    rates: HashMap<String, ReadRate>,
    /// The number of rates at which old ones are looked for again.
    prune_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct ReadRate {
    per_second: f64,
    read_at: Instant,
}

impl TenantRates {
    /// Returns the rate of a tenant; `None` if the caller must read it. While one caller reads it
    /// again, others get the one before.
    pub fn get(&mut self, tenant: &str, now: Instant) -> Option<f64> {
        let rate = self.rates.get_mut(tenant)?;
        if rate.read_at + READ_EVERY <= now {
            rate.read_at = now;
            return None;
        }
        Some(rate.per_second)
    }

    /// Notes the rate of a tenant.
    pub fn set(&mut self, tenant: &str, per_second: f64, now: Instant) {
        if self.rates.len() >= self.prune_at.max(KEPT_MAX) {
            self.rates
                .retain(|_, rate| rate.read_at + FORGOTTEN_AFTER > now);
            // Where all are in use, not every call walks over them.
            self.prune_at = 2 * self.rates.len();
        }
        let rate = ReadRate {
            per_second,
            read_at: now,
        };
        self.rates.insert(tenant.to_owned(), rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_once_a_second_by_one_caller() {
        let (mut rates, now) = (TenantRates::default(), Instant::now());
        assert_eq!(rates.get("acme", now), None);
        rates.set("acme", 5.0, now);
        assert_eq!(rates.get("acme", now + READ_EVERY / 2), Some(5.0));
        let later = now + READ_EVERY;
        assert_eq!(rates.get("acme", later), None);
        assert_eq!(rates.get("acme", later), Some(5.0));
        rates.set("acme", 7.0, later);
        assert_eq!(rates.get("acme", later), Some(7.0));
    }

    #[test]
    fn rates_of_tenants_that_have_gone_are_forgotten() {
        let (mut rates, now) = (TenantRates::default(), Instant::now());
        for n in 0..KEPT_MAX {
            rates.set(&n.to_string(), 1.0, now);
        }
        rates.set("new", 1.0, now + FORGOTTEN_AFTER);
        assert_eq!(rates.rates.len(), 1);
    }

    #[test]
    fn two_thousand_tenants_keep_their_rates() {
        let (mut rates, now) = (TenantRates::default(), Instant::now());
        for n in 0..2000 {
            rates.set(&n.to_string(), 1.0, now);
        }
        let later = now + READ_EVERY;
        for n in 0..2000 {
            let tenant = n.to_string();
            assert_eq!(rates.get(&tenant, later), None);
            rates.set(&tenant, 2.0, later);
            // One that was read before the others is still there for the callers beside this one.
            assert!(rates.get("1999", now).is_some(), "{tenant}");
        }
        assert_eq!(rates.rates.len(), 2000);
    }
}
