//! Readings from Prometheus (and what speaks its HTTP API), with the samples' own times.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use reqwest::{RequestBuilder, StatusCode, Url};

use super::{Error, Missing, Reading, promql};

/// How long Prometheus may take to answer.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// How far back raw samples are asked for, in seconds: long enough for a missed minute or two.
pub const WINDOW_S: f64 = 180.0;

/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 8 << 20;

/// A difference between Prometheus' clock and ours that is taken for none, in seconds.
const CLOCKS_AGREE_S: f64 = 2.0;

/// A series without a sample for this long no longer counts beside others that go on, in seconds.
const SERIES_ENDED_S: f64 = 90.0;

/// A client of one Prometheus server.
#[derive(Debug)]
pub struct Prometheus {
    client: reqwest::Client,
    pub(super) url: Url,
    /// Prometheus' clock minus the caller's, in seconds, as far as it matters.
    offset_s: Mutex<f64>,
}

impl Prometheus {
    /// A client of the server at `url`, such as `http://127.0.0.1:9090`; a path prefix is kept.
    pub fn new(url: &str) -> Result<Self, Error> {
        let mut url = address(url)?;
        let path = format!("{}/api/v1/query", url.path().trim_end_matches('/'));
        url.set_path(&path);
        url.set_query(None);
        Ok(Self { client: client(TIMEOUT), url, offset_s: Mutex::new(0.0) })
    }

    /// The samples of `query` that are visible now, oldest first, in times of the caller's clock, which reads `now`.
    ///
    /// A plain selector answers every raw sample of the last three minutes; where several series match, the greatest of
    /// them at each time. Any other expression answers one value, dated by the oldest sample that it is made of.
    pub async fn readings(&self, query: &str, now: f64) -> Result<Vec<Reading>, Error> {
        let query = query.trim();
        if promql::is_selector(query) {
            let series = self.ask(&format!("{query}[{WINDOW_S}s]"), now).await?;
            return greatest(&series);
        }
        let series = self.ask(query, now).await?;
        let values: Vec<Reading> = series.iter().filter_map(|s| s.last().copied()).collect();
        let worst = values.iter().copied().reduce(|a, b| if b.value > a.value || b.value.is_nan() { b } else { a });
        let worst = worst.ok_or(Missing::Absent)?;
        let at = match promql::oldest_sample(&promql::selectors(query)) {
            Some(times) => self.time(&times, now).await?.ok_or(Missing::Absent)?,
            None => worst.at,
        };
        Ok(vec![Reading::judge(Some(worst.value), at, now, f64::INFINITY)?])
    }

    /// The unix time, on the caller's clock, that `query` answers as its value.
    async fn time(&self, query: &str, now: f64) -> Result<Option<f64>, Error> {
        let series = self.ask(query, now).await?;
        Ok(series.first().and_then(|s| s.last()).map(|r| r.value - self.offset()))
    }

    /// One query: every series with its samples, times on the caller's clock.
    async fn ask(&self, query: &str, now: f64) -> Result<Vec<Vec<Reading>>, Error> {
        let form = [("query", query), ("timeout", "2s")];
        let (head, data) = self.post(&self.url, query, &form, TIMEOUT).await?;
        self.compare_clocks(head, now);
        data.series(self.offset()).ok_or_else(|| self.not_numbers(&data))
    }

    /// Sends one query and reads the answer's data: the server's clock, if it tells, and the data.
    pub(super) async fn post(
        &self,
        url: &Url,
        query: &str,
        form: &[(&str, &str)],
        within: Duration,
    ) -> Result<(Option<f64>, Data), Error> {
        let request = self.client.post(url.clone()).timeout(within).form(form);
        let (head, body) = match fetch(request, url, within, ANSWER_MAX).await {
            Err(Error::Refused { status: 400 | 422, message, .. }) => {
                let told = serde_json::from_str::<Answer>(&message).ok().and_then(|a| a.error).unwrap_or(message);
                return Err(Error::BadQuery { query: query.to_owned(), message: told });
            }
            other => other?,
        };
        let garbled = |reason: String| Error::Garbled { url: self.url.to_string(), reason };
        let answer: Answer = serde_json::from_slice(&body).map_err(|e| garbled(e.to_string()))?;
        // Hints about style ("PromQL info: metric might not be a counter") say nothing about completeness.
        let warnings: Vec<&str> = answer.warnings.iter().map(String::as_str).filter(|w| !w.starts_with("PromQL info")).collect();
        if !warnings.is_empty() {
            return Err(Error::Partial { query: query.to_owned(), warnings: warnings.join("; ") });
        }
        Ok((head, answer.data.ok_or_else(|| garbled("an answer without data".to_owned()))?))
    }

    pub(super) fn not_numbers(&self, data: &Data) -> Error {
        Error::Garbled { url: self.url.to_string(), reason: format!("a {} is not a series of numbers", data.result_type) }
    }

    fn offset(&self) -> f64 {
        *self.offset_s.lock().expect("no code panics while it holds this lock")
    }

