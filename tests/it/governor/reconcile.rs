//! The governor's loop on a real journal, a throttle in memory with a clock of ours, and a Prometheus that we play.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::extract::{Form, State as Shared};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use flyball::governor::calibration::{CALIBRATION_ACTOR, ENDED};
use flyball::governor::postgres::{Error as JournalError, STATEMENTS};
use flyball::governor::{Decision, Finding, Governor, Journal, Phase, Plan, Policy};
use flyball::signals::{no_depth, no_feedback};
use flyball::throttle::{
    AcquireRequest, Change, LaneRequest, MemoryStore, Mode, Name, Status, Store,
};
use serde_json::json;

use crate::support;

const SECOND_US: i64 = 1_000_000;

/// What the plant and its exporter show.
pub struct World {
    now_s: f64,
    average: f64,
    scraped: Vec<(f64, f64)>,
    down: bool,
}

type Seen = Arc<Mutex<World>>;

/// A throttle, the plant behind it, and a governor.
pub struct Rig {
    pub clock: Arc<AtomicI64>,
    pub store: Arc<MemoryStore>,
    pub world: Seen,
    pub url: String,
    pub policy: Policy,
    pub journal: Journal,
    pub governor: Governor,
    pub name: Name,
    pub term: u64,
    pub background: f64,
    pub cost: f64,
    _database: support::Database,
}

async fn query(
    Shared(world): Shared<Seen>,
    Form(form): Form<Vec<(String, String)>>,
) -> impl IntoResponse {
    let world = world.lock().unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(world.now_s);
    let date = [(header::DATE, httpdate::fmt_http_date(at))];
    if world.down {
        return (StatusCode::SERVICE_UNAVAILABLE, date, "down".to_owned());
    }
    if form[0].1.starts_with("quantile_over_time(") {
        let one = json!([{ "metric": {}, "value": [world.now_s, "1"] }]);
        let answer =
            json!({ "status": "success", "data": { "resultType": "vector", "result": one } });
        return (StatusCode::OK, date, answer.to_string());
    }
    assert_eq!(form[0], ("query".to_owned(), "load[180s]".to_owned()));
    let values: Vec<_> = world
        .scraped
        .iter()
        .filter(|(at, _)| at + 1.0 <= world.now_s)
        .map(|(at, v)| json!([at, v.to_string()]))
        .collect();
    let result = json!([{ "metric": {}, "values": values }]);
    (
        StatusCode::OK,
        date,
        json!({ "status": "success", "data": { "resultType": "matrix", "result": result } })
            .to_string(),
    )
}

async fn page(Shared(world): Shared<Seen>) -> String {
    format!(
        "# TYPE load gauge\nload {}\n",
        world.lock().unwrap().average
    )
}

impl Rig {
    pub async fn new(mode: &str) -> Self {
        Self::with(mode, true).await
    }

    async fn with(mode: &str, probed: bool) -> Self {
        let start_s = 1_700_000_000.0;
        let world = Arc::new(Mutex::new(World {
            now_s: start_s,
            average: 0.2,
            scraped: Vec::new(),
            down: false,
        }));
        let app = axum::Router::new()
            .route("/api/v1/query", post(query))
            .route("/metrics", get(page))
            .with_state(world.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });

        let probe = if probed {
            format!("probe = \"{url}/metrics\"\nprobe_metric = \"load\"\n")
        } else {
            String::new()
        };
        let text = format!(
            "[[signal]]\nname = \"search-load\"\nquery = \"load\"\nsetpoint = 1.0\nlag_s = 5\n{probe}\n\
             [governor]\ntick_s = 2\ngain = 4\nintegral_min_s = 6\nopen_min_s = 4\nclose_wait_s = 20\nconfirm_s = 10\nstale_hold_s = 20\nstale_half_s = 20\n"
        );
        let policy = Policy::parse(&text, "knobs/reindex.toml").unwrap().unwrap();
        let clock = Arc::new(AtomicI64::new((start_s * 1e6) as i64));
        let time = clock.clone();
        let store = Arc::new(MemoryStore::new(Arc::new(move || {
            time.load(Ordering::SeqCst)
        })));
        let name = Name::new("reindex").unwrap();
        let knobs = [
            ("rps", "20"),
            ("mode", mode),
            ("min", "1"),
            ("max", "2000"),
            ("safe_rps", "5"),
        ];
        let fields = knobs
            .map(|(k, v)| (k.to_owned(), Some(v.to_owned())))
            .into();
        let change = Change {
            fields,
            by: "seed".to_owned(),
            create: true,
            ..Change::default()
        };
        store.set(&name, &change).await.unwrap();

