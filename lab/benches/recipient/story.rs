//! A creator who publishes 47 posts in a day, with ten thousand followers: the messages that go, and
//! how many of them one follower gets within a day.
//!
//! The days pass by making everything that is stored older, while no message is under way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use flyball_fakes::{Fake, FakeOptions, FakeProvider};
use serde_json::json;

use crate::RecipientArgs;
use crate::report::{Report, count};
use crate::world::{NotifyServers, POOL, Set, accounts, recipient};

/// The posts, and the time between two of them, in seconds.
const POSTS: usize = 47;
const EVERY_S: i64 = 900;

/// The time that passes after the last post, and its steps, in seconds.
const AFTER_S: i64 = 3 * 86_400;
const STEP_S: i64 = 3600;

/// The most messages of one creator to one follower within a day, by the rules that ship.
const CAP: usize = 3;
const DAY_S: i64 = 86_400;

/// Makes everything that gates remember older by so many seconds.
const AGE: [&str; 3] = [
    "update flyball.cap c set sent = (select array_agg(u.s - $1::int order by u.n) from unnest(c.sent) with ordinality as u(s, n))
     where c.sent <> '{}'",
    "update flyball.dedup set at_s = at_s - (sign(at_s) * $1)::int",
    "update flyball.digest set opened_at = opened_at - make_interval(secs => $1), last_at = last_at - make_interval(secs => $1),
        closes_at = closes_at - make_interval(secs => $1)",
];

/// The messages that went since the last look, with their posts.
const WENT: &str = "
    select d.job_id, j.args ->> 'to', coalesce((j.args -> 'data' ->> 'totalCount')::int, 1)
    from flyball.delivery d join flyball.job j on j.id = d.job_id where d.job_id > $1 and d.state = 'sent'";

/// A message that arrived.
struct Arrived {
    at_s: i64,
    posts: usize,
}

pub async fn measure(cli: &RecipientArgs, report: Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let fake = Fake::start(FakeProvider::Twilio, FakeOptions::default()).await?;
    let worker = world.worker(&Set {
        url: &fake.url(),
        accounts: &accounts(1),
        rps: -1.0,
        more: "",
        concurrency: 200,
        connections: 6,
    })?;
    let begun = Instant::now();
    let (mut now_s, mut last) = (0, 0);
    let mut arrived: BTreeMap<String, Vec<Arrived>> = BTreeMap::new();
    while now_s < EVERY_S * POSTS as i64 + AFTER_S {
        let post = usize::try_from(now_s / EVERY_S)?;
        let mut step_s = STEP_S;
        if post < POSTS {
            let jobs = (0..cli.followers).map(|n| {
                let args = json!({
                    "channel": "sms", "to": recipient(n), "body": format!("Post {post}"), "category": "product",
                    "template_id": "post", "actor": "creator", "dedup_key": post.to_string(),
                });
                NewJob::new("notification", args).throttle(POOL)
            });
            crate::enqueue(&world.queue, jobs.collect()).await?;
            step_s = EVERY_S;
        }
        at_rest(&world).await?;
        let went: Vec<(i64, String, i32)> = sqlx::query_as(WENT)
            .bind(last)
            .fetch_all(&world.queue.pool)
            .await?;
        for (id, to, posts) in went {
            last = last.max(id);
            arrived.entry(to).or_default().push(Arrived {
                at_s: now_s,
                posts: usize::try_from(posts)?,
            });
        }
        for statement in AGE {
            sqlx::query(statement)
                .bind(step_s as f64)
                .execute(&world.queue.pool)
                .await?;
        }
        now_s += step_s;
    }
    let open: i64 = sqlx::query_scalar("select count(*) from flyball.digest")
        .fetch_one(&world.queue.pool)
        .await?;
    anyhow::ensure!(open == 0, "{open} digests are open at the end");
    tell(cli, report, &arrived, begun.elapsed());
    worker.stop().await?;
    fake.stop().await;
    Ok(())
}

/// Waits until no message is under way, and no digest is due.
async fn at_rest(world: &NotifyServers) -> anyhow::Result<()> {
    let busy = "select (select count(*) from flyball.scheduled) + (select count(*) from flyball.ready) + (select count(*) from flyball.lease)
        + (select count(*) from flyball.digest where closes_at <= clock_timestamp())";
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        let busy: i64 = sqlx::query_scalar(busy)
            .fetch_one(&world.queue.pool)
            .await?;
        if busy == 0 {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < until, "{busy} messages are under way");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn tell(
    cli: &RecipientArgs,
    report: Report,
    arrived: &BTreeMap<String, Vec<Arrived>>,
    took: Duration,
) {
    let posts = |of: &[Arrived]| of.iter().map(|one| one.posts).sum::<usize>();
    let within_a_day = |of: &[Arrived]| {
        let from = of.iter().map(|first| first.at_s);
        from.map(|from| {
            let within = |one: &&Arrived| (from..from + DAY_S).contains(&one.at_s);
            of.iter().filter(within).count()
        })
        .max()
        .unwrap_or_default()
    };
    let messages: usize = arrived.values().map(Vec::len).sum();
    let first_day = arrived.values().flatten().filter(|one| one.at_s < DAY_S);
    let most = arrived.values().map(|of| within_a_day(of)).max();
    let whole = arrived.values().filter(|of| posts(of) == POSTS).count();
    let title = format!(
        "{POSTS} posts for {} followers, {:.0} s",
        count(cli.followers as f64),
        took.as_secs_f64()
    );
    let table = report.table(&title, &["what", "figure"]);
    let most = most.unwrap_or_default();
    let word = |met: bool| if met { "met" } else { "missed" };
    for (what, figure) in [
        (
            "messages without gates",
            count((POSTS * cli.followers) as f64),
        ),
        ("messages that went", count(messages as f64)),
        ("of these in the first day", count(first_day.count() as f64)),
        (
            "most to one follower within any 24 h",
            format!("{most} (≤ {CAP}: {})", word(most <= CAP)),
        ),
        (
            "followers who were told of every post once",
            format!(
                "{} (all: {})",
                count(whole as f64),
                word(whole == cli.followers)
            ),
        ),
    ] {
        table.row([what.to_owned(), figure]);
    }
}
