//! Readings from a real Prometheus, and from a fake one for misbehaviour that a real one does not
//! show.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::Form;
use axum::http::{StatusCode, header};
use axum::routing::{get, post};
use flyball::signals::{Error, HttpProbe, Missing, Prometheus, Reading};

use crate::support;

pub async fn serve(app: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// Starts a fake Prometheus with one answer to every request.
async fn answering(status: StatusCode, body: &'static str) -> Prometheus {
    answering_with(status, body.to_owned()).await
}

async fn answering_with(status: StatusCode, body: String) -> Prometheus {
    let answer = move || async move {
        (
            status,
            [(header::DATE, "Tue, 14 Nov 2023 22:13:20 GMT")],
            body,
        )
    };
    Prometheus::new(&serve(axum::Router::new().route("/api/v1/query", post(answer))).await).unwrap()
}

/// The time in the `Date` above.
const DATE: f64 = 1_700_000_000.0;

/// Returns unix seconds by the test machine's clock, which the product must not use here.
#[expect(
    clippy::disallowed_methods,
    reason = "the samples of a real server carry real times"
)]
fn real_now() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

#[tokio::test]
async fn raw_samples_come_with_their_own_times_the_greatest_series_first() {
    let body = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"i":"a"},"values":[[1699999960,"1"],[1699999975,"5"],[1699999990,"2"]]},
        {"metric":{"i":"b"},"values":[[1699999962,"3"],[1699999977,"1"],[1699999992,"4"]]}]}}"#;
    let readings = answering(StatusCode::OK, body)
        .await
        .readings("load", DATE)
        .await
        .unwrap();
    let expected = [
        (1_699_999_962.0, 3.0),
        (1_699_999_977.0, 5.0),
        (1_699_999_992.0, 4.0),
    ];
    assert_eq!(readings, expected.map(|(at, value)| Reading { value, at }));
}

/// Starts a fake Prometheus with these series; `usual` is the usual number of them, if known.
async fn with_usual(series: &[&str], usual: &'static str) -> Prometheus {
    let matrix = format!(
        r#"{{"status":"success","data":{{"resultType":"matrix","result":[{}]}}}}"#,
        series.join(",")
    );
    let answer = move |Form(form): Form<Vec<(String, String)>>| async move {
        if !form[0]
            .1
            .starts_with("quantile_over_time(0.5, count(load)[2h:1m])")
        {
            return (StatusCode::OK, matrix);
        }
        let vector = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1700000000,"N"]}]}}"#;
        let refused = r#"{"status":"error","error":"no subqueries"}"#.to_owned();
        if usual.is_empty() {
            (StatusCode::BAD_REQUEST, refused)
        } else {
            (StatusCode::OK, vector.replace('N', usual))
        }
    };
    let answer = move |form| {
        let answer = answer.clone();
        async move {
            let (status, body) = answer(form).await;
            (
                status,
                [(header::DATE, "Tue, 14 Nov 2023 22:13:20 GMT")],
                body,
            )
        }
    };
    Prometheus::new(&serve(axum::Router::new().route("/api/v1/query", post(answer))).await).unwrap()
}

const SOUND: &str = r#"{"metric":{"i":"a"},"values":[[1699999960,"0.05"],[1699999975,"0.05"],[1699999990,"0.05"]]}"#;
const NOT_A_NUMBER: &str =
    r#"{"metric":{"i":"b"},"values":[[1699999960,"NaN"],[1699999975,"NaN"],[1699999990,"NaN"]]}"#;
const ENDED: &str = r#"{"metric":{"i":"c"},"values":[[1699999850,"9"],[1699999865,"9"]]}"#;

#[tokio::test]
async fn a_series_that_is_not_a_number_is_not_hidden_by_a_sound_one_behind_it() {
    for order in [[SOUND, NOT_A_NUMBER], [NOT_A_NUMBER, SOUND]] {
        let readings = with_usual(&order, "2").await.readings("load", DATE).await;
        assert_eq!(
            readings,
            Err(Error::Missing(Missing::NotANumber)),
            "{order:?}"
        );
    }
}