        let database = support::database().await;
        let journal = Journal::new(database.pool().clone());
        let governor = governor(&store, &journal, &url, &name, &policy);
        let (background, cost) = (0.2, 0.01);
        Self {
            clock,
            store,
            world,
            url,
            policy,
            journal,
            governor,
            name,
            term: 1,
            background,
            cost,
            _database: database,
        }
    }

    /// A second of the world: jobs take what the throttle grants, the load follows, the governor is called.
    pub async fn second(&mut self) {
        let ends = self.clock.load(Ordering::SeqCst) + SECOND_US;
        let mut granted = 0;
        loop {
            let lanes = vec![LaneRequest {
                want: 1000,
                ..LaneRequest::default()
            }];
            let grant = self
                .store
                .acquire(&AcquireRequest {
                    throttle: self.name.clone(),
                    lanes,
                    holder: None,
                })
                .await
                .lanes
                .remove(0);
            granted += grant.granted;
            let next =
                self.clock.load(Ordering::SeqCst) + grant.wait.as_micros().max(10_000) as i64;
            if next >= ends {
                break;
            }
            self.clock.store(next, Ordering::SeqCst);
        }
        self.clock.store(ends, Ordering::SeqCst);
        {
            let mut world = self.world.lock().unwrap();
            world.now_s += 1.0;
            let load = self.background + self.cost * f64::from(granted);
            world.average += (load - world.average) * (1.0 - (-1.0f64 / 5.0).exp());
            if (world.now_s as u64).is_multiple_of(2) {
                let sample = (world.now_s, world.average);
                world.scraped.push(sample);
            }
            let oldest = world.now_s - 180.0;
            world.scraped.retain(|(at, _)| *at > oldest);
        }
        let reports = [
            self.governor.fast(self.term).await,
            self.governor.tick(self.term).await,
        ];
        assert!(reports.iter().all(|r| r.problems.is_empty()), "{reports:?}");
    }

    pub async fn run(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.second().await;
        }
    }

    pub async fn status(&self) -> Status {
        self.store.status(&self.name).await.unwrap().unwrap()
    }

    pub async fn rps(&self) -> f64 {
        self.status().await.knobs.rps
    }

    pub fn now(&self) -> f64 {
        self.clock.load(Ordering::SeqCst) as f64 / 1e6
    }

    pub fn load(&self) -> f64 {
        self.world.lock().unwrap().average
    }

    /// Another process takes over.
    pub fn succeed(&mut self) {
        self.governor = governor(
            &self.store,
            &self.journal,
            &self.url,
            &self.name,
            &self.policy,
        );
        self.term += 1;
    }

    pub async fn newest(&self) -> Decision {
        self.journal
            .recent(Some("reindex"), 1)
            .await
            .unwrap()
            .pop()
            .expect("a decision")
    }
}

fn governor(
    store: &Arc<MemoryStore>,
    journal: &Journal,
    url: &str,
    name: &Name,
    policy: &Policy,
) -> Governor {
    let policies = vec![(name.clone(), policy.clone())];
    Governor::new(
        store.clone(),
        journal.clone(),
        url,
        no_depth(),
        policies,
        no_feedback(),
    )
    .unwrap()
}

