//! Digests: what is collected goes as one message when the digest closes.

use flyball::notify::args::NotificationArgs;
use flyball::recipient::gates::MessagePlan;
use serde_json::{Value, json};

use super::fixture::{GatesFixture, gates_by};

fn comment(n: usize) -> Value {
    json!({
        "category": "product", "template_id": "comment", "digest": "new-comment", "template": "{{ n }}", "data": {"n": n},
        "body": null,
    })
}

impl GatesFixture {
    /// Sends and collects items.
    async fn collect(&self, items: std::ops::Range<usize>) {
        for n in items {
            let (_, plan) = self.planned(comment(n)).await;
            assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
        }
    }

    /// Ends the window of all digests and closes them.
    async fn close(&self) {
        sqlx::query("update flyball.digest set closes_at = now()")
            .execute(self.fixture.database.pool())
            .await
            .unwrap();
        assert!(!self.gates.close_due().await.unwrap());
    }

    /// Returns the arguments of the messages of closed digests.
    async fn closed(&self) -> Vec<Value> {
        sqlx::query_scalar(
            "select j.args from flyball.message_plan p join flyball.job j on j.id = p.job_id
             where p.origin in ('digest', 'item') order by j.id",
        )
        .fetch_all(self.fixture.database.pool())
        .await
        .unwrap()
    }
}

#[tokio::test]
async fn fewer_than_the_minimum_go_alone_and_the_others_as_one() {
    let gates = GatesFixture::new("").await;
    gates.collect(0..2).await;
    gates.close().await;
    let alone = gates.closed().await;
    assert_eq!(alone.len(), 2);
    assert_eq!(
        alone[0]["template"],
        json!("{{ n }}"),
        "by its own template"
    );
    assert_eq!(alone[1]["data"], json!({"n": 1}));

    gates.collect(2..5).await;
    gates.close().await;
    let all = gates.closed().await;
    assert_eq!(all.len(), 3);
    let digest = &all[2];
    assert_eq!(
        digest["data"],
        json!({"items": [{"n": 2}, {"n": 3}, {"n": 4}], "totalCount": 3, "hasMore": false})
    );
    assert_eq!(digest["template_id"], json!("activity-digest"));
    assert_eq!(
        (&digest["to"], &digest["category"]),
        (&json!("+15550100"), &json!("product"))
    );
    gates.close().await;
    assert_eq!(
        gates.closed().await.len(),
        3,
        "a second close finds nothing"
    );
}

/// The texts of a type that names none are filled in, whatever the data of its items are.
#[tokio::test]
async fn a_digest_shows_its_items_by_their_text_or_title_or_as_they_are() {
    let gates = GatesFixture::new("").await;
    for (n, data) in [
        json!({"text": "one", "title": "1"}),
        json!({"title": "two"}),
        json!({"n": 3}),
    ]
    .into_iter()
    .enumerate()
    {
        let mut item = comment(n);
        item["data"] = data;
        gates.planned(item).await;
    }
    gates.close().await;
    let closed = gates.closed().await;
    let message = NotificationArgs::parse(&closed[0]).unwrap();
    let texts = message.fill(|| false).unwrap();
    assert_eq!(texts.body, "3 updates\n- one\n- two\n- {'n': 3}");
}

/// Two events in the same instant, taken by two planners, are items of one digest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_that_two_planners_collect_at_once_are_in_one_digest() {
    let gates = GatesFixture::new("").await;
    let planners = [
        gates_by(&gates.fixture.queue, ""),
        gates_by(&gates.fixture.queue, ""),
    ];
    for n in 0..20 {
        let mut ids = [0; 2];
        for (item, id) in ids.iter_mut().enumerate() {
            let mut event = comment(item);
            event["to"] = json!(format!("+1555030{n:02}"));
            *id = gates.send(event).await;
        }
        let (left, right) = tokio::join!(
            planners[0].plan_jobs(&ids[..1]),
            planners[1].plan_jobs(&ids[1..])
        );
        for planned in [left.unwrap(), right.unwrap()] {
            let plan = &planned[0].plan;
            assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
        }
    }
    assert_eq!(
        gates
            .count("select count(*) from flyball.digest where items = 2")
            .await,
        20
    );
    assert_eq!(gates.count("select count(*) from flyball.digest").await, 20);
}

#[tokio::test]
async fn what_is_beyond_the_maximum_is_counted() {
    let gates = GatesFixture::new("").await;
    gates.collect(0..60).await;
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 1);
    let data = &closed[0]["data"];
    assert_eq!(data["items"].as_array().unwrap().len(), 50);
    assert_eq!(
        (&data["totalCount"], &data["hasMore"]),
        (&json!(60), &json!(true))
    );
    assert_eq!(
        gates
            .count("select count(*) from flyball.digest_item")
            .await,
        0
    );
}

