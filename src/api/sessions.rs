//! Sessions of browsers that have shown a token, and those that people have ended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::{constant_time, digest, hmac};
use jiff::Timestamp;

use super::auth::Secret;
use super::postgres;
use super::state::App;
use super::within::{ONE, within};

/// What other processes have ended is looked at this often, where a session is shown.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Sessions without a store: a cookie is an expiry, a number that tells it from others, and a signature over both with a key made
/// from the token. A new token ends all of them.
pub struct Sessions {
    key: hmac::Key,
}

impl Sessions {
    /// Derives the key from the token.
    pub fn new(token: &Secret) -> Self {
        let purpose = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, token.expose().as_bytes()),
            b"flyball browser session 2",
        );
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, purpose.as_ref()),
        }
    }

    /// A cookie's value that is good until `until_s`, unix seconds.
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

    /// True if the value was issued by us and is still good at `now_s`.
    pub fn holds(&self, value: &str, now_s: i64) -> bool {
        let Some((until_s, number)) = parts(value) else {
            return false;
        };
        // Issuing again and comparing whole texts spares the parsing of hex.
        let expected = self.signed(until_s, number);
        constant_time::verify_slices_are_equal(expected.as_bytes(), value.as_bytes()).is_ok()
            && until_s > now_s
    }
}

/// Sessions that people have ended before their time. They are kept in Postgres, so that every process knows of them.
#[derive(Debug, Default)]
pub struct SignedOut(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Digests, with the unix second until which they would have been good.
    ended: HashMap<String, i64>,
    read_at: Option<Instant>,
}

impl SignedOut {
    /// Whether a session has been ended. Where Postgres does not answer, what was known before holds.
    pub async fn holds(&self, app: &App, value: &str, now: Timestamp) -> bool {
        let is_due = {
            let mut known = self.known();
            let is_due = known.read_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
            // One request reads for those beside it.
            known.read_at = if is_due {
                Some(Instant::now())
            } else {
                known.read_at
            };
            is_due
        };
        if is_due
            && let Ok(ended) = within(ONE, postgres::read_signed_out(&app.deps.queue.pool)).await
        {
            let mut known = self.known();
            known.ended.retain(|_, until_s| *until_s > now.as_second());
            known.ended.extend(ended);
        }
        self.known().ended.contains_key(&digest_of_session(value))
    }

    /// Ends a session: in this process at once, in the others within seconds.
    pub async fn end(&self, app: &App, value: &str, now: Timestamp) {
        let Some((until_s, _)) = parts(value) else {
            return;
        };
        let digest = digest_of_session(value);
        self.known().ended.insert(digest.clone(), until_s);
        if within(
            ONE,
            postgres::write_signed_out(&app.deps.queue.pool, &digest, until_s, now.as_second()),
        )
        .await
        .is_err()
        {
            tracing::warn!(
                "a session was ended, but Postgres did not take it, so that other processes know nothing of it"
            );
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // The map is whole between any two statements, so a poisoned lock is still good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until when a cookie is good, and its number.
fn parts(value: &str) -> Option<(i64, u64)> {
    let mut parts = value.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn digest_of_session(value: &str) -> String {
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
        let sessions = Sessions::new(&Secret::new("a"));
        let cookie = sessions.issue(1000);

        assert!(sessions.holds(&cookie, 999));
        assert!(!sessions.holds(&cookie, 1000));
        assert!(!Sessions::new(&Secret::new("b")).holds(&cookie, 999));
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