#[tokio::test]
async fn the_knob_is_turned_until_the_load_stands_at_the_setpoint() {
    let mut rig = Rig::new("auto").await;
    let mut told = rig.governor.decisions();
    rig.run(300).await;

    assert!((rig.load() - 1.0).abs() < 0.1, "load {}", rig.load());
    let status = rig.status().await;
    assert!(
        (status.knobs.rps - 80.0).abs() < 8.0,
        "{}",
        status.knobs.rps
    );
    assert_eq!(
        (status.knobs.by.as_str(), status.knobs.term),
        ("governor", 1)
    );
    let lease_ms = status.knobs.valid_until_ms.expect("a lease") - status.at_us / 1000;
    assert!((1..=30_000).contains(&lease_ms), "{lease_ms}");

    let view = rig
        .governor
        .snapshot(rig.now())
        .remove(&rig.name)
        .expect("a view");
    let signal = &view.signals[0];
    assert_eq!(
        (signal.name.as_str(), signal.setpoint, signal.stale),
        ("search-load", 1.0, false)
    );
    assert!(signal.age_s.unwrap() < 5.0 && (signal.value.unwrap() - 1.0).abs() < 0.2);

    let kept = rig.journal.recent(None, 1000).await.unwrap();
    assert!(
        kept.len() > 10 && kept.len() < 140,
        "only news is kept: {}",
        kept.len()
    );
    assert!(
        kept.windows(2)
            .all(|w| w[0].id > w[1].id && w[0].at >= w[1].at)
    );
    assert!(
        kept[0].reason.contains("search-load reads"),
        "{}",
        kept[0].reason
    );
    assert_eq!(told.recv().await.unwrap(), *kept.last().unwrap());
}

#[tokio::test]
async fn a_rate_that_a_person_writes_is_kept_and_not_raised_for_a_minute() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.store.write_raw(&rig.name, "rps", "30");
    for _ in 0..55 {
        rig.second().await;
        assert!(rig.rps().await <= 30.0, "{}", rig.rps().await);
    }
    assert_eq!(rig.newest().await.limiting, "person");
    rig.run(120).await;
    assert!(
        rig.rps().await > 60.0,
        "then it grows again: {}",
        rig.rps().await
    );
}

#[tokio::test]
async fn a_stop_that_a_person_writes_stays_and_so_does_nonsense() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    for text in ["0", "ten"] {
        rig.store.write_raw(&rig.name, "rps", text);
        rig.run(90).await;
        assert_eq!(rig.status().await.raw["rps"], text);
    }
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert!(
        view.reason.contains("the knob rps \"ten\""),
        "{}",
        view.reason
    );
    rig.store.write_raw(&rig.name, "rps", "10");
    rig.run(20).await;
    assert_eq!(rig.rps().await, 10.0);
}

#[tokio::test]
async fn in_manual_mode_the_hand_is_off_and_handing_back_is_bumpless() {
    let mut rig = Rig::new("manual").await;
    rig.run(60).await;
    let status = rig.status().await;
    assert_eq!(
        (status.raw["rps"].as_str(), status.knobs.by.as_str()),
        ("20", "seed")
    );
    rig.store.write_raw(&rig.name, "rps", "33");
    rig.run(60).await;
    let told: Vec<String> = rig
        .journal
        .recent(None, 10)
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.reason)
        .collect();
    assert_eq!(
        told,
        [
            "a person controls this throttle (mode manual); somebody set rps 33; the governor only \
             tracks it"
        ]
    );

    rig.store.write_raw(&rig.name, "mode", "auto");
    rig.run(3).await;
    let first = rig.rps().await;
    assert!((first / 33.0 - 1.0).abs() < 0.15, "{first}");
    rig.run(60).await;
    assert!(rig.rps().await > 40.0, "no hold after handing back");
}

#[tokio::test]
async fn in_shadow_mode_everything_is_recorded_and_nothing_written() {
    let mut rig = Rig::new("shadow").await;
    rig.run(120).await;
    assert_eq!(rig.status().await.raw["rps"], "20");
    let decision = rig.newest().await;
    assert_eq!(decision.mode, Mode::Shadow);
    assert!(decision.rps > 25.0, "would raise: {}", decision.rps);
}

#[tokio::test]
async fn a_paused_throttle_is_left_alone() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    rig.store.write_raw(&rig.name, "paused", "1");
    let before = rig.status().await.raw;
    rig.run(60).await;
    assert_eq!(rig.status().await.raw, before);
}

#[tokio::test]
async fn without_prometheus_it_holds_then_decays_to_the_safe_rate_and_comes_back() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    let before = rig.rps().await;
    rig.world.lock().unwrap().down = true;
    let mut last = f64::INFINITY;
    for second in 0..160 {
        rig.second().await;
        let rate = rig.rps().await;
        if second > 4 {
            assert!(
                rate <= last * 1.001,
                "never rises while blind: {rate} after {last}"
            );
        }
        if second == 15 {
            assert!((rate / before - 1.0).abs() < 0.06, "holds: {rate}");
        }
        last = rate;
    }
    assert_eq!(rig.rps().await, 5.0);
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(view.limiting, "stale");
    assert!(
        view.signals[0].stale
            && view.signals[0]
                .problem
                .as_ref()
                .unwrap()
                .contains("status 503")
    );

    rig.world.lock().unwrap().down = false;
    rig.run(200).await;
    assert!((rig.load() - 1.0).abs() < 0.15, "load {}", rig.load());
}

