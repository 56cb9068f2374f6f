//! A caller of a server that is held against its document.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use serde_json::{Value, json};

use crate::support::contract::{Ask, Contract};

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

    /// Claims jobs as a worker elsewhere does, and ends each in another way.
    pub async fn work(&self) {
        let made = of("pdf").query("create=true").json(json!({"rps": -1}));
        self.gets(200, "edit_throttle", made).await;
        for (end, more) in [
            ("complete_job", json!({"result": {"pages": 2}, "cost": 2})),
            ("fail_job", json!({"error": "no paper", "retry": false})),
            ("snooze_job", json!({"for_s": 3600})),
            ("release_job", json!({})),
            ("throttle_job", json!({"retry_after_s": 3600})),
        ] {
            let body = json!({"kind": "anything", "throttle": "pdf"});
            // The job that was released is claimed again.
            if end != "throttle_job" {
                self.enqueue(body).await;
            }
            let claim =
                json!({"worker": "w", "kinds": ["anything"], "throttles": ["pdf"], "wait_s": 5});
            let job = loop {
                let claimed = self
                    .gets(200, "claim_jobs", ask().json(claim.clone()))
                    .await;
                if !claimed["jobs"][0].is_null() {
                    break claimed["jobs"][0].clone();
                }
            };
            let with = |more: &Value| {
                let mut body = json!({"lease": job["lease"]});
                body.as_object_mut()
                    .unwrap()
                    .extend(more.as_object().unwrap().clone());
                ask().part("id", job["id"].as_i64().unwrap()).json(body)
            };
            let progress = json!({"checkpoint": [1], "progress": {"done": 1, "total": 2}});
            self.gets(200, "heartbeat_job", with(&progress)).await;
            self.gets(200, end, with(&more)).await;
            self.gets(409, end, with(&more)).await;
        }
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
}
