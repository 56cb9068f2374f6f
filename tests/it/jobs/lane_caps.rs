//! Lane caps: warnings, rejections, and the depth on which both depend.

use std::time::Duration;

use flyball::jobs::{Backlog, Error};
use serde_json::{Value, json};
use sqlx::{Executor, PgPool};

use super::enqueue::{count, one};
use super::fixture::{http, queue};
use super::permissions::RolesFixture;

async fn cap(pool: &PgPool, throttle: &str, fields: Value) {
    let sql = "insert into flyball.knobs (throttle, fields) values ($1, $2) on conflict (throttle) do update set fields = excluded.fields";
    sqlx::query(sql)
        .bind(throttle)
        .bind(fields)
        .execute(pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn above_its_cap_a_lane_takes_more_and_says_so() {
    let (database, queue) = queue().await;
    cap(database.pool(), "hooks", json!({"max_backlog": "2"})).await;
    let on = |key: &str| http().throttle("hooks").key(key);

    assert_eq!(one(&queue, on("a")).await.backlog, None);
    assert_eq!(one(&queue, on("a")).await.backlog, None);
    assert_eq!(
        one(&queue, on("a")).await.backlog,
        Some(Backlog { depth: 3, max: 2 })
    );
    assert_eq!(
        one(&queue, on("b")).await.backlog,
        None,
        "another key is another lane"
    );
    assert_eq!(
        one(&queue, http().key("a")).await.backlog,
        None,
        "another throttle has no cap"
    );
    assert_eq!(
        one(&queue, on("a").run_in(Duration::from_secs(60)))
            .await
            .backlog,
        None,
        "what runs later does not wait now"
    );
    let sql = "select backlog from flyball.enqueue('http', throttle => 'hooks', key => 'a')";
    let output: Value = sqlx::query_scalar(sql)
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(
        output,
        json!({"depth": 4, "max": 2}),
        "counted no further than one above the cap"
    );
    let batch = queue
        .enqueue(&[on("b"), on("b"), on("c"), http()])
        .await
        .unwrap();
    let answer: Vec<_> = batch
        .iter()
        .map(|one| one.backlog.map(|backlog| backlog.depth))
        .collect();
    assert_eq!(answer, [Some(3), Some(3), None, None]);
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.ready").await,
        10
    );
}

#[tokio::test]
async fn a_cap_far_above_what_is_counted_is_judged_by_the_depth_that_was_written_down() {
    let (database, _queue) = queue().await;
    let pool = database.pool();
    cap(pool, "hooks", json!({"max_backlog": "100000"})).await;
    let mut one = pool.acquire().await.unwrap();
    sqlx::raw_sql(
        "insert into flyball.ready (lane_id, priority, job_id, cost) select flyball.lane_of('hooks', ''), 1, i, 1 from generate_series(1, 20000) i;
         insert into flyball.lane (lane_id, throttle, key) values (flyball.lane_of('hooks', ''), 'hooks', '')",
    )
    .execute(&mut *one)
    .await
    .unwrap();
    let mut read = 0;
    // Returns the result and the number of entries read from the queue's index.
    let mut ask = async |depth: i64, minutes_old: i32| -> (Value, i64) {
        let set =
            "update flyball.lane set depth = $1, depth_at = now() - make_interval(mins => $2)";
        sqlx::query(set)
            .bind(depth)
            .bind(minutes_old)
            .execute(&mut *one)
            .await
            .unwrap();
        let enqueue =
            "select coalesce(backlog, 'null') from flyball.enqueue('http', throttle => 'hooks')";
        let output: Value = sqlx::query_scalar(enqueue)
            .fetch_one(&mut *one)
            .await
            .unwrap();
        sqlx::raw_sql("select pg_stat_force_next_flush()")
            .execute(&mut *one)
            .await
            .unwrap();
        let entries =
            "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'ready_lane'";
        let now: i64 = sqlx::query_scalar(entries)
            .fetch_one(&mut *one)
            .await
            .unwrap();
        (output, now - std::mem::replace(&mut read, now))
    };

    let (warm, _) = ask(90_000, 0).await;
    let (below, entries_below) = ask(90_000, 0).await;
    let (above, entries_above) = ask(100_000, 0).await;
    let (unsure, _) = ask(100_000, 11).await;
    sqlx::query("delete from flyball.ready where job_id > 10")
        .execute(pool)
        .await
        .unwrap();
    let (emptied, _) = ask(100_000, 0).await;

    assert_eq!((warm, &below), (Value::Null, &Value::Null));
    assert!(
        entries_below < 100,
        "{entries_below} entries were read far below the cap"
    );
    assert_eq!(above, json!({"depth": 100_001, "max": 100_000}));
    assert!(
        entries_above < 5_100,
        "{entries_above} entries were read above the cap"
    );
    assert_eq!(
        unsure,
        Value::Null,
        "a figure that nobody has seen to for so long refuses nothing"
    );
    assert_eq!(emptied, Value::Null, "what can be counted is counted");
}

#[tokio::test]
async fn a_full_lane_of_one_job_is_told_in_the_singular() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let knobs = json!({"max_backlog": "1", "on_backlog": "reject"});
    cap(pool, "hooks", knobs).await;
    queue.enqueue(&[http().throttle("hooks")]).await.unwrap();

    let full = queue.enqueue(&[http().throttle("hooks")]).await;
    let by_sql = pool
        .execute("select flyball.enqueue('http', throttle => 'hooks')")
        .await;

    for told in [
        full.unwrap_err().to_string(),
        by_sql.unwrap_err().to_string(),
    ] {
        let words = "key \"\": 1 job of this lane is ready; its knob max_backlog allows 1";
        assert!(told.contains(words), "{told}");
    }
}

