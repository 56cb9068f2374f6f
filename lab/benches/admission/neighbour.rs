//! A tenant within its limit, before and while another one sends a hundred times its own limit
//! through the same process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use flyball::throttle::{Change, Name, Store};
use flyball_fakes::{Fake, FakeOptions, FakeProvider, Latency};
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::json;

use crate::AdmissionArgs;
use crate::report::{Report, Table, median, quantile};
use crate::world::{NotifyServers, POOL, WorkerProcess};

/// The largest growth of a p99.
const GOAL: f64 = 1.1;

/// Messages per minute of the tenant that is too loud: the default limit.
const LIMIT_PER_MIN: f64 = 100.0;

/// The account of the pool.
const ACCOUNT: &str = "AC001";

/// Milliseconds until the provider answers.
const ANSWER: Duration = Duration::from_millis(20);

/// The time after which a message that has not come is an error.
const LONGEST: Duration = Duration::from_secs(30);

const TOKENS: [(&str, &str); 3] = [
    ("QUIET_TOKEN", "quiet-token-of-sixteen-or-more"),
    ("LOUD_TOKEN", "loud-token-of-sixteen-or-more"),
    ("BENCH_TOKEN", "token"),
];

/// The times of one phase, in milliseconds.
#[derive(Clone, Default)]
struct Times {
    answered: Vec<f64>,
    to_provider: Vec<f64>,
}

struct NeighbourRound {
    before: Times,
    during: Times,
    /// Answers to the other tenant: 202, 429, others.
    loud: [usize; 3],
}

pub async fn measure(cli: &AdmissionArgs, report: Report) -> anyhow::Result<()> {
    let loud_per_s = cli.times * LIMIT_PER_MIN / 60.0;
    let title = format!(
        "a tenant with {} messages a second beside one that sends {loud_per_s:.0} with a limit of {LIMIT_PER_MIN} a minute",
        cli.rate
    );
    let columns = [
        "what",
        "before: p50 ms",
        "p99 ms",
        "during: p50 ms",
        "p99 ms",
        "p99 during of before",
    ];
    let table = report.table(&title, &columns);
    let mut rounds = Vec::new();
    for _ in 0..cli.rounds.max(1) {
        rounds.push(round(cli, loud_per_s).await?);
    }
    row(&table, "request accepted", &rounds, |times| &times.answered);
    row(&table, "request to provider", &rounds, |times| {
        &times.to_provider
    });
    let loud = |place: usize| rounds.iter().map(|round| round.loud[place]).sum::<usize>();
    report.say(&format!(
        "answers to the loud tenant: {} times 202, {} times 429, {} others",
        loud(0),
        loud(1),
        loud(2)
    ));
    Ok(())
}

fn row(table: &Table, name: &str, rounds: &[NeighbourRound], of: fn(&Times) -> &Vec<f64>) {
    let at = |place: f64, phase: fn(&NeighbourRound) -> &Times| {
        let each = rounds
            .iter()
            .map(|round| quantile(of(phase(round)).clone(), place));
        let each: Vec<f64> = each.collect();
        let least = each.iter().copied().fold(f64::INFINITY, f64::min);
        let most = each.iter().copied().fold(0.0, f64::max);
        format!("{:.1} ({least:.1} to {most:.1})", median(each))
    };
    let growth = median(rounds.iter().map(|round| {
        let p99 = |times: &Times| quantile(of(times).clone(), 0.99);
        p99(&round.during) / p99(&round.before)
    }));
    let word = if growth <= GOAL { "met" } else { "missed" };
    table.row([
        name.to_owned(),
        at(0.5, |round| &round.before),
        at(0.99, |round| &round.before),
        at(0.5, |round| &round.during),
        at(0.99, |round| &round.during),
        format!("{growth:.2} (≤ {GOAL}: {word})"),
    ]);
}

