//! Readings from Prometheus (and servers with its HTTP API), with the samples' own times.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use prometheus_http_query::response::{Data, Sample};
use reqwest::header::AUTHORIZATION;

use super::server::{Access, SignalServer};
use super::{Error, Missing, Reading, promql, series};

/// Timeout of a request to Prometheus.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// The range over which raw samples are queried, in seconds: long enough for a missed minute or
/// two.
pub const WINDOW_S: f64 = 180.0;

/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 8 << 20;

/// Greatest difference between Prometheus' clock and ours that is ignored, in seconds.
const CLOCKS_AGREE_S: f64 = 2.0;

/// Interval between queries for the usual number of a query's series, in seconds; that number is
/// the median of two hours.
const USUAL_EVERY_S: f64 = 60.0;

/// Most queries whose usual number is kept; policies name far fewer.
const USUAL_MAX: usize = 1_000;

/// A client of one Prometheus server.
#[derive(Debug)]
pub struct Prometheus {
    server: SignalServer,
    access: Access,
    /// The same server with a longer timeout, once it was needed.
    slow: OnceLock<SignalServer>,
    /// Prometheus' clock minus the caller's, in seconds; 0 for a difference that is ignored.
    offset_s: Mutex<f64>,
    /// The usual number of series of each query, and the time of the query for it.
    usual: Mutex<BTreeMap<String, (usize, f64)>>,
}

