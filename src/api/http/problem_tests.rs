//! Tests of problems.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use sqlx::error::{DatabaseError, ErrorKind};

use super::*;
use crate::jobs::postgres::is_disk_full;

/// An error of Postgres with only its code.
#[derive(Debug)]
struct CodedError(&'static str);

impl fmt::Display for CodedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for CodedError {}

impl DatabaseError for CodedError {
    fn message(&self) -> &str {
        self.0
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(self.0.into())
    }

    fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

fn of_code(code: &'static str) -> Problem {
    let answer = sqlx::Error::Database(Box::new(CodedError(code)));
    Problem::from_queue(answer.into(), false)
}

#[test]
fn what_an_open_transaction_holds_or_a_timeout_ends_is_asked_for_again() {
    for code in ["55P03", "40P01", "40001", "57014"] {
        let problem = of_code(code);
        assert_eq!(problem.code, Code::QueueUnavailable, "{code}");
        assert_eq!(problem.retry_after_s, Some(1), "{code}");
    }
    assert_eq!(of_code("42601").code, Code::Internal);
}

#[test]
fn a_full_disk_is_named_and_told_for_a_minute() {
    let full = of_code("53100");

    assert_eq!(full.code, Code::QueueUnavailable);
    assert_eq!(
        full.detail,
        "the disk of Postgres is full; nothing was changed; make room on it"
    );
    assert_eq!(full.retry_after_s, Some(1));
    // So long do the metric and the alert about Postgres tell it.
    let now = Instant::now();
    assert!(is_disk_full(now) && !is_disk_full(now + Duration::from_secs(61)));
}

#[test]
fn the_requests_of_one_outage_are_one_line_of_the_log() {
    let lost = Mutex::default();
    assert!(is_logged(&lost));
    assert!(!is_logged(&lost) && !is_logged(&lost));
}

#[test]
fn what_the_queue_refuses_points_at_the_job_of_a_batch() {
    let refused = || jobs::Error::Refused {
        index: Some(3),
        field: "kind".into(),
        message: "no".into(),
    };
    assert_eq!(
        Problem::from_queue(refused(), true).errors.listed[0].pointer,
        "/3/kind"
    );
    assert_eq!(
        Problem::from_queue(refused(), false).errors.listed[0].pointer,
        "/kind"
    );
}

#[test]
fn a_database_that_is_read_only_is_named_and_leaves_nothing_unsure() {
    let lost = |reason: &str| Problem::from(jobs::Error::Lost(reason.to_owned()));
    let problem = lost(&format!("{READ_ONLY}; after a failover"));
    assert!(problem.detail.starts_with(READ_ONLY), "{}", problem.detail);
    assert!(!problem.is_unsure && problem.detail.contains("nothing was changed"));
    assert_eq!(problem.code, Code::QueueUnavailable);
    assert!(lost("broken pipe").is_unsure);
}

#[test]
fn an_unsure_answer_has_another_one_for_those_that_only_read() {
    let lost = Problem::from(jobs::Error::Lost("broken pipe".to_owned()));
    assert!(lost.detail.contains("a change may have been made"));
    let response = lost.into_response();
    let of_read = response.extensions().get::<ProblemOfRead>().unwrap();
    assert_eq!(of_read.detail, "Postgres does not answer; try again soon");
    let refused = Problem::new(Code::Conflict, "taken; try another").into_response();
    assert!(refused.extensions().get::<ProblemOfRead>().is_none());
}