#[tokio::test]
async fn the_fast_path_stops_the_work_within_seconds_and_restarts_below_the_setpoint() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.cost *= 10.0;
    let mut seconds = 0;
    while rig.status().await.effective_rps > 0.0 {
        rig.second().await;
        seconds += 1;
        assert!(seconds <= 3, "load {}", rig.load());
    }
    let decision = rig.newest().await;
    assert_eq!(
        (decision.breaker, decision.limiting.as_str(), decision.rps),
        (Phase::Open, "breaker", 0.0)
    );
    assert!(
        decision.reason.contains("search-load rose to"),
        "{}",
        decision.reason
    );
    assert_eq!(
        rig.status().await.raw["rps"],
        "0.000",
        "our own spelling of a stop"
    );

    rig.run(100).await;
    assert!((rig.load() - 1.0).abs() < 0.15, "load {}", rig.load());
    let trips = rig
        .journal
        .recent(None, 1000)
        .await
        .unwrap()
        .iter()
        .filter(|d| d.reason.ends_with("stopped"))
        .count();
    assert_eq!(trips, 1, "no second overload");
}

#[tokio::test]
async fn a_successor_goes_on_without_a_jump_and_the_old_leader_is_refused() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    let before = rig.rps().await;
    let old = std::mem::replace(
        &mut rig.governor,
        governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy),
    );
    rig.term = 2;
    rig.run(4).await;
    assert!((rig.rps().await / before - 1.0).abs() < 0.05);
    assert_eq!(rig.status().await.knobs.term, 2);

    let raw = rig.status().await.raw;
    rig.clock.fetch_add(3 * SECOND_US, Ordering::SeqCst);
    rig.world.lock().unwrap().now_s += 3.0;
    assert!(old.tick(1).await.fenced);
    assert_eq!(rig.status().await.raw, raw);
}

#[tokio::test]
async fn a_rate_whose_state_could_not_be_kept_is_not_taken_for_a_persons() {
    let mut rig = Rig::new("auto").await;
    rig.run(20).await;
    let (_, older) = rig.journal.load("reindex").await.unwrap().unwrap();
    rig.run(40).await;
    let before = rig.rps().await;
    let wrote = older["wrote"].as_array().unwrap();
    assert!(
        !wrote.contains(&json!(rig.status().await.raw["rps"])),
        "the rate has moved since"
    );

    // As if Postgres had been away for the last forty seconds of the first leader.
    rig.journal.save("reindex", 1, &older).await.unwrap();
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy);
    rig.term = 2;
    rig.run(4).await;
    assert_eq!(rig.status().await.knobs.term, 2);
    let decisions = rig.journal.recent(Some("reindex"), 1000).await.unwrap();
    assert!(
        decisions
            .iter()
            .all(|decision| decision.limiting != "person"),
        "{before}: {:?}",
        decisions[0]
    );

    rig.store.write_raw(&rig.name, "rps", "30");
    rig.run(4).await;
    assert_eq!(
        (rig.rps().await, rig.newest().await.limiting.as_str()),
        (30.0, "person"),
        "and a person's is"
    );
}

#[tokio::test]
async fn the_first_word_of_a_term_is_written_even_if_the_rate_need_not_move() {
    let mut rig = Rig::new("auto").await;
    rig.run(300).await;
    let before = rig.status().await;
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy);
    rig.term = 2;
    rig.run(3).await;

    let fields = [("rps".to_owned(), Some("777".to_owned()))].into();
    let late = Change {
        fields,
        term: Some(1),
        if_rps: before.raw.get("rps").cloned(),
        by: "governor".into(),
        ..Change::default()
    };
    assert!(
        rig.store.set(&rig.name, &late).await.is_err(),
        "the old leader's word comes too late"
    );
    assert_eq!(rig.status().await.knobs.term, 2);
}

