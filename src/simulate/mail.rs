//! The account of a mail provider: the share of its mails of a day that draw complaints.

use std::collections::VecDeque;

use serde::Deserialize;

use super::curve::Curve;
use crate::signals::complaints::worst;

/// The hours that count, as in the tally of a pool's accounts.
const HOURS: usize = 24;

/// The length of an hour, in seconds.
const HOUR_S: f64 = 3600.0;

/// The account, and the patience of those who get its mails.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailAccount {
    /// Mails a second that the account sends besides, which draw no complaints.
    pub other_rps: Curve,
    /// The share of the governed mails that draw a complaint.
    pub complaints: Curve,
    /// The rate at which twice that share complains, because everybody gets more mails; absent if
    /// the rate does not matter.
    pub tiring_rps: Option<f64>,
    /// The mean time until a complaint, in seconds.
    pub delay_s: f64,
}

impl MailAccount {
    /// Returns the share of the mails of one second that draw a complaint at `rate`.
    fn share(&self, now: f64, rate: f64) -> f64 {
        let tired = self.tiring_rps.map_or(0.0, |tiring| rate / tiring);
        self.complaints.at(now) * (1.0 + tired)
    }

    /// Returns the share of all mails that draw a complaint if the rate stays for a day.
    pub(super) fn lasting_share(&self, now: f64, rate: f64) -> f64 {
        let all = rate + self.other_rps.at(now);
        if all > 0.0 {
            rate * self.share(now, rate) / all
        } else {
            0.0
        }
    }

    /// Returns the faults of the table.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, fault) in [
            ("other_rps", self.other_rps.fault(0.0)),
            ("complaints", self.complaints.fault(0.0)),
        ] {
            faults.extend(fault.map(|fault| format!("mail.{key}: {fault}")));
        }
        if self
            .tiring_rps
            .is_some_and(|rps| rps.is_nan() || rps <= 0.0)
        {
            faults.push("mail.tiring_rps: is not allowed; use a number above 0".to_owned());
        }
        if !(1.0..=7.0 * 86_400.0).contains(&self.delay_s) {
            let delay_s = self.delay_s;
            faults.push(format!(
                "mail.delay_s: {delay_s} is not allowed; use 1 to 604800"
            ));
        }
        faults
    }
}

/// An hour of the tally.
#[derive(Clone, Copy, Debug, Default)]
struct TallyHour {
    accepted: f64,
    /// Complaints that came in.
    complained: f64,
    /// Complaints that the mails of the hour draw, whenever they come.
    drawn: f64,
}

/// The tally of a day.
#[derive(Clone, Debug)]
pub(super) struct MailDay {
    hours: VecDeque<TallyHour>,
    /// Complaints that are still to come.
    pending: f64,
    seconds: u64,
}

impl MailDay {
    /// Begins after days at this rate.
    pub(super) fn new(account: &MailAccount, rate: f64) -> Self {
        let drawn = rate * account.share(0.0, rate);
        let hour = TallyHour {
            accepted: HOUR_S * (rate + account.other_rps.at(0.0)),
            complained: HOUR_S * drawn,
            drawn: HOUR_S * drawn,
        };
        Self {
            hours: [hour; HOURS].into(),
            pending: drawn * account.delay_s,
            seconds: 0,
        }
    }

    /// Notes a second at `rate`; `draw` is a standard normal draw for the number of complaints.
    pub(super) fn second(&mut self, account: &MailAccount, now: f64, rate: f64, draw: f64) {
        if self.seconds.is_multiple_of(HOUR_S as u64) {
            self.hours.pop_front();
            self.hours.push_back(TallyHour::default());
        }
        self.seconds += 1;
        let drawn = rate * account.share(now, rate);
        let expected = self.pending / account.delay_s;
        self.pending += drawn - expected;
        if let Some(hour) = self.hours.back_mut() {
            hour.accepted += rate + account.other_rps.at(now);
            hour.drawn += drawn;
            // The variance of a number of independent complaints is their mean; over an hour these
            // normal draws add up to almost the same distribution.
            hour.complained += expected + draw * expected.sqrt();
        }
    }

    /// Returns the reading of the signal: the same figure as of a pool with one account.
    pub(super) fn reading(&self, now: f64) -> f64 {
        let (accepted, complained) = self.sums(|hour| hour.complained);
        worst([("main", accepted, complained.max(0.0))], now).share
    }

    /// Returns the share of the day's mails that draw a complaint, known without delay.
    pub(super) fn true_share(&self) -> f64 {
        let (accepted, drawn) = self.sums(|hour| hour.drawn);
        drawn / accepted.max(f64::MIN_POSITIVE)
    }

    fn sums(&self, of: impl Fn(&TallyHour) -> f64) -> (f64, f64) {
        let sum = |sum: (f64, f64), hour: &TallyHour| (sum.0 + hour.accepted, sum.1 + of(hour));
        self.hours.iter().fold((0.0, 0.0), sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> MailAccount {
        MailAccount {
            other_rps: Curve::Constant(10.0),
            complaints: Curve::Constant(0.002),
            tiring_rps: None,
            delay_s: 7200.0,
        }
    }

    #[test]
    fn a_day_at_one_rate_has_the_share_of_that_rate() {
        let account = account();
        let mut day = MailDay::new(&account, 30.0);
        (0..100_000).for_each(|t| day.second(&account, f64::from(t), 30.0, 0.0));
        let lasting = account.lasting_share(0.0, 30.0);
        assert!((lasting - 0.0015).abs() < 1e-12);
        assert!((day.true_share() / lasting - 1.0).abs() < 1e-6);
        // The reading is the lower end of what the share can be, so a little less.
        assert!((0.97..1.0).contains(&(day.reading(1e5) / lasting)));
    }

    #[test]
    fn complaints_come_after_their_mails_and_leave_with_them_after_a_day() {
        let account = account();
        let mut day = MailDay::new(&account, 30.0);
        (0..7200).for_each(|t| day.second(&account, f64::from(t), 0.0, 0.0));
        assert!(
            day.true_share() < day.reading(7200.0),
            "the reading lags behind"
        );
        (7200..200_000).for_each(|t| day.second(&account, f64::from(t), 0.0, 0.0));
        assert!(day.reading(2e5) < 1e-5);
    }
}
