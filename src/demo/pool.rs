//! The pool of the second act: twenty accounts at a Twilio of the demo's own, and the policy of their throttle.

use std::path::Path;

/// The pool, and its throttle.
pub(super) const POOL: &str = "sms";
/// Accounts in it.
pub(super) const ACCOUNTS: usize = 20;
/// What each may send each second, until that is halved.
pub(super) const QUOTA: f64 = 20.0;
/// What is left of it afterwards.
pub(super) const HALVED: f64 = QUOTA / 2.0;
/// How long a breaker stays open, in seconds.
pub(super) const COOLDOWN_S: u64 = 3;
/// Messages in the campaign, where there is time for all.
pub(super) const MESSAGES: usize = 20_000;

/// The knobs file of the throttle.
pub(super) const KNOBS: &str = "\
[knobs]
rps = 392.0        # 98 % of twenty accounts at 20 a second
burst = 0.1
mode = \"auto\"
min = 1.0
max = 1000.0
safe_rps = 100.0
on_store_loss = \"local\"

# What the provider refuses (429), whoever of the accounts it is: from that the governor learns what all of them may send.
[[signal]]
name = \"refused\"
kind = \"ratio\"
source = \"feedback\"
query = \"refused\"
setpoint = 0.01

[governor]
tick_s = 1.0
durations = false  # how long a message takes says nothing about a quota
";

/// The account of this number, from 1 on.
pub(super) fn name(n: usize) -> String {
    format!("account_{n:02}")
}

/// What the provider calls it.
pub(super) fn sid(n: usize) -> String {
    format!("AC{n:032}")
}

/// The table `[pools.sms]` of the settings, for a provider at this address and a token in this file.
pub(super) fn table(base_url: &str, token: &Path) -> Result<toml::Table, toml::de::Error> {
    let mut text = format!(
        "provider = \"twilio\"\nrps = {QUOTA:.1}\nbase_url = {base_url:?}\nauth_token_file = {:?}\nfrom = \"+15550100\"\n\
         breaker_cooldown_s = {COOLDOWN_S}\n",
        token.display().to_string()
    );
    for n in 1..=ACCOUNTS {
        text.push_str(&format!("[[accounts]]\nname = {:?}\naccount_sid = {:?}\n", name(n), sid(n)));
    }
    toml::from_str(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_and_its_policy_are_what_the_settings_and_the_governor_take() {
        let tables = [(POOL.to_owned(), table("http://127.0.0.1:1", Path::new("/tmp/token")).unwrap())].into();
        let pools = crate::config::pools::read(&tables, None).unwrap();
        let policy = crate::governor::Policy::parse(KNOBS, "sms.toml").unwrap().unwrap();

        assert_eq!((pools.0[POOL].accounts.len(), pools.0[POOL].accounts[0].rps), (ACCOUNTS, QUOTA));
        assert_eq!(policy.signals[0].name, "refused");
    }
}
