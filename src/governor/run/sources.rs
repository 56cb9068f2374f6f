//! The sources of readings: each signal's source, read for a tick, and those that the fast path can
//! read directly.
//!
//! Every sample is in the setpoint's unit. A source that does not respond yields no reading, never
//! zero.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use crate::governor::observation::{AHEAD_S, SignalSample};
use crate::governor::policy::{
    Extractor, FeedbackKind, Policy, ProbeTarget, SignalPolicy, SignalSource,
};
use crate::signals::elasticsearch::ClusterStats;
use crate::signals::feedback::Span;
use crate::signals::figure::ClusterFigure;
use crate::signals::server::Access;
use crate::signals::{
    ComplaintSource, DepthSource, Direct, Error, FeedbackMeter, FeedbackSource, HttpProbe, Missing,
    Prometheus, Reading, SignalDatabase, Target, WorkerFeedback, no_complaints, no_depth,
    no_feedback,
};

/// The timeout of one sample of the fast path.
const LOOK_WITHIN: Duration = Duration::from_millis(500);

/// The span of feedback that the fast path judges by, in seconds.
const FEEDBACK_WINDOW_S: f64 = 5.0;
/// The fewest attempts that must have ended in the span that the fast path judges by: one refusal
/// among two is not an overload.
const MIN_FEEDBACK_ATTEMPTS: f64 = 10.0;

/// The sources of all throttles.
pub struct Sources {
    usual: Prometheus,
    servers: BTreeMap<String, Prometheus>,
    databases: BTreeMap<String, SignalDatabase>,
    clusters: BTreeMap<String, Access>,
    /// The URLs of MongoDB servers, which are never shown.
    mongodb: BTreeMap<String, String>,
    depth: DepthSource,
    feedback: FeedbackSource,
    complaints: ComplaintSource,
}

impl Sources {
    /// Creates sources with one Prometheus and nothing else.
    pub fn new(usual: Prometheus) -> Self {
        let (servers, databases) = (BTreeMap::new(), BTreeMap::new());
        Self {
            usual,
            servers,
            databases,
            clusters: BTreeMap::new(),
            mongodb: BTreeMap::new(),
            depth: no_depth(),
            feedback: no_feedback(),
            complaints: no_complaints(),
        }
    }

    /// Sets the source of the depth and age of queues.
    pub fn with_depth(mut self, depth: DepthSource) -> Self {
        self.depth = depth;
        self
    }

    /// Sets the source of feedback from the work itself.
    pub fn with_feedback(mut self, feedback: FeedbackSource) -> Self {
        self.feedback = feedback;
        self
    }

    /// Sets the source of complaints about a pool's accounts.
    pub fn with_complaints(mut self, complaints: ComplaintSource) -> Self {
        self.complaints = complaints;
        self
    }

    /// Adds a Prometheus under the name that policies use.
    pub fn with_server(mut self, name: &str, server: Prometheus) -> Self {
        self.servers.insert(name.to_owned(), server);
        self
    }

    /// Adds a database under the name that policies use.
    pub fn with_database(mut self, name: &str, database: SignalDatabase) -> Self {
        self.databases.insert(name.to_owned(), database);
        self
    }

    /// Adds a cluster of Elasticsearch or OpenSearch under the name that policies use.
    pub fn with_cluster(mut self, name: &str, access: Access) -> Self {
        self.clusters.insert(name.to_owned(), access);
        self
    }

    /// Adds a MongoDB server under the name that policies use.
    pub fn with_mongodb(mut self, name: &str, url: &str) -> Self {
        self.mongodb.insert(name.to_owned(), url.to_owned());
        self
    }

    /// Returns the Prometheus of the setting `PROMETHEUS_URL`.
    pub fn usual(&self) -> &Prometheus {
        &self.usual
    }

    /// Returns the Prometheus of a signal.
    pub fn prometheus(&self, about: &SignalPolicy) -> &Prometheus {
        about
            .server
            .as_ref()
            .and_then(|name| self.servers.get(name))
            .unwrap_or(&self.usual)
    }

