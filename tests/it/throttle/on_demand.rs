//! Throttles created on first use: from patterns, and from the knobs of a caller.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flyball::app::Roles;
use flyball::jobs::NewJob;
use flyball::throttle::on_demand::{MADE_FROM, UNUSED_US};
use flyball::throttle::{
    AcquireRequest, AcquireResponse, CallKnobs, CallerKnobs, Change, Error, KnobsFile, Limit, Name,
    PatternStore, RedisStore, Store, TokenClient, seed,
};
use redis::Commands;
use serde_json::{Value, json};

use super::{World, ask, name};
use crate::support::api_server::ApiServer;
use crate::support::app::RunningApp;
use crate::support::eventually;
use crate::support::fixture::{Fixture, turn};
use crate::support::observed_store::ObservedStore;
use crate::support::{patient_store, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(60);

fn pattern(text: &str) -> Name {
    Name::or_pattern(text).unwrap()
}

async fn set(store: &dyn Store, throttle: &Name, knobs: &[(&str, &str)]) {
    let fields = knobs
        .iter()
        .map(|(knob, text)| ((*knob).to_owned(), Some((*text).to_owned())))
        .collect();
    let change = Change {
        fields,
        by: "ann".into(),
        create: true,
        ..Change::default()
    };
    store.set(throttle, &change).await.unwrap();
}

async fn raw(store: &dyn Store, throttle: &Name) -> BTreeMap<String, String> {
    store.status(throttle).await.unwrap().unwrap().raw
}

#[tokio::test]
async fn a_pattern_makes_throttles_each_with_a_bucket_of_its_own_and_the_longest_wins() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let store = PatternStore::new(redis.clone(), 100);
    set(
        &store,
        &pattern("gcal:*"),
        &[("rps", "0.001"), ("burst", "3000"), ("paused", "0")],
    )
    .await;
    set(&store, &pattern("gcal:eu:*"), &[("rps", "7")]).await;

    for throttle in ["gcal:1", "gcal:2"] {
        // A new bucket holds one token.
        let first = store.acquire(&ask(throttle, &[("", 5, 1.0)])).await;
        assert_eq!(
            (first.lanes[0].granted, first.effective_rps.number()),
            (1, 0.001),
            "{throttle}"
        );
    }
    let other = store.acquire(&ask("gcal:eu:1", &[("", 1, 1.0)])).await;
    assert_eq!(other.effective_rps.number(), 7.0);
    assert_eq!(raw(&*redis, &name("gcal:1")).await[MADE_FROM], "gcal:*");
    let unknown = store.acquire(&ask("mail", &[("", 1, 1.0)])).await;
    assert!(
        matches!(&unknown.lanes[0].limit, Some(Limit::Unknown { name }) if name.as_str() == "mail")
    );
    let names: Vec<String> = redis
        .names()
        .await
        .unwrap()
        .iter()
        .map(Name::to_string)
        .collect();
    assert_eq!(
        names,
        ["gcal:*", "gcal:1", "gcal:2", "gcal:eu:*", "gcal:eu:1"]
    );
}

#[tokio::test]
async fn a_pattern_may_fit_the_parent_of_its_throttles() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let store = PatternStore::new(redis, 100);
    let knobs = [("rps", "5"), ("parent", "gcal:all")];
    set(&store, &pattern("gcal:*"), &knobs).await;
    set(
        &store,
        &pattern("set:*"),
        &[("rps", "5"), ("parent", "set:all")],
    )
    .await;

    // The first makes the throttle, and the second its parent.
    store.acquire(&ask("gcal:1", &[("", 1, 1.0)])).await;
    let answer = store.acquire(&ask("gcal:1", &[("", 1, 1.0)])).await;
    set(&store, &name("set:all"), &[("rps", "100")]).await;

    assert_eq!(answer.lanes[0].granted, 1, "{answer:?}");
    assert!(!raw(&store, &name("gcal:all")).await.contains_key("parent"));
    let set_by_hand = raw(&store, &name("set:all")).await;
    assert_eq!(set_by_hand["rps"], "100");
    assert!(!set_by_hand.contains_key("parent"), "{set_by_hand:?}");
}

