//! The export of spans by OTLP over HTTP: the settings ([`settings`]), the wire format
//! ([`message`]) and the loop that sends ([`export`]).

pub mod export;
pub mod message;
pub mod settings;

pub use export::{Exporter, SpanCounts, start};
pub use settings::{InvalidOtel, OtlpSettings};
