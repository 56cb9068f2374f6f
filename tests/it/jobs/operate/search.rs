//! Finding jobs and their attempts.

use std::collections::{BTreeMap, BTreeSet};

use flyball::jobs::postgres::Ending;
use flyball::jobs::{JobFilter, NewJob, Queue, State};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Row};

use super::fixture::{SOON, claim, end_all, enqueue, job, later, queue, worker};

/// Returns all results of a search, page by page, with the number of pages.
async fn pages(queue: &Queue, filter: &JobFilter) -> (Vec<i64>, usize) {
    let mut filter = filter.clone();
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = queue.page(&filter).await.unwrap();
        assert!(page.jobs.len() as i64 <= filter.limit);
        found.extend(page.jobs.iter().map(|job| job.id));
        pages += 1;
        filter.before = page.next;
        if filter.before.is_none() {
            return (found, pages);
        }
    }
}

#[tokio::test]
async fn a_search_finds_every_job_that_it_names_once_newest_first() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let mut by_state: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
    let endings = [
        (Ending::Completed, "completed"),
        (Ending::Dead { error: "x".into() }, "dead"),
        (Ending::Cancelled, "cancelled"),
        (
            Ending::Failed {
                delay: SOON,
                error: "x".into(),
            },
            "retryable",
        ),
    ];
    for (ending, word) in endings {
        queue
            .enqueue(
                &(0..9)
                    .map(|i| job(["t", "u"][i % 2], ["a", "b", ""][i % 3]))
                    .collect::<Vec<_>>(),
            )
            .await
            .unwrap();
        by_state.insert(
            word,
            end_all(&queue, worker, ending).await.into_iter().collect(),
        );
    }
    queue
        .enqueue(
            &(0..9)
                .map(|i| job(["t", "u"][i % 2], ["a", "b", ""][i % 3]))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    by_state.insert("running", claim(&queue, worker).await.into_iter().collect());
    let mut jobs: Vec<NewJob> = (0..30)
        .map(|i| job(["t", "u"][i % 2], ["a", "b", ""][i % 3]))
        .collect();
    jobs.iter_mut()
        .enumerate()
        .for_each(|(i, job)| job.priority = i as i32 % 4);
    jobs[3].kind = "reindex".into();
    let ready: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    by_state.insert("ready", ready.iter().copied().collect());
    by_state.insert("scheduled", BTreeSet::from([later(&queue, "t", "a").await]));
    let newest_first = |ids: &BTreeSet<i64>| ids.iter().rev().copied().collect::<Vec<_>>();
    let all: BTreeSet<i64> = by_state.values().flatten().copied().collect();

    for limit in [4, 100] {
        let open = JobFilter {
            limit,
            ..JobFilter::default()
        };
        assert_eq!(pages(&queue, &open).await.0, newest_first(&all));
        for (word, ids) in &by_state {
            let state = serde_json::from_value(json!(word)).unwrap();
            let filter = JobFilter {
                state: Some(state),
                ..open.clone()
            };
            assert_eq!(pages(&queue, &filter).await.0, newest_first(ids), "{word}");
            assert_eq!(
                queue
                    .list(&JobFilter {
                        limit: 1000,
                        ..filter
                    })
                    .await
                    .unwrap()
                    .len(),
                ids.len(),
                "{word}"
            );
        }
        let ended: BTreeSet<i64> = ["completed", "cancelled", "dead"]
            .iter()
            .flat_map(|word| &by_state[word])
            .copied()
            .collect();
        assert_eq!(
            pages(
                &queue,
                &JobFilter {
                    ended: true,
                    ..open.clone()
                }
            )
            .await
            .0,
            newest_first(&ended)
        );
        let lane = JobFilter {
            throttle: Some("t".into()),
            key: Some("a".into()),
            state: Some(State::Ready),
            ..open.clone()
        };
        let of_lane: BTreeSet<i64> = ready
            .iter()
            .enumerate()
            .filter(|(i, _)| i % 2 == 0 && i % 3 == 0)
            .map(|(_, id)| *id)
            .collect();
        assert_eq!(pages(&queue, &lane).await.0, newest_first(&of_lane));
        let kind = JobFilter {
            kind: Some("reindex".into()),
            ..open.clone()
        };
        assert_eq!(pages(&queue, &kind).await.0, [ready[3]]);
        let nothing = JobFilter {
            key: Some("nobody".into()),
            ..open
        };
        assert_eq!(pages(&queue, &nothing).await.0, Vec::<i64>::new());
    }
}