async fn round(cli: &AdmissionArgs, loud_per_s: f64) -> anyhow::Result<NeighbourRound> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let latency = Some(Latency {
        base: ANSWER,
        at_once: 10_000,
    });
    let options = FakeOptions {
        latency,
        ..FakeOptions::default()
    };
    let fake = Fake::start(FakeProvider::Twilio, options).await?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let mut worker = world.serve("api,runner", &settings(port, &fake.url()), &TOKENS)?;
    let api = Api {
        client: reqwest::Client::new(),
        url: format!("http://127.0.0.1:{port}"),
    };
    api.ready(&mut worker).await?;
    raise(&world).await?;

    let span = Duration::from_secs_f64(cli.seconds);
    let quiet = Sender::new(&api, TOKENS[0].1, cli.rate);
    let loud = Sender::new(&api, TOKENS[1].1, loud_per_s);
    let loud_span = span + Duration::from_secs(1);
    // Connections, statements and lanes are warm afterwards.
    quiet.send(1_000_000, Duration::from_secs(3)).await;
    let before = quiet.send(2_000_000, span).await;
    let beside = async {
        // The other tenant's excess begins a second earlier.
        tokio::time::sleep(Duration::from_secs(1)).await;
        quiet.send(3_000_000, span).await
    };
    let (loud, during) = tokio::join!(loud.send_from_elsewhere(4_000_000, loud_span), beside);
    let loud = loud?;
    worker.check()?;
    let answers = |status: Option<u16>| {
        loud.iter()
            .filter(|sent| status.is_none_or(|status| sent.status == status))
            .count()
    };
    let (accepted, queued) = (answers(Some(202)), answers(Some(429)));
    let round = NeighbourRound {
        before: times(&fake, &before).await?,
        during: times(&fake, &during).await?,
        loud: [accepted, queued, answers(None) - accepted - queued],
    };
    worker.stop().await?;
    fake.stop().await;
    Ok(round)
}

fn settings(port: u16, provider: &str) -> String {
    let token = |tenant: &str, name: &str| {
        format!(
            "[api_tokens.{tenant}]\ntenant = \"{tenant}\"\nmodule = \"web\"\nsecret_env = \"{name}\"\nscopes = [\"notify:send\"]\n"
        )
    };
    format!(
        "listen = \"127.0.0.1:{port}\"\nlog = \"warn\"\nknobs_dir = \"\"\n{}{}
[pools.{POOL}]
provider = \"twilio\"
base_url = \"{provider}\"
rps = 100000.0
auth_token_env = \"BENCH_TOKEN\"
from = \"+15550100\"
[[pools.{POOL}.accounts]]
name = \"{ACCOUNT}\"
account_sid = \"{ACCOUNT}\"
",
        token("quiet", TOKENS[0].0),
        token("loud", TOKENS[1].0)
    )
}

/// Raises the limits of the tenant that stays within them.
async fn raise(world: &NotifyServers) -> anyhow::Result<()> {
    let fields =
        ["windows", "key_windows"].map(|knob| (knob.to_owned(), Some("1000000/60".to_owned())));
    let rate = [("rps".to_owned(), Some("-1".to_owned()))];
    let change = Change {
        fields: fields.into_iter().chain(rate).collect(),
        create: true,
        by: "bench".to_owned(),
        ..Change::default()
    };
    world
        .store()?
        .set(&Name::new("notify:quiet")?, &change)
        .await?;
    Ok(())
}

struct Api {
    client: reqwest::Client,
    url: String,
}

