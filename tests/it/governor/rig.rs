//! The governor's loop with a real journal, a throttle in memory on a virtual clock, and a scripted
//! Prometheus.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::extract::{Form, State as Shared};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use flyball::governor::{Decision, Governor, Journal, Policy};
use flyball::signals::{no_depth, no_feedback};
use flyball::throttle::{AcquireRequest, Change, LaneRequest, MemoryStore, Name, Status, Store};
use serde_json::json;

use crate::support;

pub const SECOND_US: i64 = 1_000_000;
/// The shortest interval between two token requests; far below the one second of the bucket.
const STEP_US: i64 = 200_000;

/// The state of the plant and its exporter.
pub struct World {
    pub now_s: f64,
    pub average: f64,
    pub scraped: Vec<(f64, f64)>,
    pub down: bool,
}

type Seen = Arc<Mutex<World>>;

/// A throttle, its plant, and a governor.
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

    pub async fn with(mode: &str, probed: bool) -> Self {
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

    /// Simulates one second: jobs take the granted tokens, the load follows, and the governor
    /// ticks.
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
                self.clock.load(Ordering::SeqCst) + (grant.wait.as_micros() as i64).max(STEP_US);
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

    /// Makes the jobs ten times as expensive, until the breaker has stopped the work.
    pub async fn trip(&mut self) {
        self.cost *= 10.0;
        for _ in 0..5 {
            self.second().await;
            if self.status().await.raw["rps"] == "0.000" {
                return;
            }
        }
        panic!("the breaker does not trip at a load of {}", self.load());
    }

    pub async fn status(&self) -> Status {
        self.store.status(&self.name).await.unwrap().unwrap()
    }

    pub async fn rps(&self) -> f64 {
        self.status().await.knobs.rps.number()
    }

    pub fn now(&self) -> f64 {
        self.clock.load(Ordering::SeqCst) as f64 / 1e6
    }

    pub fn load(&self) -> f64 {
        self.world.lock().unwrap().average
    }

    /// Hands the governor over to another process.
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

pub fn governor(
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
