//! Permissions to enqueue, owners of unique keys, and cost limits: the SQL functions, as roles of a
//! real Postgres.

use std::collections::BTreeMap;

use flyball::jobs::{NewJob, Queue};
use flyball::throttle::Knobs;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, PgPool, Row};

use crate::support::{Database, database, unique};

/// A database with its own roles. Roles are global to the server, so their names are unique to the
/// test.
pub(super) struct RolesFixture {
    database: Database,
    tag: String,
}

/// The error of a statement run by a role: its SQLSTATE and message, or nothing.
pub(super) type Refusal = Option<(String, String)>;

impl RolesFixture {
    pub(super) async fn new() -> Self {
        let fixture = Self {
            database: database().await,
            tag: unique()[..8].to_owned(),
        };
        for role in ["web", "bank", "team", "member", "planner"] {
            let role = fixture.role(role);
            fixture.owner(&format!("create role {role}; grant {role} to flyball; grant usage on schema flyball to {role}")).await;
        }
        let (team, member, planner) = (
            fixture.role("team"),
            fixture.role("member"),
            fixture.role("planner"),
        );
        fixture
            .owner(&format!(
                "grant {team} to {member}; grant select on flyball.kind to {planner}"
            ))
            .await;
        fixture
            .owner(&format!(
                "grant select, insert, update, delete on flyball.cron to {planner}"
            ))
            .await;
        fixture.owner("select flyball.register_kind('secret', false); select flyball.register_kind('notification')").await;
        fixture
    }

    pub(super) fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    pub(super) fn role(&self, name: &str) -> String {
        format!("leave_{name}_{}", self.tag)
    }

    /// As the superuser, who alone may create roles and grant membership in the schema's owner.
    pub(super) async fn owner(&self, sql: &str) {
        self.database
            .superuser()
            .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
            .await
            .unwrap();
    }

    /// Runs a statement as a role and commits it, or returns the error.
    pub(super) async fn as_role(&self, role: &str, sql: &str) -> Refusal {
        let mut transaction = self.pool().begin().await.unwrap();
        if role != "owner" {
            let set = format!("set local role {}", self.role(role));
            transaction
                .execute(sqlx::raw_sql(AssertSqlSafe(set)))
                .await
                .unwrap();
        }
        match transaction
            .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
            .await
        {
            Ok(_) => {
                transaction.commit().await.unwrap();
                None
            }
            Err(error) => {
                let error = error.into_database_error().unwrap();
                Some((
                    error.code().unwrap().into_owned(),
                    error.message().to_owned(),
                ))
            }
        }
    }

    pub(super) async fn text(&self, sql: &str) -> String {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(self.pool())
            .await
            .unwrap()
    }
}

/// Every SQL statement that creates a job, or a row that creates jobs later.
pub(super) const ENTRY_POINTS: [(&str, &str); 8] = [
    ("enqueue", "select flyball.enqueue('KIND')"),
    ("later", "select flyball.enqueue('KIND', run_at => now() + interval '1 hour', timeout => interval '1 minute')"),
    ("replace", "select flyball.enqueue('KIND', unique_key => 'k', replace => true, run_at => now() + interval '1 hour')"),
    ("debounce", "select flyball.enqueue('KIND', unique_key => 'd', debounce => interval '1 hour')"),
    ("enqueue_many", r#"select flyball.enqueue_many('[{"kind": "http"}, {"kind": "KIND"}]')"#),
    (
        "enqueue_rows",
        "select flyball.enqueue_rows(array['KIND'], array['{}'::jsonb], array['default'], array[''], array[1], array[null::timestamptz],
            array[10], array[null::text], array[null::float8], array[1::float8], array[null::text], array[null::float8],
            array[null::float8], array[null::float8], array[false])",
    ),
    ("schedule", "select flyball.schedule('s', '@daily', 'KIND')"),
    ("cron", "insert into flyball.cron (name, expression, kind) values ('c', '@daily', 'KIND') on conflict (name) do update set kind = excluded.kind"),
];

