//! Tests of the requests to enqueue that are accepted and refused.

use proptest::prelude::*;

use super::*;
use crate::jobs::{Handler, Issue, Outcome, PreparedJob};

struct Http;

impl Handler for Http {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        match args.get("url") {
            Some(Value::String(url)) if url.contains("://") => {
                Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
            }
            _ => Err(vec![Issue {
                pointer: "/url".to_owned(),
                message: "a URL with a scheme is needed".to_owned(),
            }]),
        }
    }
}

struct Free;

impl Handler for Free {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
    }
}

fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.register("http", Http);
    kinds.register("free", Free);
    kinds
}

fn read(body: Value) -> Result<NewJob, Errors> {
    one(
        body,
        &KnownKinds {
            here: &kinds(),
            elsewhere: &["remote".to_owned()],
        },
    )
}

/// Returns the pointer and the message of the only error.
fn refused(body: Value) -> (String, String) {
    let errors = read(body).expect_err("the job should be refused");
    assert_eq!(errors.listed.len(), 1, "{:?}", errors.listed);
    (
        errors.listed[0].pointer.clone(),
        errors.listed[0].message.clone(),
    )
}

#[test]
fn a_job_with_only_its_kind_gets_the_documented_defaults() {
    assert_eq!(
        read(json!({"kind": "free"})).unwrap(),
        NewJob::new("free", json!({}))
    );
}

#[test]
fn every_field_is_read() {
    let job = read(json!({
        "kind": "free", "args": [1, "two"], "throttle": "{notify}.sms", "key": "acme", "priority": 3,
        "run_at": "2030-01-31T09:30:00+01:00", "max_attempts": 1, "unique_key": "u", "unique_for": "10 minutes", "cost": 0.5,
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "timeout": "PT90S"
    }))
    .unwrap();
    let later =
        read(json!({"kind": "free", "unique_key": "u", "debounce": 5, "debounce_max": "1 minute", "replace": true})).unwrap();

    assert_eq!(job.args, json!([1, "two"]));
    assert_eq!(
        (
            job.throttle.as_str(),
            job.key.as_str(),
            job.priority,
            job.max_attempts
        ),
        ("{notify}.sms", "acme", 3, 1)
    );
    assert_eq!(job.run_at.unwrap().to_string(), "2030-01-31T08:30:00Z");
    assert_eq!(
        (job.unique_key.as_deref(), job.unique_for, job.cost),
        (Some("u"), Some(600.0), 0.5)
    );
    assert_eq!(
        (job.traceparent.as_deref().map(str::len), job.timeout_s),
        (Some(55), Some(90.0))
    );
    assert_eq!(
        (later.debounce_s, later.debounce_max_s, later.replace),
        (Some(5.0), Some(60.0), true)
    );
}

#[test]
fn all_that_is_wrong_is_listed_at_once() {
    let errors = read(json!({
        "kind": "http", "args": {"url": "example.org"}, "throttle": "two words", "key": 7, "priority": -1, "run_at": "tomorrow",
        "max_attempts": 0, "unique_key": "", "unique_for": -5, "cost": "NaN", "colour": "red"
    }))
    .unwrap_err();

    let mut pointers: Vec<&str> = errors
        .listed
        .iter()
        .map(|error| error.pointer.as_str())
        .collect();
    pointers.sort_unstable();
    assert_eq!(
        pointers,
        [
            "/args/url",
            "/colour",
            "/cost",
            "/key",
            "/max_attempts",
            "/priority",
            "/run_at",
            "/throttle",
            "/unique_for",
            "/unique_key"
        ]
    );
    for error in &errors.listed {
        assert!(
            error.message.contains("allowed")
                || error.message.contains("must be")
                || error.pointer == "/args/url",
            "{error:?}"
        );
    }
}

#[test]
fn an_unknown_kind_is_refused_with_the_kinds_that_somebody_runs() {
    let (pointer, message) = refused(json!({"kind": "htp"}));
    assert_eq!(pointer, "/kind");
    assert_eq!(
        message,
        "must be free, http or remote, not \"htp\"; did you mean \"http\"?"
    );
    assert_eq!(read(json!({"kind": "remote"})).unwrap().kind, "remote");
    assert_eq!(refused(json!({})).0, "/kind");
}

