//! The settings of the export, from the standard variables of OpenTelemetry. Pure.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::trace::Sampler;

/// The endpoint if only the exporter is chosen.
const USUAL_ENDPOINT: &str = "http://localhost:4318";

/// The path of spans below a common endpoint.
const PATH: &str = "v1/traces";

/// The service's name if the environment gives none.
const USUAL_NAME: &str = "flyball";

/// A variable that cannot be used. The error never shows headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidOtel(pub(super) String);

/// The settings of the export.
#[derive(Clone, PartialEq)]
pub struct OtlpSettings {
    /// The URL that takes spans.
    pub endpoint: Url,
    /// The headers of each request, which may be credentials.
    pub headers: Vec<(String, String)>,
    /// The time for one request.
    pub timeout: Duration,
    /// The attributes of this program, `service.name` among them.
    pub resource: Vec<(String, String)>,
    /// The sampler.
    pub sampler: Sampler,
    /// The most spans that wait.
    pub queue: usize,
    /// The most spans of one request.
    pub batch: usize,
    /// The longest wait of a span for others.
    pub delay: Duration,
}

impl fmt::Debug for OtlpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OtlpSettings")
            .field("endpoint", &self.endpoint.host_str())
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

impl OtlpSettings {
    /// Reads the settings; `None` if nothing is to be exported: no endpoint and no exporter is
    /// named, or the export is turned off.
    pub fn from_variables(
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, InvalidOtel> {
        let read = |name: &str| {
            let value = read(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        // A variable of traces alone has precedence over that of all signals.
        let either = |what: &str| {
            let of_traces = format!("OTEL_EXPORTER_OTLP_TRACES_{what}");
            let of_all = format!("OTEL_EXPORTER_OTLP_{what}");
            let found = read(&of_traces).map(|value| (of_traces, value));
            found.or_else(|| read(&of_all).map(|value| (of_all, value)))
        };
        if read("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let exporter = read("OTEL_TRACES_EXPORTER");
        match exporter.as_deref() {
            Some("none") => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => {
                return fail(format!(
                    "OTEL_TRACES_EXPORTER must be otlp or none, not {other:?}"
                ));
            }
        }
        let endpoint = match (
            read("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            read("OTEL_EXPORTER_OTLP_ENDPOINT"),
        ) {
            (Some(whole), _) => url("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &whole)?,
            (None, Some(base)) => below("OTEL_EXPORTER_OTLP_ENDPOINT", &base)?,
            (None, None) if exporter.is_some() => below("the usual endpoint", USUAL_ENDPOINT)?,
            (None, None) => return Ok(None),
        };
        if let Some((name, protocol)) =
            either("PROTOCOL").filter(|(_, value)| value != "http/protobuf")
        {
            return fail(format!(
                "{name} must be http/protobuf, not {protocol:?}: Flyball speaks no other protocol"
            ));
        }
        if let Some((name, compression)) =
            either("COMPRESSION").filter(|(_, value)| value != "none")
        {
            return fail(format!(
                "{name} must be none, not {compression:?}: Flyball does not compress spans"
            ));
        }
        for what in ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"] {
            if let Some((name, _)) = either(what) {
                return fail(format!(
                    "{name} must be left out: Flyball trusts the certificates of the system"
                ));
            }
        }
        let headers = match either("HEADERS") {
            Some((name, text)) => pairs(&text).ok_or_else(|| {
                InvalidOtel(format!(
                    "{name} must be a list such as api-key=abc,tenant=x, with %-encoded values"
                ))
            })?,
            None => Vec::new(),
        };
        let (name, text) = either("TIMEOUT").unzip();
        let timeout = millis(&name.unwrap_or_default(), text, 10_000)?;
        let mut resource = match read("OTEL_RESOURCE_ATTRIBUTES") {
            Some(text) => pairs(&text).ok_or_else(|| {
                InvalidOtel("OTEL_RESOURCE_ATTRIBUTES must be a list such as team=mail,deployment.environment=eu".to_owned())
            })?,
            None => Vec::new(),
        };
        if let Some(name) = read("OTEL_SERVICE_NAME") {
            resource.retain(|(known, _)| known != "service.name");
            resource.push(("service.name".to_owned(), name));
        }
        if resource.iter().all(|(known, _)| known != "service.name") {
            resource.push(("service.name".to_owned(), USUAL_NAME.to_owned()));
        }
        let sampler = match read("OTEL_TRACES_SAMPLER") {
            Some(name) => Sampler::named(&name, read("OTEL_TRACES_SAMPLER_ARG").as_deref())
                .map_err(InvalidOtel)?,
            None => Sampler::default(),
        };
        let count = |name: &str, usual: usize| match read(name) {
            None => Ok(usual),
            Some(text) => {
                let count = text.parse::<usize>().ok();
                count
                    .filter(|count| (1..=1_000_000).contains(count))
                    .ok_or_else(|| {
                        InvalidOtel(format!(
                            "{name} must be a whole number from 1 to 1000000, not {text:?}"
                        ))
                    })
            }
        };
        let queue = count("OTEL_BSP_MAX_QUEUE_SIZE", 2048)?;
        Ok(Some(Self {
            endpoint,
            headers,
            timeout,
            resource,
            sampler,
            queue,
            batch: count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?.min(queue),
            delay: millis(
                "OTEL_BSP_SCHEDULE_DELAY",
                read("OTEL_BSP_SCHEDULE_DELAY"),
                5_000,
            )?,
        }))
    }
}

fn fail<T>(message: String) -> Result<T, InvalidOtel> {
    Err(InvalidOtel(message))
}

fn url(name: &str, text: &str) -> Result<Url, InvalidOtel> {
    let parsed = text.parse::<Url>().ok();
    // The text may hold a password, so it is not shown.
    parsed
        .filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
        .ok_or_else(|| {
            InvalidOtel(format!(
                "{name} must be a URL that begins with http:// or https://"
            ))
        })
}

fn below(name: &str, base: &str) -> Result<Url, InvalidOtel> {
    url(name, &format!("{}/{PATH}", base.trim_end_matches('/')))
}

fn millis(name: &str, text: Option<String>, usual: u64) -> Result<Duration, InvalidOtel> {
    let Some(text) = text else {
        return Ok(Duration::from_millis(usual));
    };
    let millis = text.parse::<u64>().ok();
    millis
        .filter(|millis| (1..=600_000).contains(millis))
        .map(Duration::from_millis)
        .ok_or_else(|| {
            InvalidOtel(format!(
                "{name} must be milliseconds from 1 to 600000, not {text:?}"
            ))
        })
}

/// Reads `a=b,c=d`, with %-encoded values.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    text.split(',')
        .filter(|pair| !pair.trim().is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            let name = name.trim();
            (!name.is_empty()).then(|| (name.to_owned(), value.into_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<OtlpSettings>, InvalidOtel> {
        OtlpSettings::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_exported_unless_an_endpoint_or_the_exporter_is_named() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_SERVICE_NAME", "x")]), Ok(None));
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
        assert_eq!(read(&[endpoint, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(
            read(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]),
            Ok(None)
        );
        let usual = read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().unwrap();
        assert_eq!(usual.endpoint.as_str(), "http://localhost:4318/v1/traces");
        let common = read(&[endpoint]).unwrap().unwrap();
        assert_eq!(common.endpoint.as_str(), "http://c:4318/v1/traces");
        assert_eq!(
            common.resource,
            [("service.name".to_owned(), "flyball".to_owned())]
        );
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/spans");
        assert_eq!(
            read(&[endpoint, own]).unwrap().unwrap().endpoint.as_str(),
            "https://t/spans"
        );
    }

    #[test]
    fn the_variables_of_traces_have_precedence_and_headers_stay_hidden() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=other"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "api-key=s3cr%3Dt, x=y"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,team=mail"),
            ("OTEL_SERVICE_NAME", "jobs"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ])
        .unwrap()
        .unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            settings.headers,
            [pair("api-key", "s3cr=t"), pair("x", "y")]
        );
        assert_eq!(
            settings.resource,
            [pair("team", "mail"), pair("service.name", "jobs")]
        );
        assert_eq!(
            (settings.timeout, settings.batch),
            (Duration::from_millis(250), 10)
        );
        assert!(!format!("{settings:?}").contains("s3cr"), "{settings:?}");
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_its_name_and_without_a_secret() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_TRACES_SAMPLER", "most"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team"),
        ] {
            let error = read(&[endpoint, (name, value)]).unwrap_err().to_string();
            assert!(
                error.starts_with(name) && error.contains("must be"),
                "{error}"
            );
        }
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "u:hunter2@c"),
        ] {
            let error = read(&[endpoint, (name, value)]).unwrap_err().to_string();
            assert!(
                error.starts_with(name) && !error.contains("hunter2"),
                "{error}"
            );
        }
    }
}
