//! The complaint rate of a pool's worst account, from the event counters, and its effect on the
//! rate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::{Kinds, NewJob};
use flyball::signals::Error;
use flyball::signals::complaints_postgres::{EVER, PoolExists, TALLY, from_tally};
use flyball_fakes::{Events, Fake, FakeOptions, FakeProvider, PlannedEvent};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, SqlSafeStr as _};

use crate::support::{Database, database, eventually, redis_prefix, stack};

/// The complaint signal is slow by design.
const SOON: Duration = Duration::from_secs(180);

/// Records `accepted` and `complained` for an account, some hours ago.
async fn count(
    database: &Database,
    pool: &str,
    account: &str,
    hours_ago: i32,
    accepted: i64,
    complained: i64,
) {
    let sql = "insert into flyball.account_tally (pool, account, hour, accepted, delivered, bounced, complained, unsubscribed) \
               values ($1, $2, date_trunc('hour', now()) - make_interval(hours => $3), $4, $4, 0, $5, 0)";
    let requested = sqlx::query(sql)
        .bind(pool)
        .bind(account)
        .bind(hours_ago)
        .bind(accepted)
        .bind(complained);
    requested.execute(database.pool()).await.unwrap();
}

#[tokio::test]
async fn the_worst_account_of_a_day_is_reported_and_what_is_not_known_is_no_zero() {
    let database = database().await;
    let mut connection = sqlx::PgConnection::connect(database.url()).await.unwrap();
    connection
        .execute("alter table flyball.account_tally rename to away")
        .await
        .unwrap();
    let exists: PoolExists = Arc::new(|pool| Box::pin(std::future::ready(pool == "marketing")));
    let source = from_tally(database.pool().clone().into(), exists);
    assert!(
        source("marketing").await.is_err(),
        "without a tally nothing is known"
    );

    connection
        .execute("alter table flyball.away rename to account_tally")
        .await
        .unwrap();
    for statement in [TALLY, EVER] {
        connection.prepare(statement.into_sql_str()).await.unwrap();
    }
    // A busy machine may take longer than the source waits.
    let read = |pool: &'static str| {
        let source = source.clone();
        eventually("a tally", SOON, move || {
            let answer = source(pool);
            async move {
                match answer.await {
                    Err(Error::TimedOut { .. }) => None,
                    answer => Some(answer),
                }
            }
        })
    };
    let silent = read("marketing").await.unwrap();
    assert_eq!((silent.share, silent.account.as_str()), (0.0, ""));
    assert!(silent.at > 1.7e9, "{silent:?}");
    let misspelt = read("marketnig").await.unwrap_err();
    assert_eq!(
        misspelt.to_string(),
        "there is no pool \"marketnig\", which the signal's query names"
    );
    // A pool that was counted once exists, wherever its settings are.
    count(&database, "retired", "main", 30, 1000, 10).await;
    assert_eq!(read("retired").await.unwrap().share, 0.0);

    count(&database, "marketing", "bad", 1, 60_000, 100).await;
    count(&database, "marketing", "bad", 5, 40_000, 150).await;
    count(&database, "marketing", "bad", 30, 1_000_000, 0).await;
    count(&database, "marketing", "good", 1, 900_000, 90).await;
    count(&database, "marketing", "small", 1, 400, 40).await;
    count(&database, "receipts", "other", 1, 10_000, 900).await;
    let found = read("marketing").await.unwrap();
    assert_eq!((found.account.as_str(), found.accepted), ("bad", 100_000.0));
    // 250 of 100,000 within the day. The lower end of the interval is one standard error below the
    // share: 0.0025 - sqrt(0.0025 * 0.9975 / 100,000), and 1 / (2 * 100,000) above that by Wilson's
    // centre.
    let lower_end = 0.0025 - (0.0025_f64 * 0.9975 / 1e5).sqrt() + 1.0 / 2e5;
    assert!(
        (found.share - lower_end).abs() < 1e-6,
        "{found:?}, not {lower_end}"
    );
    assert!(read("receipts").await.unwrap().share > 0.05);
}

const SIGNING_KEY: &str = "key-0123456789abcdef";

