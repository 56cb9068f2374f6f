//! The live stream and the metrics.

use super::*;

fn tick(at: i64) -> Tick {
    Tick {
        at,
        throttles: BTreeMap::new(),
        running_total: 0,
        workers: 1,
        depth_age_s: None,
        store_lost: true,
        queue_unwritable: false,
        replica: None,
    }
}

/// Reads `count` events.
async fn events(response: &mut Response, count: usize) -> String {
    let mut text = String::new();
    while text.matches("\n\n").count() < count {
        let chunk = tokio::time::timeout(Duration::from_secs(5), response.chunk())
            .await
            .expect("events in time")
            .unwrap();
        text.push_str(std::str::from_utf8(&chunk.expect("the stream goes on")).unwrap());
    }
    text
}

#[tokio::test]
async fn a_listener_gets_the_history_and_then_each_tick_and_after_a_break_only_what_it_missed() {
    let fixture = fixture(None).await;
    (1..=3).for_each(|at| fixture.live.publish_tick(&tick(at)));
    let mut stream = fixture.get("/api/v1/stream").send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    assert_eq!(stream.headers()["x-accel-buffering"], "no");

    let history = events(&mut stream, 1).await;
    assert!(
        history.contains("event: history")
            && history.contains("id: 3")
            && history.contains("\"at\":1,")
            && history.contains("\"may_change\":true,\"may_enqueue\":true,\"ticks\":[")
            && history.contains("\"store_lost\":true"),
        "{history}"
    );
    fixture.live.publish_tick(&tick(4));
    fixture.live.publish("decision", &json!({"id": 1}));
    let next = events(&mut stream, 2).await;
    assert!(
        next.contains("event: tick") && next.contains("id: 4") && next.contains("event: decision"),
        "{next}"
    );

    let mut again = fixture
        .get("/api/v1/stream")
        .header("last-event-id", "3")
        .send()
        .await
        .unwrap();
    let history = events(&mut again, 1).await;
    assert!(
        history.contains("\"at\":4,") && !history.contains("\"at\":3,"),
        "{history}"
    );
}

#[tokio::test]
async fn streams_are_bounded_and_end_when_the_server_stops() {
    let fixture = fixture(None).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        streams.push(fixture.get("/api/v1/stream").send().await.unwrap());
    }
    let refused = fixture.get("/api/v1/stream").send().await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "5");
    problem(refused, 503, "too_many_streams").await;

    fixture.cancel.cancel();

    let ended = tokio::time::timeout(Duration::from_secs(5), fixture.server).await;
    assert!(
        ended
            .expect("the server ends although streams are open")
            .unwrap()
            .is_ok()
    );
}

#[tokio::test]
async fn requests_are_counted_by_the_routes_template_and_never_by_path_or_key() {
    let fixture = fixture(None).await;
    let _ = fixture.get("/api/v1/jobs/abc").send().await.unwrap();
    let _ = fixture.get("/secret-path").send().await.unwrap();
    let _ = fixture
        .ask(Method::from_bytes(b"BREW").unwrap(), "/healthz")
        .send()
        .await
        .unwrap();
    let text = fixture
        .get("/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        text.contains(
            r#"flyball_http_requests_total{route="/api/v1/jobs/{id}",method="GET",status="400"} 1"#
        ),
        "{text}"
    );
    assert!(
        text.contains(r#"route="unmatched""#)
            && text.contains(r#"method="other""#)
            && !text.contains("secret-path")
            && !text.contains("BREW")
    );
}