#[tokio::test]
async fn a_kind_that_is_not_public_goes_in_by_no_entry_point_but_for_operators_and_roles_that_are_named()
 {
    let fixture = RolesFixture::new().await;
    for (role, kinds) in [("bank", "{secret}"), ("team", "{reindex}")] {
        fixture
            .owner(&format!(
                "insert into flyball.producer values ('{}', '{kinds}')",
                fixture.role(role)
            ))
            .await;
    }
    for (entry_point, sql) in ENTRY_POINTS {
        let is_cron = ["schedule", "cron"].contains(&entry_point);
        for (role, leave) in [
            ("web", &[][..]),
            ("bank", &["secret"]),
            ("team", &["reindex"]),
            ("member", &["reindex"]),
            ("planner", &[]),
            ("owner", &["reindex", "secret"]),
        ] {
            if is_cron && !["planner", "owner"].contains(&role) {
                continue;
            }
            for kind in ["http", "notification", "reindex", "secret"] {
                let may = ["http", "notification"].contains(&kind) || leave.contains(&kind);
                let output = fixture.as_role(role, &sql.replace("KIND", kind)).await;
                match output {
                    None => assert!(may, "{entry_point}, {role}, {kind}: went in"),
                    Some((code, message)) => {
                        assert!(!may, "{entry_point}, {role}, {kind}: {message}");
                        assert_eq!(code, "42501", "{message}");
                        let answer = format!(
                            "kind: \"{kind}\" is not public, and role \"{}\"",
                            fixture.role(role)
                        );
                        assert!(
                            message.contains(&answer)
                                && message.contains("it may enqueue: http, notification"),
                            "{message}"
                        );
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn whoever_may_only_enqueue_gains_nothing_from_the_functions_behind_the_entry_points() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner("select flyball.schedule('nightly', '@daily', 'reindex')")
        .await;
    for sql in [
        "select flyball.enqueue_rows_as('', true, array['reindex'], array['{}'::jsonb], array['default'], array[''], array[1],
            array[null::timestamptz], array[10], array[null::text], array[null::float8], array[1::float8], array[null::text],
            array[null::float8], array[null::float8], array[null::float8], array[false])",
        "select flyball.enqueue_occurrence('nightly', null)",
        "select flyball.run_schedule('nightly')",
        "select flyball.register_kind('reindex', true)",
        "update flyball.kind set public = true",
        "insert into flyball.producer values (session_user, '{reindex}')",
        "select flyball.enqueue('http', throttle => 'api:write')",
        "select flyball.enqueue('http', throttle => 'limit:lead')",
        "select flyball.enqueue('http', throttle => 'flyball:alerts', key => 'alerts:sms')",
        "select flyball.enqueue_many('[{\"kind\": \"http\", \"throttle\": \"flyball:alerts\"}]')",
        "select flyball.enqueue_many('[{\"kind\": \"http\", \"throttle\": \"limit:lead:customer\"}]')",
        "select flyball.enqueue('notification', throttle => 'sms', cost => 11)",
        "select flyball.enqueue_many('[{\"kind\": \"notification\", \"throttle\": \"sms\", \"cost\": 1000}]')",
        "select flyball.admit('x', 'reindex', '{}', 'default', '', 1, null, 10, null, null, 1, null, null, null, null, false, '')",
    ] {
        let (code, message) = fixture.as_role("web", sql).await.unwrap_or_else(|| panic!("{sql} went through"));
        assert_eq!(code, "42501", "{sql}: {message}");
    }
    // A role that may change schedules may run those of operators, but rewrite none of them.
    assert_eq!(
        fixture
            .as_role("planner", "select flyball.run_schedule('nightly')")
            .await,
        None
    );
    let rewritten = fixture
        .as_role(
            "planner",
            "update flyball.cron set args = '{\"source\": 1}'",
        )
        .await
        .unwrap();
    assert!(
        rewritten.1.contains("\"reindex\" is not public"),
        "{rewritten:?}"
    );
}

#[tokio::test]
async fn the_throttles_of_a_pool_take_other_jobs_than_messages_from_operators_alone() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner("insert into flyball.knobs (throttle, fields) select t, '{}' from unnest(array['sms', 'sms:accounts', 'shop:accounts']) t")
        .await;
    let shop = fixture.role("web");
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant) values ('{shop}', 'shop')"
        ))
        .await;
    for sql in [
        "select flyball.enqueue('http', throttle => 'sms', key => 'bank')",
        "select flyball.enqueue('http', throttle => 'sms', unique_key => 'a')",
        "select flyball.enqueue('http', throttle => 'sms:accounts', key => 'main')",
        "select flyball.enqueue('notification', throttle => 'sms:accounts', key => 'main')",
        r#"select flyball.enqueue_many('[{"kind": "http"}, {"kind": "http", "throttle": "sms"}]')"#,
        r#"select flyball.enqueue_many('[{"kind": "notification", "throttle": "sms:accounts"}]')"#,
        r#"select flyball.create_group('{"kind": "http", "throttle": "sms"}')"#,
    ] {
        for role in ["web", "bank"] {
            let refused = fixture.as_role(role, sql).await;
            let (code, message) = refused.unwrap_or_else(|| panic!("{sql} went through"));
            assert_eq!(code, "42501", "{sql}: {message}");
            assert!(message.contains("belongs to a pool"), "{message}");
        }
        assert_eq!(fixture.as_role("owner", sql).await, None, "{sql}");
    }
    for sql in [
        "select flyball.schedule('nightly', '@daily', 'http', throttle => 'sms')",
        "insert into flyball.cron (name, expression, time_zone, kind, throttle) values ('a', '@daily', 'UTC', 'http', 'sms:accounts')",
    ] {
        let (code, message) = fixture.as_role("planner", sql).await.expect(sql);
        assert_eq!(code, "42501", "{sql}: {message}");
    }
    for sql in [
        "select flyball.enqueue('notification', throttle => 'sms')",
        r#"select flyball.enqueue_many('[{"kind": "notification", "throttle": "sms"}, {"kind": "http"}]')"#,
        "select flyball.enqueue('http', throttle => 'shop:accounts')",
        r#"select flyball.enqueue_many('[{"kind": "http", "throttle": "shop:accounts"}]')"#,
    ] {
        for role in ["web", "bank"] {
            assert_eq!(fixture.as_role(role, sql).await, None, "{sql}");
        }
    }
}

