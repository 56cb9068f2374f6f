//! Reads one number from a page, past Prometheus: an exporter's metric, or a value in a JSON
//! document.

use std::time::Duration;

use serde_json::Value;

use super::exposition::Series;
use super::server::{Access, SignalServer};
use super::{Error, Reading};

/// Timeout of a probe, which the governor runs twice a second.
pub const TIMEOUT: Duration = Duration::from_millis(500);

/// The longest page that is read, in bytes.
const PAGE_MAX: usize = 4 << 20;

/// One number on one page.
#[derive(Clone, Debug)]
pub struct HttpProbe {
    server: SignalServer,
    place: CompiledExtractor,
}

/// The place of the number on the page.
#[derive(Clone, Debug)]
enum CompiledExtractor {
    Metric(Series),
    Pointer(String),
}

impl HttpProbe {
    /// Creates a probe of `metric` (a name, or `name{label="value"}`) on the page at `url`.
    pub fn new(url: &str, metric: &str) -> Result<Self, Error> {
        let series = Series::parse(metric).map_err(|reason| Error::BadQuery {
            query: metric.to_owned(),
            message: reason,
        })?;
        Self::at(url, CompiledExtractor::Metric(series))
    }

    /// Creates a probe of the JSON document at `url`, at the place that `pointer` names (RFC 6901).
    pub fn json(url: &str, pointer: &str) -> Result<Self, Error> {
        check_pointer(pointer).map_err(|reason| Error::BadQuery {
            query: pointer.to_owned(),
            message: reason,
        })?;
        Self::at(url, CompiledExtractor::Pointer(pointer.to_owned()))
    }

    fn at(url: &str, place: CompiledExtractor) -> Result<Self, Error> {
        Ok(Self {
            server: SignalServer::new(&Access::open(url), TIMEOUT)?,
            place,
        })
    }

    /// Reads the number; `now` is its time unless the page gives another.
    pub async fn read(&self, now: f64) -> Result<Reading, Error> {
        let body = self.server.get(PAGE_MAX).await?;
        match &self.place {
            CompiledExtractor::Metric(series) => {
                Ok(series.read(&String::from_utf8_lossy(&body), now)?)
            }
            CompiledExtractor::Pointer(pointer) => {
                let garbled = |reason: String| Error::Garbled {
                    url: self.server.redacted_url().to_owned(),
                    reason,
                };
                let page: Value = serde_json::from_slice(&body)
                    .map_err(|_| garbled("it is not JSON".to_owned()))?;
                let value = number(page.pointer(pointer))
                    .map_err(|found| garbled(format!("{pointer:?} is {found}")))?;
                Ok(Reading::judge(value, now, now, f64::INFINITY)?)
            }
        }
    }
}

/// Checks that `pointer` is a JSON pointer.
pub fn check_pointer(pointer: &str) -> Result<(), String> {
    let is_escaped = |part: &str| part.starts_with(['0', '1']);
    if !pointer.starts_with('/') || !pointer.split('~').skip(1).all(is_escaped) {
        return Err(format!(
            "{pointer:?} is not a JSON pointer; write /key/0 with ~1 for / and ~0 for ~"
        ));
    }
    Ok(())
}

/// Returns the number in a JSON value, also if it is written as a text; `None` if the value is
/// missing or null.
///
/// # Errors
///
/// Fails with a description of any other value.
pub(super) fn number(value: Option<&Value>) -> Result<Option<f64>, &'static str> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        Some(Value::String(text)) => text
            .trim()
            .parse()
            .map(Some)
            .map_err(|_| "a text that is not a number"),
        Some(Value::Bool(_)) => Err("true or false"),
        Some(Value::Array(_)) => Err("a list"),
        Some(Value::Object(_)) => Err("an object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_is_read_also_where_it_is_written_as_a_text() {
        assert_eq!(number(Some(&json!(1.5))), Ok(Some(1.5)));
        assert_eq!(number(Some(&json!(" 2 "))), Ok(Some(2.0)));
        assert_eq!(number(Some(&json!(null))), Ok(None));
        assert_eq!(number(None), Ok(None));
        assert!(number(Some(&json!("NaN"))).unwrap().unwrap().is_nan());
        for other in [json!(true), json!([1]), json!({"a": 1}), json!("much")] {
            assert!(number(Some(&other)).is_err(), "{other}");
        }
    }

    #[test]
    fn pointers_that_cannot_be_meant_are_refused() {
        for good in ["/a", "/", "/a/0/b~1c~0d"] {
            assert_eq!(check_pointer(good), Ok(()), "{good}");
        }
        for bad in ["", "a", "$.a", "/a~2", "/a~"] {
            assert!(check_pointer(bad).is_err(), "{bad}");
        }
    }
}
