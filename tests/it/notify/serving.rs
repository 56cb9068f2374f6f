//! Messages of pools that not every worker has.

use std::time::Duration;

use flyball::api::why_job_waits;
use flyball::app::{App, Roles, built_in_kinds};
use flyball::config::Settings;
use flyball::jobs::serving::differences;
use flyball::jobs::{Kinds, NewJob, State};
use flyball::throttle::{Change, Name};
use flyball_fakes::{Fake, FakeOptions, FakeProvider};
use serde_json::json;

use crate::support::app::{RUNNER, RunningApp};
use crate::support::process::{Process, ProcessFixture};
use crate::support::sms_pool::{self, sid};
use crate::support::{database, eventually, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(180);

/// The number of messages.
const MANY: usize = 400;

async fn twilio() -> Fake {
    let options = FakeOptions::default();
    Fake::start(FakeProvider::Twilio, options).await.unwrap()
}

/// Two processes, of which only one has the pool `sms`.
struct UnequalProcesses {
    fixture: ProcessFixture,
    fake: Fake,
    rich: Process,
    poor: Process,
    _folder: tempfile::TempDir,
}

impl UnequalProcesses {
    /// Starts both; `rps` is the rate of each account, -1 for none.
    async fn start(rps: f64) -> Self {
        let (fixture, fake) = (ProcessFixture::new("rps = -1").await, twilio().await);
        fixture.knobs_file("sms", "[knobs]\nmode = \"manual\"\nrps = -1\n");
        let folder = tempfile::tempdir().unwrap();
        let many = [("FLYBALL_CONCURRENCY", "32")];
        fixture.settings_file(&sms_pool::settings(folder.path(), &fake, 2, rps, ""));
        let rich = fixture.serve_with(&[], &many);
        rich.worker_started().await;
        fixture.settings_file("allow_private_urls = true\n");
        let poor = fixture.serve_with(&[], &many);
        poor.worker_started().await;
        Self {
            fixture,
            fake,
            rich,
            poor,
            _folder: folder,
        }
    }

    /// Sends the messages and waits until their jobs have ended.
    async fn send(&self) {
        sms_pool::send(&self.fixture.queue, MANY).await;
        eventually("all are sent", SOON, || async {
            let ended = "select count(*) from flyball.attempt where outcome = 'completed'";
            (self.fixture.count(ended).await == MANY as i64).then_some(())
        })
        .await;
        let sent = "select count(*) from flyball.notification where state = 'sent'";
        let dead = "select count(*) from flyball.dead";
        let jobs = "select count(distinct job_id) from flyball.attempt where outcome = 'completed'";
        for (count, wanted) in [(sent, MANY as i64), (dead, 0), (jobs, MANY as i64)] {
            assert_eq!(self.fixture.count(count).await, wanted, "{count}");
        }
        let accepted = [sid(1), sid(2)].map(|sid| self.fake.totals(&sid).accepted);
        assert_eq!(accepted.iter().sum::<u64>(), MANY as u64);
    }

    async fn worker_of(&self, process: &Process) -> i32 {
        let sql = "select id from flyball.worker where pid = $1";
        let id = sqlx::query_scalar(sql).bind(process.pid());
        id.fetch_one(self.fixture.pool()).await.unwrap()
    }

    /// Checks that all messages were completed by this worker, and tried by no other.
    ///
    /// A message whose turn is more than a tenth of a second away frees its slot without a failure.
    /// Their number depends on the speed of the machine, and may be zero.
    async fn assert_all_ended_at(&self, worker: i32) {
        let mut attempts = self.attempts().await;
        attempts.sort();
        let all = ("completed".to_owned(), Some(worker), None, MANY as i64);
        assert_eq!(attempts[0], all);
        for (outcome, tried_by, error, _) in &attempts[1..] {
            let freed = (outcome.as_str(), *tried_by, error.as_deref());
            assert_eq!(freed, ("snoozed", Some(worker), None));
        }
    }

    /// Returns the attempts by outcome, worker and error, each with its number.
    async fn attempts(&self) -> Vec<(String, Option<i32>, Option<String>, i64)> {
        let sql = "select outcome::text, worker_id, error, count(*) from flyball.attempt group by 1, 2, 3 order by 4 desc";
        let attempts = sqlx::query_as(sql);
        attempts.fetch_all(self.fixture.pool()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_the_pool_takes_no_message_from_one_that_has_it() {
    let both = UnequalProcesses::start(-1.0).await;

    both.send().await;

    let rich = both.worker_of(&both.rich).await;
    both.assert_all_ended_at(rich).await;
    // The difference is reported, with the worker that lacks the pool.
    let poor = both.worker_of(&both.poor).await;
    let differences = differences(&both.fixture.queue.serving().await.unwrap());
    let reported = differences
        .iter()
        .find(|one| one.starts_with("1 of 2 workers serve channel sms;"));
    assert!(
        reported.is_some_and(|one| one.ends_with(&format!("({poor})"))),
        "{differences:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_wait_for_the_rate_of_an_account_come_back_to_the_process_that_has_it() {
    let both = UnequalProcesses::start(100.0).await;

    both.send().await;

    let rich = both.worker_of(&both.rich).await;
    both.assert_all_ended_at(rich).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_nobody_serves_waits_and_says_what_is_missing() {
    let database = database().await;
    let mut settings = Settings::load(None, &Default::default()).unwrap();
    settings.database_url = database.url().to_owned();
    settings.redis_url = stack().await.redis_url.clone();
    settings.redis_prefix = redis_prefix();
    settings.knobs_dir = String::new();
    let roles = Roles {
        api: false,
        runner: true,
        governor: false,
    };
    let app = App::start(&settings, roles, Kinds::default())
        .await
        .unwrap_or_else(|error| panic!("{error:#}"));
    let args = json!({"channel": "sms", "to": "+15550001", "body": "hello"});
    let signed = json!({"url": "http://127.0.0.1:9/", "secret": "acme"});
    let fields = [("rps".to_owned(), Some("100".to_owned()))].into();
    let change = Change {
        fields,
        create: true,
        by: "test".into(),
        ..Change::default()
    };
    app.throttles
        .set(&Name::new("any").unwrap(), &change)
        .await
        .unwrap();
    let jobs = [
        NewJob::new("notification", args).throttle("any"),
        NewJob::new("http", signed).throttle("any"),
    ];
    let ids: Vec<i64> = app
        .queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .into_iter()
        .map(|made| made.id)
        .collect();

    let unserved = eventually("both are counted", SOON, || async {
        let unserved = app.queue.unserved().await.unwrap();
        (unserved.len() == 2).then_some(unserved)
    })
    .await;
    let mut needs: Vec<_> = unserved
        .iter()
        .map(|one| {
            (
                one.throttle.as_str(),
                one.kind.as_deref(),
                &one.needs[..],
                one.jobs,
            )
        })
        .collect();
    needs.sort();
    assert_eq!(
        needs,
        [
            ("any", Some("http"), &["secret ACME".to_owned()][..], 1),
            (
                "any",
                Some("notification"),
                &["channel sms".to_owned()][..],
                1
            ),
        ]
    );
    let kinds = built_in_kinds(&settings, None).unwrap();
    for (id, missing) in ids.into_iter().zip([
        "no live worker serves channel sms; add [pools.<name>]",
        "no live worker serves secret ACME;",
    ]) {
        let waiting = app.queue.get(id).await.unwrap().unwrap();
        assert_eq!(
            (waiting.summary.state, waiting.summary.attempt),
            (State::Ready, 0)
        );
        assert!(waiting.attempts.is_empty());
        let why = why_job_waits((&app.queue, &*app.throttles, &kinds), &waiting, true)
            .await
            .unwrap();
        assert!(why.reason.starts_with(missing), "{}", why.reason);
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_sends_only_messages_of_the_pools_that_it_was_told_to_serve() {
    let fake = twilio().await;
    let program = RunningApp::start(RUNNER, |folder| {
        let sms = sms_pool::settings(folder, &fake, 1, 200.0, "");
        let other = sms[sms.find("[pools").unwrap()..].replace("pools.sms", "pools.other");
        format!("serve_pools = [\"oth*\"]\n{sms}{other}")
    });
    let program = program.await;
    let message = |provider: &str| {
        let args = json!({"channel": "sms", "to": "+15550001", "body": "hi", "provider": provider});
        NewJob::new("notification", args).throttle("sms")
    };
    let jobs = [message("sms"), message("other")];
    let made = program.app.queue.enqueue(&jobs).await.unwrap();

    eventually("the message of its pool is sent", SOON, || async {
        let job = program.app.queue.get(made[1].id).await.unwrap().unwrap();
        (job.summary.state == State::Completed).then_some(())
    })
    .await;

    let unserved = eventually("the other is counted", SOON, || async {
        program.app.queue.unserved().await.unwrap().pop()
    })
    .await;
    assert_eq!(
        (&unserved.needs[..], unserved.jobs),
        (&["channel sms by sms".to_owned()][..], 1)
    );
    let other = program.app.queue.get(made[0].id).await.unwrap().unwrap();
    assert_eq!(
        (other.summary.state, other.attempts.len()),
        (State::Ready, 0)
    );
    program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_settings_of_a_pool_differ_from_those_of_a_live_one_is_refused() {
    let fake = twilio().await;
    let program = RunningApp::start(RUNNER, |folder| {
        sms_pool::settings(folder, &fake, 2, 200.0, "timeout_s = 10")
    });
    let program = program.await;
    let folder = tempfile::tempdir().unwrap();
    let settings = |keys: &str, rps: f64| {
        let file = folder.path().join("flyball.toml");
        let text = sms_pool::settings(folder.path(), &fake, 2, rps, keys);
        std::fs::write(&file, text).unwrap();
        let mut settings = Settings::load(Some(&file), &Default::default()).unwrap();
        settings.database_url = program.database.url().to_owned();
        settings.redis_prefix = program.prefix.clone();
        settings.knobs_dir = String::new();
        settings
    };
    let start = async |mut settings: Settings| {
        settings.redis_url = stack().await.redis_url.clone();
        App::start(&settings, RUNNER, Kinds::default()).await
    };

    let mut differing = settings("timeout_s = 11", 150.0);
    let more = if differing.database_url.contains('?') {
        '&'
    } else {
        '?'
    };
    let url = format!("{}{more}application_name=refused", differing.database_url);
    differing.database_url = url;
    let refused = start(differing).await;
    let error = format!("{:#}", refused.err().expect("another timeout is refused"));
    for part in [
        "settings: rps of account account_1 of pool sms differs from worker worker (1) at ",
        "timeout_s of pool sms differs from worker worker (1) at ",
        "settings_may_differ = true",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(
        !error.contains("0123456789abcdef") && !error.contains(&sid(1)),
        "{error}"
    );
    assert_eq!(program.app.queue.live_workers().await.unwrap(), 1);
    // A program may try again for as long as it likes.
    eventually("nothing of the refused one is left", SOON, || async {
        let connections = "select count(*) from pg_stat_activity where application_name = 'refused'
            and datname = current_database()";
        let connections = sqlx::query_scalar::<_, i64>(connections);
        let left = connections
            .fetch_one(program.database.pool())
            .await
            .unwrap();
        (left == 0).then_some(())
    })
    .await;

    for (keys, may_differ) in [("timeout_s = 10", false), ("timeout_s = 11", true)] {
        let mut settings = settings(keys, 200.0);
        settings.settings_may_differ = may_differ;
        let app = start(settings)
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        app.stop().await;
    }
    program.stop().await;
}