/// Inserts many finished jobs over some days and as many waiting ones, directly into the tables.
const MANY: &str = "
with days as (
    select d, flyball.day_of(now()) - d as day from generate_series(0, 3) d
),
made as (
    insert into flyball.job (id, lane_id, priority, max_attempts, cost, created_at, kind, throttle, key, args)
    select (day << 38) | (1000000 + i), flyball.lane_of('t' || i % 3, 'k' || i % 50), i % 4, 10, 1,
        date_trunc('day', now(), 'UTC') - d * interval '1 day' + i * interval '3.4 s',
        case when i % 1000 = 0 then 'reindex' else 'http' end, 't' || i % 3, 'k' || i % 50, '{}'
    from days, generate_series(1, 25000) i
    returning id, lane_id, priority, created_at
),
waiting as (
    insert into flyball.ready (lane_id, priority, job_id, cost)
    select lane_id, priority, id, 1 from made where id % 2 = 0
)
insert into flyball.attempt (job_id, attempt, outcome, started_at, finished_at)
select id, 1, 'completed', created_at, created_at from made where id % 2 = 1";

/// The rows that this transaction has read by scans of whole tables.
const SCANNED: &str = "
select coalesce(sum(seq_tup_read), 0)::bigint from pg_stat_xact_user_tables
where schemaname = 'flyball' and relname ~ '^(ready|job|attempt|scheduled|dead|lease)(_[0-9]+)?$'";

#[tokio::test]
async fn no_search_walks_over_more_than_a_bounded_number_of_rows_and_none_scans_a_table() {
    let (database, queue) = queue().await;
    sqlx::query(
        "select flyball.ensure_day(flyball.day_of(now()) - i) from generate_series(1, 3) as i",
    )
    .execute(database.pool())
    .await
    .unwrap();
    sqlx::query(MANY).execute(database.pool()).await.unwrap();
    let mut connection = queue.pool.acquire().await.unwrap();

    let worst = [
        ("{\"key\": \"nobody\"}", "null"),
        ("{\"state\": \"cancelled\"}", "null"),
        (
            "{\"state\": \"ready\", \"kind\": \"http\", \"throttle\": \"t1\"}",
            "null",
        ),
        (
            "{\"state\": \"ready\", \"kind\": \"nothing\", \"throttle\": \"t1\", \"key\": \"k1\"}",
            "null",
        ),
        ("{\"state\": \"running\"}", "null"),
        ("{\"state\": \"retryable\"}", "null"),
        ("{\"state\": \"dead\"}", "null"),
        ("{\"state\": \"dead\"}", "'shop'"),
        ("{\"state\": \"ready\", \"kind\": \"nothing\"}", "'shop'"),
        ("{\"error_like\": \"%nothing%\"}", "null"),
        ("{\"args\": {\"a\": 1}}", "null"),
        ("{\"args_path\": \"$.a == 1\"}", "null"),
        ("{\"trace\": \"4bf92f3577b34da6a3ce929d0e0e4736\"}", "null"),
        ("{\"unique_key\": \"nothing\"}", "null"),
        ("{\"group\": 7}", "null"),
    ];
    for statistics in ["stale", "fresh"] {
        if statistics == "fresh" {
            sqlx::query("analyze")
                .execute(database.pool())
                .await
                .unwrap();
        }
        for (filter, tenant) in worst {
            let explain = format!(
                "explain (analyze, buffers, format json)
                 select * from flyball.find_jobs(flyball.read_filter('list_jobs', '{filter}', {tenant}), null, 100)"
            );
            let mut transaction = connection.begin().await.unwrap();
            let plan: Value = sqlx::raw_sql(AssertSqlSafe(explain))
                .fetch_one(&mut *transaction)
                .await
                .unwrap()
                .get(0);
            let scanned: i64 = sqlx::query_scalar(SCANNED)
                .fetch_one(&mut *transaction)
                .await
                .unwrap();
            transaction.rollback().await.unwrap();
            let blocks = plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap()
                + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap();
            assert!(
                blocks < 60_000,
                "{filter}, {statistics} statistics: {blocks} blocks"
            );
            assert_eq!(scanned, 0, "{filter}, {statistics} statistics");
        }
    }
    drop(connection);

    let (found, pages) = pages(
        &queue,
        &JobFilter {
            kind: Some("reindex".into()),
            limit: 10,
            ..JobFilter::default()
        },
    )
    .await;
    assert_eq!(found.len(), 100);
    assert!(found.is_sorted_by(|a, b| a > b) && pages >= 10, "{pages}");
}

