//! Notifications by producers, received with LISTEN.
//!
//! Polling carries on if LISTEN cannot work, for instance behind a transaction pooler.

use std::time::Duration;

use sqlx::postgres::PgListener;
use sqlx::{Acquire, Connection, PgPool};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Queue;

/// The channel that `flyball.enqueue` notifies.
const CHANNEL: &str = "flyball";

/// The time without a notification after which the connection is asked if it still works: one that
/// was lost without a word tells nothing for ever.
const SILENT: Duration = Duration::from_secs(30);

/// The time in which it must answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The pause before the second attempt to listen; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(200);

/// The longest pause. After a connection that lasted longer, the pauses start over.
const PAUSE_MAX: Duration = Duration::from_secs(30);

impl Queue {
    /// Returns true if this process hears notifications, which needs sessions of its own.
    pub fn can_listen(&self) -> bool {
        self.sessions.is_some()
    }

    /// Passes the lanes named by producers and promoters to `notify`, or none if they are unknown,
    /// until `cancel` fires.
    ///
    /// A session behind a transaction pooler cannot listen: without a direct URL this only waits.
    pub async fn listen(&self, notify: impl Fn(&[i64]), cancel: CancellationToken) {
        self.listen_to(CHANNEL, |payload| notify(&named(payload)), cancel)
            .await;
    }

    /// Passes the payloads of a channel to `notify`, and an empty one after each new connection,
    /// until `cancel` fires.
    pub async fn listen_to(&self, channel: &str, notify: impl Fn(&str), cancel: CancellationToken) {
        let mut pause = PAUSE_MIN;
        if self.sessions.is_none() {
            tracing::info!(
                "not listening for producers behind a pooler without a direct URL; polling \
                 continues"
            );
            return cancel.cancelled().await;
        }
        loop {
            let began = Instant::now();
            tokio::select! {
                () = cancel.cancelled() => return,
                error = self.listen_once(channel, &notify) => tracing::debug!(%error, "not listening for producers; polling continues"),
            }
            if began.elapsed() > PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
            }
        }
    }

    /// Listens until the connection fails for good, and returns the error.
    async fn listen_once(&self, channel: &str, notify: impl Fn(&str)) -> sqlx::Error {
        let listening = async {
            let sessions = self.sessions.as_ref().ok_or(sqlx::Error::PoolClosed)?;
            let mut listener = PgListener::connect_with(&apart(sessions)).await?;
            // A new connection that nobody hears of would hide what was missed before it.
            listener.eager_reconnect(false);
            listener.listen(channel).await?;
            Ok(listener)
        };
        let mut listener = match listening.await {
            Ok(listener) => listener,
            Err(error) => return error,
        };
        // Every new connection notifies once, because notifications may have been missed before it.
        notify("");
        loop {
            let is_lost = match timeout(SILENT, listener.try_recv()).await {
                Ok(Ok(Some(notification))) => {
                    notify(notification.payload());
                    continue;
                }
                Ok(Ok(None)) => true,
                Ok(Err(error)) => return error,
                Err(_) => false,
            };
            match timeout(ANSWER_WITHIN, answer(&mut listener)).await {
                Ok(Ok(())) if is_lost => notify(""),
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(_) => return sqlx::Error::PoolTimedOut,
            }
        }
    }
}

/// Returns a pool for one listener. A connection that does not answer keeps its place until the network
/// gives it up, which takes a quarter of an hour, and must take none of the next listener.
fn apart(sessions: &PgPool) -> PgPool {
    let options = sessions.options().clone();
    options.connect_lazy_with((*sessions.connect_options()).clone())
}

/// Waits for an answer of the server, on a new connection if the last one is lost. Notifications
/// before it are kept for the next wait.
async fn answer(listener: &mut PgListener) -> Result<(), sqlx::Error> {
    listener.acquire().await?.ping().await
}

/// Returns the lanes of a payload: decimal numbers separated by commas.
///
/// A truncated list ends with a number that is not one of our lanes.
fn named(payload: &str) -> Vec<i64> {
    payload
        .split(',')
        .filter_map(|text| text.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_names_lanes_or_none() {
        assert_eq!(named("5,-7"), [5, -7]);
        assert!(named("").is_empty());
        assert!(named("what").is_empty());
    }
}