#[test]
fn costs_and_priorities_outside_their_range_are_refused() {
    for cost in [
        json!(0),
        json!(-1),
        json!(1.1e9),
        json!("1"),
        json!(null),
        json!(true),
    ] {
        assert_eq!(refused(json!({"kind": "free", "cost": cost})).0, "/cost");
    }
    for priority in [
        json!(4),
        json!(1.5),
        json!("high"),
        json!(null),
        json!(1e300),
        json!(u64::MAX),
    ] {
        assert_eq!(
            refused(json!({"kind": "free", "priority": priority})).0,
            "/priority"
        );
    }
}

#[test]
fn nul_characters_are_refused_where_they_are() {
    assert_eq!(
        refused(json!({"kind": "free", "args": {"a": ["x", "b\0"]}})).0,
        "/args/a/1"
    );
    assert_eq!(
        refused(json!({"kind": "free", "args": {"b\0": 1}})).0,
        "/args/b\\u0000"
    );
    assert_eq!(refused(json!({"kind": "free", "key": "a\0"})).0, "/key");
}

#[test]
fn arguments_above_256_kib_are_refused_with_their_size() {
    let (pointer, message) =
        refused(json!({"kind": "free", "args": {"blob": "x".repeat(300_000)}}));
    assert_eq!(pointer, "/args");
    assert!(
        message.contains("not 300011") && message.contains("262144"),
        "{message}"
    );
}

#[test]
fn a_unique_time_is_seconds_or_a_text_that_people_and_postgres_write() {
    let seconds = |value: Value| {
        read(json!({"kind": "free", "unique_key": "u", "unique_for": value}))
            .map(|job| job.unique_for)
    };
    for (value, expected) in [
        (json!(90), 90.0),
        (json!(0.5), 0.5),
        (json!("10 minutes"), 600.0),
        (json!("1 hour 30 minutes"), 5400.0),
        (json!("7 days"), 604_800.0),
        (json!("PT1H"), 3600.0),
        (json!("00:10:00"), 600.0),
    ] {
        assert_eq!(seconds(value.clone()).unwrap(), Some(expected), "{value}");
    }
    for value in [
        json!("soon"),
        json!("1 month"),
        json!("-1 day"),
        json!("2 years"),
        json!([]),
        json!(0),
        json!(1e10),
    ] {
        assert!(seconds(value.clone()).is_err(), "{value}");
    }
    assert_eq!(
        refused(json!({"kind": "free", "unique_for": 5})).0,
        "/unique_for"
    );
}

#[test]
fn times_need_an_offset_and_a_sane_year() {
    for text in [
        "2030-01-31",
        "2030-01-31T09:30:00",
        "09:30",
        "1960-01-01T00:00:00Z",
        "9999-01-01T00:00:00Z",
        "",
    ] {
        assert_eq!(
            refused(json!({"kind": "free", "run_at": text})).0,
            "/run_at",
            "{text}"
        );
    }
    assert_eq!(
        refused(json!({"kind": "free", "run_at": 1893456000})).0,
        "/run_at"
    );
    assert_eq!(
        read(json!({"kind": "free", "run_at": null}))
            .unwrap()
            .run_at,
        None
    );
}

#[test]
fn pointers_of_a_batch_begin_with_the_index_of_the_job() {
    let body =
        json!([{"kind": "free"}, {"kind": "free", "priority": 9}, 5, {"kind": "http", "args": {}}]);
    let errors = batch(
        body,
        &KnownKinds {
            here: &kinds(),
            elsewhere: &[],
        },
    )
    .unwrap_err();
    let pointers: Vec<&str> = errors
        .listed
        .iter()
        .map(|error| error.pointer.as_str())
        .collect();
    assert_eq!(pointers, ["/1/priority", "/2", "/3/args/url"]);
}