#[tokio::test]
async fn a_pattern_is_not_paused_because_its_throttles_would_flow_on() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let (store, gcal) = (PatternStore::new(redis, 100), pattern("gcal:*"));
    set(&store, &gcal, &[("rps", "5")]).await;
    let paused = |text: &str| Change {
        fields: BTreeMap::from([("paused".to_owned(), Some(text.to_owned()))]),
        by: "ann".into(),
        ..Change::default()
    };

    let refused = store.set(&gcal, &paused("1")).await.unwrap_err();

    let told = refused.to_string();
    assert!(
        told.starts_with("paused: must be 0 for a pattern") && told.contains("an rps of 0"),
        "{told}"
    );
    assert!(!raw(&store, &gcal).await.contains_key("paused"));
    // One that was paused in Redis is resumed, and restored as it was.
    let again = Change {
        restores: true,
        ..paused("1")
    };
    store.set(&gcal, &again).await.unwrap();
    store.set(&gcal, &paused("0")).await.unwrap();
    assert_eq!(raw(&store, &gcal).await["paused"], "0");
}

#[tokio::test]
async fn no_pattern_makes_a_limit_of_requests_that_was_deleted() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let store = PatternStore::new(redis, 100);
    set(&store, &pattern("*"), &[("rps", "5")]).await;
    for limit in ["api:read", "limit:lead"] {
        let answer = store.acquire(&ask(limit, &[("", 1, 1.0)])).await;
        assert!(answer.lanes[0].says_unknown(&name(limit)), "{answer:?}");
    }
}

#[tokio::test]
async fn no_more_throttles_are_made_than_the_settings_allow() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let store = PatternStore::new(redis.clone(), 4);
    set(&store, &pattern("*"), &[("rps", "5")]).await;

    let mut granted = 0;
    for n in 0..20 {
        granted += store
            .acquire(&ask(&format!("t{n}"), &[("", 1, 1.0)]))
            .await
            .lanes[0]
            .granted;
    }

    assert_eq!((granted, redis.names().await.unwrap().len()), (3, 4));
    let callers = CallerKnobs::default();
    let knobs = BTreeMap::from([("rps".to_owned(), "5".to_owned())]);
    let refused = callers.declare(&*redis, &name("one-more"), &knobs, 4).await;
    let Err(Error::Invalid(problems)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        problems[0].message.contains("throttles_created_max")
            && problems[0]
                .message
                .contains("flyball throttle set one-more rps=10"),
        "{problems:?}"
    );
}

#[tokio::test]
async fn a_knob_set_before_the_first_use_leaves_those_of_the_pattern() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let store = PatternStore::new(redis.clone(), 100);
    set(
        &store,
        &pattern("notify:*"),
        &[
            ("rps", "-1"),
            ("windows", "100/60"),
            ("key_windows", "50/60"),
        ],
    )
    .await;

    set(&store, &name("notify:acme"), &[("windows", "500/60")]).await;

    let knobs = raw(&*redis, &name("notify:acme")).await;
    let texts = ["rps", "windows", "key_windows", MADE_FROM].map(|knob| knobs[knob].as_str());
    assert_eq!(texts, ["-1", "500/60", "50/60", "notify:*"]);
    // What a person has set stays, however the pattern changes; so does the throttle.
    assert!(knobs["made_of"].contains("windows=100/60"), "{knobs:?}");
    set(&store, &name("notify:acme"), &[("windows", "600/60")]).await;
    assert_eq!(
        raw(&*redis, &name("notify:acme")).await["windows"],
        "600/60"
    );

    // A file is no other way to set a knob.
    let text = "[knobs]\nrps = 7\nwindows = \"300/60\"\n".to_owned();
    let file = KnobsFile::parse(Path::new("knobs/notify:shop.toml"), text).unwrap();
    let files = [file];
    assert_eq!(seed(&*redis, &files).await.unwrap(), [name("notify:shop")]);
    let knobs = raw(&*redis, &name("notify:shop")).await;
    let texts = ["rps", "windows", "key_windows", MADE_FROM].map(|knob| knobs[knob].as_str());
    assert_eq!(texts, ["7", "300/60", "50/60", "notify:*"]);
    assert!(seed(&*redis, &files).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_pattern_takes_precedence_over_the_knobs_of_a_caller() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let throttles = TokenClient::new(redis.clone());
    set(&*redis, &pattern("gcal:*"), &[("rps", "0")]).await;

    let call_knobs = CallKnobs::rps(1000.0);
    let stopped = throttles.throttle(&name("gcal:7"), call_knobs, 1.0).await;

    assert_eq!(stopped.unwrap().granted, 0);
    let knobs = raw(&*redis, &name("gcal:7")).await;
    assert_eq!(
        (knobs["rps"].as_str(), knobs[MADE_FROM].as_str()),
        ("0", "gcal:*")
    );
}

