//! The handler of the kind `reindex`: its settings, the check of arguments, the start of a copy.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::backfill::backfill;
use crate::jobs::serving::SharedSettings;
use crate::jobs::{Context, Handler, Issue, Job, Outcome, PreparedJob};
use crate::outbound::{self, Guard, SetUpError};
use crate::reindex::args::Args;
use crate::reindex::connect::{ANSWER_WITHIN, Connect};
use crate::reindex::shared_settings::shared_settings;
use crate::reindex::sink::WriteError;
use crate::reindex::sink_args::SinkArgs;
use crate::reindex::{Catalogue, ReindexDatabase};

/// Settings of the kind, the same for all its jobs.
#[derive(Clone, Debug, Default)]
pub struct BackfillConfig {
    /// The addresses besides the public internet at which a job's own index may be; by default
    /// none.
    pub guard: Guard,
    /// The sources and sinks that jobs may name.
    pub catalogue: Catalogue,
}

/// The handler of the kind `reindex`.
pub struct ReindexHandler {
    connect: Connect,
    config: BackfillConfig,
}

impl ReindexHandler {
    /// Creates a handler that reads and writes `own`, usually the queue's database, if a job names
    /// no other.
    ///
    /// Without it the handler can check arguments, and run jobs that name their databases.
    pub fn new(config: BackfillConfig, own: Option<ReindexDatabase>) -> Result<Self, SetUpError> {
        let guarded = outbound::guarded_client(config.guard.clone(), ANSWER_WITHIN)?;
        let trusted = outbound::guarded_client(Guard::open(), ANSWER_WITHIN)?;
        Ok(Self {
            connect: Connect {
                own,
                guarded,
                trusted,
            },
            config,
        })
    }

    /// Parses the arguments and checks the address in them.
    fn read(&self, args: &Value) -> Result<Args, Vec<Issue>> {
        let args = Args::parse(args, &self.config.catalogue)?;
        if let SinkArgs::Elastic(requested) = &args.sink
            && requested.is_guarded
            && let Err(message) = outbound::check_url(&requested.url, &self.config.guard)
        {
            return Err(vec![Issue::new("/sink/url", message)]);
        }
        Ok(args)
    }

    async fn start(&self, args: &Args, job: &Job, context: &Context) -> Outcome {
        let sink = match self.connect.sink(args) {
            Ok(sink) => sink,
            Err(trouble @ WriteError::Wrong(_)) => {
                return Outcome::Dead {
                    error: trouble.to_string(),
                };
            }
            Err(trouble) => {
                return Outcome::Retry {
                    after: None,
                    error: trouble.to_string(),
                };
            }
        };
        match self.connect.source(args).await {
            Ok(source) => backfill(job, context, args, source, sink).await,
            Err(error) => Outcome::Retry {
                after: None,
                error: error.to_string(),
            },
        }
    }
}

impl Handler for ReindexHandler {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let args = self.read(args)?;
        Ok(PreparedJob::new(move |job, context| async move {
            self.start(&args, &job, &context).await
        }))
    }

    fn needs(&self, args: &Value) -> Vec<String> {
        Args::needs(args)
    }

    fn capabilities(&self) -> BTreeMap<String, String> {
        let sources = self
            .config
            .catalogue
            .sources
            .keys()
            .map(|name| format!("source {name}"));
        let sinks = self
            .config
            .catalogue
            .sinks
            .keys()
            .map(|name| format!("sink {name}"));
        sources
            .chain(sinks)
            .map(|one| (one, String::new()))
            .collect()
    }

    fn settings(&self) -> SharedSettings {
        shared_settings(&self.config.catalogue)
    }

    /// Returns false: the kind reads and writes whole tables with the operator's rights, so it is
    /// for operators.
    fn public(&self) -> bool {
        false
    }

    /// Returns `None`: a reindex is bounded by its progress, not by a clock.
    fn timeout(&self) -> Option<Duration> {
        None
    }
}
