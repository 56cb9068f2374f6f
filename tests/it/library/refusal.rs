//! Invalid jobs: the queue for tests rejects them with the same field as the real one.

use std::time::Duration;

use flyball::jobs::NewJob;
use flyball::testing::Error;
use serde_json::json;

use super::{both, letter, mail};

#[tokio::test]
async fn a_job_that_cannot_be_is_refused_by_the_same_field_with_a_database_and_without() {
    let day = Duration::from_secs(86_400);
    let jobs = || {
        [
            (
                "args",
                NewJob::new("mail", json!({"to": "x".repeat(300_000)})),
            ),
            ("args", NewJob::new("mail", json!({"to": ["\0"]}))),
            ("kind", NewJob::new("no-such", json!({}))),
            ("throttle", letter("ada").throttle("two words")),
            ("key", letter("ada").key("k".repeat(513))),
            ("key", letter("ada").key("\0")),
            ("priority", letter("ada").priority(9)),
            ("max_attempts", letter("ada").max_attempts(0)),
            ("unique_key", letter("ada").unique("")),
            ("unique_for", letter("ada").unique_for(day)),
            (
                "unique_for",
                letter("ada").unique("u").unique_for(367 * day),
            ),
            ("cost", letter("ada").cost(-1.0)),
            ("cost", letter("ada").cost(f64::NAN)),
            (
                "run_at",
                letter("ada").run_at("1969-12-31T00:00:00Z".parse().unwrap()),
            ),
            (
                "run_at",
                letter("ada").run_at("9000-01-01T00:00:00Z".parse().unwrap()),
            ),
            ("traceparent", letter("ada").traceparent("00-x")),
            ("group", letter("ada").group(4711)),
            ("tags", letter("ada").tag("")),
            ("tags", letter("ada").tag("a\0b")),
            (
                "tags",
                (0..17).fold(letter("ada"), |job, tag| job.tag(tag.to_string())),
            ),
            ("timeout", letter("ada").timeout(Duration::ZERO)),
            ("timeout", letter("ada").timeout(Duration::from_nanos(1))),
            ("debounce", letter("ada").debounce(day)),
            (
                "debounce",
                letter("ada").unique("u").unique_for(day).debounce(day),
            ),
            (
                "debounce",
                letter("ada")
                    .unique("u")
                    .run_at("2030-01-01T00:00:00Z".parse().unwrap())
                    .debounce(day),
            ),
            ("debounce", letter("ada").unique("u").debounce(367 * day)),
            ("debounce_max", letter("ada").unique("u").debounce_max(day)),
            (
                "debounce_max",
                letter("ada")
                    .unique("u")
                    .debounce(2 * day)
                    .debounce_max(day),
            ),
            ("replace", letter("ada").replace()),
            (
                "replace",
                letter("ada").unique("u").unique_for(day).replace(),
            ),
        ]
    };
    both(
        || mail(0).1,
        async |queue| {
            for (wanted, job) in jobs() {
                let refused = queue.enqueue(job).await.unwrap_err();

                let Error::Refused { field, message } = refused else {
                    panic!("{wanted}: {refused}")
                };
                assert_eq!(field, wanted, "{message}");
            }
            queue.refute_enqueued("mail", json!({})).await;
        },
    )
    .await;
}
