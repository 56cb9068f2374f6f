//! The second act: a campaign through a pool of accounts.
//!
//! One account is blocked, one is suspended, and the quota of all is halved without notice.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::narrate::{clock, print_line};
use super::pool::{self, ACCOUNTS, HALVED, MESSAGES, POOL, QUOTA};
use super::run::AppHandle;
use super::tally::{Campaign, CampaignSnapshot};
use flyball::jobs::operate::{Attribution, BulkCursor, CancelFilter};
use flyball::jobs::{NewJob, Queue};
use flyball::throttle::Name;
use flyball_fakes::{Fake, FakeOptions, FakeProvider, Fault, ThrottleScope, WindowQuota};

/// The length of the full act, in seconds; a shorter act scales the times of all its events.
const WHOLE_S: f64 = 90.0;
/// The time at which an account is blocked, in seconds since the first message of a full act.
const BLOCKED_S: f64 = 4.0;
/// The time at which an account is suspended, in seconds since the first message of a full act.
const SUSPENDED_S: f64 = 8.0;
/// The time at which the suspended account is restored, in seconds since the first message of a
/// full act.
const HEALED_S: f64 = 14.0;
/// The time at which every quota is halved, in seconds since the first message of a full act.
const HALVED_S: f64 = 20.0;
/// The `Retry-After` of the blocked account.
const BLOCKED_FOR: Duration = Duration::from_secs(15);
/// The number of the blocked account.
const BLOCKED: usize = 7;
/// The number of the suspended account.
const SUSPENDED: usize = 13;
/// The interval between two observations.
const CAMPAIGN_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The least interval between two lines of progress, in seconds.
const PROGRESS_INTERVAL_S: f64 = 5.0;
/// The time limit for running messages at the end of the campaign.
const DRAINED_WITHIN: Duration = Duration::from_secs(20);
/// The most jobs in one call that enqueues or cancels.
const ENQUEUE_BATCH: usize = 1_000;

const ENDS: &str = "
    select count(*) filter (where state = 'queued'), count(*) filter (where state not in ('queued', 'sent')),
        (select count(*) from flyball.lease l where l.job_id between $1 and $2)
    from flyball.notification
    where job_id between $1 and $2";

/// The campaign's fake provider, with its table of the settings.
pub(super) struct Provider {
    fake: Fake,
    pub(super) table: toml::Table,
}

impl Provider {
    /// Starts a fake Twilio with real quotas and writes the token of its accounts to the demo's
    /// directory.
    pub(super) async fn start(dir: &Path) -> anyhow::Result<Self> {
        let fake = Fake::start(
            FakeProvider::Twilio,
            FakeOptions {
                tells_delay: false,
                ..FakeOptions::default()
            },
        )
        .await?;
        (1..=ACCOUNTS)
            .for_each(|n| fake.set_quota(&pool::sid(n), Some(WindowQuota::per_second(QUOTA))));
        let file = std::path::absolute(dir.join("sms-token"))?;
        // Any token is valid, because this provider identifies its accounts by their numbers.
        std::fs::write(&file, "the demo has no secrets\n")
            .with_context(|| format!("writing {}", file.display()))?;
        let table = pool::table(&fake.url(), &file)?;
        Ok(Self { fake, table })
    }
}

