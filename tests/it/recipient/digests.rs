//! Digests: what is collected goes as one message when the digest closes.

use flyball::jobs::{Attribution, State};
use flyball::notify::args::NotificationArgs;
use flyball::recipient::gates::MessagePlan;
use flyball::recipient::postgres::publish_rules;
use flyball::recipient::rules::RecipientRules;
use serde_json::{Value, json};
use sqlx::Executor;

use super::fixture::{GatesFixture, gates_by};

const AWAY: &str = "[digests.while-you-were-away]\ntemplate = \"away\"\ncategory = \"transactional\"\nwindow_s = 60\n\
                    [categories.product]\nquiet = \"digest_on_wake\"\n";

pub fn comment(n: usize) -> Value {
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

    /// Holds messages of the category product in the quiet hours of ada, and returns them.
    async fn asleep(&self, messages: usize) -> Vec<i64> {
        self.profile("ada", self.quiet_today().await).await;
        let mut held = Vec::new();
        for n in 0..messages {
            let message = json!({"recipient": "ada", "category": "product", "dedup_key": n.to_string(), "body": format!("news {n}")});
            let (id, plan) = self.planned(message).await;
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
            held.push(id);
        }
        held
    }

    /// Ends the quiet hours of ada. Only the first of the messages wakes now: the release gives each a
    /// place of its own.
    async fn wake(&self, first: i64) {
        self.profile("ada", json!({"addresses": {"sms": "+15550111"}}))
            .await;
        sqlx::query(
            "update flyball.scheduled set run_at = case when job_id = $1 then now() else now() + interval '10 minutes' end",
        )
        .bind(first)
        .execute(self.fixture.database.pool())
        .await
        .unwrap();
        self.gates.plan_due().await.unwrap();
    }

    /// Ends the window of all digests and closes them.
    pub async fn close(&self) {
        sqlx::query("update flyball.digest set closes_at = now()")
            .execute(self.fixture.database.pool())
            .await
            .unwrap();
        assert!(!self.gates.close_due().await.unwrap());
    }

    /// Closes digests, and checks that there is one message then, which shows so many of its items.
    pub async fn closes_as_one(&self, shown: usize, total: usize) {
        self.close().await;
        let closed = self.closed().await;
        assert_eq!(closed.len(), 1);
        let data = &closed[0]["data"];
        assert_eq!(data["items"].as_array().unwrap().len(), shown);
        assert_eq!(
            (&data["totalCount"], &data["hasMore"]),
            (&json!(total), &json!(shown < total))
        );
    }

    /// Returns the arguments of the messages of closed digests.
    pub async fn closed(&self) -> Vec<Value> {
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
    gates.closes_as_one(50, 60).await;
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
    let gates = GatesFixture::new(AWAY).await;
    gates.asleep(4).await;
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

#[tokio::test]
async fn messages_that_the_release_keeps_apart_wake_together_if_they_are_enough() {
    let gates = GatesFixture::new(AWAY).await;
    let held = gates.asleep(3).await;
    gates.wake(held[0]).await;
    let found = gates.gates.explain(held[0], None).await.unwrap().unwrap();
    let open = found.digest.unwrap();
    let shown = (open.kind.as_str(), open.actor.as_str());
    assert_eq!(shown, ("while-you-were-away", ""), "a category is no actor");
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0]["data"]["totalCount"], json!(3));

    let gates = GatesFixture::new(AWAY).await;
    let held = gates.asleep(2).await;
    gates.wake(held[0]).await;
    let states = [
        gates.fixture.state(held[0]).await,
        gates.fixture.state(held[1]).await,
    ];
    assert_eq!(
        states,
        [State::Ready, State::Scheduled],
        "two keep their times"
    );
}

#[tokio::test]
async fn a_message_wakes_alone_if_one_cannot_be_planned_that_would_wake_with_it() {
    let gates = GatesFixture::new(AWAY).await;
    let held = gates.asleep(3).await;
    let unplannable = format!("new.job_id = {}", held[2]);
    gates
        .forbid("insert on flyball.delivery", &unplannable)
        .await;
    gates.wake(held[0]).await;
    assert_eq!(gates.fixture.state(held[0]).await, State::Ready);
    assert_eq!(gates.fixture.state(held[2]).await, State::Scheduled);
}

