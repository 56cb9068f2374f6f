//! The pool of the second act: twenty accounts at a Twilio of the demo's own, and the policy of their throttle.

use std::path::Path;

/// The pool, and its throttle.
pub(super) const POOL: &str = "sms";
/// Accounts in it.
pub(super) const ACCOUNTS: usize = 20;
/// What each may send each second, until that is halved. A debug build on two cores sends some hundred messages a second.
pub(super) const QUOTA: f64 = if cfg!(debug_assertions) { 10.0 } else { 20.0 };
/// What is left of it afterwards.
pub(super) const HALVED: f64 = QUOTA / 2.0;
/// How long a breaker stays open, in seconds.
pub(super) const COOLDOWN_S: u64 = 3;
/// Messages in the campaign, where there is time for all.
pub(super) const MESSAGES: usize = 20_000;

/// Where the knob begins: as much below the quota of all accounts as is kept free.
pub(super) const RPS: f64 = 0.98 * QUOTA * ACCOUNTS as f64;

/// The knobs file of the throttle, but for its `rps`.
const KNOBS: &str = "\
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

/// The knobs file of the throttle.
pub(super) fn knobs() -> String {
    format!("[knobs]\nrps = {RPS:.1}\n{KNOBS}")
}

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
        let policy = crate::governor::Policy::parse(&knobs(), "sms.toml").unwrap().unwrap();

        assert_eq!((pools.0[POOL].accounts.len(), pools.0[POOL].accounts[0].rps), (ACCOUNTS, QUOTA));
        assert_eq!(policy.signals[0].name, "refused");
    }
}
