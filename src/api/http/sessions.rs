//! Sessions of browsers that have sent a token, and those that were ended by a logout.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_lc_rs::{constant_time, digest, hmac};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use super::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::postgres;
use crate::postgres::Db;

/// The age at which the sessions ended by other processes are read again, when a session is used.
const REVOCATION_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Sessions without a store: a cookie is an expiry, a random number, and a signature over both with
/// a key derived from the token. A new token ends all of them.
pub struct Sessions {
    key: hmac::Key,
}

impl Sessions {
    /// Derives the key from the token.
    pub fn new(secret: &str) -> Self {
        let purpose = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
            b"flyball browser session 2",
        );
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, purpose.as_ref()),
        }
    }

    /// Returns the value of a cookie that is valid until `until_s`, in unix seconds.
    pub fn issue(&self, until_s: i64) -> String {
        self.signed(until_s, rand::random())
    }

    fn signed(&self, until_s: i64, number: u64) -> String {
        let text = format!("{until_s}.{number}");
        format!(
            "{text}.{}",
            hex(hmac::sign(&self.key, text.as_bytes()).as_ref())
        )
    }

    /// Returns true if the value was issued here and is still valid at `now_s`.
    pub fn holds(&self, value: &str, now_s: i64) -> bool {
        let Some((until_s, number)) = parts(value) else {
            return false;
        };
        // Signing again and comparing whole texts avoids the parsing of hex.
        let expected = self.signed(until_s, number);
        constant_time::verify_slices_are_equal(expected.as_bytes(), value.as_bytes()).is_ok()
            && until_s > now_s
    }
}

/// The sessions that were ended before their expiry. They are stored in Postgres, so that every
/// process knows them.
#[derive(Debug, Default)]
pub struct SignedOut(Mutex<EndedSessions>);

#[derive(Debug, Default)]
struct EndedSessions {
    /// The digests of ended sessions, each with the unix second of its expiry.
    ended: HashMap<String, i64>,
    read_at: Option<Instant>,
}

impl SignedOut {
    /// Returns true if a session has been ended.
    pub async fn holds(&self, pool: &Db, value: &str, now: Timestamp) -> bool {
        self.has(pool, &digest_of_session(value), now).await
    }

    /// Returns true if the session with a digest has been ended. While Postgres does not answer,
    /// the last known state is used.
    pub async fn has(&self, pool: &Db, digest: &str, now: Timestamp) -> bool {
        let is_due = {
            let mut known = self.known();
            let is_due = known
                .read_at
                .is_none_or(|at| at.elapsed() >= REVOCATION_CHECK_INTERVAL);
            // One request reads for the parallel ones.
            known.read_at = if is_due {
                Some(Instant::now())
            } else {
                known.read_at
            };
            is_due
        };
        if is_due
            && let Ok(ended) = with_timeout(ROW_TIMEOUT, postgres::read_signed_out(pool)).await
        {
            let mut known = self.known();
            known.ended.retain(|_, until_s| *until_s > now.as_second());
            known.ended.extend(ended);
        }
        self.known().ended.contains_key(digest)
    }

    /// Ends a session: in this process at once, in the others within seconds.
    pub async fn end(&self, pool: &Db, value: &str, now: Timestamp) {
        let Some((until_s, _)) = parts(value) else {
            return;
        };
        let digest = digest_of_session(value);
        self.known().ended.insert(digest.clone(), until_s);
        if with_timeout(
            ROW_TIMEOUT,
            postgres::write_signed_out(pool, &digest, until_s, now.as_second()),
        )
        .await
        .is_err()
        {
            tracing::warn!(
                "a session was ended but not recorded in Postgres; other processes still accept it"
            );
        }
    }

    fn known(&self) -> MutexGuard<'_, EndedSessions> {
        self.0.lock()
    }
}

/// Returns the unix second at which the session of a cookie expires.
pub(super) fn until(value: &str) -> Option<i64> {
    parts(value).map(|(until_s, _)| until_s)
}

/// Splits the expiry and the number from a cookie's value.
fn parts(value: &str) -> Option<(i64, u64)> {
    let mut parts = value.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns the digest by which a session is known outside its cookie.
pub(super) fn digest_of_session(value: &str) -> String {
    hex(digest::digest(&digest::SHA256, value.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_at_its_time_and_with_its_token_and_cannot_be_prolonged() {
        let sessions = Sessions::new("a");
        let cookie = sessions.issue(1000);

        assert!(sessions.holds(&cookie, 999));
        assert!(!sessions.holds(&cookie, 1000));
        assert!(!Sessions::new("b").holds(&cookie, 999));
        assert!(!sessions.holds(&cookie.replace("1000.", "2000."), 999));
        for broken in [
            "",
            ".",
            "x.y",
            "1000",
            "1000.",
            "1000.1",
            "1000.1.",
            "-1.",
            "99999999999999999999.aa",
        ] {
            assert!(!sessions.holds(broken, 0), "{broken}");
        }
        assert_ne!(
            sessions.issue(1000),
            cookie,
            "each has a number of its own, so that one can be ended"
        );
    }
}