#[tokio::test]
async fn a_series_that_ended_is_no_lower_maximum() {
    let ended = |live, least| Err(Error::Missing(Missing::Ended { live, least }));
    let lost = with_usual(&[SOUND, ENDED], "2").await;
    assert_eq!(lost.readings("load", DATE).await, ended(1, 2));
    assert!(
        lost.readings_of_at_least("load", Some(1), DATE)
            .await
            .is_ok(),
        "an operator may expect fewer"
    );
    assert_eq!(
        lost.readings_of_at_least("load", Some(3), DATE).await,
        ended(1, 3)
    );
    // Outside the queried range, but still known to the server.
    assert_eq!(
        with_usual(&[SOUND], "2").await.readings("load", DATE).await,
        ended(1, 2)
    );
    assert!(
        with_usual(&[SOUND, ENDED], "1")
            .await
            .readings("load", DATE)
            .await
            .is_ok(),
        "it has been so for long"
    );
    assert!(
        with_usual(&[SOUND, ENDED], "")
            .await
            .readings("load", DATE)
            .await
            .is_ok(),
        "a server that cannot count back"
    );
    let many = vec![SOUND; 4_001];
    let refused = with_usual(&many, "4001").await.readings("load", DATE).await;
    assert_eq!(
        refused,
        Err(Error::Missing(Missing::Many {
            series: 4_001,
            allowed: 4_000
        }))
    );
}

#[tokio::test]
async fn the_usual_number_of_series_stays_while_the_server_is_too_busy_to_count_them() {
    let counts = Arc::new(AtomicU32::new(0));
    let counted = counts.clone();
    let answer = move |Form(form): Form<Vec<(String, String)>>| {
        let is_count = form[0].1.starts_with("quantile_over_time(");
        let is_busy = is_count && counted.fetch_add(1, Ordering::SeqCst) > 0;
        let data = if is_count {
            r#""vector","result":[{"metric":{},"value":[1700000000,"1"]}]"#.to_owned()
        } else {
            format!(r#""matrix","result":[{SOUND}]"#)
        };
        let status = if is_busy {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::OK
        };
        let date = [(header::DATE, "Tue, 14 Nov 2023 22:13:20 GMT")];
        let body = format!(r#"{{"status":"success","data":{{"resultType":{data}}}}}"#);
        async move { (status, date, body) }
    };
    let url = serve(axum::Router::new().route("/api/v1/query", post(answer))).await;
    let known = Prometheus::new(&url).unwrap();
    for at in [DATE, DATE + 61.0, DATE + 62.0] {
        assert!(known.readings("load", at).await.is_ok(), "{at}");
    }
    assert_eq!(counts.load(Ordering::SeqCst), 2, "not asked at every tick");

    let unknown = Prometheus::new(&url).unwrap();
    let refused = unknown.readings("load", DATE).await.unwrap_err();
    let told = refused.to_string();
    assert!(
        told.contains(" answered with status 503: ") && told.ends_with("which series_min replaces"),
        "{told}"
    );
    assert!(
        unknown
            .readings_of_at_least("load", Some(1), DATE)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn ages_are_right_whatever_the_two_clocks_say() {
    let body = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1699999990,"1"]]}]}}"#;
    let prometheus = answering(StatusCode::OK, body).await;
    let ahead = DATE + 3600.0;
    let age = ahead - prometheus.readings("load", ahead).await.unwrap()[0].at;
    assert!((9.0..=11.0).contains(&age), "{age}");
    let again = ahead + 0.4 - prometheus.readings("load", ahead + 0.4).await.unwrap()[0].at;
    assert!(
        (again - age - 0.4).abs() < 1e-6,
        "a sample keeps its time from one look to the next"
    );
}

