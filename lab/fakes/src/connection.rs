//! The HTTP connections of a fake: HTTP/1 or HTTP/2, by the first bytes from the client.

use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::http::answer;
use super::open_connection::{FakeConnection, OpenConnection};
use super::server::FakeServer;
use super::wire::WireFormat;

/// The first bytes of a client that speaks HTTP/2 with prior knowledge.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// The most concurrent streams of a connection, as APNs announces.
const STREAMS: u32 = 1_000;

/// Accepts connections until the fake is stopped.
pub(super) async fn serve(
    server: Arc<FakeServer>,
    wire: Arc<dyn WireFormat>,
    listener: TcpListener,
) {
    loop {
        let taken = tokio::select! {
            () = server.stop.cancelled() => return,
            taken = listener.accept() => taken,
        };
        let Ok((stream, _)) = taken else { continue };
        let _ = stream.set_nodelay(true);
        let (server, wire) = (server.clone(), wire.clone());
        tokio::spawn(async move {
            let _open = OpenConnection::new(&server);
            let stop = server.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = converse(&server, wire, stream) => {}
            }
        });
    }
}

async fn converse(server: &Arc<FakeServer>, wire: Arc<dyn WireFormat>, stream: TcpStream) {
    let is_http2 = begins_http2(&stream).await;
    let link = Arc::new(FakeConnection::new());
    let service = service_fn({
        let server = server.clone();
        move |request| answer(server.clone(), wire.clone(), link.clone(), request)
    });
    let io = TokioIo::new(stream);
    if is_http2 {
        let builder = {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .max_concurrent_streams(STREAMS)
                .timer(TokioTimer::new());
            builder
        };
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut goodbye = pin!(server.goodbye.notified());
        goodbye.as_mut().enable();
        tokio::select! {
            _ = connection.as_mut() => return,
            () = goodbye => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    } else {
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(io, service)
            .await;
    }
}

/// Peeks at the first bytes and returns true if they are the preface of HTTP/2.
async fn begins_http2(stream: &TcpStream) -> bool {
    let mut first = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut first).await {
            Ok(0) | Err(_) => return false,
            Ok(seen) if first[..seen] != PREFACE[..seen] => return false,
            Ok(seen) if seen == PREFACE.len() => return true,
            // The rest is on its way, and another peek would return at once with the same bytes.
            Ok(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
        }
    }
}
