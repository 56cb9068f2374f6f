//! A provider to try Flyball against, without a real account and without a message to anyone:
//!
//! ```text
//! cargo run -p flyball-fakes --example fake_provider -- twilio --port 9301
//! ```
//!
//! Set `base_url = "http://127.0.0.1:9301"` in the pool. Any credential is valid, and everything is
//! accepted until a line on standard input changes that. `ACCOUNT` is the provider's identification
//! of an account, such as Twilio's SID:
//!
//! ```text
//! throttle ACCOUNT SECONDS   every request is answered with "slow down"
//! quota ACCOUNT PER_SECOND   requests beyond this rate are rejected
//! fail ACCOUNT STATUS        every request is answered with this status
//! suspend ACCOUNT            the account is suspended
//! heal ACCOUNT               the account works again
//! ```

use std::time::Duration;

use anyhow::{Context as _, bail};
use flyball_fakes::{Fake, FakeOptions, FakeProvider, Fault, ThrottleScope, WindowQuota};
use tokio::io::{AsyncBufReadExt as _, BufReader};

const PROVIDERS: [(&str, FakeProvider); 10] = [
    ("twilio", FakeProvider::Twilio),
    ("sendgrid", FakeProvider::Sendgrid),
    ("ses", FakeProvider::Ses),
    ("mailgun", FakeProvider::Mailgun),
    ("telegram", FakeProvider::Telegram),
    ("slack", FakeProvider::Slack),
    ("webhook", FakeProvider::Webhook),
    ("fcm", FakeProvider::Fcm),
    ("apns", FakeProvider::Apns),
    ("smtp", FakeProvider::Smtp),
];

fn read(args: &[String]) -> anyhow::Result<(FakeProvider, u16)> {
    let known = || PROVIDERS.map(|(word, _)| word).join(", ");
    let (word, rest) = args
        .split_first()
        .with_context(|| format!("name a provider: {}", known()))?;
    let found = PROVIDERS.iter().find(|(known, _)| known == word);
    let (_, speaks) =
        found.with_context(|| format!("{word:?} is no provider; use one of {}", known()))?;
    match rest {
        [] => Ok((*speaks, 0)),
        [option, port] if option == "--port" => {
            Ok((*speaks, port.parse().context("--port must be 0 to 65535")?))
        }
        _ => bail!("only --port PORT may follow the provider"),
    }
}

fn obey(fake: &Fake, line: &str) -> anyhow::Result<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [] => {}
        ["throttle", account, seconds] => {
            let delay = Some(Duration::try_from_secs_f64(seconds.parse()?)?);
            fake.fail(
                account,
                Fault::Throttle {
                    whom: ThrottleScope::Account,
                    delay,
                },
            );
        }
        ["quota", account, limit] => {
            fake.set_quota(account, Some(WindowQuota::per_second(limit.parse()?)))
        }
        ["fail", account, status] => fake.fail(account, Fault::Status(status.parse()?)),
        ["suspend", account] => fake.suspend(account, true),
        ["heal", account] => {
            fake.suspend(account, false);
            fake.set_quota(account, None);
            fake.heal(account);
        }
        _ => {
            bail!(
                "use throttle ACCOUNT SECONDS, quota ACCOUNT PER_SECOND, fail ACCOUNT STATUS, suspend ACCOUNT or heal ACCOUNT"
            )
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (speaks, port) = read(&args)?;
    let options = FakeOptions {
        port,
        tells_delay: true,
        ..FakeOptions::default()
    };
    let fake = Fake::start(speaks, options)
        .await
        .with_context(|| format!("port {port} is taken"))?;
    println!("{} at {}", args[0], fake.url());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) => match obey(&fake, &line) {
                    Ok(()) => println!("{:?}", fake.totals_of_all()),
                    Err(error) => println!("{error:#}"),
                },
                // Without a standard input it serves until it is stopped.
                None => return tokio::signal::ctrl_c().await.map_err(Into::into),
            },
            stopped = tokio::signal::ctrl_c() => return stopped.map_err(Into::into),
        }
    }
}
