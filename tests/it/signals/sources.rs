//! Sources other than the default Prometheus: servers with credentials, pages, databases.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{get, post};
use flyball::governor::Journal;
use flyball::signals::server::{Access, Credentials, SecretSource};
use flyball::signals::{Error, HttpProbe, Missing, Prometheus, Reading, SignalDatabase};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use super::serve;
use crate::support::process::ProcessFixture;
use crate::support::proxy::Proxy;
use crate::support::{database, eventually};

/// Returns an answer of Prometheus with one sample at its own time.
const ANSWER: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1700000000,"1.5"]]}]}}"#;
const NOW: f64 = 1_700_000_000.0;
const SOON: Duration = Duration::from_secs(30);
const READS: [Reading; 1] = [Reading {
    value: 1.5,
    at: NOW,
}];

const SECRET: &str = "very-secret";

/// Starts a fake Prometheus that requires this header, and repeats it in the error to all others.
async fn guarded(name: &'static str, wanted: &str) -> String {
    let wanted = Arc::new(Mutex::new(wanted.to_owned()));
    let answer = move |State(wanted): State<Arc<Mutex<String>>>, headers: HeaderMap| async move {
        let sent = headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let wanted = wanted.lock().unwrap().clone();
        let clock = [(header::DATE, "Tue, 14 Nov 2023 22:13:20 GMT")];
        match sent == wanted {
            true => (StatusCode::OK, clock, ANSWER.to_owned()),
            false => (
                StatusCode::UNAUTHORIZED,
                clock,
                format!("{sent:?} is not {wanted:?}"),
            ),
        }
    };
    serve(
        axum::Router::new()
            .route("/api/v1/query", post(answer))
            .with_state(wanted),
    )
    .await
}

async fn read(access: Access) -> Result<Vec<Reading>, Error> {
    Prometheus::with(&access)
        .unwrap()
        .readings("load", NOW)
        .await
}

#[tokio::test]
async fn a_server_receives_credentials_and_no_error_repeats_them() {
    let url = guarded("authorization", "Bearer very-secret").await;
    let bearer = |token: SecretSource| Access {
        credentials: Credentials::Bearer(token),
        ..Access::open(&url)
    };
    assert_eq!(
        read(bearer(SecretSource::Text(SECRET.into())))
            .await
            .unwrap(),
        READS
    );

    // The file is read each time, because tokens are replaced while a process runs.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "very-secret-and-old\n").unwrap();
    let prometheus = Prometheus::with(&bearer(SecretSource::File(path.clone()))).unwrap();
    let refused = prometheus.readings("load", NOW).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 401, .. }));
    std::fs::write(&path, "very-secret\n").unwrap();
    assert_eq!(prometheus.readings("load", NOW).await.unwrap(), READS);
    std::fs::remove_file(&path).unwrap();
    let lost = prometheus.readings("load", NOW).await.unwrap_err();

    let basic = guarded("authorization", "Basic YW5uOnZlcnktc2VjcmV0").await;
    let credentials =
        |password: &str| Credentials::Basic("ann".into(), SecretSource::Text(password.into()));
    let ann = |password: &str| Access {
        credentials: credentials(password),
        ..Access::open(&basic)
    };
    assert_eq!(read(ann(SECRET)).await.unwrap(), READS);
    let wrong = read(ann("very-secret-but-wrong")).await.unwrap_err();
    assert_eq!(
        read(Access::open(
            &basic.replace("http://", "http://ann:very-secret@")
        ))
        .await
        .unwrap(),
        READS,
        "in the URL"
    );
    let in_url = read(Access::open(
        &basic.replace("http://", "http://ann:very-secret2@"),
    ))
    .await
    .unwrap_err();
    let nobody = read(Access::open(
        "http://ann:very-secret@127.0.0.1:1/?key=very-secret",
    ))
    .await
    .unwrap_err();

    let tenant = guarded("x-scope-orgid", SECRET).await;
    let headers = |value: &str| vec![("X-Scope-OrgID".to_owned(), value.to_owned())];
    assert_eq!(
        read(Access {
            headers: headers(SECRET),
            ..Access::open(&tenant)
        })
        .await
        .unwrap(),
        READS
    );
    let other = read(Access {
        headers: headers("very-secret-too"),
        ..Access::open(&tenant)
    })
    .await
    .unwrap_err();

    for error in [refused, lost, wrong, in_url, nobody, other] {
        assert!(
            !error.to_string().contains(SECRET) && !format!("{error:?}").contains(SECRET),
            "{error:?}"
        );
    }
}

