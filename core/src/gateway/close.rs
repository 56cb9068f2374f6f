//! The codes with which the gateway closes a connection.
//!
//! Clients decide by the hundred: after 4000 to 4099 they do not come back unchanged, after 4100 to
//! 4199 they wait before they do, after 4200 to 4299 they come back at once.

/// The reason for which the gateway closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum CloseReason {
    /// A frame breaks the protocol of WebSockets.
    Protocol,
    /// A text is not UTF-8.
    NotUtf8,
    /// A message is larger than allowed.
    TooLarge,
    /// No valid credential came in time, or it expired.
    Credential,
    /// The page or the credential may not connect.
    Forbidden,
    /// The tenant has as many connections as it may have.
    TooManyConnections,
    /// The process has as many connections as it may have, opens too many, or stops.
    Overloaded,
    /// The client did not answer a ping in time.
    NoPong,
    /// The client reads so slowly that messages it has not read are no longer kept.
    Slow,
    /// The process stops.
    Restart,
}

impl CloseReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Protocol,
        Self::NotUtf8,
        Self::TooLarge,
        Self::Credential,
        Self::Forbidden,
        Self::TooManyConnections,
        Self::Overloaded,
        Self::NoPong,
        Self::Slow,
        Self::Restart,
    ];

    /// Returns the code of the close frame.
    pub fn code(self) -> u16 {
        match self {
            Self::Protocol => 1002,
            Self::NotUtf8 => 1007,
            Self::TooLarge => 1009,
            Self::Credential => 4001,
            Self::Forbidden => 4003,
            Self::TooManyConnections => 4100,
            Self::Overloaded => 4101,
            Self::NoPong => 4108,
            Self::Slow => 4109,
            Self::Restart => 4201,
        }
    }

    /// Returns the text of the close frame.
    pub fn text(self) -> &'static str {
        match self {
            Self::Protocol => "a frame breaks the protocol",
            Self::NotUtf8 => "a text is not UTF-8",
            Self::TooLarge => "the message has more than 65536 bytes",
            Self::Credential => "a valid credential is missing",
            Self::Forbidden => "the page or the credential may not connect",
            Self::Overloaded => "the server cannot take the connection now",
            Self::TooManyConnections => "the tenant has too many connections",
            Self::NoPong => "no pong came",
            Self::Slow => "the connection reads too slowly; resume",
            Self::Restart => "the server restarts; connect again",
        }
    }

    /// Returns the word for metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