impl Api {
    async fn ready(&self, worker: &mut WorkerProcess) -> anyhow::Result<()> {
        let until = Instant::now() + LONGEST;
        loop {
            worker.check()?;
            let answer = self.client.get(format!("{}/readyz", self.url)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < until, "flyball serve did not get ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A sender with a fixed rate, which does not wait for answers.
struct Sender<'a> {
    api: &'a Api,
    token: &'static str,
    per_s: f64,
}

/// The niceness of a client that stands for another machine.
const ELSEWHERE: i32 = 19;

/// A message that was sent.
struct Sent {
    to: String,
    status: u16,
    begun_ms: f64,
    answered_ms: f64,
}

impl<'a> Sender<'a> {
    fn new(api: &'a Api, token: &'static str, per_s: f64) -> Self {
        Self { api, token, per_s }
    }

    /// As `send`, by a client that takes no time from the processes that are measured, as one on
    /// another machine would: a thread of its own, with the lowest priority.
    async fn send_from_elsewhere(&self, first: usize, span: Duration) -> anyhow::Result<Vec<Sent>> {
        let (url, token, per_s) = (self.api.url.clone(), self.token, self.per_s);
        let send = move || {
            rustix::process::nice(ELSEWHERE)?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let client = reqwest::Client::new();
            let api = Api { client, url };
            Ok(runtime.block_on(Sender::new(&api, token, per_s).send(first, span)))
        };
        // Not one of the runtime's threads, which would keep the priority.
        let (done, sent) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || _ = done.send(send()));
        sent.await?
    }

    /// Sends messages with the numbers from `first` on for this time.
    async fn send(&self, first: usize, span: Duration) -> Vec<Sent> {
        let begun = tokio::time::Instant::now();
        let all = Arc::new(Mutex::new(Vec::new()));
        let many = (self.per_s * span.as_secs_f64()) as usize;
        let mut tasks = Vec::with_capacity(many);
        for n in 0..many {
            tokio::time::sleep_until(begun + Duration::from_secs_f64(n as f64 / self.per_s)).await;
            let (all, to) = (all.clone(), format!("+1555{:07}", first + n));
            let request = self
                .api
                .client
                .post(format!("{}/api/v1/notifications", self.api.url))
                .bearer_auth(self.token)
                .json(&json!({"channel": "sms", "to": to, "body": "Your code is 424242."}));
            tasks.push(tokio::spawn(async move {
                let (begun_ms, asked) = (unix_ms(), Instant::now());
                let status = match request.send().await {
                    Ok(answer) => {
                        let status = answer.status().as_u16();
                        let _ = answer.bytes().await;
                        status
                    }
                    Err(_) => 0,
                };
                let answered_ms = asked.elapsed().as_secs_f64() * 1e3;
                all.lock().push(Sent {
                    to,
                    status,
                    begun_ms,
                    answered_ms,
                });
            }));
        }
        join_all(tasks).await;
        std::mem::take(&mut *all.lock())
    }
}

/// Returns the times of accepted messages, after the last of them has come.
async fn times(fake: &Fake, sent: &[Sent]) -> anyhow::Result<Times> {
    let mut others: HashMap<u16, usize> = HashMap::new();
    for sent in sent.iter().filter(|sent| sent.status != 202) {
        *others.entry(sent.status).or_default() += 1;
    }
    anyhow::ensure!(
        others.is_empty(),
        "{} messages were not accepted at once; answers by status: {others:?}",
        sent.len()
    );
    let until = Instant::now() + LONGEST;
    loop {
        let came: HashMap<String, u64> = fake
            .received(ACCOUNT)
            .into_iter()
            .map(|message| (message.to, message.at_ms))
            .collect();
        let to_provider: Option<Vec<f64>> = sent
            .iter()
            .map(|sent| Some((*came.get(&sent.to)? as f64 - sent.begun_ms).max(0.0)))
            .collect();
        if let Some(to_provider) = to_provider {
            return Ok(Times {
                answered: sent.iter().map(|sent| sent.answered_ms).collect(),
                to_provider,
            });
        }
        anyhow::ensure!(Instant::now() < until, "a message did not come");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns unix time in milliseconds, by the clock of the fake.
#[allow(
    clippy::disallowed_methods,
    reason = "the fake runs in this process, by the same clock"
)]
fn unix_ms() -> f64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .context("the clock stands before 1970");
    since.map_or(0.0, |since| since.as_secs_f64() * 1e3)
}
