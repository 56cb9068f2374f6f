//! The pages of SQL, HTTP, metrics and the throttle protocol are complete.

use std::collections::BTreeSet;
use std::time::Duration;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::{Kinds, NewJob};
use flyball::throttle::{Name, Store};
use serde_json::json;

use super::page::{blocks, code, read, rows, section};
use crate::support::{database, eventually, patient_store, redis_prefix, stack};

const ARGUMENTS: &str = "
    select coalesce(p.proargnames[a.n], ''), format_type(a.type, null), coalesce(pg_get_function_arg_default(p.oid, a.n::int), '')
    from pg_proc p
    cross join lateral unnest(p.proargtypes::oid[]) with ordinality as a(type, n)
    where p.oid = $1::regproc
    order by a.n";

/// Returns the names of the functions that have a section on the page of SQL.
fn documented_functions(page: &str) -> Vec<&str> {
    let functions: Vec<&str> = page
        .lines()
        .filter_map(|line| {
            line.trim_start_matches('#')
                .strip_prefix(" `flyball.")?
                .strip_suffix('`')
        })
        .collect();
    assert!(functions.len() > 3, "{functions:?}");
    functions
}

#[tokio::test]
async fn no_documented_function_calls_what_others_plant_in_public() {
    let database = database().await;
    let page = read("docs/reference/sql.md");
    let without_path: Vec<String> = sqlx::query_scalar(
        "select p.proname::text from pg_proc p
         where p.pronamespace = 'flyball'::regnamespace and p.proname::text = any ($1)
            and not coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']
         order by 1",
    )
    .bind(documented_functions(&page))
    .fetch_all(database.pool())
    .await
    .unwrap();
    assert_eq!(without_path, [""; 0]);

    // It fits the arguments better than that of the system, which takes any.
    sqlx::raw_sql(
        "create function public.format(text, text) returns text language plpgsql as $$
         begin
             raise exception 'planted code runs as %', current_user;
         end $$",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let cancel = "select cancelled from flyball.cancel_jobs(throttle => 'nobody', dry_run => true)";
    let cancelled: i64 = sqlx::query_scalar(cancel)
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(cancelled, 0);
}

#[tokio::test]
async fn the_page_of_sql_has_every_argument_with_its_type_and_default() {
    let database = database().await;
    let page = read("docs/reference/sql.md");
    for function in documented_functions(&page) {
        let function = &format!("flyball.{function}");
        let arguments: Vec<(String, String, String)> = sqlx::query_as(ARGUMENTS)
            .bind(function)
            .fetch_all(database.pool())
            .await
            .unwrap();
        let level = if page.contains(&format!("\n### `{function}`")) {
            "###"
        } else {
            "##"
        };
        let text = section(&page, &format!("{level} `{function}`"));
        let table = text.split("It answers").next().unwrap();
        let documented: Vec<(String, String, String)> = rows(table)
            .iter()
            .map(|row| {
                let default = if row[2] == "required" {
                    ""
                } else {
                    code(&row[2])
                };
                (
                    code(&row[0]).to_owned(),
                    code(&row[1]).to_owned(),
                    default.to_owned(),
                )
            })
            .collect();

        // Readers see the type, so the page writes `'{}'::jsonb` as `'{}'`.
        let plain = |default: String| default.split("::").next().unwrap_or_default().to_owned();
        let wanted: Vec<_> = arguments
            .into_iter()
            .map(|(name, kind, default)| (name, kind, plain(default)))
            .collect();
        assert_eq!(documented, wanted, "{function}");
    }
}

#[tokio::test]
async fn a_job_has_the_same_fields_in_sql_http_and_rust() {
    // Lists that are empty are left out.
    let job = NewJob::new("http", json!({})).tag("import").after([1]);
    let job = serde_json::to_value(job).unwrap();
    let fields: BTreeSet<String> = job.as_object().unwrap().keys().cloned().collect();
    let answer = |page: &str, heading: &str, end: &str| -> BTreeSet<String> {
        let page = read(page);
        rows(section(&page, heading).split(end).next().unwrap())
            .iter()
            .map(|row| code(&row[0]).to_owned())
            .collect()
    };

    assert_eq!(
        answer(
            "docs/reference/sql.md",
            "## `flyball.enqueue`",
            "It answers"
        ),
        fields
    );
    assert_eq!(
        answer("docs/reference/http.md", "### `POST /api/v1/jobs`", "```"),
        fields
    );
}

#[tokio::test]
async fn the_rights_that_the_guide_gives_a_producer_are_enough_and_no_more() {
    let database = database().await;
    let guide = read("docs/guides/operating.md");
    let sql = blocks(section(&guide, "### Roles for SQL producers"));
    let grants = &sql
        .iter()
        .find(|(language, _)| language == "sql")
        .expect("the grants")
        .1;
    // Roles are global to the server, which other tests share.
    let role = format!("producer_{}", &crate::support::unique()[..8]);
    let grants = grants.replace("billing", &role);

    let mut connection = database.superuser().acquire().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants))
        .execute(&mut *connection)
        .await
        .unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("set role {role}")))
        .execute(&mut *connection)
        .await
        .unwrap();
    let allowed = [
        "select flyball.enqueue('http')",
        "select flyball.enqueue('http', unique_key => 'a', unique_for => '1 hour')",
        "select flyball.enqueue('http', unique_key => 'a')",
        "select flyball.enqueue('http', run_at => now() + interval '1 hour')",
        "select flyball.enqueue_many('[{\"kind\": \"http\"}, {\"kind\": \"http\", \"unique_key\": \"b\"}]')",
    ];
    for statement in allowed {
        sqlx::raw_sql(statement)
            .execute(&mut *connection)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let forbidden = [
        "select args from flyball.job",
        "delete from flyball.ready",
        "insert into flyball.ready (lane_id, priority, job_id, cost) values (1, 1, 1, 1)",
        "select flyball.register_kind('x')",
        "insert into flyball.audit (actor, action, subject) values ('a', 'b', 'c')",
    ];
    for statement in forbidden {
        let refused = sqlx::raw_sql(statement)
            .execute(&mut *connection)
            .await
            .expect_err(statement)
            .to_string();
        assert!(
            refused.contains("permission denied"),
            "{statement}: {refused}"
        );
    }
}

