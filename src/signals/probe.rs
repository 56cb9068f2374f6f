//! Reads one metric from an exporter's own page, past Prometheus: the breaker's fast path.

use std::time::Duration;

use super::exposition::Series;
use super::{Error, Reading};

/// How long a probe may take: it is asked twice a second.
pub const TIMEOUT: Duration = Duration::from_millis(500);

/// The longest page that is read, in bytes.
const PAGE_MAX: usize = 4 << 20;

/// One metric on one page.
#[derive(Clone, Debug)]
pub struct Probe {
    client: reqwest::Client,
    url: reqwest::Url,
    series: Series,
}

impl Probe {
    /// A probe of `metric` (a name, or `name{label="value"}`) on the page at `url`.
    pub fn new(url: &str, metric: &str) -> Result<Self, Error> {
        let url = super::prometheus::address(url)?;
        let series = Series::parse(metric).map_err(|reason| Error::BadQuery { query: metric.to_owned(), message: reason })?;
        Ok(Self { client: super::prometheus::client(TIMEOUT), url, series })
    }

    /// The metric as it stands; `now` is its time unless the page says another.
    pub async fn read(&self, now: f64) -> Result<Reading, Error> {
        let (_, body) = super::prometheus::fetch(self.client.get(self.url.clone()), &self.url, TIMEOUT, PAGE_MAX).await?;
        Ok(self.series.read(&String::from_utf8_lossy(&body), now)?)
    }
}