    /// Returns the samples of a Prometheus signal that are visible at `now`.
    pub async fn history(&self, about: &SignalPolicy, now: f64) -> Result<Vec<Reading>, Error> {
        self.prometheus(about)
            .readings_of_at_least(&about.query, about.series_min, now)
            .await
    }

    /// Fails if a policy names a server that is not configured.
    pub fn check(&self, policy: &Policy) -> Result<(), Error> {
        self.direct_sources(policy).map(|_| ())
    }

    /// Returns the direct readers for a policy; fails if it names a server that is not configured.
    pub(super) fn direct_sources(&self, policy: &Policy) -> Result<DirectSources, Error> {
        let direct = policy
            .signals
            .iter()
            .map(|about| self.direct(about))
            .collect::<Result<_, _>>()?;
        Ok(DirectSources { direct })
    }

    fn direct(&self, about: &SignalPolicy) -> Result<Option<Direct>, Error> {
        let named = about.server.as_deref().unwrap_or_default();
        let unknown = |what, known: Vec<&str>| Error::Source {
            what,
            name: named.to_owned(),
            reason: format!(
                "signal {} names it as its server; the settings define {}",
                about.name,
                listed(&known)
            ),
        };
        if about.source == SignalSource::Postgres {
            let known = || self.databases.keys().map(String::as_str).collect();
            let database = self
                .databases
                .get(named)
                .ok_or_else(|| unknown("postgres", known()))?;
            return Ok(Some(Direct::new(Target::Row(
                database.clone(),
                about.query.clone(),
            ))));
        }
        if about.source == SignalSource::Elasticsearch {
            let known = || self.clusters.keys().map(String::as_str).collect();
            let access = self.clusters.get(named);
            let access = access.ok_or_else(|| unknown("elasticsearch", known()))?;
            let figure = ClusterFigure::parse(&about.query).ok_or(Missing::Absent)?;
            let stats = ClusterStats::new(access, figure)?;
            return Ok(Some(Direct::new(Target::Cluster(stats))));
        }
        if about.source == SignalSource::Mongodb {
            let known = || self.mongodb.keys().map(String::as_str).collect();
            let url = self.mongodb.get(named);
            let url = url.ok_or_else(|| unknown("mongodb", known()))?;
            return Ok(Some(Direct::new(mongodb(named, url, &about.query)?)));
        }
        if about.server.is_some() && !self.servers.contains_key(named) {
            return Err(unknown(
                "prometheus",
                self.servers.keys().map(String::as_str).collect(),
            ));
        }
        let Some(look) = &about.probe else {
            return Ok(None);
        };
        Ok(Some(Direct::new(Target::Page(probe(look)?))))
    }

    /// Returns the workers' counts of the throttle's jobs, if the policy needs them.
    pub(super) async fn worker_feedback(
        &self,
        policy: &Policy,
        throttle: &str,
    ) -> Option<Vec<WorkerFeedback>> {
        if !policy.uses_feedback() {
            return None;
        }
        tokio::time::timeout(LOOK_WITHIN, (self.feedback)(throttle))
            .await
            .ok()
            .flatten()
    }

    /// Returns the readings of every signal for a tick, in the order of the policy; feedback from
    /// the work itself is in the meter instead.
    pub(super) async fn read(
        &self,
        policy: &Policy,
        direct_sources: &DirectSources,
        now: f64,
        is_told: bool,
    ) -> Vec<Result<Vec<SignalSample>, Error>> {
        let read =
            policy
                .signals
                .iter()
                .zip(&direct_sources.direct)
                .map(|(about, direct)| async move {
                    let readings = match (about.source, direct) {
                        (SignalSource::Feedback, _) if !is_told => return Err(Error::NoFeedback),
                        (SignalSource::Feedback, _) => Vec::new(),
                        (SignalSource::Depth | SignalSource::Age, _) => {
                            vec![self.waiting(about).await?]
                        }
                        (SignalSource::Complaints, _) => vec![self.complained(about).await?],
                        (
                            SignalSource::Http
                            | SignalSource::Postgres
                            | SignalSource::Elasticsearch
                            | SignalSource::Mongodb,
                            Some(direct),
                        ) => {
                            vec![direct.read(now).await?]
                        }
                        _ => self.history(about, now).await?,
                    };
                    // The law ignores such samples, and people must be told why.
                    if let Some(early) = readings.iter().find(|one| one.at > now + AHEAD_S) {
                        let ahead_s = early.at - now;
                        return Err(Missing::Future { ahead_s }.into());
                    }
                    Ok(readings
                        .into_iter()
                        .map(|reading| sample(about, reading))
                        .collect())
                });
        join_all(read).await
    }

