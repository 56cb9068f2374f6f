//! The export of traces, if this build has it.

use prometheus_client::registry::Registry;

use crate::trace::Tracer;

/// The beginning of the variables of OpenTelemetry.
#[cfg(not(feature = "otel"))]
const PREFIX: &str = "OTEL_";

/// The running export of traces, if there is one.
#[derive(Default)]
pub(super) struct Traces {
    #[cfg(feature = "otel")]
    exporter: Option<crate::trace::otlp::Exporter>,
}

impl Traces {
    /// Sends the last spans.
    pub(super) async fn stop(self) {
        #[cfg(feature = "otel")]
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
    }
}

/// Refuses variables of the export that cannot be used.
#[cfg(feature = "otel")]
pub(super) fn check() -> Result<(), crate::config::Error> {
    let read = |name: &str| std::env::var(name).ok();
    crate::trace::otlp::OtlpSettings::from_variables(read)
        .map(drop)
        .map_err(|error| crate::config::Error::at("the export of traces", error.to_string()))
}

/// Refuses nothing: this build reads no such variables.
#[cfg(not(feature = "otel"))]
pub(super) fn check() -> Result<(), crate::config::Error> {
    Ok(())
}

/// Starts the export that the environment asks for; returns a tracer that is off if it asks for
/// none.
#[cfg(feature = "otel")]
pub(super) fn start(registry: &mut Registry) -> anyhow::Result<(Tracer, Traces)> {
    use anyhow::Context as _;

    use crate::trace::otlp::{self, OtlpSettings, SpanCounts};

    let settings = OtlpSettings::from_variables(|name| std::env::var(name).ok())?;
    let Some(settings) = settings else {
        return Ok((Tracer::default(), Traces::default()));
    };
    let counts = SpanCounts::default();
    for (name, help, counter) in [
        (
            "flyball_spans_exported",
            "Spans that the collector took",
            &counts.exported,
        ),
        (
            "flyball_spans_dropped",
            "Spans that found no room in the queue of the export",
            &counts.dropped,
        ),
        (
            "flyball_spans_refused",
            "Spans that the collector did not take",
            &counts.refused,
        ),
    ] {
        registry.register(name, help, counter.clone());
    }
    let (tracer, exporter) =
        otlp::start(settings, counts).context("setting up the export of traces failed")?;
    let exporter = Some(exporter);
    tracing::info!("traces are exported");
    Ok((tracer, Traces { exporter }))
}

/// Warns if the environment asks for an export that this build does not have.
#[cfg(not(feature = "otel"))]
pub(super) fn start(_: &mut Registry) -> anyhow::Result<(Tracer, Traces)> {
    let mut variables: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    variables.sort();
    if !variables.is_empty() {
        tracing::warn!(
            variables = variables.join(", "),
            "this program was built without the feature otel and exports no traces; build it with \
             --features otel, or remove the variables"
        );
    }
    Ok((Tracer::default(), Traces::default()))
}
