//! Serving: the listener, the sampler and their orderly end.

use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

use super::state::Deps;
use super::{router, sample};

/// Requests that are under way when the process stops get so long to end.
const GRACE: Duration = Duration::from_secs(10);

/// Serves, and samples, until the deps' cancel token fires and the requests under way have ended, or the grace time is over.
pub async fn serve(deps: Deps, listener: TcpListener) -> std::io::Result<()> {
    let cancel = deps.cancel.clone();
    let sampler = tokio::spawn(sample::run(deps.clone()));
    // Answers are small and somebody waits for them.
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    let app = router::router(deps).into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, app).with_graceful_shutdown(cancel.clone().cancelled_owned());
    let too_long = async {
        cancel.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    let served = tokio::select! {
        served = server => served,
        () = too_long => {
            tracing::warn!(grace_s = GRACE.as_secs(), "requests were cut off because they did not end within the grace time");
            Ok(())
        }
    };
    sampler.abort();
    served
}