#[test]
fn the_page_of_the_api_has_every_route() {
    let (_, document) = flyball::api::router::api().split_for_parts();
    let document = serde_json::to_value(&document).unwrap();
    let mut routes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let methods = methods
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| ["get", "post", "patch", "put", "delete"].contains(&key.as_str()));
        routes.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }

    let page = read("docs/reference/http.md");
    let mut answer = BTreeSet::new();
    for heading in page.lines().filter(|line| line.starts_with("##")) {
        // `…/resume` stands for the preceding route with another last segment; a path alone has the
        // preceding method.
        let (mut method, mut path) = (String::new(), String::new());
        for span in heading.split('`').skip(1).step_by(2) {
            let route = match span.split_once(' ') {
                Some((word, route)) => {
                    word.clone_into(&mut method);
                    route
                }
                None => span,
            };
            let route = route.split('?').next().unwrap();
            path = match route.strip_prefix('…') {
                Some(last) => format!("{}{last}", path.rsplit_once('/').unwrap().0),
                None => route.to_owned(),
            };
            answer.insert(format!("{method} {path}"));
        }
    }

    assert_eq!(answer, routes);
}

#[tokio::test]
async fn the_page_of_metrics_has_every_family_that_a_working_process_exposes() {
    let (stack, database, prefix) = (stack().await, database().await, redis_prefix());
    let environment = [
        ("DATABASE_URL", database.url()),
        ("REDIS_URL", &stack.redis_url),
        ("PROMETHEUS_URL", &stack.prometheus_url),
        ("FLYBALL_REDIS_PREFIX", &prefix),
        ("FLYBALL_LISTEN", "127.0.0.1:0"),
        (
            "FLYBALL_KNOBS_DIR",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../knobs"),
        ),
        ("FLYBALL_DATABASE_CONNECTIONS", "6"),
    ];
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let app = App::start(
        &Settings::load(None, &environment).unwrap(),
        Roles::ALL,
        Kinds::default(),
    )
    .await
    .unwrap();
    let url = format!("http://{}/metrics", app.address.unwrap());
    // A job that ends immediately, so that the families that count jobs have series.
    app.queue
        .enqueue(&[NewJob::new("http", json!({}))])
        .await
        .unwrap();
    // A job with a paused key, for the families about blocked keys.
    let store = patient_store(&prefix).await;
    store
        .pause_key(
            &Name::new("default").unwrap(),
            "acme",
            Duration::from_secs(600),
            "test",
        )
        .await
        .unwrap();
    app.queue
        .enqueue(&[NewJob {
            key: "acme".into(),
            ..NewJob::new("http", json!({}))
        }])
        .await
        .unwrap();

    let exposed = eventually(
        "an ended job in the metrics",
        Duration::from_secs(30),
        || async {
            let text = reqwest::get(&url).await.ok()?.text().await.ok()?;
            let families = text.lines().filter_map(|line| {
                line.strip_prefix("# TYPE ")?
                    .split(' ')
                    .next()
                    .map(str::to_owned)
            });
            let families: BTreeSet<String> = families.collect();
            // These need two observations of a throttle, a second apart, and a walk over all jobs.
            let complete = [
                "flyball_jobs_finished_total",
                "flyball_governor_signal_stale",
                "flyball_throttle_limiting_share",
                "flyball_depth_age_seconds",
                "flyball_throttle_held_jobs",
            ];
            complete
                .iter()
                .all(|name| families.contains(*name))
                .then_some(families)
        },
    )
    .await;
    app.stop().await;

    let answer: BTreeSet<String> = rows(&read("docs/reference/metrics.md"))
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();
    assert_eq!(
        exposed.difference(&answer).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "docs/reference/metrics.md lacks these"
    );
    // Missing here: readings of a signal, a throttle in shadow mode, a rejection by a server, a
    // token request over HTTP, a pool, a message with gates, a replica, knobs that expire, and a
    // throttle below another.
    let absent = [
        "flyball_throttle_limiting_share_above",
        "flyball_throttle_expires_seconds",
        "flyball_governor_signal_ratio",
        "flyball_governor_signal_age_seconds",
        "flyball_notifications_total",
        "flyball_provider_events_total",
        "flyball_gate_findings_total",
    ];
    let families = [
        "flyball_governor_shadow_",
        "flyball_governor_learned_quota_",
        "flyball_throttle_requests_",
        "flyball_throttle_key_requests_",
        "flyball_jobs_not_served_",
        "flyball_jobs_unserved",
        "flyball_account_",
        "flyball_pool_",
        "flyball_provider_response_",
        "flyball_replica_",
    ];
    let is_absent = |name: &str| {
        absent.contains(&name) || families.iter().any(|family| name.starts_with(family))
    };
    let invented: Vec<_> = answer
        .difference(&exposed)
        .filter(|name| !is_absent(name))
        .collect();
    assert_eq!(invented, Vec::<&String>::new(), "these do not exist");
}

