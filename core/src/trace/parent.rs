//! A position in a trace, as W3C Trace Context writes it. Pure.

use std::fmt;

/// The header of a request that carries a position.
pub const HEADER: &str = "traceparent";

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 0x01;

/// The flags that are handed on: recorded, and random id.
const KNOWN_FLAGS: u8 = 0x03;

/// A span within a trace, the parent of what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The id of the trace, not 0.
    pub trace_id: u128,
    /// The id of the span, not 0.
    pub span_id: u64,
    flags: u8,
}

impl TraceParent {
    /// Returns the first span of a new trace, with ids drawn at random; an id of 0, which is none,
    /// becomes 1.
    pub fn root(trace_id: u128, span_id: u64) -> Self {
        Self {
            trace_id: trace_id.max(1),
            span_id: span_id.max(1),
            flags: 0,
        }
    }

    /// Parses a `traceparent`: version, trace, parent and flags in lowercase hexadecimal, with neither
    /// trace nor parent all zeros. A later version counts as this one; `None` if it is not valid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut part = |digits: usize| {
            let part = parts.next()?;
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let parsed = Self {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            flags: u8::from_str_radix(flags, 16).ok()? & KNOWN_FLAGS,
        };
        let is_valid = parts.next().is_none()
            && version != "ff"
            && parsed.trace_id != 0
            && parsed.span_id != 0;
        is_valid.then_some(parsed)
    }

    /// Returns a span of the same trace.
    pub fn child(self, span_id: u64) -> Self {
        Self {
            span_id: span_id.max(1),
            ..self
        }
    }

    /// Returns the same span with another decision on recording.
    pub fn sampled(self, is_sampled: bool) -> Self {
        let flags = if is_sampled {
            self.flags | SAMPLED
        } else {
            self.flags & !SAMPLED
        };
        Self { flags, ..self }
    }

    /// Returns true if the trace is recorded.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id, self.span_id, self.flags
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_a_child_keeps_its_trace_and_its_decision() {
        let parent = TraceParent::parse(TEXT).unwrap();
        assert!(parent.is_sampled());
        assert_eq!(parent.to_string(), TEXT);
        assert_eq!(
            parent.child(0xab).to_string(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-01"
        );
        assert!(parent.sampled(false).to_string().ends_with("-00"));
    }

    #[test]
    fn a_later_version_is_read_as_this_one_and_unknown_flags_are_dropped() {
        let later = format!("cc{}ff", &TEXT[2..TEXT.len() - 2]);
        let parent = TraceParent::parse(&later).unwrap();
        assert!(parent.to_string().starts_with("00-") && parent.to_string().ends_with("-03"));
    }

    #[test]
    fn whatever_is_no_traceparent_is_none() {
        let zeros = TEXT.replace("00f067aa0ba902b7", "0000000000000000");
        let upper = TEXT.replace('f', "F");
        let ff = TEXT.replacen("00", "ff", 1);
        for text in ["", "00", &zeros, &upper, &ff, &TEXT[1..]] {
            assert_eq!(TraceParent::parse(text), None, "{text}");
        }
        assert_eq!(TraceParent::root(0, 0), TraceParent::root(1, 1));
    }
}
