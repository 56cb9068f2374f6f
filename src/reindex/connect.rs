//! Opens the two ends of a reindex as its arguments ask.

use std::sync::Arc;
use std::time::Duration;

use super::args::{self, Args};
use super::postgres::Database;
use super::sink::{ElasticSink, PostgresSink, Sink, Trouble};
use super::source::{self, PostgresSource, Source};

/// Longest time without an answer to one bulk request.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Longest time to reach the index.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// What is needed to open sources and sinks.
#[derive(Clone)]
pub(super) struct Connect {
    /// How the queue's own database is reached.
    pub(super) own: Database,
    /// Speaks to indexes.
    pub(super) client: reqwest::Client,
}

impl Connect {
    /// The source of a job.
    pub(super) fn source(&self, args: &Args) -> Result<Arc<dyn Source>, source::Error> {
        Ok(Arc::new(PostgresSource::open(&self.own, &args.source, args.sink.id())?))
    }

    /// The sink of a job.
    pub(super) fn sink(&self, args: &Args) -> Result<Arc<dyn Sink>, Trouble> {
        Ok(match &args.sink {
            args::Sink::Elastic { url, index, authorization_env, .. } => {
                Arc::new(ElasticSink::new(self.client.clone(), url, index, authorization_env.clone()))
            }
            args::Sink::Postgres { url_env, table, text, config, .. } => {
                Arc::new(PostgresSink::open(&self.own, url_env.as_deref(), table, text.clone(), config, args.concurrency)?)
            }
        })
    }
}

/// A client that follows no redirects (an index has no business to send us elsewhere) and uses no proxy.
pub(super) fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_WITHIN)
        .timeout(ANSWER_WITHIN)
        .user_agent(concat!("flyball/", env!("CARGO_PKG_VERSION")))
        .build()
        .expect("a client without files or environment can be built")
}
