//! The keys of the issuer, read from a file or a URL, and read again when a token names an unknown
//! one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use super::keys::{KeySet, KeySetError};
use crate::providers::Http;
use crate::providers::http::Call;

/// The shortest time between two readings, so that invented key ids cost the issuer nothing.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// The age at which the keys are read again in any case, so that a key withdrawn by the issuer
/// expires here as well.
const KEYS_AGE_MAX: Duration = Duration::from_secs(600);

/// The longest wait for the issuer.
const ISSUER_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of the keys.
#[derive(Clone)]
pub enum JwksSource {
    /// No public keys: tokens are signed with a secret.
    None,
    /// A file, which may be replaced at any time.
    File(PathBuf),
    /// A URL, reached by the guarded client for outbound requests.
    Url(String, Arc<Http>),
}

/// A clock that never steps back.
pub type SteadyClock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The keys in force.
pub struct Jwks {
    source: JwksSource,
    keys: Arc<ArcSwap<KeySet>>,
    /// The time of the last reading, which one request at a time does.
    read_at: Arc<Mutex<Option<Instant>>>,
    clock: SteadyClock,
}

/// The reason why keys could not be read.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {reason}")]
    File { path: String, reason: String },
    /// The URL does not answer, or answers with an error.
    #[error("{url}: {reason}")]
    Url { url: String, reason: String },
    /// The document holds no keys.
    #[error("{place} {error}")]
    Keys { place: String, error: KeySetError },
}

impl Jwks {
    /// Creates the keys of a source, none of which is read yet.
    pub fn new(source: JwksSource, clock: SteadyClock) -> Self {
        Self {
            source,
            keys: Arc::default(),
            read_at: Arc::default(),
            clock,
        }
    }

    /// Returns the time by which the age of the keys is judged.
    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Returns the keys as they were read last.
    pub fn keys(&self) -> Arc<KeySet> {
        self.keys.load_full()
    }

    /// Returns true if there is a source whose keys have never been read.
    pub fn is_unread(&self) -> bool {
        !matches!(self.source, JwksSource::None) && self.keys.load().is_empty()
    }

    /// Reads the keys again, at most once in half a minute; returns true if they were read since
    /// the caller looked. Keys that cannot be read leave the old ones in force.
    pub async fn read_again(&self, looked_at: Instant) -> bool {
        if matches!(self.source, JwksSource::None) {
            return false;
        }
        let read_at = self.read_at.clone().lock_owned().await;
        if read_at.is_some_and(|at| at > looked_at) {
            return true;
        }
        if !is_due(*read_at, self.now(), READ_AGAIN) {
            return false;
        }
        self.read(read_at).await
    }

    /// Reads the keys again if they are old. If another request is reading, the current keys stay
    /// in use.
    pub async fn refresh(&self) {
        if matches!(self.source, JwksSource::None) {
            return;
        }
        if let Ok(read_at) = self.read_at.clone().try_lock_owned()
            && read_at.is_some()
            && is_due(*read_at, self.now(), KEYS_AGE_MAX)
        {
            self.read(read_at).await;
        }
    }

    /// Reads the keys in a task of its own, because a request that is given up must not use up the
    /// reading of half a minute without one.
    async fn read(&self, mut read_at: OwnedMutexGuard<Option<Instant>>) -> bool {
        *read_at = Some(self.now());
        let (source, keys) = (self.source.clone(), self.keys.clone());
        let reading = async move {
            let read = fetch(&source).await;
            let is_read = read.is_ok();
            match read {
                Ok(read) => keys.store(Arc::new(read)),
                Err(error) => {
                    let reason = error.to_string();
                    tracing::warn!(
                        reason,
                        "the keys for JWTs cannot be read; the old ones stay"
                    );
                }
            }
            drop(read_at);
            is_read
        };
        tokio::spawn(reading.boxed()).await.unwrap_or(false)
    }
}

/// Returns true if the last reading is at least `interval` old, or there was none.
fn is_due(read_at: Option<Instant>, now: Instant, interval: Duration) -> bool {
    read_at.is_none_or(|at| now.saturating_duration_since(at) >= interval)
}

/// Reads the keys of a source once.
async fn fetch(source: &JwksSource) -> Result<KeySet, JwksError> {
    let (place, text) = match source {
        JwksSource::None => return Ok(KeySet::default()),
        JwksSource::File(path) => {
            let place = path.display().to_string();
            let read = tokio::fs::read(path).await;
            let text = read.map_err(|error| JwksError::File {
                path: place.clone(),
                reason: error.to_string(),
            })?;
            (place, text)
        }
        JwksSource::Url(url, http) => {
            let refused = |reason: String| JwksError::Url {
                url: url.clone(),
                reason,
            };
            let call = Call {
                method: "GET",
                url: url.clone(),
                headers: vec![("accept".to_owned(), "application/json".to_owned())],
                body: String::new(),
                timeout: ISSUER_TIMEOUT,
            };
            // The client's own bound ends with the head of the answer.
            let stop = CancellationToken::new();
            let answer = tokio::time::timeout(ISSUER_TIMEOUT, http.send(call, &stop)).await;
            let answer = answer
                .map_err(|_| refused(format!("no answer within {} s", ISSUER_TIMEOUT.as_secs())))?
                .map_err(|error| refused(error.to_string()))?;
            if answer.status != 200 {
                return Err(refused(format!("answered {}", answer.status)));
            }
            (url.clone(), answer.body)
        }
    };
    KeySet::parse(&text).map_err(|error| JwksError::Keys { place, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_again_when_the_interval_is_over() {
        let now = Instant::now();
        let earlier = |s: u64| now.checked_sub(Duration::from_secs(s));
        assert!(is_due(None, now, READ_AGAIN));
        assert!(!is_due(earlier(29), now, READ_AGAIN));
        assert!(is_due(earlier(30), now, READ_AGAIN));
        assert!(!is_due(Some(now + Duration::from_secs(5)), now, READ_AGAIN));
    }
}
