//! Groups: what is refused, by name and with nothing changed, and whose groups a role reaches by SQL.

use flyball::jobs::{Client, GroupFilter, GroupState, NewGroup};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, Row};

use super::fixture::{enqueue_one, http, queue};
use super::permissions::RolesFixture;

#[tokio::test]
async fn sql_refuses_bad_groups_by_the_name_of_the_field_and_changes_nothing() {
    let (database, queue) = queue().await;
    let open: i64 = sqlx::query_scalar("select group_id from flyball.create_group()")
        .fetch_one(database.pool())
        .await
        .unwrap();
    let sealed: i64 = sqlx::query_scalar("select group_id from flyball.create_group(jobs => '[]')")
        .fetch_one(database.pool())
        .await
        .unwrap();
    let long = "n".repeat(201);
    let cases = [
        (
            format!("create_group(name => '{long}')"),
            "name: is 201 bytes long; at most 200 are allowed",
        ),
        ("create_group(name => null)".into(), "name: must not be null"),
        (
            "create_group('[]')".into(),
            "create_group: callback: must be a job as an object, not array",
        ),
        (
            "create_group('{}')".into(),
            "create_group: callback.kind: must name what runs the job",
        ),
        (
            "create_group('{\"kind\": \"http\", \"group\": 1}')".into(),
            "create_group: callback.group: must be left out",
        ),
        (
            "create_group('{\"kind\": \"nope\"}')".into(),
            "create_group: callback.kind: \"nope\" is not a kind that any worker has registered",
        ),
        (
            "create_group('{\"kind\": \"http\", \"priority\": 7}')".into(),
            "create_group: callback.priority: is 7; allowed are 0",
        ),
        (
            "create_group('{\"kind\": \"http\", \"prio\": 7}')".into(),
            "create_group: callback.prio: is not a field of a job; allowed are kind",
        ),
        (
            "create_group(jobs => '{}')".into(),
            "create_group: jobs: must be a JSON array of jobs",
        ),
        (
            "create_group(jobs => '[{\"kind\": \"http\", \"group\": 1}]')".into(),
            "create_group: jobs: must be without the field group",
        ),
        (
            "create_group(jobs => '[{\"kind\": \"http\"}, {\"kind\": \"http\", \"cost\": -1}]')".into(),
            "create_group: jobs[1].cost: is -1; allowed is more than 0",
        ),
        (
            "create_group(jobs => '[{\"kind\": \"http\", \"unique_key\": \"a\", \"replace\": true}]')".into(),
            "create_group: jobs[0].group: cannot be used together with replace or debounce",
        ),
        (
            "create_group(jobs => '[{\"kind\": \"http\", \"prio\": 1}]')".into(),
            "create_group: jobs[0].prio: is not a field of a job",
        ),
        (
            "enqueue('http', \"group\" => 4711)".into(),
            "enqueue: group: 4711 is not the number of a group of yours; flyball.create_group makes one",
        ),
        (
            format!("enqueue('http', \"group\" => {sealed})"),
            "is sealed, and no more jobs can join it; create another one",
        ),
        (
            format!("enqueue('http', \"group\" => {open}, unique_key => 'a', debounce => '1 minute')"),
            "enqueue: group: cannot be used together with replace or debounce",
        ),
        (
            "enqueue_many('[{\"kind\": \"http\"}, {\"kind\": \"http\", \"group\": 4711}]')".into(),
            "enqueue_many: jobs[1].group: 4711 is not the number of a group of yours",
        ),
        (
            "enqueue_many('[{\"kind\": \"http\", \"group\": 1.5}]')".into(),
            "enqueue_many: jobs[0].group: must be the number of a group, not 1.5",
        ),
        (
            "enqueue_many('[{\"kind\": \"http\", \"group\": \"a\"}]')".into(),
            "enqueue_many: jobs[0].group: must be a number, not string",
        ),
        (
            format!("cancel_group({open}, max_jobs => 0)"),
            "cancel_group: max_jobs: is 0; allowed are 1 to 10000",
        ),
    ];
    for (call, wanted) in cases {
        let sql = format!("select * from flyball.{call}");
        let error = database
            .pool()
            .execute(AssertSqlSafe(sql))
            .await
            .expect_err(&call);
        let error = error.to_string();
        assert!(error.contains(wanted), "{call}: {error}");
    }
    let left: (i64, i64) = sqlx::query_as(
        "select (select count(*) from flyball.job_group), (select count(*) from flyball.job)",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert_eq!(left, (2, 0));
    drop(queue);
}

#[tokio::test]
async fn a_role_reaches_the_groups_of_its_owner_alone() {
    let fixture = RolesFixture::new().await;
    let mapping = format!(
        "insert into flyball.producer (role, tenant) values ('{}', 'shop'), ('{}', 'bank')",
        fixture.role("web"),
        fixture.role("bank")
    );
    fixture.owner(&mapping).await;
    for role in ["web", "bank", "planner", "owner"] {
        let create = format!(
            "select flyball.create_group('{{\"kind\": \"http\"}}', '{role}', '[{{\"kind\": \"http\"}}]'); select flyball.create_group(name => '{role}')"
        );
        assert_eq!(fixture.as_role(role, &create).await, None, "{role}");
    }
    let of = async |name: &str| -> i64 {
        let sql = format!(
            "select min(id)::text from flyball.job_group where name = '{name}' and sealed_at is null"
        );
        fixture.text(&sql).await.parse().unwrap()
    };
    let owners = fixture
        .text("select string_agg(distinct name || ':' || tenant, ',' order by name || ':' || tenant) from flyball.job_group")
        .await;
    assert_eq!(owners, "bank:bank,owner:,planner:,web:shop");
    for role in ["web", "bank", "planner"] {
        for other in ["web", "bank", "planner", "owner"] {
            let id = of(other).await;
            let join = format!("select flyball.enqueue('http', \"group\" => {id})");
            let sees = format!(
                "do $$ begin if flyball.show_group({id}) is null or flyball.seal_group({id}) = 'not found' then raise 'not seen'; end if; end $$"
            );
            let joined = fixture.as_role(role, &join).await;
            assert_eq!(joined.is_none(), role == other, "{role} {other} {joined:?}");
            if role != other {
                let seen = fixture.as_role(role, &sees).await.unwrap();
                assert!(seen.1.contains("not seen"), "{role} {other} {seen:?}");
            }
            // To cancel is for operators, unless they grant it.
            let cancel = format!("select flyball.cancel_group({id})");
            let refused = fixture.as_role(role, &cancel).await.unwrap();
            assert_eq!(refused.0, "42501", "{role} {other}");
        }
    }
    // A role may not have a callback of a kind that it may not enqueue.
    let secret = "select flyball.create_group('{\"kind\": \"secret\"}')";
    let refused = fixture.as_role("web", secret).await.unwrap();
    assert_eq!(refused.0, "42501");
    assert!(
        refused
            .1
            .contains("callback.kind: \"secret\" is not public"),
        "{refused:?}"
    );

    // The callback is the tenant's.
    let id = of("web").await;
    fixture
        .owner(&format!("update flyball.job_group set callback = '{{\"kind\": \"http\", \"args\": {{\"url\": \"u\", \"method\": \"POST\"}}}}' where id = {id}"))
        .await;
    fixture
        .owner(&format!(
            "select flyball.seal_group({id}); select flyball.cancel_group({id})"
        ))
        .await;
    let callback = fixture
        .text(&format!(
            "select j.tenant || ' ' || (j.args -> 'body' -> 'group' ->> 'cancelled') from flyball.job_group g join flyball.job j on j.id = g.callback_job_id where g.id = {id}"
        ))
        .await;
    assert_eq!(callback, "shop 1");
}

#[tokio::test]
async fn a_group_is_shown_to_sql_with_its_counts() {
    let (database, queue) = queue().await;
    let id: i64 = sqlx::query_scalar(
        "select group_id from flyball.create_group('{\"kind\": \"http\"}', 'a', '[{\"kind\": \"http\"}, {\"kind\": \"http\"}]')",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    let shown: Value = sqlx::query_scalar("select flyball.show_group($1)")
        .bind(id)
        .fetch_one(database.pool())
        .await
        .unwrap();
    let part: Value = ["name", "state", "jobs", "pending", "ended_at", "callback"]
        .into_iter()
        .map(|field| (field.to_owned(), shown[field].clone()))
        .collect();
    assert_eq!(
        part,
        json!({"name": "a", "state": "running", "jobs": 2, "pending": 2, "ended_at": null, "callback": {"kind": "http"}})
    );
    drop(queue);
}

#[tokio::test]
async fn a_callback_whose_unique_key_another_job_holds_waits_until_it_is_free() {
    let (database, queue) = queue().await;
    let group = async |id: i64| queue.group(id, None).await.unwrap().unwrap();
    let callback = || http().unique("nightly");
    let stranger = enqueue_one(&queue, callback()).await;
    let plain = NewGroup::then(callback()).jobs(Vec::new());
    let replacing = NewGroup::then(callback().replace()).jobs(Vec::new());

    let waits = Client.create_group(&queue.pool, &plain).await.unwrap().id;
    let refused = group(waits).await;
    assert_eq!(
        (refused.state, refused.callback_job_id),
        (GroupState::Running, None)
    );
    let problem = refused.callback_problem.unwrap();
    assert!(
        problem.starts_with(&format!("callback.unique_key: job {stranger} holds it")),
        "{problem}"
    );
    let replaces = Client.create_group(&queue.pool, &replacing).await.unwrap();
    let replaces = group(replaces.id).await;
    assert_eq!(
        (replaces.state, replaces.callback_job_id),
        (GroupState::Ended, Some(stranger)),
        "one that takes the place of the waiting job runs"
    );

    queue.cancel(stranger).await.unwrap();
    database
        .pool()
        .execute(
            "update flyball.job_group set retry_at = now() - interval '1 second' where retry_at is not null",
        )
        .await
        .unwrap();
    assert_eq!(queue.settle_groups().await.unwrap(), 1);
    let ended = group(waits).await;
    assert_eq!(
        (ended.state, ended.callback_problem),
        (GroupState::Ended, None)
    );
    assert!(ended.callback_job_id.is_some_and(|id| id != stranger));
}

#[tokio::test]
async fn a_callback_whose_arguments_cannot_be_read_hides_no_group() {
    let (database, queue) = queue().await;
    for body in [
        format!("{}{}", "[".repeat(300), "]".repeat(300)),
        "1e400".to_owned(),
        "\"x\"".to_owned(),
    ] {
        let create = format!(
            "select flyball.create_group('{{\"kind\": \"http\", \"args\": {{\"url\": \"https://example.com/\", \"body\": {body}}}}}')"
        );
        database
            .pool()
            .execute(AssertSqlSafe(create))
            .await
            .unwrap();
    }
    for state in [None, Some(GroupState::Open)] {
        let filter = GroupFilter {
            state,
            limit: 10,
            ..GroupFilter::default()
        };
        let listed = queue.groups(&filter).await.unwrap();
        let args: Vec<&Value> = listed
            .iter()
            .map(|group| {
                let callback = group.callback.as_ref().unwrap();
                assert_eq!(callback["kind"], "http");
                &callback["args"]
            })
            .collect();
        assert_eq!(args.len(), 3);
        assert_eq!(
            args[0],
            &json!({"url": "https://example.com/", "body": "x"}),
            "newest first"
        );
        assert!(args[1].as_str().unwrap().contains("00000"), "as its text");
        assert!(args[2].as_str().unwrap().contains("[[["), "as its text");
        let shown = queue.group(listed[2].id, None).await.unwrap();
        assert_eq!(shown.as_ref(), Some(&listed[2]));
    }
}

#[tokio::test]
async fn a_callback_may_write_its_whole_numbers_with_zeros_behind_the_point() {
    let (database, queue) = queue().await;
    sqlx::query("select flyball.create_group($1::text::jsonb, jobs => '[]')")
        .bind(r#"{"kind": "http", "priority": 2.0, "max_attempts": 5.00}"#)
        .execute(database.pool())
        .await
        .unwrap();

    let callback = sqlx::query(
        "select j.priority, j.max_attempts from flyball.job_group g join flyball.job j on j.id = g.callback_job_id",
    )
    .fetch_one(&queue.pool)
    .await
    .unwrap();

    let numbers: (i16, i16) = (callback.get("priority"), callback.get("max_attempts"));
    assert_eq!(numbers, (2, 5));
}

#[tokio::test]
async fn a_time_without_a_zone_in_a_callback_is_one_of_the_session_that_created_the_group() {
    let (database, queue) = queue().await;
    let mut creator = database.pool().begin().await.unwrap();
    creator
        .execute("set local timezone = 'Asia/Tokyo'")
        .await
        .unwrap();
    creator
        .execute(r#"select flyball.create_group('{"kind": "http", "run_at": "2030-01-01 09:00"}')"#)
        .await
        .unwrap();
    creator.commit().await.unwrap();

    sqlx::query("select flyball.seal_group(g.id) from flyball.job_group g")
        .execute(&queue.pool)
        .await
        .unwrap();

    let runs_at: String = sqlx::query_scalar(
        "select flyball.time_text(j.run_at) from flyball.job_group g join flyball.job j on j.id = g.callback_job_id",
    )
    .fetch_one(&queue.pool)
    .await
    .unwrap();
    assert_eq!(runs_at, "2030-01-01T00:00:00Z");
}
