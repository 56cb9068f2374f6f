//! The figures of the second act.

use serde::{Deserialize, Serialize};

/// The range of capacity ÷ new quota within which the new quota counts as found.
///
/// The capacity is the sum of the rates at which the accounts may send, learned ones among them. The
/// quota that the governor's signal learned follows later, and one blocked account can move it
/// before anything was halved.
const FOUND_TOLERANCE: std::ops::RangeInclusive<f64> = 0.85..=1.1;
/// The time from the halving to the measurement of use, in seconds, if the campaign lasts long
/// enough.
const SETTLED_S: f64 = 60.0;
/// The time that must remain after [`SETTLED_S`] for the measurement to wait for it, in seconds.
///
/// Every measurement lasts at least half of this time.
const WATCHED_S: f64 = 10.0;
/// The time over which rates are averaged, in seconds.
const RATE_OVER_S: f64 = 2.0;

/// One observation of the campaign.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CampaignSnapshot {
    /// Seconds since the first message.
    pub(super) t_s: f64,
    /// Messages accepted by the provider so far.
    pub(super) sent: u64,
    /// Requests refused by the provider so far.
    pub(super) refused: u64,
    /// The knob `rps` of the throttle, in messages per second.
    pub(super) rps: Option<f64>,
    /// The pool's capacity according to the API, in messages per second.
    pub(super) capacity_rps: Option<f64>,
    /// The number of available accounts.
    pub(super) available: u64,
    /// The quota of all accounts as learned from refusals, in messages per second.
    pub(super) learned_rps: Option<f64>,
}

/// One point of the campaign's course, for the plot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignPoint {
    /// Seconds since the first message.
    pub t_s: f64,
    /// Messages accepted by the provider per second, over the last 2 s.
    pub sent_rps: f64,
    /// Requests refused by the provider per second, over the last 2 s.
    pub refused_rps: f64,
    /// The knob `rps` of the throttle, in messages per second.
    pub rps: Option<f64>,
    /// The pool's capacity according to the API, in messages per second.
    pub capacity_rps: Option<f64>,
    /// The quota of all accounts as learned from refusals, in messages per second.
    pub learned_rps: Option<f64>,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Campaign {
    /// Enqueued messages.
    pub messages: u64,
    /// Messages that the provider accepted.
    pub sent: u64,
    /// Messages that still wait in the queue.
    pub waiting: u64,
    /// Messages that neither arrived nor wait.
    pub lost: u64,
    /// Messages that the provider accepted twice.
    pub duplicates: u64,
    /// Requests that the provider refused (429).
    pub refused: u64,
    /// The duration of the campaign, in seconds.
    pub seconds: f64,
    /// The quota of all accounts before the halving, in messages per second.
    pub quota_rps: f64,
    /// The time of the halving of every account's quota, in seconds since the first message.
    pub halved_after_s: f64,
    /// The time from the halving until the pool's capacity was that of the new quota, in seconds;
    /// `null` if it did not find it.
    pub found_in_s: Option<f64>,
    /// The used share of the new quota; `null` if it was not found or nothing was left to send.
    pub used: Option<f64>,
    /// The begin and the end of the measurement of `used`, in seconds since the first message.
    pub used_between_s: Option<(f64, f64)>,
    /// The most requests of any account in one second, before the halving and after it was found.
    pub most_in_a_second: (u32, u32),
    /// The course of the campaign, one point per observation.
    pub course: Vec<CampaignPoint>,
}

impl Campaign {
    /// Computes the time at which the halving was found, the use of the new quota, and the course.
    pub(super) fn measure(&mut self, looks: &[CampaignSnapshot]) {
        let quota = self.quota_rps / 2.0;
        let is_found = |look: &&CampaignSnapshot| {
            look.t_s > self.halved_after_s
                && look
                    .capacity_rps
                    .is_some_and(|rps| FOUND_TOLERANCE.contains(&(rps / quota)))
        };
        let found = looks.iter().find(is_found).map(|look| look.t_s);
        // The last two seconds of messages do not count, because the queue no longer fills the
        // quota.
        let plenty = (self.messages as f64 - 2.0 * quota).max(0.0) as u64;
        let end_s = looks
            .iter()
            .take_while(|look| look.sent < plenty)
            .last()
            .map_or(0.0, |look| look.t_s);
        let settled_s = self.halved_after_s + SETTLED_S;
        let from_s = found.map(|found| {
            if end_s - settled_s >= WATCHED_S {
                found.max(settled_s)
            } else {
                found
            }
        });
        let sent = |t_s: f64| {
            looks
                .iter()
                .rev()
                .find(|look| look.t_s <= t_s)
                .or(looks.first())
        };
        self.found_in_s = found.map(|found| found - self.halved_after_s);
        if let Some(from_s) = from_s.filter(|from_s| end_s - from_s >= WATCHED_S / 2.0)
            && let (Some(from), Some(to)) = (sent(from_s), sent(end_s))
        {
            self.used = Some((to.sent - from.sent) as f64 / ((to.t_s - from.t_s) * quota));
            self.used_between_s = Some((from.t_s, to.t_s));
        }
        let moment = |look: &CampaignSnapshot| {
            let before = sent(look.t_s - RATE_OVER_S).unwrap_or(look);
            let per_second = |now: u64, then: u64| {
                now.saturating_sub(then) as f64 / (look.t_s - before.t_s).max(0.25)
            };
            CampaignPoint {
                t_s: look.t_s,
                sent_rps: per_second(look.sent, before.sent),
                refused_rps: per_second(look.refused, before.refused),
                rps: look.rps,
                capacity_rps: look.capacity_rps,
                learned_rps: look.learned_rps,
            }
        };
        self.course = looks.iter().map(moment).collect();
    }

