//! Opens the two ends of a reindex as its arguments ask.

use std::sync::Arc;
use std::time::Duration;

use super::args::{self, Args};
use super::postgres::Database;
use super::sink::{ElasticSink, PostgresSink, Sink, Trouble};
use super::source::{self, PostgresSource, Source};

/// Longest time without an answer to one bulk request.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What is needed to open sources and sinks.
#[derive(Clone)]
pub(super) struct Connect {
    /// How the queue's own database is reached, if there is one.
    pub(super) own: Option<Database>,
    /// Speaks to indexes.
    pub(super) client: reqwest::Client,
}

impl Connect {
    /// The source of a job.
    pub(super) fn source(&self, args: &Args) -> Result<Arc<dyn Source>, source::Error> {
        let database = self.database(args.source.url_env.as_deref()).map_err(source::Error::Lost)?;
        Ok(Arc::new(PostgresSource::open(database, &args.source, args.sink.id())))
    }

    /// The sink of a job.
    pub(super) fn sink(&self, args: &Args) -> Result<Arc<dyn Sink>, Trouble> {
        Ok(match &args.sink {
            args::Sink::Elastic { url, index, authorization_env, .. } => {
                Arc::new(ElasticSink::new(self.client.clone(), url, index, authorization_env.clone()))
            }
            args::Sink::Postgres { url_env, table, text, config, .. } => {
                let database = self.database(url_env.as_deref()).map_err(Trouble::Lost)?;
                Arc::new(PostgresSink::open(database, table, text.clone(), config, args.concurrency))
            }
        })
    }

    fn database(&self, variable: Option<&str>) -> Result<Database, String> {
        match (variable, &self.own) {
            (Some(variable), _) => Database::named(variable),
            (None, Some(own)) => Ok(own.clone()),
            (None, None) => Err("the job names no database and this process has none of its own".to_owned()),
        }
    }
}