impl Prometheus {
    /// Creates a client of the server at `url`, such as `http://127.0.0.1:9090`; a path prefix is
    /// kept.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::with(&Access::open(url))
    }

    /// Creates a client of a server with this access.
    pub fn with(access: &Access) -> Result<Self, Error> {
        let server = SignalServer::new(access, TIMEOUT)?;
        Ok(Self {
            server,
            access: access.clone(),
            slow: OnceLock::new(),
            offset_s: Mutex::new(0.0),
            usual: Mutex::default(),
        })
    }

    /// Returns the current samples of `query`, oldest first, in times of the caller's clock, which
    /// reads `now`.
    ///
    /// A plain selector returns every raw sample of the last three minutes. If several series
    /// match, it returns the greatest of them at each time, and an error if fewer of them are live
    /// than usual, because the one that ended may be the greatest. Any other expression returns one
    /// value, dated by the oldest sample that it is made of.
    pub async fn readings(&self, query: &str, now: f64) -> Result<Vec<Reading>, Error> {
        self.readings_of_at_least(query, None, now).await
    }

    /// Returns the samples as [`Self::readings`] does, with at least `series_min` live series;
    /// `None` for the usual number in the last two hours.
    pub async fn readings_of_at_least(
        &self,
        query: &str,
        series_min: Option<usize>,
        now: f64,
    ) -> Result<Vec<Reading>, Error> {
        let query = query.trim();
        if promql::is_selector(query) {
            let all = self.query(&format!("{query}[{WINDOW_S}s]"), now).await?;
            if all.len() > series::SERIES_MAX {
                return Err(Missing::Many {
                    series: all.len(),
                    allowed: series::SERIES_MAX,
                }
                .into());
            }
            let worst = series::worst(&all)?;
            let least = match series_min {
                Some(given) => given,
                None => self.usual(query, now).await?,
            };
            let live = series::live(&all);
            return if live < least {
                Err(Missing::Ended { live, least }.into())
            } else {
                Ok(worst)
            };
        }
        let series = self.query(query, now).await?;
        let values: Vec<Reading> = series.iter().filter_map(|s| s.last().copied()).collect();
        let worst = values.iter().copied().reduce(|a, b| {
            if b.value > a.value || b.value.is_nan() {
                b
            } else {
                a
            }
        });
        let worst = worst.ok_or(Missing::Absent)?;
        let at = match promql::oldest_sample(&promql::selectors(query)) {
            Some(times) => self.time(&times, now).await?.ok_or(Missing::Absent)?,
            None => worst.at,
        };
        Ok(vec![Reading::judge(
            Some(worst.value),
            at,
            now,
            f64::INFINITY,
        )?])
    }

    /// Returns the usual number of series of the selector `query`; 0 if the server cannot compute
    /// it.
    async fn usual(&self, query: &str, now: f64) -> Result<usize, Error> {
        let kept = self.kept().get(query).copied();
        if let Some((usual, _)) = kept.filter(|(_, at)| (now - at).abs() < USUAL_EVERY_S) {
            return Ok(usual);
        }
        // The median, because a deployment that runs old and new side by side for some minutes does
        // not change it.
        let usual_count = format!("quantile_over_time(0.5, count({query})[2h:1m])");
        let usual = match self.query(&usual_count, now).await {
            Ok(answer) => answer
                .first()
                .and_then(|s| s.last())
                .map_or(0, |r| r.value.max(0.0) as usize),
            // A server without subqueries, or one that answers in another form.
            Err(Error::BadQuery { .. } | Error::Garbled { .. }) => 0,
            // A server under load answers the short query and not this one: the number from before
            // counts, and is not asked for at every tick.
            Err(error) => kept
                .map(|(usual, _)| usual)
                .ok_or_else(|| Error::Uncounted {
                    error: Box::new(error),
                })?,
        };
        let mut kept = self.kept();
        if kept.len() >= USUAL_MAX {
            kept.clear();
        }
        kept.insert(query.to_owned(), (usual, now));
        Ok(usual)
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<String, (usize, f64)>> {
        self.usual.lock()
    }

    /// Returns the value of `query` as a unix time on the caller's clock.
    async fn time(&self, query: &str, now: f64) -> Result<Option<f64>, Error> {
        let series = self.query(query, now).await?;
        Ok(series
            .first()
            .and_then(|s| s.last())
            .map(|r| r.value - self.offset()))
    }

    /// Runs one query and returns every series with its samples, in times of the caller's clock.
    async fn query(&self, query: &str, now: f64) -> Result<Vec<Vec<Reading>>, Error> {
        let (clock, data) = self
            .send(&self.server, &PrometheusQuery::Instant { query, at: None })
            .await?;
        self.compare_clocks(clock, now);
        Ok(series_of(&data, self.offset()))
    }

    /// Returns the same server with a longer timeout, always the same one.
    pub(super) fn slow(&self, timeout: Duration) -> Result<&SignalServer, Error> {
        if let Some(slow) = self.slow.get() {
            return Ok(slow);
        }
        let slow = SignalServer::new(&self.access, timeout)?;
        Ok(self.slow.get_or_init(|| slow))
    }

    /// Sends one query and returns the server's clock, if it has a `Date`, and the answer's data.
    ///
    /// The response is read raw: its size is bounded, and the warnings of an incomplete answer are
    /// errors.
    pub(super) async fn send(
        &self,
        server: &SignalServer,
        question: &PrometheusQuery<'_>,
    ) -> Result<(Option<f64>, Data), Error> {
        let client = server.prometheus()?;
        let authorization = server.authorization().await?;
        // The server gives up first, so that its own error arrives.
        let timeout_ms = (server.timeout().as_millis() * 9 / 10) as i64;
        let sent = match *question {
            PrometheusQuery::Instant { query, at } => {
                let mut request = client.query(query).timeout(timeout_ms);
                if let Some(at) = at {
                    request = request.at(at);
                }
                if let Some(value) = authorization {
                    request = request.header(AUTHORIZATION, value);
                }
                request.post_raw().await
            }
            PrometheusQuery::Range {
                query,
                from,
                to,
                step_s,
            } => {
                let mut request = client
                    .query_range(query, from, to, step_s)
                    .timeout(timeout_ms);
                if let Some(value) = authorization {
                    request = request.header(AUTHORIZATION, value);
                }
                request.post_raw().await
            }
        };
        let response = sent.map_err(|error| server.lost(&error))?;
        let (clock, body) = match server.read(response, ANSWER_MAX).await {
            Err(Error::Refused {
                status: 400 | 422,
                message,
                ..
            }) => {
                let message = serde_json::from_str::<QueryResponse>(&message)
                    .ok()
                    .and_then(|answer| answer.error)
                    .unwrap_or(message);
                return Err(Error::BadQuery {
                    query: question.query().to_owned(),
                    message,
                });
            }
            other => other?,
        };
        let garbled = |reason: String| Error::Garbled {
            url: server.redacted_url().to_owned(),
            reason,
        };
        let answer: QueryResponse =
            serde_json::from_slice(&body).map_err(|e| garbled(e.to_string()))?;
        // Hints about style ("PromQL info: metric might not be a counter") say nothing about
        // completeness.
        let warnings: Vec<&str> = answer
            .warnings
            .iter()
            .map(String::as_str)
            .filter(|w| !w.starts_with("PromQL info"))
            .collect();
        if !warnings.is_empty() {
            return Err(Error::Partial {
                query: question.query().to_owned(),
                warnings: warnings.join("; "),
            });
        }
        let data = answer
            .data
            .ok_or_else(|| garbled("an answer without data".to_owned()))?;
        Ok((clock, data))
    }

    fn offset(&self) -> f64 {
        *self.offset_s.lock()
    }

    /// Records the difference between Prometheus' clock and the caller's.
    ///
    /// Small changes are ignored, because a sample must not look new merely because it was dated
    /// again.
    fn compare_clocks(&self, theirs: Option<f64>, now: f64) {
        let Some(theirs) = theirs else { return };
        // The header has whole seconds, so the true time is half a second later on average.
        let seen = theirs + 0.5 - now;
        let mut offset = self.offset_s.lock();
        if (seen - *offset).abs() > CLOCKS_AGREE_S {
            *offset = if seen.abs() > CLOCKS_AGREE_S {
                seen
            } else {
                0.0
            };
        }
    }
}

/// The body of an answer, as Prometheus documents it.
#[derive(serde::Deserialize)]
struct QueryResponse {
    data: Option<Data>,
    error: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

/// A query, evaluated at one time or at regular steps; times are unix seconds of the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum PrometheusQuery<'a> {
    Instant {
        query: &'a str,
        /// `None` for the server's present.
        at: Option<i64>,
    },
    Range {
        query: &'a str,
        from: i64,
        to: i64,
        step_s: f64,
    },
}

impl<'a> PrometheusQuery<'a> {
    fn query(&self) -> &'a str {
        match self {
            Self::Instant { query, .. } | Self::Range { query, .. } => query,
        }
    }
}

/// Returns every series, with the timestamps of its samples shifted back by `offset_s`.
pub(super) fn series_of(data: &Data, offset_s: f64) -> Vec<Vec<Reading>> {
    let reading = |sample: &Sample| Reading {
        value: sample.value(),
        at: sample.timestamp() - offset_s,
    };
    match data {
        Data::Scalar(sample) => vec![vec![reading(sample)]],
        Data::Vector(all) => all
            .iter()
            .map(|series| vec![reading(series.sample())])
            .collect(),
        Data::Matrix(all) => all
            .iter()
            .map(|series| series.samples().iter().map(reading).collect())
            .collect(),
    }
}
