//! The number of messages within a second, in the provider's own seconds and in any.

use flyball_fakes::{Fake, SecondTotals};

/// The most messages of one account within a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeakRate {
    /// The most in a second of the clock, as providers count.
    pub fixed: u32,
    /// The most in any second, wherever it begins.
    pub sliding: u32,
}

impl PeakRate {
    /// Returns the most of any of these accounts; `fixed` includes refused messages, because they
    /// were sent.
    pub fn of(fake: &Fake, accounts: &[String]) -> Self {
        let fixed = accounts
            .iter()
            .flat_map(|account| fake.per_second(account))
            .map(|second| second.accepted + second.refused);
        let sliding = accounts.iter().map(|account| {
            let times: Vec<u64> = fake
                .received(account)
                .iter()
                .map(|message| message.at_ms)
                .collect();
            in_any_second(&times)
        });
        Self {
            fixed: fixed.max().unwrap_or(0),
            sliding: sliding.max().unwrap_or(0),
        }
    }
}

/// Returns the most of these times, which are sorted, that lie within a thousand milliseconds.
fn in_any_second(times_ms: &[u64]) -> u32 {
    let mut first = 0;
    let mut most = 0;
    for (place, at_ms) in times_ms.iter().enumerate() {
        while times_ms[first] + 1_000 <= *at_ms {
            first += 1;
        }
        most = most.max(place + 1 - first);
    }
    most as u32
}

/// Returns the accepted messages of all accounts in each whole second from `from_s` up to `to_s`.
pub fn seconds(fake: &Fake, accounts: &[String], from_s: u64, to_s: u64) -> Vec<f64> {
    let all: Vec<SecondTotals> = accounts
        .iter()
        .flat_map(|account| fake.per_second(account))
        .collect();
    let of = |at_s| {
        f64::from(
            all.iter()
                .filter(|second| second.at_s == at_s)
                .map(|second| second.accepted)
                .sum::<u32>(),
        )
    };
    (from_s..to_s).map(of).collect()
}
