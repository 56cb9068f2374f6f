//! A creator who publishes 47 posts within a day.

use std::collections::BTreeMap;

use flyball::recipient::gate::AttemptEnd;
use flyball::recipient::gates::MessagePlan;
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use super::fixture::GatesFixture;

const POSTS: usize = 47;

/// Messages that are sent or attempted at once.
const SIDE_BY_SIDE: usize = 64;

/// The time between two posts, and the steps in which time passes after the last one, in seconds.
const EVERY_S: i64 = 900;
const STEP_S: i64 = 3600;
const AFTER_S: i64 = 2 * 86_400;
const DAY_S: i64 = 86_400;

impl GatesFixture {
    /// Makes everything that gates remember older by so many seconds.
    async fn age(&self, seconds: i64) {
        for statement in [
            "update flyball.cap c set sent = (select array_agg(u.s - $1::int order by u.n) from unnest(c.sent) with ordinality as u(s, n))
             where c.sent <> '{}'",
            "update flyball.dedup set at_s = at_s - (sign(at_s) * $1)::int",
            "update flyball.digest set opened_at = opened_at - make_interval(secs => $1), last_at = last_at - make_interval(secs => $1),
                closes_at = closes_at - make_interval(secs => $1)",
        ] {
            sqlx::query(statement)
                .bind(seconds as f64)
                .execute(self.fixture.database.pool())
                .await
                .unwrap();
        }
    }
}

/// Of 47 posts each follower gets three messages within any day, and is told of every post once.
#[tokio::test]
async fn a_creator_reaches_each_follower_three_times_a_day_and_no_post_is_lost() {
    story(5).await;
}

/// 470,000 messages, of which 40,000 go.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes many minutes; make soak runs it"]
async fn soak_a_creator_reaches_ten_thousand_followers_three_times_a_day() {
    story(10_000).await;
}

async fn story(followers: usize) {
    let gates = GatesFixture::new("").await;
    // The time and the posts of each message, by follower.
    let mut went: BTreeMap<String, Vec<(i64, u64)>> = BTreeMap::new();
    let mut now_s = 0;
    while now_s < EVERY_S * POSTS as i64 + AFTER_S {
        let post = usize::try_from(now_s / EVERY_S).unwrap();
        let is_posting = post < POSTS;
        let message = |follower: usize| {
            json!({
                "to": format!("+1555{follower:07}"), "category": "product", "template_id": "post", "actor": "creator",
                "dedup_key": post.to_string(), "body": format!("post {post}"),
            })
        };
        let sends = (0..followers).filter(|_| is_posting);
        let sends = sends.map(|follower| gates.send(message(follower)));
        let sends = stream::iter(sends).buffer_unordered(SIDE_BY_SIDE);
        sends.for_each(|_| async {}).await;
        while gates.gates.plan_due().await.unwrap() {}
        while gates.gates.close_due().await.unwrap() {}
        let ready: Vec<(i64, String, i64)> = sqlx::query_as(
            "select j.id, j.args ->> 'to', coalesce((j.args -> 'data' ->> 'totalCount')::bigint, 1)
             from flyball.ready r join flyball.job j on j.id = r.job_id order by j.id",
        )
        .fetch_all(gates.fixture.database.pool())
        .await
        .unwrap();
        let attempt = |id: i64| {
            let gates = &gates;
            async move {
                assert_eq!(gates.verify(id).await, MessagePlan::Send, "as planned");
                gates.end(id, AttemptEnd::Accepted).await;
                gates.fixture.queue.cancel(id).await.unwrap();
            }
        };
        let attempts = ready.iter().map(|(id, ..)| attempt(*id));
        let attempts = stream::iter(attempts).buffer_unordered(SIDE_BY_SIDE);
        attempts.for_each(|()| async {}).await;
        for (_, to, posts) in ready {
            went.entry(to).or_default().push((now_s, posts as u64));
        }
        let step_s = if is_posting { EVERY_S } else { STEP_S };
        gates.age(step_s).await;
        now_s += step_s;
    }
    assert_eq!(went.len(), followers);
    for (to, messages) in &went {
        for (from, _) in messages {
            let day = *from..*from + DAY_S;
            let within = messages.iter().filter(|(at, _)| day.contains(at)).count();
            assert!(within <= 3, "{to}: {messages:?}");
        }
        let posts: u64 = messages.iter().map(|(_, posts)| posts).sum();
        assert_eq!(posts, POSTS as u64, "{to}: {messages:?}");
        assert_eq!(
            messages.len(),
            4,
            "three posts, and the rest as one: {messages:?}"
        );
    }
    let shown: i64 = sqlx::query_scalar(
        "select count(distinct (j.args ->> 'to', i.value ->> 'text')) from flyball.message_plan p join flyball.job j on j.id = p.job_id
         cross join lateral jsonb_array_elements(j.args -> 'data' -> 'items') as i(value) where p.origin = 'digest'",
    )
    .fetch_one(gates.fixture.database.pool())
    .await
    .unwrap();
    assert_eq!(
        shown as usize,
        followers * (POSTS - 3),
        "each post by its name"
    );
    assert_eq!(gates.count("select count(*) from flyball.digest").await, 0);
    assert_eq!(
        gates
            .count("select count(*) from flyball.digest_item")
            .await,
        0
    );
}