#[tokio::test]
async fn what_is_no_reading_says_why() {
    let empty = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
    let nan = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1699999990,"NaN"]]}]}}"#;
    let inf = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1699999990,"+Inf"]]}]}}"#;
    let part = r#"{"status":"success","warnings":["store 3 is away"],"data":{"resultType":"matrix","result":[{"metric":{},"values":[[1699999990,"1"]]}]}}"#;
    let bad = r#"{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}"#;
    let error = |status, body| async move {
        answering(status, body)
            .await
            .readings("load", DATE)
            .await
            .unwrap_err()
    };

    assert_eq!(
        error(StatusCode::OK, empty).await,
        Error::Missing(Missing::Absent)
    );
    assert_eq!(
        error(StatusCode::OK, nan).await,
        Error::Missing(Missing::NotANumber)
    );
    assert_eq!(
        error(StatusCode::OK, inf).await,
        Error::Missing(Missing::Infinite)
    );
    assert!(matches!(
        error(StatusCode::OK, part).await,
        Error::Partial { .. }
    ));
    assert!(
        matches!(error(StatusCode::BAD_REQUEST, bad).await, Error::BadQuery { message, .. } if message == "parse error: unexpected end")
    );
    assert!(matches!(
        error(StatusCode::BAD_GATEWAY, "<html>").await,
        Error::Refused { status: 502, .. }
    ));
    assert!(matches!(
        error(StatusCode::OK, "<html>").await,
        Error::Garbled { .. }
    ));
    assert!(matches!(
        Prometheus::new("http://127.0.0.1:1")
            .unwrap()
            .readings("load", DATE)
            .await,
        Err(Error::Unreachable { .. })
    ));
    // Warnings about data missing from a remote read or a backing store, in the servers' wording.
    for warning in [
        "remote_read: remote server http://far/read returned HTTP status 503",
        "No StoreAPIs matched for this query",
        "PromQL warning: quantile value should be between 0 and 1",
    ] {
        let body = part.replace("store 3 is away", warning);
        let prometheus = answering_with(StatusCode::OK, body).await;
        let expected = Error::Partial {
            query: "load[180s]".to_owned(),
            warnings: warning.to_owned(),
        };
        assert_eq!(prometheus.readings("load", DATE).await, Err(expected));
    }
    // Notes about style, from newer and older servers, are no sign of missing data.
    let info =
        "PromQL info: metric might not be a counter, name does not end in _total: \\\"load\\\"";
    for field in ["infos", "warnings"] {
        let body = part.replace(
            "\"warnings\":[\"store 3 is away\"]",
            &format!("\"{field}\":[\"{info}\"]"),
        );
        assert!(body.contains(field) && !body.contains("store 3"), "{body}");
        let readings = answering_with(StatusCode::OK, body)
            .await
            .readings("load", DATE)
            .await
            .unwrap();
        assert_eq!(
            readings,
            [Reading {
                value: 1.0,
                at: 1_699_999_990.0
            }]
        );
    }
    for url in [
        "",
        "prometheus",
        "ftp://x",
        "unix:///run/x.sock",
        "/run/x.sock",
    ] {
        assert!(
            matches!(Prometheus::new(url), Err(Error::Address { .. })),
            "{url}"
        );
    }
}

#[tokio::test]
async fn an_expression_is_dated_by_its_oldest_sample() {
    let answer = |Form(form): Form<Vec<(String, String)>>| async move {
        let value = if form[0]
            .1
            .starts_with("min(label_replace(min(timestamp(a)),")
        {
            "1699999950.5"
        } else {
            "0.75"
        };
        format!(
            r#"{{"status":"success","data":{{"resultType":"vector","result":[{{"metric":{{}},"value":[1700000000.1,"{value}"]}}]}}}}"#
        )
    };
    let app = axum::Router::new().route("/prefix/api/v1/query", post(answer));
    let prometheus = Prometheus::new(&format!("{}/prefix/", serve(app).await)).unwrap();
    let now = real_now();
    let readings = prometheus.readings("a / b", now).await.unwrap();
    assert_eq!(
        readings,
        [Reading {
            value: 0.75,
            at: 1_699_999_950.5
        }]
    );
}