    /// Formats the figures as a few lines of text.
    pub fn summary(&self) -> String {
        let found = match self.found_in_s {
            Some(found_s) => format!("the halving was found after {found_s:.0} s"),
            None => format!(
                "the halving was not found within {:.0} s",
                self.seconds - self.halved_after_s
            ),
        };
        let used = match (self.used, self.used_between_s) {
            (Some(used), Some((from_s, to_s))) => {
                format!(
                    "{:.1} % of the new quota was used from second {from_s:.0} to second {to_s:.0}",
                    100.0 * used
                )
            }
            _ => "the campaign ended before the use of the new quota could be measured".to_owned(),
        };
        format!(
            "campaign: {} of {} messages sent in {:.0} s, {} wait, {} lost, {} sent twice; {} requests were refused (429)\n\
             {found}; {used}\n\
             the most messages of an account in one second: {} of {:.0} before the halving, {} of {:.0} once it was found",
            self.sent,
            self.messages,
            self.seconds,
            self.waiting,
            self.lost,
            self.duplicates,
            self.refused,
            self.most_in_a_second.0,
            self.quota_rps / super::pool::ACCOUNTS as f64,
            self.most_in_a_second.1,
            self.quota_rps / 2.0 / super::pool::ACCOUNTS as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns observations of 400 messages per second until the halving after 20 s, of 160 for
    /// half a minute, then of 198.
    fn looks(until_s: u32) -> Vec<CampaignSnapshot> {
        let look = |n: u32| {
            let t_s = f64::from(n) / 2.0;
            let sent = 400.0 * t_s.min(20.0)
                + 160.0 * (t_s - 20.0).clamp(0.0, 30.0)
                + 198.0 * (t_s - 50.0).max(0.0);
            CampaignSnapshot {
                t_s,
                sent: sent as u64,
                capacity_rps: Some(if t_s < 50.0 { 390.0 } else { 199.0 }),
                learned_rps: Some(199.0),
                ..CampaignSnapshot::default()
            }
        };
        (0..=2 * until_s).map(look).collect()
    }

    fn campaign(until_s: u32) -> Campaign {
        let mut campaign = Campaign {
            messages: 1_000_000,
            quota_rps: 400.0,
            halved_after_s: 20.0,
            seconds: until_s.into(),
            ..Campaign::default()
        };
        campaign.measure(&looks(until_s));
        campaign
    }

    #[test]
    fn use_is_measured_from_a_minute_on_or_from_when_it_was_found() {
        let long = campaign(120);
        assert_eq!(
            (long.found_in_s, long.used_between_s),
            (Some(30.0), Some((80.0, 120.0)))
        );
        assert!((long.used.unwrap() - 0.99).abs() < 1e-3, "{:?}", long.used);
        assert_eq!(campaign(70).used_between_s, Some((50.0, 70.0)));
        assert!((long.course[20].sent_rps - 400.0).abs() < 1e-6);
    }

    #[test]
    fn what_there_was_no_time_for_is_said() {
        let short = campaign(40);
        assert_eq!((short.found_in_s, short.used), (None, None));
        assert!(
            short.summary().contains("was not found within 20 s")
                && short
                    .summary()
                    .contains("ended before the use of the new quota")
        );
    }

    #[test]
    fn the_end_of_the_messages_is_no_use_of_the_quota() {
        let mut campaign = Campaign {
            messages: 17_000,
            quota_rps: 400.0,
            halved_after_s: 20.0,
            ..Campaign::default()
        };
        let mut looks = looks(120);
        looks
            .iter_mut()
            .for_each(|look| look.sent = look.sent.min(17_000));
        campaign.measure(&looks);
        assert!(
            (campaign.used.unwrap() - 0.99).abs() < 5e-3,
            "{:?}",
            campaign.used
        );
    }
}
