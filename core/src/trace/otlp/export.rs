//! The loop that sends spans to their collector, which may be slow or away.
//!
//! Spans wait in a bounded queue. One that finds no room is dropped and counted, and so is a batch
//! that the collector does not take: neither delays a job, and neither is tried again.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, redirect, retry};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::message;
use super::settings::{InvalidOtel, OtlpSettings};
use crate::trace::{EndedSpan, SpanSink, Tracer};

/// Longest wait for the last spans when the process stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Shortest time between two warnings of a collector that takes no spans.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The spans by their fate.
#[derive(Clone, Debug, Default)]
pub struct SpanCounts {
    /// Spans that the collector took.
    pub exported: Counter,
    /// Spans that found no room.
    pub dropped: Counter,
    /// Spans of batches that the collector did not take.
    pub refused: Counter,
}

/// The running export of a process.
pub struct Exporter {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Sends the spans that wait, within a bounded time, and stops.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = tokio::time::timeout(FAREWELL, self.task).await;
    }
}

struct SpanQueue {
    spans: mpsc::Sender<EndedSpan>,
    counts: SpanCounts,
}

impl SpanSink for SpanQueue {
    fn take(&self, span: EndedSpan) {
        if self.spans.try_send(span).is_err() {
            self.counts.dropped.inc();
        }
    }
}

/// A reason for which the export does not start.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A header cannot be sent.
    #[error(transparent)]
    Header(#[from] InvalidOtel),
    /// The client cannot be made.
    #[error("the client of the collector cannot be made: {0}")]
    Client(#[from] reqwest::Error),
}

/// Starts the export; returns the tracer whose spans it sends.
pub fn start(
    settings: OtlpSettings,
    counts: SpanCounts,
) -> Result<(Tracer, Exporter), ExportError> {
    let client = Client::builder()
        .timeout(settings.timeout)
        // A redirect could carry the headers elsewhere.
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .default_headers(headers(&settings.headers)?)
        .build()?;
    let (spans, waiting) = mpsc::channel(settings.queue);
    let queue = SpanQueue {
        spans,
        counts: counts.clone(),
    };
    let stop = CancellationToken::new();
    let tracer = Tracer::new(settings.sampler, queue);
    let sending = Sending {
        client,
        settings,
        counts,
        warned: None,
    };
    let task = tokio::spawn(sending.run(waiting, stop.clone()));
    Ok((tracer, Exporter { stop, task }))
}

fn headers(given: &[(String, String)]) -> Result<HeaderMap, InvalidOtel> {
    let mut headers = HeaderMap::new();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-protobuf"),
    );
    for (name, value) in given {
        // The value may be a credential, so it is not shown.
        let fault = |what: &str| InvalidOtel(format!("the header {name:?} of traces {what}"));
        let known = HeaderName::try_from(name.as_str())
            .map_err(|_| fault("has a name that no header can have"))?;
        let mut value = HeaderValue::try_from(value.as_str())
            .map_err(|_| fault("has a value that cannot be sent, such as one with a line end"))?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    Ok(headers)
}

struct Sending {
    client: Client,
    settings: OtlpSettings,
    counts: SpanCounts,
    warned: Option<Instant>,
}

impl Sending {
    async fn run(mut self, mut waiting: mpsc::Receiver<EndedSpan>, stop: CancellationToken) {
        loop {
            let first = tokio::select! {
                biased;
                span = waiting.recv() => span,
                () = stop.cancelled() => None,
            };
            let Some(first) = first else { return };
            let mut batch = Vec::with_capacity(self.settings.batch);
            batch.push(first);
            let due = Instant::now() + self.settings.delay;
            while batch.len() < self.settings.batch {
                let next = tokio::select! {
                    biased;
                    next = waiting.recv() => next,
                    () = tokio::time::sleep_until(due) => None,
                    () = stop.cancelled() => None,
                };
                match next {
                    Some(span) => batch.push(span),
                    None => break,
                }
            }
            self.send(batch).await;
        }
    }

    async fn send(&mut self, spans: Vec<EndedSpan>) {
        let number = spans.len() as u64;
        let body = message::encode(&self.settings.resource, spans);
        let sent = self
            .client
            .post(self.settings.endpoint.clone())
            .body(body)
            .send()
            .await;
        let fault = match sent {
            Ok(answer) if answer.status().is_success() => {
                self.counts.exported.inc_by(number);
                return;
            }
            Ok(answer) => format!("it answered {}", answer.status().as_u16()),
            // The error without its URL, which may hold a password.
            Err(error) => error.without_url().to_string(),
        };
        self.counts.refused.inc_by(number);
        let is_due = self
            .warned
            .is_none_or(|warned| warned.elapsed() >= WARN_EVERY);
        if is_due {
            self.warned = Some(Instant::now());
            tracing::warn!(spans = number, %fault, "the collector of traces took no spans; they are dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_cannot_be_sent_is_named_without_its_value() {
        let of = |name: &str, value: &str| headers(&[(name.to_owned(), value.to_owned())]);

        let sent = of("api-key", "s3cret").unwrap();
        assert!(sent["api-key"].is_sensitive());
        for (name, value) in [("api-key", "s3cret\n"), ("api key", "s3cret")] {
            let fault = of(name, value).unwrap_err().to_string();
            assert!(fault.contains(name) && !fault.contains("s3cret"), "{fault}");
        }
    }
}
