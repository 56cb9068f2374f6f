//! A caller of a server that is held against its document.

use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use serde_json::{Value, json};

use crate::support::contract::{Ask, Contract};

const SOON: Duration = Duration::from_secs(60);

pub fn ask() -> Ask {
    Ask::default()
}

pub fn of(name: &str) -> Ask {
    ask().part("name", name)
}

pub fn lane(name: &str, key: &str) -> Ask {
    of(name).part("key", key)
}

/// A caller that knows what it expects.
pub struct Client(pub Contract);

impl Client {
    /// Sends a request and expects this status.
    pub async fn gets(&self, status: u16, id: &str, ask: Ask) -> Value {
        let (answered, value) = self.0.ask(&self.0.operation(id), &ask).await;
        assert_eq!(answered, status, "{id} {ask:?}: {value}");
        value
    }

    pub async fn enqueue(&self, body: Value) -> i64 {
        self.gets(201, "enqueue_job", ask().json(body)).await["id"]
            .as_i64()
            .unwrap()
    }

    /// Lets a worker claim everything that is ready.
    pub async fn claim(&self) -> Vec<i64> {
        let kinds = vec!["anything".to_owned(), "notification".to_owned()];
        let worker = NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl: Duration::from_secs(60),
            kinds,
        };
        let worker = self.0.queue.register(&worker).await.unwrap();
        let lanes = self.0.queue.ready_lanes().await.unwrap();
        let lanes: Vec<LaneClaim> = lanes
            .iter()
            .map(|lane| LaneClaim::first(lane.lane_id, 100))
            .collect();
        let jobs = self.0.queue.claim(worker, 5, &lanes).await.unwrap();
        jobs.iter().map(|one| one.job.id).collect()
    }

    pub async fn kill(&self) {
        let end = |job_id| Finish {
            job_id,
            fence: 5,
            ending: Ending::Dead {
                error: "timeout".into(),
            },
        };
        let ends: Vec<Finish> = self.claim().await.into_iter().map(end).collect();
        self.0.queue.finish(&ends).await.unwrap();
    }

    /// Claims jobs as a worker in another program and makes each call that it can make.
    pub async fn work_in_another_program(&self) {
        self.0.register("render").await;
        self.0.turn("pages", &[("rps", "-1")]).await;
        let job = NewJob::new("render", json!({"pages": 3})).throttle("pages");
        self.0.enqueue_many(job, 6).await;
        let (mut claimed, until) = (Vec::new(), Instant::now() + SOON);
        while claimed.len() < 6 {
            assert!(Instant::now() < until, "only {claimed:?} within {SOON:?}");
            let body = json!({"worker": "w1", "kinds": ["render"], "limit": 6, "wait_s": 5});
            let answer = self.gets(200, "claim_jobs", ask().json(body)).await;
            claimed.extend(answer["jobs"].as_array().unwrap().iter().cloned());
        }
        let calls = [
            (
                "heartbeat_job",
                json!({"progress": {"done": 1, "total": 3}}),
            ),
            ("complete_job", json!({"result": {"url": "s3://x"}})),
            ("fail_job", json!({"error": "no paper"})),
            ("snooze_job", json!({"for_s": 60})),
            ("throttle_job", json!({"retry_after_s": 60})),
            ("release_job", json!({})),
        ];
        for (job, (operation, mut body)) in claimed.iter().zip(calls) {
            body["lease"] = job["lease"].clone();
            let call = ask().part("id", job["id"].to_string()).json(body);
            self.gets(200, operation, call).await;
        }
    }
}