#[tokio::test]
async fn a_probe_reads_its_metric_and_gives_up_after_half_a_second() {
    let slow = || async {
        std::future::pending::<()>().await;
        "load 1\n"
    };
    let app = axum::Router::new()
        .route(
            "/metrics",
            get(|| async { "load{i=\"a\"} 1.5\nload{i=\"b\"} 3.5\n" }),
        )
        .route("/slow", get(slow));
    let url = serve(app).await;
    let read = |path: &str, metric: &str| {
        let probe = HttpProbe::new(&format!("{url}{path}"), metric).unwrap();
        async move { probe.read(7.0).await }
    };
    assert_eq!(
        read("/metrics", "load").await,
        Ok(Reading {
            value: 3.5,
            at: 7.0
        })
    );
    assert_eq!(
        read("/metrics", "load{i=\"a\"}").await,
        Ok(Reading {
            value: 1.5,
            at: 7.0
        })
    );
    assert_eq!(
        read("/metrics", "other").await,
        Err(Error::Missing(Missing::Absent))
    );
    assert!(matches!(
        read("/nothing", "load").await,
        Err(Error::Refused { status: 404, .. })
    ));
    assert!(matches!(
        read("/slow", "load").await,
        Err(Error::TimedOut { within_ms: 500, .. })
    ));
    assert!(matches!(
        HttpProbe::new("http://x", "9"),
        Err(Error::BadQuery { .. })
    ));
}

#[tokio::test]
async fn a_real_prometheus_distinguishes_samples_absence_and_bad_queries() {
    let stack = support::stack().await;
    let prometheus = Prometheus::new(&stack.prometheus_url).unwrap();
    assert_eq!(
        prometheus.readings("nobody_exports_this", real_now()).await,
        Err(Error::Missing(Missing::Absent))
    );
    assert!(matches!(
        prometheus.readings("sum(", real_now()).await,
        Err(Error::BadQuery { .. })
    ));
    assert_eq!(
        prometheus.readings("vector(0) / 0", real_now()).await,
        Err(Error::Missing(Missing::NotANumber))
    );
    let now = real_now();
    let two = prometheus.readings("vector(2)", now).await.unwrap();
    assert!(
        two[0].value == 2.0 && (two[0].at - now).abs() < 5.0,
        "{two:?}"
    );

    let Some(targets) = &stack.targets_dir else {
        return crate::support::skip("Prometheus was given from outside");
    };
    let url =
        serve(axum::Router::new().route("/metrics", get(|| async { "signals_test_load 0.5\n" })))
            .await;
    let target = format!(
        r#"[{{"targets": ["{}"]}}]"#,
        url.trim_start_matches("http://")
    );
    std::fs::write(targets.join("signals_test.json"), target).unwrap();
    let samples = support::eventually("two raw samples", Duration::from_secs(30), || async {
        prometheus
            .readings("signals_test_load", real_now())
            .await
            .ok()
            .filter(|readings| readings.len() >= 2)
    })
    .await;
    assert!(
        samples.windows(2).all(|w| w[0].at < w[1].at) && samples.iter().all(|s| s.value == 0.5),
        "{samples:?}"
    );
    let ratio = prometheus
        .readings("signals_test_load / 2", real_now())
        .await
        .unwrap();
    assert_eq!(ratio[0].value, 0.25);
    let newest = prometheus
        .readings("signals_test_load", real_now())
        .await
        .unwrap()
        .last()
        .unwrap()
        .at;
    assert!(
        (ratio[0].at - newest).abs() < 3.0,
        "{ratio:?}, newest {newest}"
    );
}