    /// Returns a sample, for the fast path, of every signal that can trip the breaker and does not
    /// pass through Prometheus.
    ///
    /// A source that does not respond in time is left out; the tick's own staleness handles it.
    pub(super) async fn look(
        &self,
        policy: &Policy,
        direct_sources: &DirectSources,
        now: f64,
    ) -> Vec<SignalSample> {
        let look = policy
            .signals
            .iter()
            .zip(&direct_sources.direct)
            .filter(|(about, _)| about.trips)
            .map(|(about, direct)| async move {
                let reading = match (about.source, direct) {
                    (SignalSource::Depth | SignalSource::Age, _) => {
                        tokio::time::timeout(LOOK_WITHIN, self.waiting(about))
                            .await
                            .ok()?
                            .ok()?
                    }
                    (SignalSource::Complaints, _) => {
                        tokio::time::timeout(LOOK_WITHIN, self.complained(about))
                            .await
                            .ok()?
                            .ok()?
                    }
                    (_, Some(direct)) => direct.read(now).await.ok()?,
                    _ => return None,
                };
                Some(sample(about, reading))
            });
        join_all(look).await.into_iter().flatten().collect()
    }

    /// Returns the number of a throttle's jobs that are ready to run, if known.
    pub async fn ready(&self, throttle: &str) -> Option<f64> {
        (self.depth)(throttle).await.ok().map(|depth| depth.ready)
    }

    /// Returns the complaint share of a pool's worst account; 0 if no account has enough accepted
    /// messages.
    async fn complained(&self, about: &SignalPolicy) -> Result<Reading, Error> {
        let complaints = (self.complaints)(&about.query).await?;
        Ok(Reading {
            value: complaints.share,
            at: complaints.at,
        })
    }

    async fn waiting(&self, about: &SignalPolicy) -> Result<Reading, Error> {
        let depth = (self.depth)(&about.query).await?;
        Ok(if about.source == SignalSource::Age {
            depth.age()
        } else {
            depth.jobs()
        })
    }
}

/// The direct readers, in the order of the policy's signals.
#[derive(Debug)]
pub(super) struct DirectSources {
    direct: Vec<Option<Direct>>,
}

/// Returns true if the fast path has a signal to look at.
pub(super) fn can_look(policy: &Policy) -> bool {
    let direct =
        |about: &&SignalPolicy| about.source != SignalSource::Prometheus || about.probe.is_some();
    policy.law.breaker
        && policy
            .signals
            .iter()
            .any(|about| about.trips && direct(&about))
}