#[tokio::test]
async fn nobody_but_operators_enters_the_lane_of_the_calls_of_others() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant) values ('{}', 'shop')",
            fixture.role("web")
        ))
        .await;
    for sql in [
        "select flyball.enqueue('http', throttle => 'webhooks', key => 'bank')",
        r#"select flyball.enqueue_many('[{"kind": "http", "throttle": "webhooks", "key": "bank"}]')"#,
    ] {
        for role in ["web", "bank"] {
            let refused = fixture.as_role(role, sql).await;
            let (code, message) = refused.unwrap_or_else(|| panic!("{sql} went through"));
            assert_eq!(code, "42501", "{sql}: {message}");
            assert!(message.contains("names the calls of others"), "{message}");
        }
        assert_eq!(fixture.as_role("owner", sql).await, None, "{sql}");
    }
    for sql in [
        "select flyball.enqueue('http', throttle => 'webhooks', key => 'shop')",
        "select flyball.enqueue('http', throttle => 'webhooks')",
    ] {
        assert_eq!(fixture.as_role("web", sql).await, None, "{sql}");
    }
    // A row of a schedule, however it is written.
    let row = |kind: &str, throttle: &str, key: &str, cost: i32| {
        format!(
            "insert into flyball.cron (name, expression, kind, throttle, key, cost)
             values ('c', '@daily', '{kind}', '{throttle}', '{key}', {cost})"
        )
    };
    for (sql, told) in [
        (
            row("http", "webhooks", "bank", 1),
            "schedule: key: names the calls of others",
        ),
        (
            row("notification", "sms", "", 11),
            "schedule: cost: is 11; a message costs at most 10",
        ),
    ] {
        let (code, message) = fixture.as_role("planner", &sql).await.expect(&sql);
        assert_eq!(code, "42501", "{sql}: {message}");
        assert!(message.starts_with(told), "{message}");
        fixture.owner(&sql).await;
        fixture.owner("delete from flyball.cron").await;
    }
    let sql = row("http", "webhooks", "", 1);
    assert_eq!(fixture.as_role("planner", &sql).await, None, "{sql}");
}