#[tokio::test]
async fn of_more_messages_than_are_taken_at_once_whole_digests_are_taken() {
    let gates = GatesFixture::new(AWAY).await;
    let recipients = ["ada", "bob"];
    for id in recipients {
        gates.profile(id, gates.quiet_today().await).await;
    }
    let each = (0..600).flat_map(|n| {
        recipients.map(|id| {
            json!({
                "pool": "own", "channel": "sms", "recipient": id, "category": "product", "dedup_key": n.to_string(),
                "body": format!("news {n}"),
            })
        })
    });
    let pool = gates.fixture.database.pool();
    let sent = sqlx::query_scalar("select id from flyball.notify_many($1)");
    let sent: Vec<i64> = sent
        .bind(each.collect::<Value>())
        .fetch_all(pool)
        .await
        .unwrap();
    while gates.gates.plan_due().await.unwrap() {}
    let held = "select count(*) from flyball.message_plan where state = 'held' and coalesces";
    assert_eq!(gates.count(held).await, 1200);

    // The night is over, and the first message of each wakes now.
    let awake = json!({"addresses": {"sms": "+15550111"}});
    for id in recipients {
        gates.profile(id, awake.clone()).await;
    }
    sqlx::query(
        "update flyball.scheduled
         set run_at = case when job_id = any($1) then now() else now() + interval '10 minutes' end",
    )
    .bind(&sent[..2])
    .execute(pool)
    .await
    .unwrap();
    gates.gates.plan_due().await.unwrap();

    let whole = "select count(*) from flyball.digest where items = 600";
    assert_eq!(gates.count(whole).await, 1);
}

#[tokio::test]
async fn caps_judge_messages_that_were_held_at_night_as_the_one_that_they_become() {
    let rules = format!("{AWAY}over_cap = \"drop\"\ncaps.sms = {{ per_day = \"2 per 1d\" }}\n");
    let gates = GatesFixture::new(&rules).await;
    let held = gates.asleep(5).await;
    let reserved = "select count(*) from flyball.cap_reservation";
    assert_eq!(gates.count(reserved).await, 0);
    gates.wake(held[0]).await;
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0]["data"]["totalCount"], json!(5));
}

#[tokio::test]
async fn a_message_that_waits_at_its_attempt_to_become_one_with_others_reserves_nothing() {
    let rules = format!("{AWAY}caps.sms = {{ per_day = \"2 per 1d\" }}\n");
    let gates = GatesFixture::new(&rules).await;
    gates
        .profile("ada", json!({"addresses": {"sms": "+15550111"}}))
        .await;
    let message = json!({"recipient": "ada", "category": "product"});
    let (id, plan) = gates.planned(message).await;
    assert_eq!(plan, MessagePlan::Send);
    gates.profile("ada", gates.quiet_today().await).await;

    let verdict = gates.verify(id).await;
    assert!(
        matches!(
            verdict,
            MessagePlan::Held {
                coalesces: true,
                ..
            }
        ),
        "{verdict:?}"
    );
    let reserved = "select count(*) from flyball.cap_reservation";
    assert_eq!(gates.count(reserved).await, 0);
}

#[tokio::test]
async fn a_digest_that_quiet_hours_keep_open_asks_again_when_its_recipient_moves() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    for n in 0..3 {
        let mut item = comment(n);
        item["recipient"] = json!("ada");
        gates.planned(item).await;
    }
    gates.close().await;
    let by = Attribution {
        by: "ann".to_owned(),
        ..Attribution::default()
    };
    assert_eq!(gates.gates.replan("", "ada", &by).await.unwrap(), 1);
    gates.gates.close_due().await.unwrap();
    assert_eq!(
        gates.closed().await,
        Vec::<Value>::new(),
        "it is still quiet"
    );
    gates
        .profile("ada", json!({"addresses": {"sms": "+15550111"}}))
        .await;
    gates.gates.close_due().await.unwrap();
    assert_eq!(gates.closed().await[0]["data"]["totalCount"], json!(3));
}

