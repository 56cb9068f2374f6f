//! Runs jobs of the kind `http`: one request, one outcome.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use serde_json::Value;

use super::request::MAX_TIMEOUT_MS;
use super::reqwest::{Failure, HttpClient, SetUpError};
use super::{Config, Request};
use crate::jobs::{Context, Handler, Issue, Job, Outcome};

/// The handler of the kind `http`.
pub struct HttpHandler {
    client: HttpClient,
}

impl HttpHandler {
    /// A handler with a client of its own.
    pub fn new(config: Config) -> Result<Self, SetUpError> {
        Ok(Self { client: HttpClient::new(config)? })
    }

    async fn deliver(&self, job: &Job, context: &Context) -> Outcome {
        let request = match Request::parse(&job.args) {
            Ok(request) => request,
            Err(issues) => {
                let listed: Vec<String> = issues.iter().map(|issue| format!("{} {}", issue.pointer, issue.message)).collect();
                return Outcome::Dead { error: listed.join("; ") };
            }
        };
        tokio::select! {
            answer = self.client.send(&request) => match answer {
                Ok(response) => response.outcome(&request, now_s()),
                Err(Failure::Broken(error)) => Outcome::Retry { after: None, error },
                Err(never) => Outcome::Dead { error: never.to_string() },
            },
            // The runner knows why: a job that a person cancelled ends, one of a stopping worker runs again elsewhere.
            () = context.cancelled.cancelled() => Outcome::HandedBack,
        }
    }
}

/// The time for servers that send dates but no `Date` to compare them with, unix seconds.
#[allow(clippy::disallowed_methods, reason = "the server's own clock counts wherever it tells it")]
fn now_s() -> i64 {
    Timestamp::now().as_second()
}

impl Handler for HttpHandler {
    fn check(&self, args: &Value) -> Vec<Issue> {
        match Request::parse(args) {
            Err(issues) => issues,
            Ok(request) => match self.client.check_url(&request.url) {
                Ok(()) => Vec::new(),
                Err(message) => vec![Issue { pointer: "/url".to_owned(), message }],
            },
        }
    }

    fn run(&self, job: Job, context: Context) -> BoxFuture<'_, Outcome> {
        async move { self.deliver(&job, &context).await }.boxed()
    }

    fn timeout(&self) -> Option<Duration> {
        // The request has a time of its own; this one is for a client that hangs in spite of it.
        Some(Duration::from_millis(MAX_TIMEOUT_MS + 10_000))
    }
}
