//! Connections: keep-alive, cuts, HTTP/2, TLS.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::Outcome;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::server::{handler, run, run_until};

/// Starts an HTTP/1.1 server that answers this many requests per connection, reads the next one and
/// cuts the connection. Returns its URL and the requests that it has read.
async fn cutting_server(answers: usize) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = requests.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let log = log.clone();
            tokio::spawn(async move {
                for turn in 0..=answers {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        match socket.read_u8().await {
                            Ok(byte) => request.push(byte),
                            Err(_) => return,
                        }
                    }
                    log.lock()
                        .unwrap()
                        .push(String::from_utf8(request).unwrap());
                    if turn < answers {
                        socket
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                            .await
                            .unwrap();
                    }
                }
            });
        }
    });
    (url, requests)
}

#[tokio::test]
async fn a_server_that_cuts_connections_gets_exactly_one_request_for_each_attempt() {
    for answers in [0, 1] {
        let handler = handler(true);
        let (url, requests) = cutting_server(answers).await;
        let mut cut = 0;
        for attempt in 1..=500 {
            match run_until(&handler, json!({"url": url}), CancellationToken::new()).await {
                Outcome::Done => assert_eq!(answers, 1),
                // Every first request on a connection is answered, so this one used a kept-alive
                // connection.
                Outcome::Ambiguous { .. } => cut += 1,
                other => panic!("{other:?}"),
            }
            assert_eq!(
                requests.lock().unwrap().len(),
                attempt,
                "{answers} answered, {cut} cut"
            );
            if cut == 3 {
                break;
            }
            // Real time: a connection returns to the pool a moment after its answer was read.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(cut, 3);
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_has_closed_costs_no_attempt_and_no_second_request() {
    const JOBS: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (closed, mut was_closed) = tokio::sync::mpsc::channel(JOBS);
    let served = tokio::spawn(async move {
        let mut requests = 0;
        while requests < JOBS {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 1024];
            requests += usize::from(socket.read(&mut bytes).await.unwrap_or(0) > 0);
            // It closes without having announced it.
            let _ = socket
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await;
            drop(socket);
            closed.send(()).await.unwrap();
        }
        requests
    });
    let handler = handler(true);

    for _ in 0..JOBS {
        let outcome = run_until(&handler, json!({"url": url}), CancellationToken::new()).await;
        assert_eq!(outcome, Outcome::Done);
        was_closed.recv().await.unwrap();
        // Real time: the close reaches the client before the next request is sent; a request that
        // crosses it on the wire is ambiguous.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    assert_eq!(served.await.unwrap(), JOBS);
}

#[tokio::test]
async fn connections_are_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ok", listener.local_addr().unwrap());
    let accepted = Arc::new(Mutex::new(0));
    let counting = accepted.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            *counting.lock().unwrap() += 1;
            tokio::spawn(async move {
                let mut bytes = [0; 1024];
                while socket.read(&mut bytes).await.unwrap_or(0) > 0 {
                    socket
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                        .await
                        .unwrap();
                }
            });
        }
    });
    let handler = handler(true);

    for sent in 1..=500 {
        assert_eq!(
            run_until(&handler, json!({"url": url}), CancellationToken::new()).await,
            Outcome::Done
        );
        if *accepted.lock().unwrap() < sent {
            return;
        }
        // Real time: a connection returns to the pool a moment after its answer was read.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("each request had a connection of its own");
}

/// Starts an HTTP/2 server with scripted answers that counts connections and requests.
async fn http2_server(refuse: bool) -> (String, Arc<Mutex<(usize, usize)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ok", listener.local_addr().unwrap());
    let counts = Arc::new(Mutex::new((0, 0)));
    let counting = counts.clone();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            counting.lock().unwrap().0 += 1;
            let counting = counting.clone();
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(socket).await else {
                    return;
                };
                while let Some(Ok((_, mut answer))) = connection.accept().await {
                    counting.lock().unwrap().1 += 1;
                    if refuse {
                        answer.send_reset(h2::Reason::REFUSED_STREAM);
                    } else {
                        answer
                            .send_response(axum::http::Response::new(()), true)
                            .unwrap();
                    }
                }
            });
        }
    });
    (url, counts)
}

#[tokio::test]
async fn http2_is_spoken_where_it_is_asked_for_over_one_connection() {
    let (url, counts) = http2_server(false).await;
    let handler = handler(true);
    let args = json!({"url": url, "http2_prior_knowledge": true});
    assert_eq!(
        run_until(&handler, args.clone(), CancellationToken::new()).await,
        Outcome::Done
    );

    let many = futures_util::future::join_all(
        (0..10).map(|_| run_until(&handler, args.clone(), CancellationToken::new())),
    )
    .await;

    assert_eq!(many, vec![Outcome::Done; 10]);
    assert_eq!(*counts.lock().unwrap(), (1, 11));
    let unasked = run_until(&handler, json!({"url": url}), CancellationToken::new()).await;
    assert!(
        matches!(unasked, Outcome::Ambiguous { .. } | Outcome::Retry { .. }),
        "HTTP/1.1 is spoken where nobody asks: {unasked:?}"
    );
}

#[tokio::test]
async fn a_stream_that_a_server_refuses_is_not_sent_again() {
    let (url, counts) = http2_server(true).await;

    let outcome = run(json!({"url": url, "http2_prior_knowledge": true})).await;

    assert!(matches!(outcome, Outcome::Ambiguous { .. }), "{outcome:?}");
    assert_eq!(counts.lock().unwrap().1, 1);
}

#[tokio::test]
async fn over_tls_both_versions_are_offered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let hello = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 5];
        socket.read_exact(&mut head).await.unwrap();
        let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        socket.read_exact(&mut hello).await.unwrap();
        hello
    });

    let outcome = run(json!({"url": url})).await;

    let hello = hello.await.unwrap();
    assert!(
        hello
            .windows(12)
            .any(|bytes| bytes == b"\x02h2\x08http/1.1"),
        "the list of protocols"
    );
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
}
