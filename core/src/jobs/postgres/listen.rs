//! Notifications by producers, received with LISTEN.
//!
//! Polling carries on if LISTEN cannot work, for instance behind a transaction pooler.

use std::time::Duration;

use sqlx::postgres::PgListener;
use sqlx::{Acquire, Connection};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Queue;

/// The channel that `flyball.enqueue` notifies.
const CHANNEL: &str = "flyball";

/// The time without a notification after which the connection is asked if it still works: one that
/// was lost without a word tells nothing for ever.
const SILENT: Duration = Duration::from_secs(30);

/// The time in which it must answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

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
        let mut pause = Duration::from_millis(200);
        if self.sessions.is_none() {
            tracing::info!(
                "not listening for producers behind a pooler without a direct URL; polling \
                 continues"
            );
            return cancel.cancelled().await;
        }
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                error = self.listen_once(channel, &notify) => tracing::debug!(%error, "not listening for producers; polling continues"),
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(30)),
            }
        }
    }

    /// Listens until the connection fails for good, and returns the error.
    async fn listen_once(&self, channel: &str, notify: impl Fn(&str)) -> sqlx::Error {
        let listening = async {
            let sessions = self.sessions.as_ref().ok_or(sqlx::Error::PoolClosed)?;
            let mut listener = PgListener::connect_with(sessions).await?;
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
            let heard = match timeout(SILENT, listener.try_recv()).await {
                Ok(heard) => heard,
                Err(_) => match timeout(ANSWER_WITHIN, answer(&mut listener)).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(sqlx::Error::PoolTimedOut),
                },
            };
            match heard {
                Ok(Some(notification)) => notify(notification.payload()),
                Ok(None) => notify(""),
                Err(error) => return error,
            }
        }
    }
}

/// Waits for an answer of the server. Notifications before it are kept for the next wait.
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
