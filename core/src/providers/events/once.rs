//! The protection of signed requests against replays.

/// A record of a request whose signature does not cover its body, against replays with another
/// body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayGuard {
    /// A digest of the signed text.
    pub signed: Vec<u8>,
    /// A digest of the body.
    pub body: Vec<u8>,
    /// The time until which the signature is valid, in unix seconds.
    pub until_s: i64,
}
