//! Operations on lanes and on the whole queue, and the permissions for them.

use flyball::jobs::postgres::LaneClaim;
use flyball::jobs::{
    Attribution, BulkCursor, CancelFilter, Count, LanesAfter, State, TokenIdentity,
};
use serde_json::json;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::fixture::{
    FENCE, SOON, audit, claim, count, enqueue, job, later, queue, signed, state, worker,
};
use crate::support::unique;

#[tokio::test]
async fn purging_a_lane_cancels_what_waits_in_it_and_nothing_else() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let running = enqueue(&queue, job("t", "a")).await;
    claim(&queue, worker).await;
    let mut taken = job("t", "a");
    taken.unique_key = Some("u".into());
    enqueue(&queue, taken.clone()).await;
    queue.enqueue(&vec![job("t", "a"); 40]).await.unwrap();
    later(&queue, "t", "a").await;
    let (other_key, other_throttle) = (
        enqueue(&queue, job("t", "b")).await,
        enqueue(&queue, job("u", "a")).await,
    );
    let other_later = later(&queue, "t", "b").await;
    assert_eq!(
        queue.count_lane("t", "a", &signed()).await.unwrap(),
        Count {
            jobs: 42,
            more: false
        }
    );

    let first = queue
        .purge_lane("t", "a", &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(
        (
            first.jobs,
            first.next.is_some(),
            count(&database, "ready").await
        ),
        (10, true, 33)
    );
    let rest = queue
        .purge_lane(
            "t",
            "a",
            &BulkCursor {
                start: first.next,
                ..BulkCursor::of(1000)
            },
            &signed(),
        )
        .await
        .unwrap();

    assert_eq!((rest.jobs, rest.next), (32, None));
    assert_eq!(state(&queue, running).await, State::Running);
    for id in [other_key, other_throttle] {
        assert_eq!(state(&queue, id).await, State::Ready);
    }
    assert_eq!(state(&queue, other_later).await, State::Scheduled);
    assert!(
        !queue.enqueue(&[taken]).await.unwrap()[0].duplicate,
        "its unique key is free again"
    );
    let lines = audit(&database).await;
    assert_eq!(
        (
            lines.len(),
            lines[0].1.as_str(),
            lines[0].2.as_str(),
            &lines[0].3["cancelled"]
        ),
        (1, "lane.purge", "t/a", &json!(42))
    );
}

#[tokio::test]
async fn a_place_in_another_lane_leads_no_walk_out_of_its_own() {
    let (database, queue) = queue().await;
    let mut lanes: Vec<(i64, &str)> = Vec::new();
    for key in ["a", "b", "c", "d", "e"] {
        enqueue(&queue, job("t", key)).await;
        later(&queue, "t", key).await;
        let sql = "select flyball.lane_of('t', $1)";
        lanes.push((
            sqlx::query_scalar(sql)
                .bind(key)
                .fetch_one(database.pool())
                .await
                .unwrap(),
            key,
        ));
    }
    lanes.sort_unstable();
    let middle = lanes[2].1;
    let filter = CancelFilter {
        throttle: Some("t".into()),
        key: Some(middle.into()),
        ..CancelFilter::default()
    };
    let below = |phase: &str, place: &str| BulkCursor {
        start: Some(format!("{phase}/{}/{place}", lanes[0].0)),
        ..BulkCursor::of(100)
    };

    let mut found = Vec::new();
    for walk in [below("ready", "1/0"), below("scheduled", "0")] {
        let dry = BulkCursor {
            dry_run: true,
            ..walk
        };
        found.push(
            queue
                .cancel_jobs(&filter, &dry, &signed())
                .await
                .unwrap()
                .jobs,
        );
        found.push(
            queue
                .purge_lane("t", middle, &dry, &signed())
                .await
                .unwrap()
                .jobs,
        );
    }
    let purged = queue
        .purge_lane(
            "t",
            middle,
            &below("ready", "3/900000000000000000"),
            &signed(),
        )
        .await
        .unwrap();

    assert_eq!(found, [2, 2, 1, 1], "what the lane holds itself");
    assert_eq!((purged.jobs, purged.next), (2, None));
    assert_eq!(
        (
            count(&database, "ready").await,
            count(&database, "scheduled").await
        ),
        (4, 4)
    );
    let past = BulkCursor {
        start: Some(format!("ready/{}/0/0", lanes[4].0)),
        ..BulkCursor::of(100)
    };
    assert_eq!(
        queue
            .purge_lane("t", lanes[1].1, &past, &signed())
            .await
            .unwrap()
            .jobs,
        1,
        "only what is scheduled is left to see"
    );
}

#[tokio::test]
async fn a_job_is_either_claimed_or_purged_and_never_both_nor_lost() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    queue.enqueue(&vec![job("t", "a"); 3000]).await.unwrap();
    let lane_id = queue.ready_lanes().await.unwrap()[0].lane_id;

    let claims = async {
        let mut claimed = Vec::new();
        loop {
            let jobs = queue
                .claim(worker, FENCE, &[LaneClaim::first(lane_id, 7)])
                .await
                .unwrap();
            claimed.extend(jobs.iter().map(|one| one.job.id));
            if count(&database, "ready").await == 0 {
                return claimed;
            }
        }
    };
    let purge = async {
        let mut purged = 0;
        while count(&database, "ready").await > 0 {
            purged += queue
                .purge_lane("t", "a", &BulkCursor::of(40), &signed())
                .await
                .unwrap()
                .jobs;
        }
        purged
    };
    let (claimed, purged) = tokio::join!(claims, purge);

    assert!(
        !claimed.is_empty() && purged > 0,
        "{} {purged}",
        claimed.len()
    );
    assert_eq!(claimed.len() as i64 + purged, 3000);
    assert_eq!(
        (
            count(&database, "lease").await,
            count(&database, "attempt").await
        ),
        (claimed.len() as i64, purged)
    );
}