#[tokio::test]
async fn after_a_lapsed_lease_it_starts_from_the_safe_rate() {
    let mut rig = Rig::new("auto").await;
    rig.run(200).await;
    rig.clock.fetch_add(60 * SECOND_US, Ordering::SeqCst);
    rig.world.lock().unwrap().now_s += 60.0;
    assert_eq!(rig.status().await.effective_rps, 5.0);
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &rig.policy);
    rig.term = 2;
    rig.run(4).await;
    assert!(rig.rps().await < 8.0, "{}", rig.rps().await);
}

#[tokio::test]
async fn the_journal_keeps_a_thousand_decisions_of_each_throttle_and_refuses_old_terms() {
    let database = support::database().await;
    let journal = Journal::new(database.pool().clone());
    let decision = |throttle: &str, n: u32| {
        let plan = Plan {
            rps: f64::from(n),
            limiting: "load".to_owned(),
            ..Plan::default()
        };
        Decision::new(
            throttle,
            1_700_000_000.0 + f64::from(n),
            &plan,
            1.0,
            Mode::Auto,
        )
    };
    journal.append(1, &decision("other", 0)).await.unwrap();
    for n in 0..1010 {
        journal.append(1, &decision("reindex", n)).await.unwrap();
    }
    let kept = journal.recent(Some("reindex"), 5000).await.unwrap();
    assert_eq!(kept.len(), 1000);
    assert_eq!((kept[0].rps, kept[999].rps), (1009.0, 10.0));
    assert_eq!(kept[0].terms, json!({}));
    assert_eq!(journal.recent(Some("other"), 10).await.unwrap().len(), 1);
    assert_eq!(journal.recent(None, 3).await.unwrap().len(), 3);

    assert!(journal.load("reindex").await.unwrap().is_none());
    journal.save("reindex", 7, &json!({"a": 1})).await.unwrap();
    journal.save("reindex", 7, &json!({"a": 2})).await.unwrap();
    assert!(matches!(
        journal.save("reindex", 6, &json!({})).await,
        Err(JournalError::Fenced { term: 6, .. })
    ));
    assert!(matches!(
        journal.append(6, &decision("reindex", 1)).await,
        Err(JournalError::Fenced { term: 6, .. })
    ));
    assert_eq!(
        journal.recent(Some("reindex"), 1).await.unwrap()[0].rps,
        1009.0,
        "and nothing was appended"
    );
    assert_eq!(
        journal.load("reindex").await.unwrap(),
        Some((7, json!({"a": 2})))
    );
    assert_eq!(
        journal.load_all().await.unwrap(),
        [("reindex".to_owned(), json!({"a": 2}))]
    );
}