/// Answers requests over TLS, one after the other, with a certificate of the tests' own authority.
fn tls_server() -> String {
    let certificate =
        CertificateDer::from_pem_slice(include_bytes!("../support/tls/server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../support/tls/server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = Arc::new(
        config
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap(),
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            let mut session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::Stream::new(&mut session, &mut socket);
            let mut request = vec![0; 4096];
            // A client without trust in the certificate disconnects here.
            if stream.read(&mut request).is_ok_and(|bytes| bytes > 0) {
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    ANSWER.len()
                );
                let _ = stream.write_all(format!("{head}{ANSWER}").as_bytes());
                session.send_close_notify();
                let _ = session.complete_io(&mut socket);
            }
        }
    });
    url
}

#[tokio::test]
async fn over_tls_only_whom_the_system_or_the_own_file_trusts_is_believed() {
    let url = tls_server();
    let strange = read(Access::open(&url)).await.unwrap_err();
    assert!(matches!(strange, Error::Unreachable { .. }), "{strange:?}");

    let authorities = Some(include_bytes!("../support/tls/authority.pem").to_vec());
    let known = Access {
        authorities: authorities.clone(),
        ..Access::open(&url)
    };
    assert_eq!(read(known).await.unwrap(), READS);

    // The certificate is for an address, not for that name.
    let misnamed = Access {
        authorities,
        ..Access::open(&url.replace("127.0.0.1", "localhost"))
    };
    assert!(matches!(
        read(misnamed).await,
        Err(Error::Unreachable { .. })
    ));
}

#[tokio::test]
async fn an_index_behind_tls_is_believed_by_the_file_of_its_sink_and_not_without_it() {
    let url = tls_server();
    let within = std::time::Duration::from_secs(20);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/support/tls/authority.pem");

    let trusting = flyball::outbound::client_that_trusts(file, within).unwrap();
    assert!(
        trusting
            .get(&url)
            .send()
            .await
            .unwrap()
            .status()
            .is_success()
    );

    let plain =
        flyball::outbound::guarded_client(flyball::outbound::Guard::open(), within).unwrap();
    assert!(plain.get(&url).send().await.unwrap_err().is_connect());
    let missing = flyball::outbound::client_that_trusts("/nowhere/ca.pem", within).unwrap_err();
    assert!(
        missing.contains("/nowhere/ca.pem cannot be read"),
        "{missing}"
    );
}

#[tokio::test]
async fn a_place_in_json_is_read_and_what_is_no_number_says_what_it_is() {
    let page = r#"{"queue": [{"length": 12, "age": "3.5", "state": "well"}], "none": null, "odd": "NaN", "debt": -1}"#;
    let app = axum::Router::new()
        .route("/stats", get(move || async move { page }))
        .route("/text", get(|| async { "load 1\n" }));
    let url = serve(app).await;
    let read = |path: &str, pointer: &str| {
        let probe = HttpProbe::json(&format!("{url}{path}"), pointer).unwrap();
        async move { probe.read(NOW).await }
    };
    assert_eq!(
        read("/stats", "/queue/0/length").await,
        Ok(Reading {
            value: 12.0,
            at: NOW
        })
    );
    assert_eq!(
        read("/stats", "/queue/0/age").await,
        Ok(Reading {
            value: 3.5,
            at: NOW
        })
    );
    assert_eq!(
        read("/stats", "/queue/1/length").await,
        Err(Error::Missing(Missing::Absent))
    );
    assert_eq!(
        read("/stats", "/none").await,
        Err(Error::Missing(Missing::Absent))
    );
    assert_eq!(
        read("/stats", "/odd").await,
        Err(Error::Missing(Missing::NotANumber))
    );
    assert_eq!(
        read("/stats", "/debt").await,
        Err(Error::Missing(Missing::Negative { value: -1.0 }))
    );
    let message = read("/stats", "/queue/0").await.unwrap_err().to_string();
    assert!(message.contains("\"/queue/0\" is an object"), "{message}");
    assert!(
        read("/stats", "/queue/0/state")
            .await
            .unwrap_err()
            .to_string()
            .contains("a text that is not a number")
    );
    assert!(
        read("/text", "/a")
            .await
            .unwrap_err()
            .to_string()
            .contains("it is not JSON")
    );
    assert!(matches!(
        HttpProbe::json(&url, "length"),
        Err(Error::BadQuery { .. })
    ));
}

