//! The reasons why a token is not accepted.

/// The reason why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// It cannot be parsed.
    #[error("the token is not a JSON Web Token")]
    Malformed,
    /// Its algorithm is not in the settings.
    #[error("the algorithm of the token is not allowed; allowed: {0}")]
    Algorithm(String),
    /// It needs an extension that this server does not have.
    #[error("the token has critical header fields, which are not supported")]
    Critical,
    /// No key has the id in its header.
    #[error("the key of the token is not known")]
    UnknownKey,
    /// The keys have never been read.
    #[error("the keys of the issuer cannot be read")]
    NoKeys,
    /// The signature does not match.
    #[error("the signature of the token is not valid")]
    Signature,
    /// A claim is missing or wrong; the claim, and what was expected.
    #[error("the claim {0} of the token {1}")]
    Claim(String, &'static str),
}

impl JwtError {
    pub(super) fn claim(name: &str, what: &'static str) -> Self {
        Self::Claim(name.to_owned(), what)
    }
}
