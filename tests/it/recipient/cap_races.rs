//! Eight clients send to one recipient at once, for longer than the longest window of its rules.

use std::sync::Arc;

use flyball::providers::{Channel, Recipient};
use flyball::recipient::address::RecipientKey;
use flyball::recipient::caps::{CapWindow, noted_at};
use flyball::recipient::gates::MessagePlan;
use flyball::recipient::rules::RecipientRules;
use flyball::recipient::service::Gates;
use serde_json::json;

use super::fixture::{GatesFixture, gates_by};

const CLIENTS: usize = 8;

/// The categories of the rules that ship, and one that they do not name.
const CATEGORIES: [&str; 5] = ["security", "billing", "marketing", "product", "other"];

const CHANNELS: [Channel; 3] = [Channel::Email, Channel::Sms, Channel::Push];

/// Returns the address of a recipient who gets one category alone.
fn address(category: &str, channel: Channel) -> String {
    let n = CATEGORIES.iter().position(|one| *one == category).unwrap();
    match channel {
        Channel::Email => format!("ada{n}@example.com"),
        Channel::Sms => format!("+1555017{n}"),
        _ => format!("{n:064}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_of_any_rule_that_ships_holds_more_than_its_count() {
    let gates = Arc::new(GatesFixture::new("").await);
    let clients: Arc<Vec<Gates>> = Arc::new(
        (0..CLIENTS)
            .map(|_| gates_by(&gates.fixture.queue, ""))
            .collect(),
    );
    let pairs = CATEGORIES
        .iter()
        .flat_map(|category| CHANNELS.map(|channel| (*category, channel)));
    let races = pairs.map(|(category, channel)| {
        let (gates, clients) = (gates.clone(), clients.clone());
        tokio::spawn(async move { race(&gates, &clients, category, channel).await })
    });
    let mut rules = 0;
    for one in races.collect::<Vec<_>>() {
        rules += one.await.unwrap();
    }
    assert_eq!(
        rules, 27,
        "the rules of the defaults, with those of the fallback"
    );
}

/// Lets all clients send to one recipient, and time pass between, until a quarter more than the
/// longest window has passed: what was sent in its first hours has left it. Returns the number of
/// rules.
async fn race(gates: &GatesFixture, clients: &[Gates], category: &str, channel: Channel) -> usize {
    let to = address(category, channel);
    let to = to.as_str();
    let rules = RecipientRules::parse("test.toml", "")
        .unwrap()
        .caps(category, channel);
    let spans = rules.0.iter().map(|rule| match rule.window {
        CapWindow::Rolling(span_s) => span_s,
        CapWindow::LocalDay => panic!("no day by the clock ships"),
    });
    let spans: Vec<i64> = spans.collect();
    let (shortest, longest) = (spans.iter().min().unwrap(), spans.iter().max().unwrap());
    let key = RecipientKey::of_address("", &Recipient::parse(channel, to).unwrap());
    let (mut passed_s, mut round) = (0, 0);
    let mut went: Vec<i64> = Vec::new();
    while 4 * passed_s < 5 * longest {
        let mut ids = Vec::new();
        for client in 0..clients.len() {
            let message = json!({
                "channel": channel.as_str(), "to": to, "category": category, "dedup_key": format!("{round}/{client}"),
            });
            ids.push(gates.send(message).await);
        }
        let attempts = ids.into_iter().zip(clients).map(|(id, client)| {
            let client = client.clone();
            tokio::spawn(async move { client.verify(id).await.unwrap().unwrap() })
        });
        for attempt in attempts.collect::<Vec<_>>() {
            let verdict = attempt.await.unwrap();
            if verdict.plan == MessagePlan::Send {
                went.push(noted_at(verdict.now) + passed_s);
            }
        }
        // Steps of different lengths, so that the windows are met at all their places.
        let step_s = shortest * [5, 7, 9][round % 3] / 8 + 1;
        let aged = sqlx::query(
            "update flyball.cap c set sent = (select array_agg(u.s - $2::int order by u.n) from unnest(c.sent) with ordinality as u(s, n))
             where c.recipient = $1::text::uuid and c.sent <> '{}'",
        )
        .bind(key.to_hex())
        .bind(i32::try_from(step_s).unwrap())
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
        assert_eq!(
            aged.rows_affected(),
            1,
            "one list for {category}, {channel:?}"
        );
        (passed_s, round) = (passed_s + step_s, round + 1);
    }
    went.sort_unstable();
    for rule in &rules.0 {
        let most = rule.most as usize;
        let span_s = rule.span_s();
        let full = went
            .windows(most + 1)
            .find(|some| some[most] - some[0] < span_s);
        assert_eq!(full, None, "{category}, {channel:?}: {rule}");
        assert!(
            went.len() >= most,
            "{category}, {channel:?}: {rule} was reached"
        );
    }
    rules.0.len()
}