#[tokio::test]
async fn every_statement_of_the_journal_can_be_prepared() {
    use sqlx::{Executor, SqlSafeStr};
    let database = support::database().await;
    for statement in STATEMENTS {
        database
            .pool()
            .prepare(statement.into_sql_str())
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

#[tokio::test]
async fn a_setpoint_out_of_reach_is_found_told_journaled_and_taken_over_by_a_successor() {
    let mut rig = Rig::new("auto").await;
    rig.run(120).await;
    // High enough that no rate helps, and low enough that the breaker does not trip.
    rig.background = 1.15;
    rig.store.write_raw(&rig.name, "min", "5");
    rig.run(1100).await;

    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    let found = view
        .findings
        .iter()
        .find(|found| found.finding == Finding::Unreachable)
        .expect("a finding");
    assert!(
        found
            .sentence
            .contains("search-load stays near 1.2 (setpoint 1)"),
        "{}",
        found.sentence
    );
    let kept = rig.journal.recent(None, 1000).await.unwrap();
    let told: Vec<&Decision> = kept
        .iter()
        .filter(|d| d.reason.contains("; unreachable: the rate has been at min"))
        .collect();
    assert_eq!(told.len(), 1, "it is told in full once: {told:?}");
    assert_eq!(told[0].terms["findings"], json!(["unreachable"]));

    // A successor knows it since then, and does not find it anew.
    let (since, policy) = (found.since, rig.policy.clone());
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &policy);
    rig.term = 2;
    rig.run(10).await;
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(
        view.findings
            .iter()
            .map(|f| (f.finding, f.since))
            .collect::<Vec<_>>(),
        [(Finding::Unreachable, since)]
    );

    // In a person's hand nothing is found.
    rig.store.write_raw(&rig.name, "mode", "manual");
    rig.run(5).await;
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(view.findings, []);
}

#[tokio::test]
async fn of_two_governors_on_one_signal_the_one_without_work_follows_and_a_hand_ends_it() {
    let mut rig = Rig::new("auto").await;
    let other = Name::new("mail").unwrap();
    let knobs = [
        ("rps", "10"),
        ("mode", "auto"),
        ("min", "1"),
        ("max", "2000"),
        ("safe_rps", "5"),
    ];
    let fields = knobs
        .map(|(k, v)| (k.to_owned(), Some(v.to_owned())))
        .into();
    rig.store
        .set(
            &other,
            &Change {
                fields,
                by: "seed".to_owned(),
                create: true,
                ..Change::default()
            },
        )
        .await
        .unwrap();
    let policies = vec![
        (rig.name.clone(), rig.policy.clone()),
        (other.clone(), rig.policy.clone()),
    ];
    rig.governor = Governor::new(
        rig.store.clone(),
        rig.journal.clone(),
        &rig.url,
        no_depth(),
        policies,
        no_feedback(),
    )
    .unwrap();

    rig.run(120).await;

    let views = rig.governor.snapshot(rig.now());
    let sentence = |name: &Name| {
        views[name]
            .findings
            .iter()
            .find(|f| f.finding == Finding::Shared)
            .expect("found")
            .sentence
            .clone()
    };
    assert!(
        sentence(&other).contains("search-load also governs reindex, so this throttle follows"),
        "{}",
        sentence(&other)
    );
    assert!(
        sentence(&rig.name).contains("search-load also governs mail, which follow"),
        "{}",
        sentence(&rig.name)
    );
    assert!(
        views[&other].reason.contains("following reindex"),
        "{}",
        views[&other].reason
    );

    rig.store.write_raw(&other, "mode", "manual");
    rig.run(6).await;
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(view.findings, [], "a person has the other");
}

/// What a calibration writes: a rate under its mark, with a lease.
async fn calibrate(rig: &Rig, rps: &str, by: &str, lease_s: f64) {
    let until_ms = (rig.now() + lease_s) * 1e3;
    let fields = [
        ("rps", rps.to_owned()),
        ("valid_until", format!("{until_ms:.0}")),
    ];
    let fields = fields
        .map(|(knob, text)| (knob.to_owned(), Some(text)))
        .into();
    rig.store
        .set(
            &rig.name,
            &Change {
                fields,
                by: by.to_owned(),
                ..Change::default()
            },
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn a_calibration_has_the_knob_until_it_ends_and_the_governor_goes_on_from_there() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    for _ in 0..3 {
        calibrate(&rig, "30", CALIBRATION_ACTOR, 15.0).await;
        rig.run(10).await;
        assert_eq!(
            (rig.rps().await, rig.status().await.knobs.by.as_str()),
            (30.0, CALIBRATION_ACTOR)
        );
    }
    assert!(
        rig.governor.snapshot(rig.now())[&rig.name]
            .reason
            .contains("calibration")
    );

    calibrate(&rig, "50", ENDED, 15.0).await;
    rig.run(10).await;

    let knobs = rig.status().await.knobs;
    assert_eq!(knobs.by, "governor");
    // From 50 on, at the pace that is allowed, and not held down as after a person's edit.
    assert!(knobs.rps > 50.0 && knobs.rps < 70.0, "{}", knobs.rps);
}

#[tokio::test]
async fn a_calibration_that_died_leaves_the_safe_rate_to_the_governor() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    calibrate(&rig, "60", CALIBRATION_ACTOR, 6.0).await;
    rig.run(9).await;

    let knobs = rig.status().await.knobs;
    assert_eq!(knobs.by, "governor");
    assert!(knobs.rps < 8.0, "{}", knobs.rps);
}

#[tokio::test]
async fn the_fast_path_is_armed_while_a_calibration_turns_the_knob() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    calibrate(&rig, "60", CALIBRATION_ACTOR, 15.0).await;
    rig.run(3).await;
    rig.cost *= 10.0;
    rig.run(5).await;

    let status = rig.status().await;
    assert_eq!(
        (status.raw["rps"].as_str(), status.knobs.by.as_str()),
        ("0.000", "governor")
    );
}