#[tokio::test]
async fn profiles_that_change_together_wait_for_no_digest_that_a_planner_has() {
    let gates = GatesFixture::new("").await;
    for id in ["ada", "bob", "eve"] {
        gates.profile(id, gates.quiet_today().await).await;
        for n in 0..3 {
            let mut item = comment(n);
            item["recipient"] = json!(id);
            gates.planned(item).await;
        }
    }
    gates.close().await;
    let pool = gates.fixture.database.pool();
    let mut planner = pool.begin().await.unwrap();
    planner
        .execute("select from flyball.digest where recipient_id = 'ada' for no key update")
        .await
        .unwrap();

    let mut import = pool.begin().await.unwrap();
    for statement in [
        "set local lock_timeout = '10s'",
        "insert into flyball.recipient (tenant, id, profile)
         select '', r.id, case when r.id = 'eve' then r.profile else r.profile - 'quiet_hours' end
         from flyball.recipient r
         on conflict (tenant, id) do update set profile = excluded.profile",
    ] {
        import.execute(statement).await.unwrap();
    }
    import.commit().await.unwrap();
    planner.rollback().await.unwrap();

    let due: Vec<String> =
        sqlx::query_scalar("select recipient_id from flyball.digest where closes_at <= now()")
            .fetch_all(pool)
            .await
            .unwrap();
    assert_eq!(due, ["bob"], "the profile of eve is as it was");
}

#[tokio::test]
async fn no_digest_is_queued_behind_one_that_waits_for_its_pool() {
    let gates = GatesFixture::new("").await;
    gates.collect(0..3).await;
    gates.close().await;
    gates.collect(3..6).await;
    gates.close().await;
    assert_eq!(gates.closed().await.len(), 1);
    let open = "select count(*) from flyball.digest where gate = 'pool' and items = 3 and closes_at > now()";
    assert_eq!(gates.count(open).await, 1);
    gates.collect(6..7).await;
    // The pool takes the first one.
    sqlx::query("delete from flyball.ready")
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 2);
    assert_eq!(closed[1]["data"]["totalCount"], json!(4));
}

#[tokio::test]
async fn a_digest_that_died_of_its_texts_is_requeued_with_those_of_now() {
    let rules = |body: &str| {
        format!(
            "[digests.new-comment]\ntemplate = \"activity-digest\"\ncategory = \"product\"\nwindow_s = 60\nbody = {body:?}\n"
        )
    };
    let gates = GatesFixture::new(&rules("{{ item.missing.deep }}")).await;
    gates.publish().await;
    gates.collect(0..3).await;
    gates.close().await;
    let fill = |args: &Value| NotificationArgs::parse(args).unwrap().fill(|| false);
    assert!(fill(&gates.closed().await[0]).is_err());
    let pool = gates.fixture.database.pool();
    let id: i64 = sqlx::query_scalar(
        "with gone as (
            delete from flyball.ready r using flyball.message_plan p where p.job_id = r.job_id and p.origin = 'digest' returning r.*
         )
         insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
         select g.job_id, g.lane_id, g.priority, g.attempt, g.cost, 'template' from gone g returning job_id",
    )
    .fetch_one(pool)
    .await
    .unwrap();
    let corrected =
        RecipientRules::parse("test.toml", &rules("{{ totalCount }} comments")).unwrap();
    publish_rules(&gates.fixture.queue.pool, &corrected)
        .await
        .unwrap();
    let state: String = sqlx::query_scalar("select flyball.retry($1)")
        .bind(id)
        .fetch_one(pool)
        .await
        .unwrap();
    assert_eq!(state, "ready");
    let filled = fill(&gates.closed().await[0]).unwrap();
    assert_eq!(filled.body, "3 comments");
}

/// A planner locks lists and then digests, and a closer has digests: had it to wait for lists, each
/// would wait for the other until Postgres ended one of them.
#[tokio::test]
async fn a_digest_asks_for_its_caps_while_a_planner_has_their_lists() {
    let rules = "[categories.product]\ncaps.sms = { per_day = \"1 per 1d\" }\n";
    let gates = GatesFixture::new(rules).await;
    let (first, _) = gates
        .planned(json!({"category": "product", "dedup_key": "1"}))
        .await;
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    gates.collect(0..3).await;
    let pool = gates.fixture.database.pool();
    let mut planner = pool.begin().await.unwrap();
    sqlx::query("select from flyball.cap for no key update")
        .execute(&mut *planner)
        .await
        .unwrap();
    gates.close().await;
    planner.rollback().await.unwrap();
    let kept =
        "select count(*) from flyball.digest where gate = 'caps' and rule = 'per_day 1 per 1d'";
    assert_eq!(gates.count(kept).await, 1);
}
