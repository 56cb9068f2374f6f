//! Listens for producers who ring. Where LISTEN cannot work, behind a transaction pooler for instance, polling carries on.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Queue;

/// The channel that `flyball.enqueue` notifies.
const CHANNEL: &str = "flyball";

impl Queue {
    /// Rings `bell` whenever a producer rings, until `cancel` fires.
    pub async fn listen(&self, bell: Arc<Notify>, cancel: CancellationToken) {
        let mut pause = Duration::from_millis(200);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                error = self.listen_once(&bell) => tracing::debug!(%error, "not listening for producers; polling goes on"),
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(30)),
            }
        }
    }

    /// Listens until the connection fails for good.
    async fn listen_once(&self, bell: &Notify) -> sqlx::Error {
        let listening = async {
            let mut listener = PgListener::connect_with(&self.pool).await?;
            listener.listen(CHANNEL).await?;
            Ok(listener)
        };
        let mut listener = match listening.await {
            Ok(listener) => listener,
            Err(error) => return error,
        };
        loop {
            // Also after the connection was lost and made again, for something may have been missed meanwhile.
            bell.notify_one();
            if let Err(error) = listener.try_recv().await {
                return error;
            }
        }
    }
}
