//! Listens for producers who ring. Where LISTEN cannot work, behind a transaction pooler for instance, polling carries on.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The channel that `flyball.enqueue` notifies.
const CHANNEL: &str = "flyball";

pub(super) async fn listen(pool: PgPool, bell: Arc<Notify>, cancel: CancellationToken) {
    let mut pause = Duration::from_millis(200);
    loop {
        let attempt = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.listen(CHANNEL).await?;
            bell.notify_one();
            loop {
                // `None` means that the connection was lost and made again: something may have been missed.
                listener.try_recv().await?;
                bell.notify_one();
            }
            #[expect(unreachable_code, reason = "gives the block its type")]
            Ok::<(), sqlx::Error>(())
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            ended = attempt => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "not listening for producers; polling goes on");
                }
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(30)),
        }
    }
}