#[tokio::test]
async fn nobody_rewrites_holds_up_or_hijacks_a_job_by_knowing_its_unique_key() {
    let fixture = RolesFixture::new().await;
    let bank = "select flyball.enqueue('http', '{\"url\": \"https://bank.example/\"}', throttle => 'hooks', unique_key => 'invoice-1')";
    assert_eq!(fixture.as_role("bank", bank).await, None);
    let evil =
        "select flyball.enqueue('http', '{\"url\": \"https://evil.example/\"}', throttle => 'evil', unique_key => 'invoice-1',
        replace => true, run_at => now() + interval '9 years')";
    assert_eq!(fixture.as_role("web", evil).await, None);
    assert_eq!(fixture.as_role("owner", evil).await, None);

    let jobs = fixture.text("select string_agg(args ->> 'url' || ' ' || throttle, ', ' order by id) from flyball.job").await;
    assert_eq!(
        jobs,
        "https://bank.example/ hooks, https://evil.example/ evil, https://evil.example/ evil"
    );
    // A job of its own is replaced, and blocks the key like any other.
    assert_eq!(fixture.as_role("web", evil).await, None);
    assert_eq!(fixture.as_role("bank", bank).await, None);
    assert_eq!(
        fixture.text("select count(*)::text from flyball.job").await,
        "3"
    );

    // A schedule's key belongs to the schedule alone, for every role.
    fixture
        .owner("select flyball.schedule('nightly', '@daily', 'http')")
        .await;
    for role in ["web", "planner", "owner"] {
        for entry_point in [
            "select flyball.enqueue('http', unique_key => 'cron:nightly', replace => true)",
            r#"select flyball.enqueue_many('[{"kind": "http", "unique_key": "cron:nightly"}]')"#,
        ] {
            let (code, message) = fixture.as_role(role, entry_point).await.unwrap();
            assert_eq!(code, "22023");
            assert!(
                message.contains(
                    "unique_key: begins with \"cron:\", which is kept for the jobs of schedules"
                ),
                "{message}"
            );
        }
    }
    let queue = Queue::new(fixture.pool().clone());
    let taken = queue
        .enqueue(&[NewJob {
            unique_key: Some("cron:nightly".into()),
            ..NewJob::new("http", json!({}))
        }])
        .await;
    assert!(
        taken
            .unwrap_err()
            .to_string()
            .contains("kept for the jobs of schedules")
    );
    let ran = |row: sqlx::postgres::PgRow| row.get::<bool, _>("duplicate");
    let run = "select * from flyball.run_schedule('nightly')";
    assert!(!ran(sqlx::query(run)
        .fetch_one(fixture.pool())
        .await
        .unwrap()));
    assert!(
        ran(sqlx::query(run).fetch_one(fixture.pool()).await.unwrap()),
        "the schedule's own job stands in its way"
    );
}

#[tokio::test]
async fn roles_and_tokens_of_one_tenant_share_their_unique_keys() {
    let fixture = RolesFixture::new().await;
    for role in ["web", "team"] {
        fixture
            .owner(&format!(
                "insert into flyball.producer (role, tenant) values ('{}', 'shop')",
                fixture.role(role)
            ))
            .await;
    }
    let job = "select flyball.enqueue('http', unique_key => 'order-7')";
    for role in ["web", "member", "bank"] {
        assert_eq!(fixture.as_role(role, job).await, None);
    }
    let queue = Queue::new(fixture.pool().clone());
    let job = NewJob {
        unique_key: Some("order-7".into()),
        ..NewJob::new("http", json!({}))
    };
    let mut duplicates = Vec::new();
    for owner in ["tenant:shop", "tenant:other", "token:web", ""] {
        duplicates.push(
            queue
                .enqueue_for(owner, "", std::slice::from_ref(&job))
                .await
                .unwrap()[0]
                .duplicate,
        );
    }
    assert_eq!(duplicates, [true, false, false, false]);
    assert_eq!(
        fixture.text("select count(*)::text from flyball.job").await,
        "5",
        "shop's, bank's, and three others'"
    );
}

