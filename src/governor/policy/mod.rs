//! Policies: the `[[signal]]` and `[governor]` part of a knobs file.

pub mod keys;
mod model;
mod parse;
#[cfg(test)]
mod reference;
mod values;

pub use model::{
    ControllerTuning, Extractor, FeedbackKind, Policy, ProbeTarget, SIGNALS_MAX, SignalKind,
    SignalPolicy, SignalSource,
};