/// Runs the act for at most `seconds`; a short act sends fewer messages.
pub(super) async fn run(
    provider: &Provider,
    app: &AppHandle,
    seconds: Option<f64>,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Campaign>> {
    let scale = seconds.map_or(1.0, |seconds| (seconds / WHOLE_S).min(1.0));
    let whole = QUOTA * ACCOUNTS as f64;
    // Enough messages to last nearly as long as the act.
    let room = |seconds: f64| whole * HALVED_S * scale + 0.5 * whole * (seconds - HALVED_S * scale);
    let messages = seconds.map_or(MESSAGES, |seconds| {
        MESSAGES.min((0.9 * room(seconds)) as usize)
    });
    clear(app).await?;
    let began = Instant::now();
    print_line(&format!(
        "second act: {messages} messages through the pool {POOL}, {ACCOUNTS} accounts at \
         {QUOTA:.0} per second each; watch {url}/#throttle-{POOL} and {url}/#pools",
        url = app.url
    ));
    let (first, last) = enqueue(&app.queue, messages).await?;
    let mut act = Act {
        fake: &provider.fake,
        app,
        client: reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(5))
            .build()?,
        began,
        looks: Vec::new(),
        halved_unix_s: None,
        halved_s: None,
    };
    act.play(
        scale,
        messages as u64,
        seconds.map(Duration::from_secs_f64),
        stop,
    )
    .await?;
    if stop.is_cancelled() {
        return Ok(None);
    }
    let seconds = began.elapsed().as_secs_f64();
    app.set_knobs(POOL, &[("paused", Some("1"))], "the campaign ends")
        .await?;
    let (waiting, failed) =
        drained(&app.queue, &provider.fake, (first, last), messages as u64).await?;
    let totals = provider.fake.totals_of_all();
    let arrived: HashSet<String> = (1..=ACCOUNTS)
        .flat_map(|n| provider.fake.received(&pool::sid(n)))
        .map(|received| received.to)
        .collect();
    let sent = arrived.len() as u64;
    let mut campaign = Campaign {
        messages: messages as u64,
        sent,
        waiting,
        lost: (messages as u64).saturating_sub(sent + waiting),
        duplicates: totals.accepted.saturating_sub(sent),
        refused: totals.refused,
        seconds,
        quota_rps: whole,
        halved_after_s: act.halved_s.unwrap_or(seconds),
        ..Campaign::default()
    };
    campaign.measure(&act.looks);
    campaign.most_in_a_second = act.most_in_a_second(campaign.found_in_s);
    println!("{}", campaign.summary());
    if failed > 0 {
        print_line(&format!("{failed} messages failed, but none should"));
    }
    Ok(Some(campaign))
}

/// Cancels the jobs of an earlier campaign, resumes all accounts, and sets the knobs to their
/// initial values.
async fn clear(app: &AppHandle) -> anyhow::Result<()> {
    let filter = CancelFilter {
        throttle: Some(POOL.to_owned()),
        ..CancelFilter::default()
    };
    let mut walk = BulkCursor::of(ENQUEUE_BATCH as i64);
    loop {
        let walked = app
            .queue
            .cancel_jobs(&filter, &walk, &Attribution::default())
            .await?;
        match walked.next {
            Some(next) => walk.start = Some(next),
            None => break,
        }
    }
    let accounts = Name::new(format!("{POOL}:accounts"))?;
    for n in 1..=ACCOUNTS {
        app.throttles.resume_key(&accounts, &pool::name(n)).await?;
    }
    let rps = format!("{:.1}", pool::RPS);
    let knobs = [
        ("rps", Some(rps.as_str())),
        ("mode", Some("auto")),
        ("paused", Some("0")),
        ("valid_until", None),
    ];
    app.set_knobs(POOL, &knobs, "the campaign begins").await
}

/// Enqueues the campaign and returns the ids of its first and its last job.
async fn enqueue(queue: &Queue, messages: usize) -> anyhow::Result<(i64, i64)> {
    let job = |n: usize| {
        let data = json!({"name": format!("customer {n}"), "code": format!("{:05x}", n * 7919 % 0xf_ffff)});
        let text = "Hello {{ name }}, the sale ends on Sunday. Your code is {{ code }}.";
        let args =
            json!({"channel": "sms", "to": format!("+1555{n:07}"), "template": text, "data": data});
        NewJob::new("notification", args).throttle(POOL)
    };
    let mut ends: Option<(i64, i64)> = None;
    for from in (0..messages).step_by(ENQUEUE_BATCH) {
        let jobs: Vec<NewJob> = (from..(from + ENQUEUE_BATCH).min(messages))
            .map(job)
            .collect();
        for made in queue.enqueue(&jobs).await? {
            ends = Some(ends.map_or((made.id, made.id), |(first, last)| {
                (first.min(made.id), last.max(made.id))
            }));
        }
    }
    ends.context("the campaign has no messages")
}

