//! The pool of the second act: twenty accounts at the demo's own fake Twilio, and the policy of
//! their throttle.

use std::path::Path;

/// The name of the pool and of its throttle.
pub(super) const POOL: &str = "sms";
/// The number of accounts in the pool.
pub(super) const ACCOUNTS: usize = 20;
/// The quota of each account before the halving, in messages per second.
///
/// A debug build on two cores sends several hundred messages per second in all.
pub(super) const QUOTA: f64 = if cfg!(debug_assertions) { 10.0 } else { 20.0 };
/// The quota of each account after the halving, in messages per second.
pub(super) const HALVED: f64 = QUOTA / 2.0;
/// The time for which a breaker stays open, in seconds.
pub(super) const COOLDOWN_S: u64 = 3;
/// The number of messages in a campaign that has enough time for all of them.
pub(super) const MESSAGES: usize = 20_000;

/// The initial value of the knob `rps`: the quota of all accounts less the pool's headroom of 2 %.
pub(super) const RPS: f64 = 0.98 * QUOTA * ACCOUNTS as f64;

/// The knobs file of the throttle, without its `rps`.
const KNOBS: &str = "\
burst = 0.1
mode = \"auto\"
min = 1.0
max = 1000.0
safe_rps = 100.0
on_store_loss = \"local\"

# Refusals of the provider (429), over all accounts: from them the governor learns the rate that all accounts together may send.
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

/// Returns the knobs file of the throttle.
pub(super) fn knobs() -> String {
    format!("[knobs]\nrps = {RPS:.1}\n{KNOBS}")
}

/// Returns the name of account `n`, counted from 1.
pub(super) fn name(n: usize) -> String {
    format!("account_{n:02}")
}

/// Returns the Twilio SID of account `n`, counted from 1.
pub(super) fn sid(n: usize) -> String {
    format!("AC{n:032}")
}

/// Returns the table `[pools.sms]` of the settings, for a provider at `base_url` whose token is in
/// the file `token`.
pub(super) fn table(base_url: &str, token: &Path) -> Result<toml::Table, toml::de::Error> {
    let mut text = format!(
        "provider = \"twilio\"\nrps = {QUOTA:.1}\nbase_url = {base_url:?}\nauth_token_file = {:?}\nfrom = \"+15550100\"\n\
         breaker_cooldown_s = {COOLDOWN_S}\n",
        token.display().to_string()
    );
    for n in 1..=ACCOUNTS {
        text.push_str(&format!(
            "[[accounts]]\nname = {:?}\naccount_sid = {:?}\n",
            name(n),
            sid(n)
        ));
    }
    toml::from_str(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_and_its_policy_are_what_the_settings_and_the_governor_take() {
        let tables = [(
            POOL.to_owned(),
            table("http://127.0.0.1:1", Path::new("/tmp/token")).unwrap(),
        )]
        .into();
        let pools = flyball::config::pools::read(&tables, None).unwrap();
        let policy = flyball::governor::Policy::parse(&knobs(), "sms.toml")
            .unwrap()
            .unwrap();

        assert_eq!(
            (
                pools.0[POOL].accounts.len(),
                pools.0[POOL].accounts[0].rps.number()
            ),
            (ACCOUNTS, QUOTA)
        );
        assert_eq!(policy.signals[0].name, "refused");
    }
}