#[tokio::test]
async fn a_tenant_uses_up_the_bound_of_no_other() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let store = PatternStore::new(redis.clone(), 3);
    set(&store, &pattern("gcal:*"), &[("rps", "5")]).await;
    let callers = CallerKnobs::default();
    let knobs = BTreeMap::from([("rps".to_owned(), "5".to_owned())]);
    let declare = async |throttle: &str| callers.declare(&*redis, &name(throttle), &knobs, 3).await;
    for n in 0..3 {
        declare(&format!("tenant:beta/{n}")).await.unwrap();
    }

    let refused = declare("tenant:beta/3").await;

    let Err(Error::Invalid(problems)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        problems[0].message.contains("3 throttles of tenant beta"),
        "{problems:?}"
    );
    declare("tenant:acme/1").await.unwrap();
    let made = store.acquire(&ask("gcal:1", &[("", 1, 1.0)])).await;
    assert_eq!(made.lanes[0].granted, 1);
}

/// A list costs Redis a read of every throttle, and a client asks for new names as fast as it likes.
#[tokio::test]
async fn throttles_beyond_the_bound_are_refused_without_a_list_for_each() {
    let world = World::memory();
    let store = Arc::new(ObservedStore::new(
        world.store.clone(),
        |_: &AcquireRequest, _: &AcquireResponse| (),
    ));
    let (callers, patterns) = (CallerKnobs::default(), PatternStore::new(store.clone(), 3));
    let knobs = BTreeMap::from([("rps".to_owned(), "5".to_owned())]);
    set(&*world.store, &pattern("gcal:*"), &[("rps", "5")]).await;
    let begun = Instant::now();
    let (mut made, mut granted) = (0, 0);
    for n in 0..100 {
        let throttle = name(&format!("tenant:acme/{n}"));
        made += usize::from(callers.declare(&*store, &throttle, &knobs, 3).await.is_ok());
        let plain = ask(&format!("gcal:{n}"), &[("", 1, 1.0)]);
        granted += patterns.acquire(&plain).await.lanes[0].granted;
    }

    assert_eq!((made, granted), (3, 2), "the pattern counts as well");
    let lists = store.lists();
    let most = 4 + 2 * begun.elapsed().as_secs() as usize;
    assert!(lists <= most, "{lists} lists for 195 refusals");
}

#[tokio::test]
async fn a_program_in_rust_brings_its_own_knobs_and_live_ones_win() {
    let redis: Arc<RedisStore> = Arc::new(patient_store(&redis_prefix()).await);
    let throttles = TokenClient::new(redis.clone());
    let gcal = name("gcal:42");
    let slow = CallKnobs {
        rps: 0.001,
        burst: 3000.0,
        window: 1.0,
    };

    let first = throttles.throttle(&gcal, slow, 1.0).await.unwrap();
    let second = throttles.throttle(&gcal, slow, 1.0).await.unwrap();
    assert_eq!((first.granted, second.granted), (1, 0));
    assert!(second.wait > Duration::from_secs(900), "{second:?}");

    // The next release of the program has other knobs.
    let faster = CallKnobs {
        rps: 1000.0,
        ..slow
    };
    eventually("a token at the new rate", SOON, || async {
        let grant = throttles.throttle(&gcal, faster, 1.0).await.unwrap();
        (grant.granted == 1).then_some(())
    })
    .await;
    assert_eq!(raw(&*redis, &gcal).await["rps"], "1000");

    // After a manual change of the rate, the caller's rate no longer applies, but its other knobs
    // do.
    set(&*redis, &gcal, &[("rps", "0")]).await;
    let call_knobs = CallKnobs {
        burst: 9.0,
        ..CallKnobs::rps(50.0)
    };
    let stopped = throttles.throttle(&gcal, call_knobs, 1.0).await.unwrap();
    assert_eq!(stopped.granted, 0);
    let now = raw(&*redis, &gcal).await;
    assert_eq!((now["rps"].as_str(), now["burst"].as_str()), ("0", "9"));

    // A deleted throttle is created again.
    redis.delete(&gcal).await.unwrap();
    let again = throttles.throttle(&gcal, call_knobs, 1.0).await.unwrap();
    assert_eq!(
        (again.granted, raw(&*redis, &gcal).await["rps"].as_str()),
        (1, "50")
    );

    // No single request has more than the throttle's max_cost, nor less than something.
    for tokens in [5000.0, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        let refused = throttles.throttle(&gcal, call_knobs, tokens).await;
        assert!(
            matches!(&refused, Err(Error::Invalid(problems)) if problems[0].field == "requested_tokens"),
            "{tokens}: {refused:?}"
        );
    }

    let nonsense = throttles.throttle(&gcal, CallKnobs::rps(-3.0), 1.0).await;
    assert!(
        matches!(&nonsense, Err(Error::Invalid(problems)) if problems[0].field == "rps"),
        "{nonsense:?}"
    );
}