#[tokio::test]
async fn the_dearest_job_of_a_throttle_is_the_same_to_postgres_and_to_workers_and_every_entry_point_refuses_more()
 {
    let fixture = RolesFixture::new().await;
    let cases: [&[(&str, &str)]; 14] = [
        &[("rps", "10")],
        &[("rps", "500"), ("window", "60")],
        &[("rps", "0.000001")],
        &[("rps", "-1")],
        &[("rps", "0"), ("mode", "auto"), ("max", "5000")],
        &[("rps", "3"), ("mode", "auto")],
        &[("rps", "10"), ("max_cost", "7.5")],
        &[("rps", "10"), ("max_cost", "0.5")],
        &[("rps", "10"), ("max_cost", "a lot")],
        &[("rps", "10"), ("max_cost", "-3")],
        &[("rps", "10"), ("max_cost", "1e999")],
        &[("rps", "2e3"), ("window", "10")],
        &[("rps", "1000"), ("burst", "100")],
        &[("rps", "1000"), ("burst", "1e5"), ("safe_rps", "1000")],
    ];
    let queue = Queue::new(fixture.pool().clone());
    for (at, fields) in cases.iter().enumerate() {
        let raw: BTreeMap<String, String> = fields
            .iter()
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect();
        let name = format!("t{at}");
        sqlx::query("insert into flyball.knobs (throttle, fields) values ($1, $2)")
            .bind(&name)
            .bind(serde_json::to_value(&raw).unwrap())
            .execute(fixture.pool())
            .await
            .unwrap();
        let most: f64 = sqlx::query_scalar("select flyball.max_cost($1)")
            .bind(&name)
            .fetch_one(fixture.pool())
            .await
            .unwrap();
        assert_eq!(most, Knobs::read(&raw).0.max_cost(), "{fields:?}");
        if most >= 1e9 {
            continue;
        }
        let (fits, beyond) = (most, most * 1.01);
        let sentence = format!(
            "cost: is {beyond}; throttle {name} takes jobs of at most {most} tokens (its knob max_cost, or a parent's)"
        );
        for entry_point in [
            format!("select flyball.enqueue('http', throttle => '{name}', cost => COST)"),
            format!(
                r#"select flyball.enqueue_many('[{{"kind": "http", "throttle": "{name}", "cost": COST}}]')"#
            ),
            format!(
                "select flyball.schedule('s', '@daily', 'http', throttle => '{name}', cost => COST)"
            ),
        ] {
            assert_eq!(
                fixture
                    .as_role("owner", &entry_point.replace("COST", &fits.to_string()))
                    .await,
                None,
                "{entry_point}"
            );
            let (code, message) = fixture
                .as_role("owner", &entry_point.replace("COST", &beyond.to_string()))
                .await
                .unwrap();
            assert_eq!(code, "22023");
            assert!(message.ends_with(&sentence), "{message}\n{sentence}");
        }
        let job = NewJob {
            throttle: name.clone(),
            cost: beyond,
            ..NewJob::new("http", json!({}))
        };
        let refused = queue
            .enqueue(&[job.clone(), job])
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains(&sentence), "{refused}");
    }
    let unknown = fixture
        .as_role(
            "web",
            "select flyball.enqueue('http', throttle => 'mail', key => 'x', cost => 1e9)",
        )
        .await
        .unwrap();
    assert!(unknown.1.contains("at most 1000 tokens"), "{unknown:?}");
}

#[tokio::test]
async fn times_in_json_are_times_and_kinds_have_names() {
    let fixture = RolesFixture::new().await;
    let many = |run_at: &str| {
        format!(r#"select flyball.enqueue_many('[{{"kind": "http", "run_at": "{run_at}"}}]')"#)
    };
    for word in [
        "yesterday",
        "now",
        "tomorrow",
        "infinity",
        "epoch",
        "2026-11-20",
        "20261120T140000Z",
        "allballs",
        "",
    ] {
        let (code, message) = fixture
            .as_role("web", &many(word))
            .await
            .unwrap_or_else(|| panic!("{word} went in"));
        let answer = format!(
            "enqueue_many: jobs[0].run_at: \"{word}\" is not a time; write it like 2026-11-20T14:00:00Z"
        );
        assert_eq!((code.as_str(), message), ("22023", answer));
    }
    for time in [
        "2026-11-20T14:00:00Z",
        "2026-11-20 14:00:00.123456+00",
        "2026-11-20T14:00:00+01:00",
        "2026-11-20T14:00",
    ] {
        assert_eq!(fixture.as_role("web", &many(time)).await, None, "{time}");
    }
    for (name, answer) in [
        ("null", "must not be null"),
        ("''", "must not be empty"),
        ("repeat('x', 129)", "is 129 bytes long"),
    ] {
        let (code, message) = fixture
            .as_role("owner", &format!("select flyball.register_kind({name})"))
            .await
            .unwrap();
        assert_eq!(code, "22023");
        assert!(
            message.starts_with(&format!("register_kind: name: {answer}")),
            "{message}"
        );
    }
    // A process's declaration about a kind stays in force until another process declares otherwise;
    // a process without a declaration changes nothing.
    let public = "select public::text from flyball.kind where name = 'secret'";
    fixture
        .owner("select flyball.register_kind('secret')")
        .await;
    assert_eq!(fixture.text(public).await, "false");
    let queue = Queue::new(fixture.pool().clone());
    queue
        .declare_kinds(&[
            ("secret".to_owned(), true),
            ("reindex".to_owned(), false),
            ("fresh".to_owned(), false),
        ])
        .await
        .unwrap();
    assert_eq!(fixture.text(public).await, "true");
    assert_eq!(
        fixture
            .text("select string_agg(name, ' ' order by name) from flyball.kind where not public")
            .await,
        "batch fresh reindex"
    );
}

#[test]
fn of_the_built_in_kinds_only_what_reaches_further_than_its_producer_is_not_public() {
    let kinds = flyball::app::built_in_kinds(&flyball::config::Settings::defaults(), None).unwrap();
    let public = |kind: &str| kinds.get(kind).unwrap().public();
    assert_eq!(
        [public("http"), public("notification"), public("reindex")],
        [true, true, false]
    );
}
