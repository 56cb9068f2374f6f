//! The secret text of a token.

use std::fmt;

use aws_lc_rs::{constant_time, digest};

/// A text that is never printed.
#[derive(Clone)]
pub struct TokenSecret(String);

impl TokenSecret {
    /// Wraps `text` as a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns true if `offered` equals the secret; an empty secret matches nothing. Compares
    /// digests in constant time, so that the time reveals neither the length nor the first
    /// difference.
    pub fn is(&self, offered: &str) -> bool {
        let hash = |text: &str| digest::digest(&digest::SHA256, text.as_bytes());
        constant_time::verify_slices_are_equal(hash(&self.0).as_ref(), hash(offered).as_ref())
            .is_ok()
            && !self.0.is_empty()
    }

    /// Returns the secret text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed_and_nothing_is_an_empty_one() {
        assert_eq!(format!("{:?}", TokenSecret::new("hunter2")), "Secret(…)");
        assert!(!TokenSecret::new("").is(""));
    }

    #[test]
    fn only_the_whole_secret_is_the_secret() {
        let secret = TokenSecret::new("hunter2");
        assert!(secret.is("hunter2"));
        for other in ["", "hunter", "hunter22", "Hunter2"] {
            assert!(!secret.is(other));
        }
    }
}