#[tokio::test]
async fn a_full_lane_takes_no_job_that_replaces_one_of_another_lane() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let rejecting = json!({"max_backlog": "1", "on_backlog": "reject"});
    cap(pool, "hooks", rejecting).await;
    let on = |key: &str| http().throttle("hooks").key(key);
    let replacing = |key: &str| on(key).unique("customer").replace();
    one(&queue, on("a")).await;
    let id = one(&queue, replacing("b")).await.id;
    let before = queue.get(id).await.unwrap();

    let full = queue.enqueue(&[replacing("a")]).await.unwrap_err();
    let Error::Full { key, backlog, .. } = &full else {
        panic!("{full}")
    };
    assert_eq!(
        (key.as_str(), *backlog),
        ("a", Backlog { depth: 1, max: 1 })
    );
    assert_eq!(queue.get(id).await.unwrap(), before, "nothing was changed");

    let stays = one(&queue, replacing("b")).await;
    assert_eq!(
        (stays.id, stays.backlog),
        (id, None),
        "its lane has no job more than before"
    );
    let later = replacing("a").run_in(Duration::from_secs(60));
    assert_eq!(one(&queue, later).await.backlog, None);
    cap(pool, "hooks", json!({"max_backlog": "1"})).await;
    assert_eq!(one(&queue, replacing("b")).await.backlog, None);
    assert_eq!(
        one(&queue, replacing("a")).await.backlog,
        Some(Backlog { depth: 2, max: 1 }),
        "a lane that only warns takes it"
    );
}

#[tokio::test]
async fn a_full_lane_that_rejects_takes_nothing_and_names_itself() {
    let (database, queue) = queue().await;
    cap(
        database.pool(),
        "hooks",
        json!({"max_backlog": "2", "on_backlog": "reject"}),
    )
    .await;
    let on = |key: &str| http().throttle("hooks").key(key);
    queue
        .enqueue(&[on("a"), on("a").unique("held")])
        .await
        .unwrap();

    let full = queue.enqueue(&[http(), on("a")]).await.unwrap_err();
    let Error::Full {
        throttle,
        key,
        backlog,
    } = &full
    else {
        panic!("{full}")
    };
    assert_eq!(
        (throttle.as_str(), key.as_str(), *backlog),
        ("hooks", "a", Backlog { depth: 2, max: 2 })
    );
    assert!(
        full.to_string().contains("throttle \"hooks\", key \"a\": 2 jobs of this lane are ready; its knob max_backlog allows 2")
    );

    let sql =
        "select flyball.enqueue('http', throttle => 'hooks', key => 'a', unique_key => 'other')";
    let error = database.pool().execute(sql).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "53400");
    let output = error.to_string();
    assert!(
        output.contains("enqueue: throttle \"hooks\", key \"a\": 2 jobs of this lane are ready; its knob max_backlog allows 2"),
        "{output}"
    );

    let whole = queue
        .enqueue(&[on("b"), on("b"), on("b")])
        .await
        .unwrap_err()
        .to_string();
    let told = "0 jobs of this lane are ready and too many more were sent together; its knob max_backlog allows 2";
    assert!(whole.contains(told), "{whole}");
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.job").await,
        2,
        "all or none"
    );
    assert_eq!(
        count(
            database.pool(),
            "select count(*) from flyball.unique_holder"
        )
        .await,
        1,
        "a refused job leaves no key behind"
    );

    assert!(
        one(&queue, on("a").unique("held")).await.duplicate,
        "a duplicate adds nothing"
    );
    let replaced = one(&queue, on("a").unique("held").replace()).await;
    assert!(replaced.replaced, "a replacement adds nothing");
    one(&queue, on("a").run_in(Duration::from_secs(60))).await;
    queue.enqueue(&[on("b"), on("b")]).await.unwrap();
}

