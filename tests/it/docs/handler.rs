//! The handler of `docs/guides/handlers.md`: `pages.rs` compares the two, this test runs it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::{
    Checkpoint, CheckpointError, Context, Handler, Issue, Job, Kinds, NewJob, Outcome, PreparedJob,
    Queue,
};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::{Change, Name, Store};
use serde_json::{Value, json};

use crate::support::{database, eventually, patient_store, redis_prefix};

/// Greets everyone on a list, one after the other.
struct GreetAll {
    post: Post,
}

impl Handler for GreetAll {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        match args["names"].as_array().cloned() {
            Some(names) if names.iter().all(Value::is_string) => {
                Ok(PreparedJob::new(move |job, context| {
                    self.greet_all(names, job, context)
                }))
            }
            _ => Err(vec![Issue {
                pointer: "/names".to_owned(),
                message: "must be a list of texts".to_owned(),
            }]),
        }
    }

    fn timeout(&self) -> Option<Duration> {
        Some(Duration::from_secs(3600))
    }
}

impl GreetAll {
    async fn greet_all(&self, names: Vec<Value>, job: Job, context: Context) -> Outcome {
        let mut done = match context.checkpoints.load(job.id).await {
            Ok(last) => last.map_or(0, |at| at.done as usize),
            Err(error) => {
                return Outcome::Retry {
                    after: None,
                    error: error.to_string(),
                };
            }
        };
        while done < names.len() {
            // The job and the position in it: the same text whenever this greeting is sent again.
            let letter = format!("{}-{done}", job.id);
            tokio::select! {
                () = context.cancelled.cancelled() => return Outcome::HandedBack,
                sent = self.post.greet(&names[done], &letter) => if let Err(error) = sent {
                    return Outcome::Retry { after: None, error };
                },
            }
            done += 1;
            let at = Checkpoint {
                cursor: json!(done),
                done: done as i64,
                total: Some(names.len() as i64),
                note: format!("{done} of {} greeted", names.len()),
            };
            match context.checkpoints.store(job.id, job.fence, &at).await {
                Ok(()) => {}
                Err(CheckpointError::LeaseLost(_)) => return Outcome::HandedBack,
                Err(error) => {
                    return Outcome::Retry {
                        after: None,
                        error: error.to_string(),
                    };
                }
            }
        }
        Outcome::Done
    }
}

/// Accepts every letter except the first one to Bob.
#[derive(Clone, Default)]
struct Post {
    letters: Arc<Mutex<Vec<(String, String)>>>,
}

impl Post {
    async fn greet(&self, name: &Value, letter: &str) -> Result<(), String> {
        let mut letters = self.letters.lock().unwrap();
        let name = name.as_str().unwrap().to_owned();
        letters.push((name.clone(), letter.to_owned()));
        let is_first = letters.iter().filter(|(to, _)| *to == name).count() == 1;
        if name == "Bob" && is_first {
            Err("nobody at home".to_owned())
        } else {
            Ok(())
        }
    }
}

#[tokio::test]
async fn a_handler_with_a_checkpoint_goes_on_where_its_last_attempt_failed() {
    let (database, prefix) = (database().await, redis_prefix());
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
        .await
        .unwrap();
    let store: Arc<dyn Store> = Arc::new(patient_store(&prefix).await);
    let fields = [("rps".to_owned(), Some("100".to_owned()))].into();
    let change = Change {
        fields,
        create: true,
        by: "test".into(),
        ..Change::default()
    };
    store
        .set(&Name::new("default").unwrap(), &change)
        .await
        .unwrap();
    let post = Post::default();
    let mut kinds = Kinds::default();
    kinds.register("greet-all", GreetAll { post: post.clone() });
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let worker = Worker::start(Config::default(), queue.clone(), store, kinds, metrics)
        .await
        .unwrap();

    let job = NewJob::new("greet-all", json!({"names": ["Ada", "Bob", "Cyd"]}));
    let id = queue.enqueue(&[job]).await.unwrap()[0].id;

    eventually("the job has ended", Duration::from_secs(30), || async {
        let job = queue.get(id).await.unwrap().unwrap();
        (job.summary.state == flyball::jobs::State::Completed).then_some(())
    })
    .await;
    worker.stop().await;
    let letters = post.letters.lock().unwrap().clone();
    let (names, marks): (Vec<&str>, Vec<&str>) = letters
        .iter()
        .map(|(name, mark)| (name.as_str(), mark.as_str()))
        .unzip();
    assert_eq!(names, ["Ada", "Bob", "Bob", "Cyd"]);
    assert_eq!(
        marks[1], marks[2],
        "a letter that is sent again can be recognised"
    );
}
