//! Complaints of recipients: the share of a pool's worst account in the last 24 hours.
//!
//! A complaint comes hours after the mail, and mailbox providers judge a day. The reading is the
//! lower end of the interval in which the true share may lie, so that one complaint of a small
//! account does not slow the rate down. An account with fewer than [`MIN_ACCEPTED_MAIL`] accepted
//! messages is not judged at all and has a share of 0: no account is braked for being small.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Error, Missing};

/// Messages that must have been accepted in 24 hours before an account is judged.
pub const MIN_ACCEPTED_MAIL: f64 = 500.0;
/// Standard errors between the measured share and the lower end of its interval (Wilson's).
const ERRORS: f64 = 1.0;

/// The complaint rate of a pool's worst account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Complaints {
    /// The lower bound of the share of accepted messages that drew a complaint.
    pub share: f64,
    /// The account with that share; empty if none is judged.
    pub account: String,
    /// Messages accepted from that account.
    pub accepted: f64,
    /// The time of the reading, in unix seconds.
    pub at: f64,
}

/// Returns the complaints of the pool of that name, or the reason for which they are not known.
pub type ComplaintSource =
    Arc<dyn Fn(&str) -> BoxFuture<'static, Result<Complaints, Error>> + Send + Sync>;

/// Returns a source without readings.
pub fn no_complaints() -> ComplaintSource {
    Arc::new(|_| Box::pin(std::future::ready(Err(Error::from(Missing::Absent)))))
}

/// Returns the worst of `accounts` (account, accepted, complained) at `at`, in unix seconds.
pub fn worst<'a>(accounts: impl IntoIterator<Item = (&'a str, f64, f64)>, at: f64) -> Complaints {
    let judged = accounts
        .into_iter()
        .filter(|(_, accepted, _)| *accepted >= MIN_ACCEPTED_MAIL);
    let each = judged.map(|(account, accepted, complained)| Complaints {
        share: at_least(complained, accepted),
        account: account.to_owned(),
        accepted,
        at,
    });
    each.max_by(|a, b| a.share.total_cmp(&b.share))
        .unwrap_or(Complaints {
            at,
            ..Complaints::default()
        })
}

/// Returns the lower end of the confidence interval of the share `part` / `all`.
fn at_least(part: f64, all: f64) -> f64 {
    // More complaints than messages in these hours: they are about earlier messages.
    let (share, z2) = ((part / all).clamp(0.0, 1.0), ERRORS * ERRORS);
    let centre = share + z2 / (2.0 * all);
    let width = ERRORS * (share * (1.0 - share) / all + z2 / (4.0 * all * all)).sqrt();
    ((centre - width) / (1.0 + z2 / all)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_account_with_enough_mail_counts() {
        let accounts = [
            ("small", 499.0, 400.0),
            ("good", 1e6, 300.0),
            ("bad", 1e5, 250.0),
            ("fair", 1e5, 90.0),
        ];
        let found = worst(accounts, 7.0);
        assert_eq!(
            (found.account.as_str(), found.accepted, found.at),
            ("bad", 1e5, 7.0)
        );
        assert!(found.share > 0.0023 && found.share < 0.0025, "{found:?}");
        assert_eq!(
            worst([("small", 499.0, 400.0)], 7.0),
            Complaints {
                at: 7.0,
                ..Complaints::default()
            }
        );
        assert_eq!(worst([], 7.0).share, 0.0);
    }

    #[test]
    fn one_complaint_of_a_small_account_is_below_the_usual_setpoint_and_three_are_not() {
        assert!(at_least(1.0, 500.0) < 0.001 && at_least(3.0, 500.0) > 0.001);
        // With many messages the bound is close to the measured share.
        assert!((at_least(1500.0, 1e6) / 0.0015 - 1.0).abs() < 0.03);
        assert!((0.0..=1.0).contains(&at_least(9.0, 3.0)) && at_least(0.0, 1e6) == 0.0);
    }
}
