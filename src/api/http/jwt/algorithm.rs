//! The algorithms that sign tokens.

use jsonwebtoken::Algorithm;

/// An algorithm that signs tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SigningAlgorithm {
    /// RSA with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
    /// HMAC with SHA-256 and a shared secret.
    Hs256,
}

impl SigningAlgorithm {
    /// All algorithms with their names.
    pub const WORDS: [(&str, Self); 4] = [
        ("RS256", Self::Rs256),
        ("ES256", Self::Es256),
        ("EdDSA", Self::EdDsa),
        ("HS256", Self::Hs256),
    ];

    /// Returns the algorithm of a name.
    pub fn of(word: &str) -> Option<Self> {
        let found = Self::WORDS.iter().find(|(other, _)| *other == word);
        found.map(|(_, algorithm)| *algorithm)
    }

    /// Returns the name of the algorithm.
    pub fn as_str(self) -> &'static str {
        let found = Self::WORDS.iter().find(|(_, other)| *other == self);
        found.map_or("", |(word, _)| word)
    }

    /// Returns the algorithm as the library names it.
    pub fn library(self) -> Algorithm {
        match self {
            Self::Rs256 => Algorithm::RS256,
            Self::Es256 => Algorithm::ES256,
            Self::EdDsa => Algorithm::EdDSA,
            Self::Hs256 => Algorithm::HS256,
        }
    }
}