#[tokio::test]
async fn a_statement_answers_one_number_and_changes_nothing() {
    let database = database().await;
    sqlx::raw_sql(
        "create sequence page; create table ledger (n int); insert into ledger values (1), (2)",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let source = SignalDatabase::new("main", database.url()).unwrap();
    let read = async |statement: &str| source.read(statement, NOW).await;
    // The first connection may take longer than the timeout of a reading.
    eventually("a connection", Duration::from_secs(20), || async {
        source.read("select 1", NOW).await.ok()
    })
    .await;

    for (statement, value) in [
        ("select count(*) from ledger", 2.0),
        ("select sum(n)::numeric / 2 from ledger; ", 1.5),
        (
            "with x as (select max(n) as top from ledger) select top from x -- the highest",
            2.0,
        ),
        ("values (0.25::float4)", 0.25),
    ] {
        assert_eq!(
            read(statement).await,
            Ok(Reading { value, at: NOW }),
            "{statement}"
        );
    }
    let dated = read("select 7 as lag, to_timestamp(1699999990.5) as at").await;
    assert_eq!(
        dated,
        Ok(Reading {
            value: 7.0,
            at: 1_699_999_990.5
        })
    );
    assert_eq!(
        read("select n from ledger where n > 9").await,
        Err(Error::Missing(Missing::Absent))
    );
    assert_eq!(
        read("select null::int").await,
        Err(Error::Missing(Missing::Absent))
    );
    assert_eq!(
        read("select 'NaN'::float8").await,
        Err(Error::Missing(Missing::NotANumber))
    );
    assert!(
        read("select n from ledger")
            .await
            .unwrap_err()
            .to_string()
            .contains("more than one row")
    );
    assert!(
        read("select true as well")
            .await
            .unwrap_err()
            .to_string()
            .contains("true or false in the column well")
    );

    for statement in [
        "insert into ledger values (3) returning n",
        "select 1) reading; insert into ledger values (3); --",
        "with x as (insert into ledger values (3) returning n) select n from x",
        "select nextval('page')",
        "select n from ledger for update",
        "sel",
    ] {
        let refused = read(statement).await.unwrap_err();
        assert!(
            matches!(&refused, Error::BadQuery { .. }),
            "{statement}: {refused:?}"
        );
    }
    let slow = read("select 1 from pg_sleep(30)").await.unwrap_err();
    assert!(matches!(slow, Error::TimedOut { .. }), "{slow:?}");
    assert_eq!(
        read("select count(*) from ledger").await,
        Ok(Reading {
            value: 2.0,
            at: NOW
        })
    );

    let away = SignalDatabase::new("away", "postgres://ann:very-secret@127.0.0.1:1/x").unwrap();
    let lost = eventually("an error", Duration::from_secs(20), || async {
        away.read("select 1", NOW).await.err()
    })
    .await;
    let wrong = SignalDatabase::new("wrong", "very-secret").unwrap_err();
    for error in [lost, wrong] {
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
}

#[tokio::test]
async fn readings_go_on_soon_after_their_database_has_vanished() {
    let database = database().await;
    let proxy = Proxy::start(database.url()).await;
    let source = SignalDatabase::new("main", &proxy.url).unwrap();
    let slow = "select 1 from pg_sleep(0.1)";
    eventually("both connections", SOON, || async {
        let (one, other) = tokio::join!(source.read(slow, NOW), source.read(slow, NOW));
        one.ok().zip(other.ok())
    })
    .await;

    proxy.forget();

    let (one, other) = tokio::join!(source.read(slow, NOW), source.read(slow, NOW));
    assert!(one.is_err() && other.is_err(), "{one:?} {other:?}");
    // Real time: the readings keep their connections for some seconds.
    eventually("a reading", SOON, || async {
        source.read("select 1", NOW).await.ok()
    })
    .await;
}

const POLICY: &str = r#"
[knobs]
rps = 20.0
mode = "auto"
min = 1.0
max = 100.0
safe_rps = 5.0

[[signal]]
name = "east-load"
server = "east"
query = "load"
setpoint = 3.0

[[signal]]
name = "queue-length"
source = "http"
url = "PAGE/stats"
pointer = "/length"
scale = 0.5
setpoint = 100.0
soft = 150.0
trip = 200.0

[[signal]]
name = "ledger"
source = "postgres"
server = "main"
query = "select count(*) from flyball.kind"
setpoint = 1000.0

[[signal]]
name = "oldest"
source = "age"
query = "governed"
setpoint = 1000.0

[governor]
tick_s = 1.0
"#;

const SETTINGS: &str = r#"
[prometheus.east]
url = "EAST"
token_env = "EAST_TOKEN"

[postgres.main]
url_env = "LEDGER_URL"
"#;

#[tokio::test]
async fn a_process_reads_the_servers_that_its_settings_name_and_trips_on_a_page_without_prometheus()
{
    let length = Arc::new(Mutex::new(40));
    let shown = length.clone();
    let stats = move || async move { format!(r#"{{"length": {}}}"#, shown.lock().unwrap()) };
    let page = serve(axum::Router::new().route("/stats", get(stats))).await;
    let east = guarded("authorization", "Bearer very-secret").await;
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.knobs_file("governed", &POLICY.replace("PAGE", &page));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    std::fs::write(&file, SETTINGS.replace("EAST\"", &format!("{east}\""))).unwrap();
    let arguments = ["--roles", "governor", "--config", file.to_str().unwrap()];
    let environment = [
        ("EAST_TOKEN", SECRET),
        ("LEDGER_URL", fixture.database_url.as_str()),
        ("FLYBALL_LOG", "debug"),
    ];

    // A named file that does not exist prevents the start, with its name in the error.
    let mut nobody = fixture.serve_with(&arguments, &environment[..1]);
    assert!(!nobody.ends(Duration::from_secs(60)).await.success());
    nobody
        .logged(
            "url_env: the environment variable LEDGER_URL is not set",
            Duration::from_secs(20),
        )
        .await;

    let process = fixture.serve_with(&arguments, &environment);
    let journal = Journal::new(fixture.pool());
    let value = |state: &Value, n: usize| state["signals"][n]["value"].as_f64();
    let state = eventually("all signals are read", Duration::from_secs(60), || async {
        let (_, state) = journal.load("governed").await.unwrap()?;
        (0..4).all(|n| value(&state, n).is_some()).then_some(state)
    })
    .await;
    assert_eq!(
        (value(&state, 0), value(&state, 1)),
        (Some(1.5), Some(20.0))
    );
    assert!(
        value(&state, 2).unwrap() >= 1.0 && value(&state, 3) == Some(0.0),
        "{state}"
    );

    *length.lock().unwrap() = 500;
    let tripped = eventually("the breaker trips", Duration::from_secs(60), || async {
        journal
            .recent(Some("governed"), 20)
            .await
            .unwrap()
            .into_iter()
            .find(|decision| decision.limiting == "breaker")
    })
    .await;
    assert!(
        tripped
            .reason
            .starts_with("queue-length rose to 2.5 x its setpoint"),
        "{}",
        tripped.reason
    );
    assert_eq!(
        fixture
            .status("governed")
            .await
            .unwrap()
            .effective_rps
            .number(),
        0.0
    );
    assert!(!process.log().contains(SECRET), "{}", process.log());
    assert!(
        !process.log().contains(&fixture.database_url),
        "{}",
        process.log()
    );
}