#[test]
fn the_two_routes_point_at_each_other() {
    let known = KnownKinds {
        here: &kinds(),
        elsewhere: &[],
    };
    assert!(
        batch(json!({"kind": "free"}), &known).unwrap_err().listed[0]
            .message
            .contains("/api/v1/jobs")
    );
    assert!(
        one(json!([{"kind": "free"}]), &known).unwrap_err().listed[0]
            .message
            .contains("/api/v1/jobs/batch")
    );
    assert_eq!(batch(json!([]), &known).unwrap(), []);
    let many = vec![json!({"kind": "free"}); BATCH_MAX + 1];
    assert!(
        batch(json!(many), &known).unwrap_err().listed[0]
            .message
            .contains("at most 10000")
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".{0,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_the_fields_hold_the_job_is_within_bounds_or_refused(
        values in proptest::collection::vec(proptest::option::of(any_json()), FIELDS.len())
    ) {
        let mut body = serde_json::Map::new();
        for (name, value) in FIELDS.iter().zip(values) {
            if let Some(value) = value {
                body.insert((*name).to_owned(), value);
            }
        }
        body.insert("kind".to_owned(), json!("free"));
        match read(Value::Object(body)) {
            Ok(job) => {
                prop_assert!((0..=3).contains(&job.priority) && (1..=1000).contains(&job.max_attempts));
                prop_assert!(job.cost.is_finite() && job.cost > 0.0);
                prop_assert!(Name::new(job.throttle).is_ok());
            }
            Err(errors) => prop_assert!(errors.listed.iter().all(|error| error.pointer.starts_with('/'))),
        }
    }
}

#[test]
fn fields_that_do_not_go_together_are_named() {
    for (body, pointer, answer) in [
        (
            json!({"kind": "free", "debounce": 5}),
            "/debounce",
            "must be left out without unique_key",
        ),
        (
            json!({"kind": "free", "replace": true}),
            "/replace",
            "must be left out without unique_key",
        ),
        (
            json!({"kind": "free", "debounce_max": 5}),
            "/debounce_max",
            "must be left out without debounce",
        ),
        (
            json!({"kind": "free", "unique_key": "u", "debounce": 5, "debounce_max": 4}),
            "/debounce_max",
            "at least the debounce of 5",
        ),
        (
            json!({"kind": "free", "unique_key": "u", "unique_for": 5, "replace": true}),
            "/replace",
            "left out beside unique_for",
        ),
        (
            json!({"kind": "free", "unique_key": "u", "debounce": 5, "run_at": "2030-01-31T09:30:00Z"}),
            "/debounce",
            "left out beside run_at",
        ),
        (
            json!({"kind": "free", "replace": "yes"}),
            "/replace",
            "must be true or false, not \"yes\"",
        ),
        (
            json!({"kind": "free", "timeout": 0}),
            "/timeout",
            "must be a number above 0 and at most 31622400 seconds",
        ),
        (
            json!({"kind": "free", "timeout": 1e-9}),
            "/timeout",
            "must be at least 0.000001 seconds, not",
        ),
        (
            json!({"kind": "free", "traceparent": "00-x"}),
            "/traceparent",
            "must be a W3C trace parent such as",
        ),
    ] {
        let (at, message) = refused(body.clone());
        assert_eq!(at, pointer, "{body}");
        assert!(message.contains(answer), "{body}: {message}");
    }
}