    /// Notes how far Prometheus' clock is from the caller's. Kept still while it moves little, because a sample must not
    /// look new merely because it was dated again.
    fn compare_clocks(&self, theirs: Option<f64>, now: f64) {
        let Some(theirs) = theirs else { return };
        // The header has whole seconds, so the truth is half a second later on average.
        let seen = theirs + 0.5 - now;
        let mut offset = self.offset_s.lock().expect("no code panics while it holds this lock");
        if (seen - *offset).abs() > CLOCKS_AGREE_S {
            *offset = if seen.abs() > CLOCKS_AGREE_S { seen } else { 0.0 };
        }
    }
}

/// Merges series into one: at every time of the first, the greatest of all as they stood then.
pub(super) fn greatest(series: &[Vec<Reading>]) -> Result<Vec<Reading>, Error> {
    let first = series.first().ok_or(Missing::Absent)?;
    let at_once = |at: f64| {
        let current = |r: &&Reading| r.at <= at && r.at > at - SERIES_ENDED_S;
        let as_of = |s: &Vec<Reading>| s.iter().rev().find(current).map(|r| r.value);
        series.iter().filter_map(as_of).fold(f64::NEG_INFINITY, |worst, v| if v.is_nan() { v } else { worst.max(v) })
    };
    // A series that ended a while ago must not freeze the answer, so the one with the newest sample sets the times.
    let clock = series.iter().max_by(|a, b| newest(a).total_cmp(&newest(b))).unwrap_or(first);
    let merged: Vec<Reading> = clock.iter().map(|r| Reading { value: at_once(r.at), at: r.at }).collect();
    let sound: Vec<Reading> = merged.iter().copied().filter(|r| r.value.is_finite() && r.value >= 0.0).collect();
    match merged.last() {
        None => Err(Missing::Absent.into()),
        Some(last) if sound.is_empty() => Err(Reading::judge(Some(last.value), last.at, last.at, 0.0).unwrap_err().into()),
        Some(_) => Ok(sound),
    }
}

fn newest(series: &[Reading]) -> f64 {
    series.last().map_or(f64::NEG_INFINITY, |r| r.at)
}

/// The body of an answer, as Prometheus documents it.
#[derive(serde::Deserialize)]
struct Answer {
    data: Option<Data>,
    error: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(serde::Deserialize)]
pub(super) struct Data {
    #[serde(rename = "resultType")]
    result_type: String,
    result: serde_json::Value,
}

impl Data {
    pub(super) fn series(&self, offset_s: f64) -> Option<Vec<Vec<Reading>>> {
        let point = |pair: &serde_json::Value| {
            let at = pair.get(0)?.as_f64()? - offset_s;
            // Values travel as text: "0.5", "NaN", "+Inf".
            Some(Reading { value: pair.get(1)?.as_str()?.parse().ok()?, at })
        };
        match self.result_type.as_str() {
            "scalar" => Some(vec![vec![point(&self.result)?]]),
            "vector" => self.result.as_array()?.iter().map(|s| Some(vec![point(s.get("value")?)?])).collect(),
            "matrix" => {
                self.result.as_array()?.iter().map(|s| s.get("values")?.as_array()?.iter().map(point).collect()).collect()
            }
            _ => None,
        }
    }
}

/// A client that gives up after `within`, follows no redirects and keeps few connections.
pub(super) fn client(within: Duration) -> reqwest::Client {
    reqwest::Client::builder()
        .timeout(within)
        .connect_timeout(within)
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(2)
        .build()
        .expect("the settings above are valid on every platform")
}

/// `text` as an address of HTTP.
pub(super) fn address(text: &str) -> Result<Url, Error> {
    let refuse = |reason: &str| Error::Address { url: text.to_owned(), reason: reason.to_owned() };
    let url = Url::parse(text.trim()).map_err(|e| refuse(&e.to_string()))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        other => Err(refuse(&format!("scheme {other:?} is not http"))),
    }
}

/// Sends `request` and reads at most `most` bytes: the server's clock, if it tells, and the body.
pub(super) async fn fetch(
    request: RequestBuilder,
    url: &Url,
    within: Duration,
    most: usize,
) -> Result<(Option<f64>, Vec<u8>), Error> {
    let lost = |e: reqwest::Error| {
        if e.is_timeout() {
            return Error::TimedOut { url: url.to_string(), within_ms: within.as_millis() };
        }
        let mut reason: &dyn std::error::Error = &e;
        while let Some(source) = reason.source() {
            reason = source;
        }
        Error::Unreachable { url: url.to_string(), reason: reason.to_string() }
    };
    let mut response = request.send().await.map_err(lost)?;
    let date = response.headers().get("date").and_then(|d| httpdate::parse_http_date(d.to_str().ok()?).ok());
    let clock = date.and_then(|d| d.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|d| d.as_secs_f64());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > most {
            return Err(Error::Garbled { url: url.to_string(), reason: format!("more than {most} bytes") });
        }
        body.extend_from_slice(&chunk);
    }
    if response.status() != StatusCode::OK {
        let message = String::from_utf8_lossy(&body).chars().take(500).collect();
        return Err(Error::Refused { url: url.to_string(), status: response.status().as_u16(), message });
    }
    Ok((clock, body))
}
