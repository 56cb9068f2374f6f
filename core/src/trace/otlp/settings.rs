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
        let variables = Variables(&read);
        let is_off = variables.get("OTEL_SDK_DISABLED");
        if is_off.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let Some(endpoint) = variables.endpoint()? else {
            return Ok(None);
        };
        variables.refuse_unsupported()?;
        let headers = match variables.either("HEADERS") {
            Some((name, text)) => pairs(&text).ok_or_else(|| {
                InvalidOtel(format!(
                    "{name} must be a list such as api-key=abc,tenant=x, with %-encoded values"
                ))
            })?,
            None => Vec::new(),
        };
        let (name, text) = variables.either("TIMEOUT").unzip();
        let timeout = millis(&name.unwrap_or_default(), text, 10_000)?;
        let resource = variables.resource()?;
        let sampler = match variables.get("OTEL_TRACES_SAMPLER") {
            Some(name) => {
                let argument = variables.get("OTEL_TRACES_SAMPLER_ARG");
                Sampler::named(&name, argument.as_deref()).map_err(InvalidOtel)?
            }
            None => Sampler::default(),
        };
        let queue = variables.count("OTEL_BSP_MAX_QUEUE_SIZE", 2048)?;
        let delay = "OTEL_BSP_SCHEDULE_DELAY";
        Ok(Some(Self {
            endpoint,
            headers,
            timeout,
            resource,
            sampler,
            queue,
            batch: variables
                .count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?
                .min(queue),
            delay: millis(delay, variables.get(delay), 5_000)?,
        }))
    }
}

/// The variables of the environment.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    /// Returns the value of a variable that is set and not empty.
    fn get(&self, name: &str) -> Option<String> {
        let value = (self.0)(name).map(|value| value.trim().to_owned());
        value.filter(|value| !value.is_empty())
    }

    /// Returns a setting of the exporter with the name of its variable. The variable of traces
    /// alone has precedence over that of all signals.
    fn either(&self, what: &str) -> Option<(String, String)> {
        let of_traces = format!("OTEL_EXPORTER_OTLP_TRACES_{what}");
        let of_all = format!("OTEL_EXPORTER_OTLP_{what}");
        let found = self.get(&of_traces).map(|value| (of_traces, value));
        found.or_else(|| self.get(&of_all).map(|value| (of_all, value)))
    }

    /// Returns the URL that takes spans; `None` if nothing is to be exported.
    fn endpoint(&self) -> Result<Option<Url>, InvalidOtel> {
        let exporter = self.get("OTEL_TRACES_EXPORTER");
        match exporter.as_deref() {
            Some("none") => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => {
                return fail(format!(
                    "OTEL_TRACES_EXPORTER must be otlp or none, not {other:?}"
                ));
            }
        }
        match (
            self.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            self.get("OTEL_EXPORTER_OTLP_ENDPOINT"),
        ) {
            (Some(whole), _) => url("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &whole).map(Some),
            (None, Some(base)) => below("OTEL_EXPORTER_OTLP_ENDPOINT", &base).map(Some),
            (None, None) if exporter.is_some() => {
                below("the usual endpoint", USUAL_ENDPOINT).map(Some)
            }
            (None, None) => Ok(None),
        }
    }

    /// Refuses a protocol, a compression or certificates that the export does not have.
    fn refuse_unsupported(&self) -> Result<(), InvalidOtel> {
        let protocol = self.either("PROTOCOL");
        if let Some((name, protocol)) = protocol.filter(|(_, value)| value != "http/protobuf") {
            return fail(format!(
                "{name} must be http/protobuf, not {protocol:?}: Flyball speaks no other protocol"
            ));
        }
        let compression = self.either("COMPRESSION");
        if let Some((name, compression)) = compression.filter(|(_, value)| value != "none") {
            return fail(format!(
                "{name} must be none, not {compression:?}: Flyball does not compress spans"
            ));
        }
        for what in ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"] {
            if let Some((name, _)) = self.either(what) {
                return fail(format!(
                    "{name} must be left out: Flyball trusts the certificates of the system"
                ));
            }
        }
        Ok(())
    }

    /// Returns the attributes of this program, `service.name` among them.
    fn resource(&self) -> Result<Vec<(String, String)>, InvalidOtel> {
        let mut resource = match self.get("OTEL_RESOURCE_ATTRIBUTES") {
            Some(text) => pairs(&text).ok_or_else(|| {
                InvalidOtel("OTEL_RESOURCE_ATTRIBUTES must be a list such as team=mail,deployment.environment=eu".to_owned())
            })?,
            None => Vec::new(),
        };
        if let Some(name) = self.get("OTEL_SERVICE_NAME") {
            resource.retain(|(known, _)| known != "service.name");
            resource.push(("service.name".to_owned(), name));
        }
        if resource.iter().all(|(known, _)| known != "service.name") {
            resource.push(("service.name".to_owned(), USUAL_NAME.to_owned()));
        }
        Ok(resource)
    }

    /// Returns a number of spans; `usual` if the variable is not set.
    fn count(&self, name: &str, usual: usize) -> Result<usize, InvalidOtel> {
        let Some(text) = self.get(name) else {
            return Ok(usual);
        };
        let count = text.parse::<usize>().ok();
        count
            .filter(|count| (1..=1_000_000).contains(count))
            .ok_or_else(|| {
                InvalidOtel(format!(
                    "{name} must be a whole number from 1 to 1000000, not {text:?}"
                ))
            })
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