#[tokio::test]
async fn a_search_by_time_looks_only_where_such_jobs_can_be() {
    let (database, queue) = queue().await;
    sqlx::query(
        "select flyball.ensure_day(flyball.day_of(now()) - i) from generate_series(1, 3) as i",
    )
    .execute(database.pool())
    .await
    .unwrap();
    sqlx::query(MANY).execute(database.pool()).await.unwrap();
    let midnight: i64 =
        sqlx::query_scalar("select extract(epoch from date_trunc('day', now(), 'UTC'))::bigint")
            .fetch_one(database.pool())
            .await
            .unwrap();
    let at = |hours: i64| Timestamp::from_second(midnight + hours * 3600).unwrap();

    for (from, to) in [
        (Some(-36), Some(-34)),
        (Some(-25), Some(-23)),
        (None, Some(-71)),
        (Some(-80), Some(-71)),
        (Some(-1000), Some(-100)),
    ] {
        let filter = JobFilter {
            created_after: from.map(at),
            created_before: to.map(at),
            limit: 1000,
            ..JobFilter::default()
        };
        let wanted: Vec<i64> = sqlx::query_scalar(
            "select id from flyball.job where ($1::bigint is null or created_at >= to_timestamp($1)) and ($2::bigint is null or created_at < to_timestamp($2)) order by id desc",
        )
        .bind(filter.created_after.map(|at| at.as_second()))
        .bind(filter.created_before.map(|at| at.as_second()))
        .fetch_all(database.pool())
        .await
        .unwrap();
        let (found, pages) = pages(&queue, &filter).await;
        assert_eq!(found, wanted, "{from:?} {to:?}");
        assert!(
            pages <= 2 + wanted.len() / 200,
            "{from:?} {to:?}: {pages} pages for {} jobs",
            wanted.len()
        );
    }
}

#[tokio::test]
async fn the_attempts_of_a_job_are_listed_newest_first_page_by_page() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let id = enqueue(&queue, job("t", "")).await;
    for i in 0..5 {
        end_all(
            &queue,
            worker,
            Ending::Throttled {
                alone: None,
                error: format!("429 number {i}"),
            },
        )
        .await;
    }

    let first = queue.attempts(id, None, None, 3).await.unwrap();
    let rest = queue
        .attempts(id, None, Some(first[2].finished_at), 3)
        .await
        .unwrap();

    let errors: Vec<_> = first
        .iter()
        .chain(&rest)
        .map(|attempt| attempt.error.clone().unwrap())
        .collect();
    assert_eq!(
        errors,
        (0..5)
            .rev()
            .map(|i| format!("429 number {i}"))
            .collect::<Vec<_>>()
    );
}