/// Returns the feedback of the work itself since `since`, for a tick, at the time of the newest
/// report.
///
/// A signal with a longer averaging time covers more. A signal without feedback has a sample
/// without a value, so that silence is not taken for a share of 0. Nothing from before `acted_at`,
/// the breaker's last stop or restart, is averaged into later values.
pub(super) fn feedback_samples(
    policy: &Policy,
    meter: &FeedbackMeter,
    since: Option<f64>,
    acted_at: f64,
) -> Vec<SignalSample> {
    let at = meter
        .at()
        .filter(|at| since.is_none_or(|since| *at > since));
    let of = |about: &SignalPolicy, heard: FeedbackKind| {
        let step_s = span_s(policy, at?, since);
        let over_s = step_s.max((2.0 * about.lag_s).min(at? - acted_at));
        let span = meter.over(over_s)?;
        // Without work nothing is refused, but durations and failures are unknown.
        let at_rest = (heard == FeedbackKind::Refused && meter.is_idle(step_s)).then_some(0.0);
        Some(sample(
            about,
            Reading {
                value: value(heard, meter, &span, over_s).or(at_rest)?,
                at: span.at,
            },
        ))
    };
    let silent = |about: &SignalPolicy| SignalSample {
        signal: about.name.clone(),
        value: None,
        at: at.unwrap_or(0.0),
    };
    let hearing = policy
        .signals
        .iter()
        .filter_map(|about| Some((about, about.feedback?)));
    hearing
        .map(|(about, heard)| of(about, heard).unwrap_or_else(|| silent(about)))
        .collect()
}

/// Returns the feedback of the last seconds, for the fast path, if enough attempts have ended in
/// them.
pub(super) fn fast_samples(
    policy: &Policy,
    meter: &FeedbackMeter,
    acted_at: f64,
) -> Vec<SignalSample> {
    let over_s = meter
        .at()
        .map_or(0.0, |at| FEEDBACK_WINDOW_S.min(at - acted_at));
    let Some(span) = meter
        .over(over_s)
        .filter(|span| span.work.ended() >= MIN_FEEDBACK_ATTEMPTS)
    else {
        return Vec::new();
    };
    let of = |about: &SignalPolicy| {
        Some(sample(
            about,
            Reading {
                value: value(about.feedback?, meter, &span, over_s)?,
                at: span.at,
            },
        ))
    };
    policy
        .signals
        .iter()
        .filter(|about| about.trips)
        .filter_map(of)
        .collect()
}

/// Returns the seconds from `since` to `at`; one tick without earlier feedback.
pub(super) fn span_s(policy: &Policy, at: f64, since: Option<f64>) -> f64 {
    since.map_or(policy.law.tick_s, |since| at - since)
}

/// Returns the feedback in `span`, the last `over_s` seconds of the meter.
fn value(heard: FeedbackKind, meter: &FeedbackMeter, span: &Span, over_s: f64) -> Option<f64> {
    match heard {
        FeedbackKind::Refused => span.work.refused_share(),
        FeedbackKind::Errors => span.work.failed_share(),
        FeedbackKind::Latency => span.work.mean_duration_s(),
        FeedbackKind::LatencyP99 => meter.durations_over(over_s)?.quantile_s(0.99),
    }
}

/// Returns the reader of a MongoDB server's figure.
#[cfg(feature = "mongodb")]
fn mongodb(name: &str, url: &str, figure: &str) -> Result<Target, Error> {
    use crate::signals::figure::ServerFigure;
    use crate::signals::mongodb::ServerStatus;

    let figure = ServerFigure::parse(figure).ok_or(Missing::Absent)?;
    Ok(Target::Mongodb(ServerStatus::new(name, url, figure)))
}

#[cfg(not(feature = "mongodb"))]
fn mongodb(name: &str, _: &str, _: &str) -> Result<Target, Error> {
    Err(Error::Source {
        what: "mongodb",
        name: name.to_owned(),
        reason: "this program was built without the feature \"mongodb\"".to_owned(),
    })
}

/// Creates the probe of a page.
pub fn probe(look: &ProbeTarget) -> Result<HttpProbe, Error> {
    match &look.place {
        Extractor::Metric(metric) => HttpProbe::new(&look.url, metric),
        Extractor::Pointer(pointer) => HttpProbe::json(&look.url, pointer),
    }
}

/// Converts a reading to a sample in the setpoint's unit.
pub fn sample(about: &SignalPolicy, reading: Reading) -> SignalSample {
    SignalSample {
        signal: about.name.clone(),
        value: Some(reading.value * about.scale),
        at: reading.at,
    }
}

fn listed(known: &[&str]) -> String {
    if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    }
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