/// Waits for running messages and returns the numbers of waiting and of failed messages.
async fn drained(
    queue: &Queue,
    fake: &Fake,
    (first, last): (i64, i64),
    messages: u64,
) -> anyhow::Result<(u64, u64)> {
    let requested = Instant::now();
    loop {
        let (waiting, failed, under_way): (i64, i64, i64) = sqlx::query_as(ENDS)
            .bind(first)
            .bind(last)
            .fetch_one(&mut *queue.pool.acquire().await?)
            .await?;
        let (waiting, failed) = (waiting.max(0) as u64, failed.max(0) as u64);
        let is_settled = under_way == 0 && fake.totals_of_all().accepted + waiting == messages;
        if is_settled || requested.elapsed() > DRAINED_WITHIN {
            return Ok((waiting, failed));
        }
        sleep(CAMPAIGN_POLL_INTERVAL).await;
    }
}

struct Act<'a> {
    fake: &'a Fake,
    app: &'a AppHandle,
    client: reqwest::Client,
    began: Instant,
    looks: Vec<CampaignSnapshot>,
    halved_unix_s: Option<u64>,
    halved_s: Option<f64>,
}

impl Act<'_> {
    /// Plays the story until every message is sent or the time is over.
    async fn play(
        &mut self,
        scale: f64,
        messages: u64,
        bound: Option<Duration>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut look = interval(CAMPAIGN_POLL_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut next, mut said_s, mut known) = (0, 0.0, None);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = stop.cancelled() => return Ok(()),
            }
            let t_s = self.began.elapsed().as_secs_f64();
            while let Some((_, happens)) = STORY.get(next).filter(|(at_s, _)| t_s >= at_s * scale) {
                print_line(&format!("{}  {}", clock(t_s), self.happens(*happens)));
                next += 1;
            }
            // A failed request is repeated in half a second.
            if let Ok((now, why)) = self.look().await {
                if self.halved_s.is_some() && is_news(known, now.learned_rps) {
                    print_line(&format!("{}  {}", clock(t_s), learned(&now)));
                }
                known = if is_news(known, now.learned_rps) {
                    now.learned_rps
                } else {
                    known
                };
                if t_s - said_s >= PROGRESS_INTERVAL_S {
                    print_line(&self.line(&now, self.looks.last(), &why));
                    said_s = t_s;
                }
                self.looks.push(now);
            }
            let sent = self.fake.totals_of_all().accepted;
            if sent >= messages || bound.is_some_and(|bound| self.began.elapsed() >= bound) {
                return Ok(());
            }
        }
    }

    fn happens(&mut self, what: AccountIncident) -> String {
        let (blocked, suspended) = (pool::sid(BLOCKED), pool::sid(SUSPENDED));
        match what {
            AccountIncident::Blocked => {
                self.fake.fail(
                    &blocked,
                    Fault::Throttle {
                        whom: ThrottleScope::Account,
                        delay: Some(BLOCKED_FOR),
                    },
                );
                format!(
                    "{} is blocked: 429, Retry-After {} s; the pool sends a twentieth less, and no \
                     other account sends more",
                    pool::name(BLOCKED),
                    BLOCKED_FOR.as_secs()
                )
            }
            AccountIncident::Suspended => {
                self.fake.heal(&blocked);
                self.fake.fail(&suspended, Fault::BadCredentials);
                format!(
                    "{} is suspended: 401; its breaker opens, and one message tests it every {} s",
                    pool::name(SUSPENDED),
                    pool::COOLDOWN_S
                )
            }
            AccountIncident::Healed => {
                self.fake.heal(&suspended);
                format!(
                    "{} is available again: the next test message closes its breaker",
                    pool::name(SUSPENDED)
                )
            }
            AccountIncident::Halved => {
                (1..=ACCOUNTS).for_each(|n| {
                    self.fake
                        .set_quota(&pool::sid(n), Some(WindowQuota::per_second(HALVED)))
                });
                self.halved_s = Some(self.began.elapsed().as_secs_f64());
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the provider counts in seconds of the machine's clock"
                )]
                let now = jiff::Timestamp::now();
                self.halved_unix_s = Some(now.as_second().max(0) as u64);
                format!(
                    "the quota of every account is halved, from {QUOTA:.0} to {HALVED:.0} per \
                     second, without notice"
                )
            }
        }
    }

    /// Reads the throttle and the pool from the API, and the totals from the provider.
    async fn look(&self) -> anyhow::Result<(CampaignSnapshot, String)> {
        let get = async |path: String| -> anyhow::Result<Value> {
            Ok(self
                .client
                .get(format!("{}/api/v1/{path}", self.app.url))
                .send()
                .await?
                .error_for_status()?
                .json()
                .await?)
        };
        let (throttle, pool) = tokio::try_join!(
            get(format!("throttles/{POOL}")),
            get(format!("pools/{POOL}"))
        )?;
        let totals = self.fake.totals_of_all();
        let governor = &throttle["governor"];
        let look = CampaignSnapshot {
            t_s: self.began.elapsed().as_secs_f64(),
            sent: totals.accepted,
            refused: totals.refused,
            rps: throttle["knobs"]["rps"].as_f64(),
            capacity_rps: pool["capacity_rps"].as_f64(),
            available: pool["available"].as_u64().unwrap_or(0),
            learned_rps: governor["signals"][0]["learned_quota"]["rps"].as_f64(),
        };
        Ok((
            look,
            governor["reason"].as_str().unwrap_or_default().to_owned(),
        ))
    }

    /// Returns one line about the progress of the campaign.
    fn line(
        &self,
        now: &CampaignSnapshot,
        before: Option<&CampaignSnapshot>,
        reason: &str,
    ) -> String {
        let before = before
            .filter(|before| before.t_s < now.t_s)
            .cloned()
            .unwrap_or_default();
        // A single interval would show the rhythm of the provider's one-second windows.
        let earlier = self
            .looks
            .iter()
            .rev()
            .find(|look| now.t_s - look.t_s >= 2.0)
            .unwrap_or(&before);
        let span_s = (now.t_s - earlier.t_s).max(0.25);
        let (sent, refused) = (
            (now.sent - earlier.sent) as f64,
            (now.refused - earlier.refused) as f64,
        );
        format!(
            "{}  sending {:.0}/s, {:.1} % refused, {} of {ACCOUNTS} accounts available, capacity \
             {}, knob {}, learned quota {}; {reason}",
            clock(now.t_s),
            sent / span_s,
            100.0 * refused / (sent + refused).max(1.0),
            now.available,
            format_number(now.capacity_rps),
            format_number(now.rps),
            format_number(now.learned_rps),
        )
    }

    /// Returns the most requests of any account in one of the provider's seconds: before the
    /// halving, and after it was found.
    fn most_in_a_second(&self, found_in_s: Option<f64>) -> (u32, u32) {
        let Some(halved) = self.halved_unix_s else {
            return (0, 0);
        };
        let settled = found_in_s.map_or(u64::MAX, |found_s| halved + found_s.ceil() as u64 + 1);
        let seconds = (1..=ACCOUNTS).flat_map(|n| self.fake.per_second(&pool::sid(n)));
        seconds.fold((0, 0), |most, second| {
            let brought = second.accepted + second.refused;
            match second.at_s {
                at_s if at_s < halved => (most.0.max(brought), most.1),
                at_s if at_s >= settled => (most.0, most.1.max(brought)),
                _ => most,
            }
        })
    }
}

/// An event of the campaign's story.
#[derive(Clone, Copy)]
enum AccountIncident {
    Blocked,
    Suspended,
    Healed,
    Halved,
}

const STORY: [(f64, AccountIncident); 4] = [
    (BLOCKED_S, AccountIncident::Blocked),
    (SUSPENDED_S, AccountIncident::Suspended),
    (HEALED_S, AccountIncident::Healed),
    (HALVED_S, AccountIncident::Halved),
];

/// Returns true if a learned quota moved by a twentieth or more.
///
/// Each refusal moves it a little, and a line for each would carry no information.
fn is_news(known: Option<f64>, learned: Option<f64>) -> bool {
    learned.is_some_and(|learned| known.is_none_or(|known| (learned - known).abs() >= 0.05 * known))
}

fn learned(now: &CampaignSnapshot) -> String {
    format!(
        "learned from refusals that all accounts together may send {} per second; the knob is {}",
        format_number(now.learned_rps),
        format_number(now.rps)
    )
}

fn format_number(number: Option<f64>) -> String {
    number.map_or_else(|| "unknown".to_owned(), |number| format!("{number:.0}"))
}