/// Returns a free port: the provider needs the address for its events before anything listens
/// there.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_provider_that_report_complaints_slow_marketing_down_and_bar_their_recipients()
{
    let port = free_port();
    let events = Events {
        callback: format!("http://127.0.0.1:{port}/api/v1/provider-events/marketing/main"),
        shares: vec![
            (PlannedEvent::Complained, 0.4),
            (PlannedEvent::Delivered, 0.6),
        ],
        delay: Duration::from_millis(50),
        secret: SIGNING_KEY.to_owned(),
        ..Events::default()
    };
    let fake = Fake::start(
        FakeProvider::Mailgun,
        FakeOptions {
            events: Some(events),
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (file, knobs) = (
        folder.path().join("flyball.toml"),
        folder.path().join("knobs"),
    );
    std::fs::create_dir(&knobs).unwrap();
    let policy = "[knobs]\nrps = 20\nmode = \"auto\"\nmin = 1\nmax = 20\nsafe_rps = 10\n\
                  [[signal]]\nname = \"complaints\"\nsource = \"complaints\"\nquery = \"marketing\"\n\
                  [governor]\ntick_s = 1\ndurations = false\n";
    std::fs::write(knobs.join("marketing.toml"), policy).unwrap();
    for (name, text) in [("api", "key-api\n"), ("hook", SIGNING_KEY)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = format!(
        "allow_private_urls = true\n[pools.marketing]\nprovider = \"mailgun\"\nrps = 500\nbase_url = {:?}\n\
         [[pools.marketing.accounts]]\nname = \"main\"\ndomain = \"mg.example.com\"\nfrom = \"news@mg.example.com\"\n\
         api_key_file = {:?}\nwebhook_signing_key_file = {:?}\n",
        fake.url(),
        path("api"),
        path("hook"),
    );
    std::fs::write(&file, text).unwrap();
    let database = database().await;
    let mut settings =
        Settings::load(Some(&file), &BTreeMap::default()).unwrap_or_else(|error| panic!("{error}"));
    settings.database_url = database.url().to_owned();
    settings.redis_url = stack().await.redis_url.clone();
    settings.redis_prefix = redis_prefix();
    settings.prometheus_url = "http://127.0.0.1:9".to_owned();
    settings.listen = format!("127.0.0.1:{port}");
    settings.knobs_dir = knobs.display().to_string();
    let app = App::start(&settings, Roles::ALL, Kinds::default())
        .await
        .unwrap_or_else(|error| panic!("{error:#}"));

    let mail = |n: usize| {
        let args = json!({"channel": "email", "to": format!("reader{n}@example.com"), "subject": "News", "body": "The sale ends on Sunday.",
                          "category": "marketing"});
        NewJob::new("notification", args).throttle("marketing")
    };
    app.queue
        .enqueue(&(0..4000).map(mail).collect::<Vec<NewJob>>())
        .await
        .unwrap();

    let answer = "select coalesce(sum(complained), 0)::bigint from flyball.account_tally where pool = 'marketing' and account = 'main'";
    let complained = || async {
        sqlx::query_scalar::<_, i64>(answer)
            .fetch_one(database.pool())
            .await
            .unwrap()
    };
    eventually("complaints", SOON, || async {
        (complained().await >= 150).then_some(())
    })
    .await;
    let url = format!("http://127.0.0.1:{port}/api/v1/throttles/marketing");
    let shown = || async {
        let shown = reqwest::get(&url).await.unwrap();
        shown.json::<Value>().await.unwrap()
    };
    // How fast and how far it falls is tested on virtual time.
    let before = eventually("a rate", SOON, || async {
        shown().await["knobs"]["rps"].as_f64()
    })
    .await;
    let slower = || async {
        let shown = shown().await;
        let is_lower = shown["knobs"]["rps"].as_f64()? < 0.8 * before
            && shown["governor"]["limiting"] == "complaints";
        is_lower.then_some(())
    };
    eventually("a rate that complaints have lowered", SOON, slower).await;
    let barred: i64 =
        sqlx::query_scalar("select count(*) from flyball.suppression where channel = 'email' and reason = 'complained'")
            .fetch_one(database.pool())
            .await
            .unwrap();
    assert!(barred >= 150, "{barred}");
    app.stop().await;
}
