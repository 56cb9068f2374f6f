//! Opens the source and the sink of a reindex.

use std::sync::Arc;
use std::time::Duration;

use super::args::Args;
use super::catalogue::SecretLocation;
use super::hidden;
use super::postgres::ReindexDatabase;
use super::sink::{ElasticSink, PostgresSink, Sink, WriteError};
use super::sink_args::SinkArgs;
use super::source::{self, DocumentSource, PostgresSource};
use super::source_args::{CollectionName, Rows};
use crate::outbound;

/// Longest wait for the answer to one bulk request.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Clients and options for opening sources and sinks.
#[derive(Clone)]
pub(super) struct Connect {
    /// The queue's own database, if there is one.
    pub(super) own: Option<ReindexDatabase>,
    /// The client for indexes that jobs choose.
    pub(super) guarded: reqwest::Client,
    /// The client for indexes that the operator has named.
    pub(super) trusted: reqwest::Client,
}

impl Connect {
    /// Opens the source of a job.
    pub(super) async fn source(
        &self,
        args: &Args,
    ) -> Result<Arc<dyn DocumentSource>, source::Error> {
        if let Rows::Collection(collection) = &args.source.rows {
            return self.collection(args, collection).await;
        }
        let database = self
            .database(args.source.database.as_ref())
            .map_err(source::Error::Lost)?;
        Ok(Arc::new(PostgresSource::open(
            database,
            &args.source,
            args.sink.id(),
            args.sink.routing(),
        )))
    }

    #[cfg(feature = "mongodb")]
    async fn collection(
        &self,
        args: &Args,
        collection: &CollectionName,
    ) -> Result<Arc<dyn DocumentSource>, source::Error> {
        let lost = |secret: &SecretLocation, why: &str| {
            source::Error::Lost(format!("{} {why}", hidden::describe_secret(secret)))
        };
        let Some(secret) = &args.source.database else {
            return Err(source::Error::Wrong(
                "the job names no deployment of MongoDB".to_owned(),
            ));
        };
        let url = hidden::read(secret).map_err(source::Error::Lost)?;
        let opened = source::MongoSource::open(
            &url,
            collection,
            &args.source,
            args.sink.id(),
            args.sink.routing(),
        );
        let opened = opened.await.map_err(|why| lost(secret, &why))?;
        Ok(Arc::new(opened))
    }

    #[cfg(not(feature = "mongodb"))]
    async fn collection(
        &self,
        _: &Args,
        _: &CollectionName,
    ) -> Result<Arc<dyn DocumentSource>, source::Error> {
        let why = "this worker was built without the feature \"mongodb\"";
        Err(source::Error::Lost(why.to_owned()))
    }

    /// Opens the sink of a job.
    pub(super) fn sink(&self, args: &Args) -> Result<Arc<dyn Sink>, WriteError> {
        Ok(match &args.sink {
            SinkArgs::Elastic(requested) => {
                if let Some(secret) = &requested.authorization {
                    // A secret that is missing, or may not be sent there, is reported before
                    // anything is read.
                    hidden::authorization(secret, &requested.url)?;
                }
                let client = match &requested.ca_file {
                    _ if requested.is_guarded => self.guarded.clone(),
                    None => self.trusted.clone(),
                    Some(file) => outbound::client_that_trusts(file, ANSWER_WITHIN)
                        .map_err(WriteError::Lost)?,
                };
                Arc::new(ElasticSink::new(client, requested.clone()))
            }
            SinkArgs::Postgres {
                database,
                rights,
                table,
                text,
                config,
                ..
            } => {
                let database = self.database(database.as_ref()).map_err(WriteError::Lost)?;
                Arc::new(PostgresSink::open(
                    database,
                    rights,
                    table,
                    text.clone(),
                    config,
                    args.concurrency,
                ))
            }
        })
    }

    fn database(&self, url: Option<&SecretLocation>) -> Result<ReindexDatabase, String> {
        match (url, &self.own) {
            (Some(secret), _) => ReindexDatabase::at(&hidden::read(secret)?)
                .map_err(|why| format!("{} {why}", hidden::describe_secret(secret))),
            (None, Some(own)) => Ok(own.clone()),
            (None, None) => {
                Err("the job names no database, and this process has no default one".to_owned())
            }
        }
    }
}
