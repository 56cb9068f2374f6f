//! The maximum age of a webhook request.

use super::super::{Account, InvalidAccount, RejectedWebhook};

/// The key of an account's settings.
const FIELD: &str = "webhook_max_age_s";

/// The tolerance for a provider's clock that is ahead of ours, in seconds.
pub const MAX_CLOCK_AHEAD_S: i64 = 600;

/// Returns the maximum age in seconds: the account's setting, else `usual_s`.
pub fn most(account: &Account, usual_s: i64) -> Result<i64, InvalidAccount> {
    let Some(text) = account.option(FIELD) else {
        return Ok(usual_s);
    };
    let seconds = text
        .trim()
        .parse()
        .ok()
        .filter(|seconds: &i64| (1..=7 * 86_400).contains(seconds));
    seconds.ok_or_else(|| InvalidAccount {
        field: FIELD.to_owned(),
        message: "must be seconds from 1 to 604800".to_owned(),
    })
}

/// Rejects a request that is too old, or from the future.
pub fn check(
    account: &Account,
    usual_s: i64,
    at_s: i64,
    now_s: i64,
) -> Result<(), RejectedWebhook> {
    let most = most(account, usual_s).unwrap_or(usual_s);
    match now_s.saturating_sub(at_s) {
        age if age > most => Err(RejectedWebhook::Signature(format!(
            "it is {age} s old, and at most {most} s are allowed"
        ))),
        age if age < -MAX_CLOCK_AHEAD_S => Err(RejectedWebhook::Signature(
            "its time is in the future".to_owned(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::examples::account;
    use super::*;

    #[test]
    fn what_is_too_old_or_of_the_future_is_refused() {
        let with_max_age = account(&[(FIELD, "50")], &[]);
        let cases = [
            (&Account::default(), 600, true),
            (&Account::default(), 601, false),
            (&Account::default(), -600, true),
        ];
        let more = [
            (&Account::default(), -601, false),
            (&with_max_age, 50, true),
            (&with_max_age, 51, false),
            (&with_max_age, i64::MIN, false),
        ];
        for (account, age, expected) in cases.into_iter().chain(more) {
            assert_eq!(
                check(account, 600, 0_i64.saturating_sub(age), 0).is_ok(),
                expected,
                "{age}"
            );
        }
    }
}