#[test]
fn alerts_and_the_guide_speak_of_metrics_that_exist() {
    let known: BTreeSet<String> = rows(&read("docs/reference/metrics.md"))
        .iter()
        .map(|row| code(&row[0]).to_owned())
        .collect();
    for file in [
        "prometheus/rules/flyball.yml",
        "docs/guides/operating.md",
        "grafana/flyball.json",
    ] {
        // The series of a histogram form one family.
        let text = ["_bucket", "_sum", "_count"]
            .iter()
            .fold(read(file), |text, part| {
                text.replace(&format!("{part}["), "[")
                    .replace(&format!("{part}{{"), "{")
            });
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        // Recorded series have colons in their names; an alert group has no unit and no type.
        let metrics = words.filter(|word| word.starts_with("flyball_") && !word.contains(':'));
        let unknown: BTreeSet<&str> = metrics
            .filter(|word| {
                !known.contains(*word)
                    && !["flyball_alerts", "flyball_recorded", "flyball_api_token"].contains(word)
            })
            .collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn the_guide_names_every_alert() {
    let guide = read("docs/guides/operating.md");
    let rules = read("prometheus/rules/flyball.yml");
    let alerts: BTreeSet<&str> = rules
        .split("- alert: ")
        .skip(1)
        .map(|alert| alert.lines().next().unwrap())
        .collect();

    let table = rows(section(&guide, "### Alerts"));
    let answer: BTreeSet<&str> = table.iter().map(|row| code(&row[0])).collect();

    assert_eq!(answer, alerts);
}

#[test]
fn the_page_of_the_protocol_has_every_verb() {
    let lua = read("core/src/throttle/throttle.lua");
    let verbs: BTreeSet<&str> = lua
        .lines()
        .filter_map(|line| {
            line.trim_start()
                .strip_prefix("if verb == '")?
                .split('\'')
                .next()
        })
        .collect();

    let page = read("docs/reference/throttle-protocol.md");
    let asking = section(&page, "## Asking");
    let mut answer: BTreeSet<&str> = ["acquire", "peek", "acquire_and_peek"]
        .into_iter()
        .filter(|verb| asking.contains(&format!("`{verb}`")))
        .collect();
    let others = rows(section(&page, "## The other verbs"));
    answer.extend(others.iter().map(|row| code(&row[0])));

    assert!(verbs.len() > 4, "{verbs:?}");
    assert_eq!(answer, verbs);
}