#[tokio::test]
async fn a_cap_that_is_no_number_is_no_cap() {
    let (database, queue) = queue().await;
    for nonsense in [
        json!("many"),
        json!("-1"),
        json!("0"),
        json!("1.5"),
        json!(""),
        json!("1e400"),
        json!("99999999999999999999"),
        json!(null),
    ] {
        cap(
            database.pool(),
            "hooks",
            json!({"max_backlog": nonsense, "on_backlog": "reject"}),
        )
        .await;
        queue
            .enqueue(&[http().throttle("hooks"), http().throttle("hooks")])
            .await
            .unwrap();
        one(&queue, http().throttle("hooks")).await;
    }
    // As `redis-cli -x` writes it, and in other spellings of a number that the page shows as valid.
    for number in ["1.0", " 1\n", "1e0", "+1"] {
        cap(
            database.pool(),
            "hooks",
            json!({"max_backlog": number, "on_backlog": "shout"}),
        )
        .await;
        assert!(
            one(&queue, http().throttle("hooks"))
                .await
                .backlog
                .is_some(),
            "{number}: an unknown word is the default, signal"
        );
    }
}

#[tokio::test]
async fn a_role_with_a_tenant_learns_that_a_shared_lane_is_full_and_not_how_full() {
    let fixture = RolesFixture::new().await;
    let web = fixture.role("web");
    let signal = json!({"max_backlog": "3"});
    let reject = json!({"max_backlog": "3", "on_backlog": "reject"});
    for (throttle, fields) in [
        ("shared", &signal),
        ("tenant:shop/own", &signal),
        ("strict", &reject),
    ] {
        cap(fixture.pool(), throttle, fields.clone()).await;
    }
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant) values ('{web}', 'shop')"
        ))
        .await;
    let fill = "select flyball.enqueue('http', throttle => 'shared') from generate_series(1, 9);
                select flyball.enqueue('http', throttle => 'strict') from generate_series(1, 2)";
    assert_eq!(fixture.as_role("owner", fill).await, None);
    let fill =
        "select flyball.enqueue('http', throttle => 'tenant:shop/own') from generate_series(1, 9)";
    assert_eq!(fixture.as_role("web", fill).await, None);
    // A check that fails raises, with what was found.
    let answers = |throttle: &str, wanted: Value| {
        format!(
            "do $$ declare found jsonb; begin
                 select backlog into found from flyball.enqueue('http', throttle => '{throttle}');
                 if found is distinct from '{wanted}' then raise exception '%', found; end if;
             end $$"
        )
    };
    for (role, throttle, wanted) in [
        ("owner", "shared", json!({"depth": 5, "max": 3})),
        ("web", "shared", json!({"depth": 4, "max": 3})),
        ("web", "tenant:shop/own", json!({"depth": 5, "max": 3})),
    ] {
        let answered = fixture.as_role(role, &answers(throttle, wanted)).await;
        assert_eq!(answered, None, "{role}, {throttle}");
    }
    let two = r#"select flyball.enqueue_many('[{"kind": "http", "throttle": "strict"}, {"kind": "http", "throttle": "strict"}]')"#;
    for (role, words) in [
        (
            "owner",
            "2 jobs of this lane are ready and 2 more were sent",
        ),
        ("web", "this lane has no room and 2 more were sent"),
    ] {
        let (code, message) = fixture.as_role(role, two).await.unwrap();
        assert!(
            code == "53400" && message.contains(words),
            "{role}: {message}"
        );
    }
}