#[tokio::test]
async fn a_digest_that_may_not_go_out_stays_open_and_collects() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let send = async |n: usize| {
        let mut item = comment(n);
        item["recipient"] = json!("ada");
        let (_, plan) = gates.planned(item).await;
        assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
    };
    for n in 0..3 {
        send(n).await;
    }
    gates.close().await;
    assert_eq!(gates.closed().await, Vec::<Value>::new());
    let held =
        "select count(*) from flyball.digest where gate = 'quiet_hours' and closes_at > now()";
    assert_eq!(gates.count(held).await, 1);
    send(3).await;
    assert_eq!(
        gates
            .count("select items::bigint from flyball.digest")
            .await,
        4
    );
    gates
        .profile("ada", json!({"addresses": {"sms": "+15550111"}}))
        .await;
    gates.close().await;
    assert_eq!(gates.closed().await[0]["data"]["totalCount"], json!(4));
}

#[tokio::test]
async fn items_end_with_a_digest_whose_recipient_opted_out() {
    let gates = GatesFixture::new("").await;
    gates
        .profile("bob", json!({"addresses": {"sms": "+15550112"}}))
        .await;
    for n in 0..3 {
        let mut item = comment(n);
        item["recipient"] = json!("bob");
        gates.planned(item).await;
    }
    let refuses =
        json!({"addresses": {"sms": "+15550112"}, "preferences": {"all": {"sms": false}}});
    gates.profile("bob", refuses).await;
    gates.close().await;
    assert_eq!(gates.closed().await, Vec::<Value>::new());
    let ended = "select count(*) from flyball.delivery where state = 'opted_out'";
    assert_eq!(gates.count(ended).await, 3);
}

#[tokio::test]
async fn the_first_item_of_a_leading_type_goes_at_once() {
    let rules = "[digests.new-comment]\ntemplate = \"activity-digest\"\ncategory = \"product\"\nwindow_s = 3600\nleading = true\n";
    let gates = GatesFixture::new(rules).await;
    let (first, plan) = gates.planned(comment(0)).await;
    assert!(matches!(plan, MessagePlan::Collected { .. }));
    assert_eq!(
        gates.fixture.state(first).await,
        flyball::jobs::State::Ready
    );
    gates.close().await;
    assert_eq!(
        gates.closed().await,
        Vec::<Value>::new(),
        "nothing came after it"
    );
    gates.planned(comment(1)).await;
    gates.collect(2..4).await;
    gates.close().await;
    assert_eq!(gates.closed().await[0]["data"]["totalCount"], json!(2));
}

#[tokio::test]
async fn messages_that_were_held_at_night_become_one() {
    let rules = "[categories.product]\nquiet = \"digest_on_wake\"\n[digests.while-you-were-away]\ntemplate = \"away\"\ncategory = \"transactional\"\nwindow_s = 60\n";
    let gates = GatesFixture::new(rules).await;
    gates.profile("ada", gates.quiet_today().await).await;
    for n in 0..4 {
        let message = json!({"recipient": "ada", "category": "product", "dedup_key": n.to_string(), "body": format!("news {n}")});
        let (_, plan) = gates.planned(message).await;
        assert!(
            matches!(
                plan,
                MessagePlan::Held {
                    coalesces: true,
                    ..
                }
            ),
            "{plan:?}"
        );
    }
    // The night is over.
    gates
        .profile("ada", json!({"addresses": {"sms": "+15550111"}}))
        .await;
    sqlx::query("update flyball.scheduled set run_at = now()")
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    gates.gates.plan_due().await.unwrap();
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0]["data"]["totalCount"], json!(4));
    assert_eq!(closed[0]["data"]["items"][0], json!({"text": "news 0"}));
}

#[tokio::test]
async fn the_cap_of_an_actor_makes_a_digest_of_the_rest() {
    let gates = GatesFixture::new("").await;
    let post = |n: usize| json!({"category": "product", "template_id": "post", "actor": "creator", "dedup_key": n.to_string(), "body": format!("post {n}")});
    for n in 0..3 {
        let (id, plan) = gates.planned(post(n)).await;
        assert_eq!(plan, MessagePlan::Send);
        assert_eq!(gates.verify(id).await, MessagePlan::Send);
    }
    for n in 3..47 {
        let (_, plan) = gates.planned(post(n)).await;
        assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
    }
    // The digest is one message more of the actor, so it stays open until the cap has room.
    gates.close().await;
    assert_eq!(gates.closed().await, Vec::<Value>::new());
    let held = "select count(*) from flyball.digest where gate = 'caps' and items = 44 and closes_at > now() + interval '23 hours'";
    assert_eq!(gates.count(held).await, 1);
}
