//! A throttle that stands still: its explanation, its state, its metrics and its lanes report why,
//! until when, and the remedy.

use std::time::Duration;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::any;
use flyball::jobs::{NewJob, Scope};
use flyball::throttle::UpstreamRefusal;
use flyball::throttle::{Holder, Name, RedisStore, Store};
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::process::{Gate, ProcessFixture};

const SOON: Duration = Duration::from_secs(60);

/// A server that rejects requests below `/429/…` for a quarter of an hour and fails on all others.
async fn server() -> String {
    let answer = |Path((word, _)): Path<(String, String)>| async move {
        match word.as_str() {
            "429" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "900")]).into_response(),
            _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        axum::serve(
            listener,
            axum::Router::new().route("/{word}/{key}", any(answer)),
        )
        .await
    });
    url
}

/// Runs the program and returns its output.
async fn printed(fixture: &ProcessFixture, words: &[&str]) -> String {
    let mut command = fixture.command();
    command.args(words);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

async fn body(url: &str) -> Value {
    reqwest::get(url).await.unwrap().json().await.unwrap()
}

/// Waits until the API reports this state of the throttle, and returns the whole response.
async fn until_state(api: &str, throttle: &str, state: &str) -> Value {
    eventually(&format!("{throttle} is {state}"), SOON, || async {
        let view = body(&format!("{api}/api/v1/throttles/{throttle}")).await;
        (view["state"] == state).then_some(view)
    })
    .await
}

/// Returns the explanation of a throttle, once Redis has answered in time.
async fn sentence(api: &str, throttle: &str) -> String {
    eventually(&format!("{throttle} is explained"), SOON, || async {
        let why = body(&format!("{api}/api/v1/throttles/{throttle}/why")).await;
        why["sentence"].as_str().map(str::to_owned)
    })
    .await
}

#[tokio::test]
async fn keys_that_their_servers_refuse_are_named_by_every_interface_with_the_way_to_free_them() {
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.knobs_file("hooks", "[knobs]\nmode = \"manual\"\nrps = 50\n");
    let (url, process) = (server().await, fixture.serve());
    let api = process.url().await;
    let job = |n: usize| {
        let key = format!("tenant-{}", n % 5);
        let args = json!({"url": format!("{url}/429/{key}")});
        NewJob {
            throttle: "hooks".into(),
            key,
            max_attempts: 20,
            ..NewJob::new("http", args)
        }
    };
    fixture.enqueue_as(100, job).await;

    let view = until_state(&api, "hooks", "held").await;
    let held = &view["held_keys"];
    assert_eq!(
        (&held["keys"], &held["paused"]),
        (&json!(5), &json!(5)),
        "{view}"
    );
    assert!(
        held["slowest"]["key"]
            .as_str()
            .unwrap()
            .starts_with("tenant-")
            && held["slowest"]["paused_until"].is_string(),
        "{view}"
    );

    let sentence = sentence(&api, "hooks").await;
    assert!(
        sentence.starts_with("All 5 keys with waiting jobs are held back: 5 paused"),
        "{sentence}"
    );
    assert!(sentence.contains(" min more, \"answered 429"), "{sentence}");
    assert!(
        sentence.contains("flyball throttle resume hooks --key tenant-"),
        "{sentence}"
    );
    assert!(
        printed(&fixture, &["why", "hooks"])
            .await
            .starts_with("All 5 keys"),
        "the CLI says the same"
    );

    let metrics = reqwest::get(format!("{api}/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        metrics.contains(r#"flyball_throttle_state{throttle="hooks",state="held"} 1"#),
        "{metrics}"
    );
    assert!(
        metrics.contains(r#"flyball_throttle_held_keys{throttle="hooks",hold="paused"} 5"#),
        "{metrics}"
    );
    let table = printed(&fixture, &["lane", "list", "hooks"]).await;
    assert_eq!(
        table
            .lines()
            .filter(|line| line.contains("paused until") && line.contains("429"))
            .count(),
        5,
        "{table}"
    );

    printed(
        &fixture,
        &["throttle", "resume", "hooks", "--key", "tenant-0"],
    )
    .await;
    let lanes = body(&format!("{api}/api/v1/throttles/hooks/lanes?key=tenant-1")).await;
    assert!(lanes["lanes"][0]["paused"]["until"].is_string(), "{lanes}");
}

#[tokio::test]
async fn a_key_that_is_for_ever_over_its_quota_is_named_with_its_figures_and_a_burst_is_not() {
    let fixture = ProcessFixture::new("rps = 50").await;
    let knobs = "[knobs]\nmode = \"manual\"\nrps = 50\nkey_rps = 0.5\n";
    fixture.knobs_file("calendar", knobs);
    let url = server().await;
    let registered = sqlx::query("select flyball.register_kind('http')");
    registered.execute(fixture.pool()).await.unwrap();
    // One job in four seconds runs. The jobs of one key were enqueued evenly over ten minutes, 0.8
    // per second, every second one two hours before it was due; those of the other all at once, ten
    // minutes ago.
    let job = |n: usize| NewJob {
        throttle: "calendar".into(),
        key: if n < 480 { "steady" } else { "burst" }.into(),
        cost: 2.0,
        ..NewJob::new("http", json!({"url": format!("{url}/500/x")}))
    };
    fixture.enqueue_as(960, job).await;
    let backdated = "update flyball.job j \
         set created_at = case when a.is_later then a.at - interval '2 hours' else a.at end, \
             run_at = case when a.is_later then a.at end \
         from flyball.ready r \
         cross join lateral (select count(*) as rank from flyball.ready o \
             where o.lane_id = r.lane_id and o.job_id < r.job_id) n \
         cross join lateral (select k.key = 'steady' and n.rank % 2 = 0 as is_later, \
             clock_timestamp() - make_interval(secs => case \
                 when k.key = 'steady' then 600 - n.rank * 1.25 else 600 end) as at \
             from flyball.job k where k.id = r.job_id) a \
         where j.id = r.job_id";
    let done = sqlx::query(backdated).execute(fixture.pool()).await;
    assert_eq!(done.unwrap().rows_affected(), 960);

    let process = fixture.serve();
    let api = process.url().await;
    let found = eventually("the key is found", SOON, || async {
        let view = body(&format!("{api}/api/v1/throttles/calendar")).await;
        (view["held_keys"]["over_quota"] == 1).then(|| view["held_keys"]["most_over_quota"].clone())
    })
    .await;
    let figure = |name: &str| found[name].as_f64().unwrap();
    assert_eq!(
        (&found["key"], figure("granted_rps")),
        (&json!("steady"), 0.5)
    );
    // 0.8 jobs per second of two tokens each, of which 0.25 may run.
    assert!((1.45..=1.65).contains(&figure("requested_rps")), "{found}");
    assert!((28.0..=35.0).contains(&figure("growth_per_min")), "{found}");

    for text in [
        sentence(&api, "calendar").await,
        printed(&fixture, &["why", "calendar"]).await,
    ] {
        assert!(text.contains("Key steady asks for 3."), "{text}");
        assert!(text.contains("its quota of 0.5/s grants"), "{text}");
        assert!(text.contains("jobs a minute and will not clear"), "{text}");
        assert!(!text.contains("burst"), "{text}");
    }
    eventually("the metrics", SOON, || async {
        let scraped = reqwest::get(format!("{api}/metrics")).await.unwrap();
        let metrics = scraped.text().await.unwrap();
        (metrics.contains("flyball_throttle_over_quota_keys{throttle=\"calendar\"} 1")
            && metrics.contains("flyball_throttle_over_quota_ratio{throttle=\"calendar\"} 3."))
        .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_throttle_whose_jobs_all_fail_is_failing_with_the_last_error_and_one_success_makes_it_flow()
 {
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.knobs_file("crm", "[knobs]\nmode = \"manual\"\nrps = 50\n");
    let (url, process) = (server().await, fixture.serve());
    let api = process.url().await;
    let job = |_: usize| NewJob {
        throttle: "crm".into(),
        max_attempts: 1,
        ..NewJob::new("http", json!({"url": format!("{url}/500/x")}))
    };
    fixture.enqueue_as(12, job).await;

    let view = until_state(&api, "crm", "failing").await;
    assert!(view["failing"]["failures"].as_i64().unwrap() >= 5, "{view}");
    assert_eq!(view["failing"]["succeeded_at"], Value::Null);
    let sentence = printed(&fixture, &["why", "crm"]).await;
    assert!(sentence.starts_with("All its jobs fail: "), "{sentence}");
    assert!(
        sentence.contains("none has succeeded since its workers started; the last error: \"")
            && sentence.contains("500"),
        "{sentence}"
    );

    let good = fixture
        .enqueue_as(1, |_| NewJob {
            throttle: "crm".into(),
            ..fixture.call("good")
        })
        .await;
    fixture.until_completed(&good, SOON).await;
    until_state(&api, "crm", "flowing").await;
    let sentence = printed(&fixture, &["why", "crm"]).await;
    assert!(!sentence.contains("fail"), "{sentence}");
}

#[tokio::test]
async fn a_key_on_trial_is_freed_by_resume_which_says_so() {
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.knobs_file("mail", "[knobs]\nmode = \"manual\"\nrps = 10\n");
    let process = fixture.serve();
    let api = process.url().await;
    let store = RedisStore::connect(&fixture.redis_url, &fixture.prefix)
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let (mail, key) = (Name::new("mail").unwrap(), "acme".to_owned());
    until_state(&api, "mail", "flowing").await;
    let refused = UpstreamRefusal {
        key: &key,
        scope: Scope::Key,
        is_overload: false,
        is_untrusted: false,
        delay: Some(Duration::from_millis(1)),
        jitter: 0.0,
        why: "answered 429",
    };
    let is_on_trial = async || {
        let found = store.look(&mail, std::slice::from_ref(&key)).await.unwrap();
        found[0].probing
    };
    let put_on_trial = async || {
        store.refused(&mail, &refused).await.unwrap();
        eventually("the key is on trial", SOON, || async {
            is_on_trial().await.then_some(())
        })
        .await;
    };
    let resume = ["throttle", "resume", "mail", "--key", "acme"];
    let resume_as_json = ["throttle", "resume", "mail", "--key", "acme", "--json"];

    put_on_trial().await;
    let said = printed(&fixture, &resume).await;
    assert!(said.contains("is resumed; it was on trial"), "{said}");
    assert!(!is_on_trial().await);
    let said = printed(&fixture, &resume).await;
    assert!(said.contains("was not paused"), "{said}");

    for is_on_trial in [true, false] {
        if is_on_trial {
            put_on_trial().await;
        }
        let said = printed(&fixture, &resume_as_json).await;
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["resumed"], is_on_trial, "{said}");
    }
    for is_on_trial in [true, false] {
        if is_on_trial {
            put_on_trial().await;
        }
        let resume = reqwest::Client::new()
            .post(format!("{api}/api/v1/throttles/mail/keys/acme/resume"))
            .json(&json!({}));
        let resumed: Value = resume.send().await.unwrap().json().await.unwrap();
        assert_eq!(resumed["resumed"], is_on_trial, "{resumed}");
    }
}

#[tokio::test]
async fn a_refusal_a_debt_and_a_closed_throttle_above_are_reported_with_their_end_and_resume_clears_both()
 {
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.knobs_file("mail", "[knobs]\nmode = \"manual\"\nrps = 10\n");
    fixture.knobs_file(
        "mail.bulk",
        "[knobs]\nmode = \"manual\"\nrps = 10\nparent = \"mail\"\n",
    );
    let process = fixture.serve();
    let api = process.url().await;
    let store = RedisStore::connect(&fixture.redis_url, &fixture.prefix)
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let (mail, bulk) = (Name::new("mail").unwrap(), Name::new("mail.bulk").unwrap());
    until_state(&api, "mail.bulk", "flowing").await;

    let refused = UpstreamRefusal {
        key: "",
        scope: Scope::Account,
        is_overload: false,
        is_untrusted: false,
        delay: Some(Duration::from_secs(600)),
        jitter: 0.0,
        why: "answered 429: account limit",
    };
    store.refused(&bulk, &refused).await.unwrap();
    let view = until_state(&api, "mail", "refused").await;
    assert_eq!(view["refusal"]["why"], "answered 429: account limit");
    until_state(&api, "mail.bulk", "refused").await;
    let message = sentence(&api, "mail").await;
    assert!(
        message.starts_with(
            "No job starts for another 10 min, because a server refused mail: \
                          \"answered 429: account limit\""
        ),
        "{message}"
    );
    let message = sentence(&api, "mail.bulk").await;
    assert!(
        message.starts_with(
            "No job starts, because the throttle mail above it grants nothing. No job \
                          starts for another 10 min"
        ),
        "{message}"
    );
    printed(&fixture, &["throttle", "resume", "mail"]).await;
    until_state(&api, "mail", "flowing").await;
    until_state(&api, "mail.bulk", "flowing").await;

    store.settle_many(&bulk, &[("", 2000.0)]).await.unwrap();
    let view = until_state(&api, "mail.bulk", "debt").await;
    assert!(view["debt_until"].is_string(), "{view}");
    let message = sentence(&api, "mail.bulk").await;
    assert!(
        message.starts_with("No job starts for another 3 min, because mail.bulk is in debt"),
        "{message}"
    );
    assert!(
        message.contains("flyball throttle resume mail.bulk"),
        "{message}"
    );
    for name in [&bulk, &mail] {
        printed(&fixture, &["throttle", "resume", name.as_str()]).await;
    }
    let view = until_state(&api, "mail.bulk", "flowing").await;
    assert_eq!(view["debt_until"], Value::Null);
}

#[tokio::test]
async fn a_pause_of_everything_and_slots_that_are_all_in_use_are_reported_with_the_rate() {
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.knobs_file(
        "hooks",
        "[knobs]\nmode = \"manual\"\nrps = 50\nconcurrency = 5\n",
    );
    let (url, process) = (server().await, fixture.serve());
    let api = process.url().await;
    until_state(&api, "hooks", "flowing").await;
    printed(&fixture, &["pause", "--why", "the disk is full"]).await;
    let store = RedisStore::connect(&fixture.redis_url, &fixture.prefix)
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let hung = Holder {
        id: "hung".to_owned(),
        ttl: Duration::from_secs(600),
        held: 5,
    };
    let hooks = Name::new("hooks").unwrap();
    store.hold(&hooks, &hung, &[]).await.unwrap();
    let job = |_: usize| NewJob {
        throttle: "hooks".into(),
        ..NewJob::new("http", json!({"url": format!("{url}/500/x")}))
    };
    fixture.enqueue_as(3, job).await;

    let full = "All 5 slots of hooks (its knob concurrency) are in use";
    let text = eventually("the full slots are reported", SOON, || async {
        // A busy Redis may answer too late: then there is no sentence yet.
        let why = body(&format!("{api}/api/v1/throttles/hooks/why")).await;
        let text = why["sentence"].as_str()?.to_owned();
        text.contains(full).then_some(text)
    })
    .await;
    for text in [text, printed(&fixture, &["why", "hooks"]).await] {
        assert!(
            text.starts_with("No job starts, because everything has been paused since ")
                && text.contains(": the disk is full; end the pause with: flyball resume. 50 rps")
                && text.contains(full),
            "{text}"
        );
    }
}

#[tokio::test]
async fn jobs_that_wait_for_a_free_slot_of_a_worker_say_so_and_not_only_their_rate() {
    let fixture = ProcessFixture::new("rps = 50").await;
    for name in ["slow", "quick"] {
        fixture.knobs_file(name, "[knobs]\nmode = \"manual\"\nrps = 50\n");
    }
    fixture.target.gate(Gate::Closed);
    let process = fixture.serve_with(&[], &[("FLYBALL_CONCURRENCY", "1")]);
    let api = process.url().await;
    let of = |throttle: &'static str| {
        let job = fixture.call(throttle);
        move |_: usize| NewJob {
            throttle: throttle.into(),
            ..job.clone()
        }
    };
    fixture.enqueue_as(1, of("slow")).await;
    fixture.target.called(1, SOON).await;
    fixture.enqueue_as(3, of("quick")).await;
    let aged = "update flyball.job set created_at = clock_timestamp() - interval '1 minute'";
    sqlx::query(aged).execute(fixture.pool()).await.unwrap();

    let told = "Its jobs wait: tokens are available, and the next job starts when a worker has a";
    eventually("the missing slot is reported", SOON, || async {
        let why = body(&format!("{api}/api/v1/throttles/quick/why")).await;
        let text = why["sentence"].as_str()?.to_owned();
        text.contains(told).then_some(())
    })
    .await;
    let text = printed(&fixture, &["why", "quick"]).await;
    assert!(text.starts_with("50 rps") && text.contains(told), "{text}");

    fixture.target.gate(Gate::Open);
    eventually("the jobs go", SOON, || async {
        let text = sentence(&api, "quick").await;
        (!text.contains(told)).then_some(())
    })
    .await;
}