#[tokio::test]
async fn a_lane_is_weighed_whether_or_not_a_worker_has_seen_it() {
    let (database, queue) = queue().await;
    for key in ["c", "", "a", "b"] {
        enqueue(&queue, job("t", key)).await;
    }
    enqueue(&queue, job("u", "x")).await;
    queue.ready_lanes().await.unwrap();

    assert_eq!(
        queue.set_weight("t", "b", 2.5, &signed()).await.unwrap(),
        1.0
    );
    assert_eq!(
        queue.set_weight("t", "b", 0.5, &signed()).await.unwrap(),
        2.5
    );
    assert_eq!(
        queue
            .set_weight("t", "unseen", 3.0, &signed())
            .await
            .unwrap(),
        1.0
    );

    let by_key = queue
        .lanes_of("t", &LanesAfter::Key(None), 10)
        .await
        .unwrap()
        .lanes;
    let keys: Vec<(&str, f64)> = by_key
        .iter()
        .map(|lane| (lane.key.as_str(), lane.weight))
        .collect();
    assert_eq!(
        keys,
        [
            ("", 1.0),
            ("a", 1.0),
            ("b", 0.5),
            ("c", 1.0),
            ("unseen", 3.0)
        ]
    );
    assert_eq!(queue.lane_of("t", "b").await.unwrap().unwrap().weight, 0.5);
    let lines = audit(&database).await;
    assert_eq!(
        (lines[1].1.as_str(), lines[1].2.as_str(), &lines[1].3),
        ("lane.weight", "t/b", &json!({"weight": 0.5}))
    );
}

#[tokio::test]
async fn everything_is_paused_once_and_resuming_wakes_workers() {
    let (database, queue) = queue().await;
    assert_eq!(queue.paused().await.unwrap(), None);
    let mut listener = PgListener::connect(database.url()).await.unwrap();
    listener.listen("flyball").await.unwrap();

    assert!(queue.pause_all(&signed()).await.unwrap());
    assert!(
        !queue
            .pause_all(&Attribution {
                by: "bob".into(),
                why: "me too".into(),
                identity: TokenIdentity::default()
            })
            .await
            .unwrap()
    );
    let pause = queue.paused().await.unwrap().unwrap();
    assert_eq!(
        (pause.by.as_str(), pause.why.as_str()),
        ("alice", "a test"),
        "the first pause stays"
    );

    assert!(queue.resume_all(&Attribution::default()).await.unwrap());
    assert!(!queue.resume_all(&Attribution::default()).await.unwrap());
    tokio::time::timeout(SOON, listener.recv())
        .await
        .expect("a notification arrives")
        .unwrap();
    assert_eq!(queue.paused().await.unwrap(), None);
    let lines = audit(&database).await;
    assert_eq!(
        lines.iter().map(|line| line.1.as_str()).collect::<Vec<_>>(),
        ["all.pause", "all.resume"]
    );
}

#[tokio::test]
async fn nobody_may_operate_until_let_and_one_grant_is_enough_for_one_job() {
    let (database, queue) = queue().await;
    let id = enqueue(&queue, job("t", "")).await;
    let role = format!("operator_{}", unique());
    let mut connection = PgConnection::connect(&database.superuser_url())
        .await
        .unwrap();
    let run = async |connection: &mut PgConnection, sql: &str| {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(connection)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    run(
        &mut connection,
        &format!("create role {role}; grant usage on schema flyball to {role}"),
    )
    .await
    .unwrap();
    run(
        &mut connection,
        &format!("set session authorization {role}"),
    )
    .await
    .unwrap();
    let forbidden = [
        "job_state(1)",
        "cancel(1)",
        "retry(1)",
        "reschedule(1, now())",
        "update(1, priority => 0)",
        "discard(1)",
        "cancel_jobs('http')",
        "purge_lane('t', '')",
        "requeue_dead('http')",
        "discard_dead('http')",
        "pause_all()",
        "resume_all()",
        "set_weight('t', '', 1)",
        "audit_actor('x')",
        "write_audit(null, 'a', 'b', 'c', null, null, '')",
        "id_at(now())",
    ];
    for call in forbidden {
        let error = run(&mut connection, &format!("select flyball.{call}"))
            .await
            .unwrap_err();
        assert!(
            error.contains("permission denied for function"),
            "{call}: {error}"
        );
    }

    run(&mut connection, "reset session authorization")
        .await
        .unwrap();
    run(
        &mut connection,
        &format!("grant execute on function flyball.cancel to {role}"),
    )
    .await
    .unwrap();
    run(
        &mut connection,
        &format!("set session authorization {role}"),
    )
    .await
    .unwrap();
    let output: String = sqlx::query_scalar(AssertSqlSafe(format!(
        "select flyball.cancel({id}, by => 'the boss')"
    )))
    .fetch_one(&mut connection)
    .await
    .unwrap();

    assert_eq!(output, "cancelled");
    let lines = audit(&database).await;
    assert_eq!(lines[0].0, role, "only the owner signs for others");
    run(&mut connection, "reset session authorization")
        .await
        .unwrap();
    run(
        &mut connection,
        &format!("revoke all on function flyball.cancel from {role}; revoke all on schema flyball from {role}; drop role {role}"),
    )
    .await
    .unwrap();
}