#[tokio::test]
async fn two_callers_with_different_knobs_do_not_take_turns() {
    let world = World::memory();
    let (callers, gcal) = (CallerKnobs::default(), name("gcal:1"));
    let rate_after = async |callers: &CallerKnobs, rps: &str| {
        let knobs = BTreeMap::from([("rps".to_owned(), rps.to_owned())]);
        let declared = callers.declare(&*world.store, &gcal, &knobs, 100).await;
        declared.unwrap();
        raw(&*world.store, &gcal).await["rps"].clone()
    };
    let mut rates = Vec::new();
    for rps in ["5", "7", "5", "7", "5"] {
        rates.push(rate_after(&callers, rps).await);
    }
    assert_eq!(rates, ["5", "7", "7", "7", "7"]);

    // A process that starts later is newer.
    let later = CallerKnobs::default();
    assert_eq!(rate_after(&later, "5").await, "5");
    assert_eq!(rate_after(&callers, "7").await, "5");
}

#[tokio::test]
async fn over_http_a_call_brings_its_own_knobs_and_learns_what_is_wrong_with_them() {
    let server = ApiServer::start(Fixture::new().await, |_| ()).await;
    let send = async |path: &str, body: Value| {
        let response = server
            .request(reqwest::Method::POST, &format!("/api/v1/throttles/{path}"))
            .json(&body)
            .send()
            .await
            .unwrap();
        (
            response.status().as_u16(),
            response.json::<Value>().await.unwrap(),
        )
    };

    let (status, first) = send(
        "gcal:42/acquire",
        json!({"rps": 0.001, "burst": 1, "window": 5}),
    )
    .await;
    assert_eq!(
        (status, &first["allowed"], &first["effective_rps"]),
        (200, &json!(true), &json!(0.001)),
        "{first}"
    );
    let (_, second) = send(
        "gcal:42/acquire",
        json!({"rps": 0.001, "burst": 1, "window": 5}),
    )
    .await;
    assert_eq!(
        (
            &second["allowed"],
            second["retry_after_ms"].as_u64() > Some(100_000)
        ),
        (&json!(false), true)
    );
    // Without knobs the throttle is the same.
    let (_, third) = send("gcal:42/peek", json!({})).await;
    assert_eq!(
        (&third["allowed"], &third["effective_rps"]),
        (&json!(false), &json!(0.001))
    );
    turn(&*server.store, "gcal:42", &[("rps", "-1")]).await;
    let (_, live) = send(
        "gcal:42/acquire",
        json!({"rps": 0.001, "burst": 1, "window": 5}),
    )
    .await;
    assert_eq!(
        (&live["allowed"], &live["effective_rps"]),
        (&json!(true), &json!(-1.0))
    );

    for (path, body, field, words) in [
        (
            "gcal:43/acquire",
            json!({"burst": 2}),
            "/burst",
            "rps, which is missing",
        ),
        (
            "gcal:43/acquire",
            json!({"rps": -2}),
            "/rps",
            "must be a number from 0.000001",
        ),
        (
            "gcal:43/acquire",
            json!({"rps": 5, "window": 0}),
            "/window",
            "must be a number from 0.001",
        ),
        (
            "api:mine/acquire",
            json!({"rps": 5}),
            "/rps",
            "of the API itself",
        ),
        (
            "gcal:43/acquire",
            json!({"rps": 5, "tokens": 1, "requested_tokens": 1}),
            "/requested_tokens",
            "one of the two",
        ),
        (
            "gcal:43/acquire",
            json!({"rps": 5, "requested_tokens": 0}),
            "/requested_tokens",
            "above 0",
        ),
    ] {
        let (status, problem) = send(path, body.clone()).await;
        assert_eq!(
            (status, problem["errors"][0]["pointer"].as_str()),
            (422, Some(field)),
            "{body}: {problem}"
        );
        assert!(
            problem["errors"][0]["message"]
                .as_str()
                .unwrap()
                .contains(words),
            "{problem}"
        );
    }
    assert!(
        server
            .store
            .status(&name("gcal:43"))
            .await
            .unwrap()
            .is_none(),
        "nothing was made"
    );
    let (status, problem) = send("gcal:43/acquire", json!({"want": 0, "holder": "h"})).await;
    assert_eq!(status, 404, "nobody can report what it runs: {problem}");
    let (status, problem) = send("gcal:*/acquire", json!({"rps": 5})).await;
    assert_eq!(status, 400, "a pattern has no tokens: {problem}");

    // The request that makes a throttle may have no more tokens than those after it.
    for _ in 0..2 {
        let (status, problem) = send("gcal:45/acquire", json!({"rps": 5, "tokens": 5000})).await;
        assert_eq!(
            (status, problem["errors"][0]["pointer"].as_str()),
            (422, Some("/tokens")),
            "{problem}"
        );
    }

    // LimitLion's word for the tokens of one call.
    let body = json!({"rps": 0.001, "burst": 1, "window": 5000, "requested_tokens": 3});
    let (_, three) = send("gcal:44/acquire", body).await;
    assert_eq!(three["allowed"], false, "a new bucket holds one: {three}");
    let body = json!({"rps": 0.001, "burst": 1, "window": 5000, "requested_tokens": 1});
    let (_, one) = send("gcal:44/acquire", body).await;
    assert_eq!(one["allowed"], true, "{one}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_pattern_run_their_throttles_follow_it_and_go_when_nobody_uses_them() {
    let fixture = RunningApp::start(Roles::ALL, |folder| {
        let knobs = folder.join("knobs");
        std::fs::create_dir(&knobs).unwrap();
        std::fs::write(
            knobs.join("gcal:*.toml"),
            "[knobs]\nrps = 50\nkey_rps = 20\n",
        )
        .unwrap();
        "allow_private_urls = true\n".to_owned()
    })
    .await;
    let store = fixture.app.throttles.clone();
    let queue = &fixture.app.queue;
    let job = NewJob::new("http", json!({"url": "http://127.0.0.1:1/"})).throttle("gcal:7");
    queue.enqueue(&[job]).await.unwrap();
    let gcal = name("gcal:7");

    eventually(
        "the throttle is made by the worker that wants to run the job",
        SOON,
        || async { store.status(&gcal).await.ok().flatten() },
    )
    .await;
    // A person sets one knob, then the pattern changes.
    set(&*store, &gcal, &[("key_rps", "3")]).await;
    set(
        &*store,
        &pattern("gcal:*"),
        &[("rps", "9"), ("key_rps", "8")],
    )
    .await;
    eventually(
        "it follows its pattern, but for what was set",
        SOON,
        || async {
            let now = raw(&*store, &gcal).await;
            (now["rps"] == "9" && now["key_rps"] == "3").then_some(())
        },
    )
    .await;

    // Unused and unchanged for a week: its bucket is gone, and its last change is old.
    let client = redis::Client::open(stack().await.redis_url.as_str()).unwrap();
    let mut redis = client.get_connection().unwrap();
    let prefix = &fixture.prefix;
    let unused = name("gcal:8");
    store.acquire(&ask("gcal:8", &[("", 1, 1.0)])).await;
    let at_us = store.status(&unused).await.unwrap().unwrap().at_us;
    let _: i64 = redis
        .hset(
            format!("{prefix}throttle:gcal:8:knobs"),
            "at",
            (at_us - UNUSED_US) / 1000 - 1000,
        )
        .unwrap();
    let _: i64 = redis
        .del(format!("{prefix}throttle:gcal:8:bucket"))
        .unwrap();
    eventually("it is deleted", SOON, || async {
        store.status(&unused).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(
        store.status(&gcal).await.unwrap().is_some(),
        "one that is used stays"
    );
    assert!(store.status(&pattern("gcal:*")).await.unwrap().is_some());
    fixture.stop().await;
}
