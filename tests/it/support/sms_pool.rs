//! A pool `sms` of accounts at a fake Twilio, as settings of a running program.

use std::path::Path;

use flyball::jobs::{NewJob, Queue};
use flyball_fakes::Fake;
use serde_json::json;

/// Returns the SID of account `n`.
pub fn sid(n: usize) -> String {
    format!("AC{n:032}")
}

/// Writes the secret of the accounts 1 to `accounts` into `folder`, and returns the settings of
/// their pool. `rps` is the rate of each, -1 for none; `keys` are further keys of the pool.
pub fn settings(folder: &Path, fake: &Fake, accounts: usize, rps: f64, keys: &str) -> String {
    let secret = folder.join("token");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let mut text = format!(
        "allow_private_urls = true\n[pools.sms]\nprovider = \"twilio\"\nrps = {rps}\nbase_url = {:?}\n\
         auth_token_file = {:?}\nfrom = \"+15550100\"\n{keys}\n",
        fake.url(),
        secret.display().to_string(),
    );
    for n in 1..=accounts {
        text.push_str(&format!(
            "[[pools.sms.accounts]]\nname = \"account_{n}\"\naccount_sid = {:?}\n",
            sid(n)
        ));
    }
    text
}

/// Enqueues messages to `many` numbers.
pub async fn send(queue: &Queue, many: usize) {
    let job = |n: usize| {
        let args = json!({"channel": "sms", "to": format!("+1555{n:07}"), "body": "the sale ends on Sunday"});
        NewJob::new("notification", args).throttle("sms")
    };
    for from in (0..many).step_by(1000) {
        let jobs: Vec<NewJob> = (from..(from + 1000).min(many)).map(job).collect();
        queue.enqueue(&jobs).await.unwrap();
    }
}