#[test]
fn refusals_are_as_pinned() {
    let free = |more: Value| {
        let mut job = json!({"kind": "free"});
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    let cases = [
        json!([]),
        json!(null),
        json!("x"),
        json!({}),
        json!({"kind": 7}),
        json!({"kind": ""}),
        json!({"kind": "htp"}),
        json!({"kind": "http", "args": {"url": 1}}),
        free(json!({"colour": 1, "priorty": 2, "a/b": 3})),
        free(json!({"args": {"a/b": ["\0"], "\0": 1}})),
        free(json!({"throttle": 1, "key": 2})),
        free(json!({"throttle": "two words", "key": "x".repeat(513)})),
        free(json!({"throttle": "", "key": "a\0b"})),
        free(json!({"priority": 7, "max_attempts": 0})),
        free(json!({"priority": "high", "max_attempts": 1.5})),
        free(json!({"priority": [1, 2], "max_attempts": {}})),
        free(json!({"run_at": "soon"})),
        free(json!({"run_at": 7})),
        free(json!({"unique_key": "", "unique_for": 0})),
        free(json!({"unique_key": "cron:a"})),
        free(json!({"unique_for": "1 month", "cost": 0})),
        free(json!({"unique_for": 60})),
        free(json!({"cost": "1", "traceparent": "00-x"})),
        free(json!({"traceparent": 1, "timeout": 1e-9})),
        free(json!({"timeout": [], "replace": "yes"})),
        free(json!({"retry": {"factor": 0, "max_delay_s": "1h", "jitter": 1}})),
        free(json!({"retry": 5})),
        free(json!({"debounce": 5, "replace": true})),
        free(json!({"unique_key": "a", "unique_for": 5, "debounce": 5, "replace": true})),
        free(
            json!({"unique_key": "a", "debounce": 5, "debounce_max": 1, "run_at": "2030-01-31T09:30:00Z"}),
        ),
        free(json!({"unique_key": "a", "debounce_max": 1})),
    ];
    let known = |body: Value| {
        batch(
            body,
            &KnownKinds {
                here: &kinds(),
                elsewhere: &["remote".to_owned()],
            },
        )
        .map(drop)
        .unwrap_err()
    };
    let lines = |errors: Errors| {
        let each = errors.listed.into_iter();
        each.map(|error| format!("{}: {}", error.pointer, error.message))
            .collect::<Vec<_>>()
    };
    let single = cases.map(|job| (job.to_string(), lines(read(job).unwrap_err())));
    let many = [
        json!({}),
        json!([{"kind": "free"}, 7, {"kind": "remot", "cost": -1}]),
    ]
    .map(|body| (body.to_string(), lines(known(body))));
    crate::input::pinned::check("enqueue", single.into_iter().chain(many));
}

#[test]
fn tags_are_short_texts_and_each_is_kept_once() {
    let job = read(json!({"kind": "free", "tags": ["import", "a b", "import"]})).unwrap();
    assert_eq!(job.tags, ["import", "a b"]);
    assert!(
        read(json!({"kind": "free", "tags": null}))
            .unwrap()
            .tags
            .is_empty()
    );
    for (tags, at, message) in [
        (json!("import"), "/tags", "must be a list of at most 16"),
        (json!(vec!["a"; 17]), "/tags", "must be at most 16 texts"),
        (json!(["a", 7]), "/tags/1", "must be a text of 1 to 64"),
        (json!([""]), "/tags/0", "must be a text of 1 to 64"),
        (json!(["a\n"]), "/tags/0", "must be a text of 1 to 64"),
        (
            json!(["x".repeat(65)]),
            "/tags/0",
            "must be a text of 1 to 64",
        ),
    ] {
        let (pointer, found) = refused(json!({"kind": "free", "tags": tags}));
        assert_eq!(pointer, at);
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn a_job_runs_after_others_by_their_numbers() {
    let body = json!({"kind": "free", "after": [1, 2], "after_failure": "run"});
    let job = read(body).unwrap();
    assert_eq!(job.after, [1, 2]);
    assert_eq!(job.after_failure, Some(AfterFailure::Run));
    for (body, at, message) in [
        (json!({"after": 7}), "/after", "must be a list of at most"),
        (
            json!({"after": vec![1; 101]}),
            "/after",
            "must be at most 100 numbers",
        ),
        (
            json!({"after": [1, "2"]}),
            "/after/1",
            "must be the number of a job",
        ),
        (json!({"after": [0]}), "/after/0", "must be the number"),
        (
            json!({"after": [1], "after_failure": "wait"}),
            "/after_failure",
            "must be",
        ),
        (
            json!({"after_failure": "run"}),
            "/after_failure",
            "must be left out without after",
        ),
        (
            json!({"after": [1], "unique_key": "u", "replace": true}),
            "/after",
            "must be left out beside replace",
        ),
    ] {
        let mut body = body;
        body["kind"] = json!("free");
        let (pointer, found) = refused(body);
        assert_eq!(pointer, at);
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn webhooks_are_urls_and_their_secret_is_named() {
    let body = json!({"kind": "free", "on_complete": "https://a.example/x", "webhook_secret": "s"});
    let job = read(body).unwrap();
    assert_eq!(job.on_complete.as_deref(), Some("https://a.example/x"));
    assert_eq!(job.webhook_secret.as_deref(), Some("s"));
    for (body, at, message) in [
        (json!({"on_dead": "a.example"}), "/on_dead", "must be a URL"),
        (json!({"on_dead": 7}), "/on_dead", "must be"),
        (
            json!({"on_complete": "https://a.example/", "webhook_secret": "whsec_hunter2"}),
            "/webhook_secret",
            "must be the name of a secret",
        ),
        (
            json!({"webhook_secret": "s"}),
            "/webhook_secret",
            "must be left out without on_complete",
        ),
        (
            json!({"on_dead": "https://a.example/", "unique_key": "u", "replace": true}),
            "/on_dead",
            "must be left out beside replace",
        ),
    ] {
        let mut body = body;
        body["kind"] = json!("free");
        let (pointer, found) = refused(body);
        assert_eq!(pointer, at);
        assert!(found.starts_with(message), "{found}");
        assert!(!found.contains("hunter2"), "{found}");
    }
}
