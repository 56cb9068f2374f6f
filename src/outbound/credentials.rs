//! A user and a password in a URL: how they are sent, and in which forms they may come back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

/// A user and a password as they stand in a URL, percent-encoded.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The user; often empty, or a token by itself.
    pub user: &'a str,
    /// The password; empty for none.
    pub password: &'a str,
}

impl<'a> Credentials<'a> {
    /// Those of a URL that was not parsed; `None` where it has none.
    pub fn of(url: &'a str) -> Option<Self> {
        let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
        let both = authority.rsplit_once('@')?.0;
        let (user, password) = both.split_once(':').unwrap_or((both, ""));
        Some(Self { user, password })
    }

    /// What follows `Basic ` in the header `authorization` (RFC 7617).
    pub fn basic(&self) -> String {
        STANDARD.encode([plain(self.user), b":".to_vec(), plain(self.password)].concat())
    }

    /// Every form in which the secret of them may be repeated: the password, or where there is none the user.
    pub fn forms(&self) -> [String; 3] {
        let secret = if self.password.is_empty() { self.user } else { self.password };
        [self.basic(), String::from_utf8_lossy(&plain(secret)).into_owned(), secret.to_owned()]
    }
}

fn plain(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}
