//! User and password in a URL, with the header that sends them and the forms in which a server may
//! repeat them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

/// A user and a password as they appear in a URL, percent-encoded.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The user; often empty, or a token by itself.
    pub user: &'a str,
    /// The password; empty for none.
    pub password: &'a str,
}

impl<'a> Credentials<'a> {
    /// Returns the credentials of an unparsed URL; `None` if it has none.
    pub fn of(url: &'a str) -> Option<Self> {
        let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
        let both = authority.rsplit_once('@')?.0;
        let (user, password) = both.split_once(':').unwrap_or((both, ""));
        Some(Self { user, password })
    }

    /// Returns the part after `Basic ` in the header `authorization` (RFC 7617).
    pub fn basic(&self) -> String {
        STANDARD.encode([plain(self.user), b":".to_vec(), plain(self.password)].concat())
    }

    /// Returns every form in which the secret may be repeated. The secret is the password, or the
    /// user if there is none.
    pub fn forms(&self) -> [String; 3] {
        let secret = if self.password.is_empty() {
            self.user
        } else {
            self.password
        };
        [
            self.basic(),
            String::from_utf8_lossy(&plain(secret)).into_owned(),
            secret.to_owned(),
        ]
    }
}

fn plain(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}
