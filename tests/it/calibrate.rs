//! `flyball calibrate` as a process, on real servers: an exporter whose load follows the rate
//! granted by Redis.

use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::governor::calibration;
use flyball::signals::Prometheus;
use flyball::throttle::{AcquireRequest, LaneRequest, Name, RedisStore, Status, Store};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::process::{ProcessFixture, ignores_hangup};
use crate::support::{eventually, patient_store, poll, skip, stack, unique};

const SOON: Duration = Duration::from_secs(40);
const THROTTLE: &str = "calibrated";
/// The plant: background load, and load per job per second, in setpoints.
const BACKGROUND: f64 = 0.2;
const COST: f64 = 0.01;
/// The exporter's averaging time.
const LAG_S: f64 = 2.0;

/// A throttle with a full queue, an exporter, and a Prometheus that scrapes it.
struct Rig {
    fixture: ProcessFixture,
    cost: Arc<Mutex<f64>>,
    /// The value shown to Prometheus instead of the load; the probe reads the load itself.
    frozen: Arc<Mutex<Option<f64>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Rig {
    /// `None` for an external Prometheus, whose targets cannot be changed: the test is skipped.
    async fn new() -> Option<Self> {
        let Some(targets) = &stack().await.targets_dir else {
            skip("Prometheus was given from outside");
            return None;
        };
        let fixture = ProcessFixture::new("rps = -1").await;
        let run = unique();
        let query = format!("it_seen{{run=\"{run}\"}}");
        let knobs = [
            ("rps", "20"),
            ("mode", "auto"),
            ("min", "1"),
            ("max", "200"),
            ("safe_rps", "5"),
        ];
        for (knob, value) in knobs {
            fixture
                .redis(&format!(
                    "HSET {{}}throttle:{THROTTLE}:knobs {knob} {value}"
                ))
                .await;
        }
        let (load, cost) = (
            Arc::new(Mutex::new(BACKGROUND + 20.0 * COST)),
            Arc::new(Mutex::new(COST)),
        );
        let frozen: Arc<Mutex<Option<f64>>> = Arc::default();
        let (shown, instead) = (load.clone(), frozen.clone());
        let page = move || {
            let load = *shown.lock().unwrap();
            let seen = instead.lock().unwrap().unwrap_or(load);
            async move {
                // In percent, which the policy scales.
                let (load, seen) = (100.0 * load, 100.0 * seen);
                format!(
                    "# TYPE it_load gauge\nit_load {load}\n# TYPE it_seen gauge\nit_seen {seen}\n"
                )
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        fixture.knobs_file(
            THROTTLE,
            &knobs_file(&query, &format!("http://{address}/metrics")),
        );
        let app = axum::Router::new().route("/metrics", axum::routing::get(page));
        let exporter = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let worker = tokio::spawn(work(
            patient_store(&fixture.prefix).await,
            load,
            cost.clone(),
        ));
        let target =
            format!("[{{\"targets\": [\"{address}\"], \"labels\": {{\"run\": \"{run}\"}}}}]");
        std::fs::write(targets.join(format!("calibrate-{run}.json")), target).unwrap();
        let prometheus = Prometheus::new(&stack().await.prometheus_url).unwrap();
        eventually("Prometheus scrapes the exporter", SOON, || async {
            let readings = prometheus.readings(&query, now()).await.ok()?;
            (readings.len() >= 3).then_some(())
        })
        .await;
        Some(Self {
            fixture,
            cost,
            frozen,
            tasks: vec![exporter, worker],
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.fixture.command();
        command.args(["calibrate", THROTTLE]).args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }

    async fn status(&self) -> Status {
        eventually("the throttle is read", SOON, || {
            self.fixture.status(THROTTLE)
        })
        .await
    }

    /// Starts a test with long steps and waits until it has control of the knob.
    async fn under_way(&self) -> Child {
        let child = self.start(&["--yes", "--pulse-s", "1200"]);
        eventually("the test has the knob", SOON, || async {
            (self.status().await.knobs.by == calibration::CALIBRATION_ACTOR).then_some(())
        })
        .await;
        child
    }
}

fn knobs_file(query: &str, page: &str) -> String {
    let query = query.replace('"', "\\\"");
    format!(
        "[knobs]\nrps = 20\nmode = \"auto\"\nmin = 1\nmax = 200\nsafe_rps = 5\n\n[[signal]]\nname = \"it-load\"   # ours\n\
         query = \"{query}\"\nsetpoint = 1.0\nscale = 0.01\nlag_s = 60 # a guess\nprobe = \"{page}\"\nprobe_metric = \"it_load\"\n\n[governor]\ntick_s = 1\n"
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "samples are dated by the wall clock"
)]
fn now() -> f64 {
    jiff::Timestamp::now().as_microsecond() as f64 / 1e6
}

/// Takes every available token, and computes the resulting load.
async fn work(store: RedisStore, load: Arc<Mutex<f64>>, cost: Arc<Mutex<f64>>) {
    let throttle = Name::new(THROTTLE).unwrap();
    let mut last = Instant::now();
    loop {
        // Real time: the pace of the asks.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let lanes = vec![LaneRequest {
            want: 1000,
            ..LaneRequest::default()
        }];
        let granted = store
            .acquire(&AcquireRequest {
                throttle: throttle.clone(),
                lanes,
                holder: None,
            })
            .await
            .lanes
            .remove(0)
            .granted;
        let span_s = last.elapsed().as_secs_f64();
        last = Instant::now();
        let wanted = BACKGROUND + *cost.lock().unwrap() * f64::from(granted) / span_s;
        let mut load = load.lock().unwrap();
        *load += (wanted - *load) * (1.0 - (-span_s / LAG_S).exp());
    }
}

/// Waits until a process has exited by itself.
async fn ended(mut child: Child, within: Duration) -> Output {
    let status = poll(within, || std::future::ready(child.try_wait().unwrap())).await;
    if status.is_none() {
        let _ = child.kill();
        panic!(
            "it did not end within {within:?}: {}",
            printed(&child.wait_with_output().unwrap())
        );
    }
    child.wait_with_output().unwrap()
}

fn printed(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test]
async fn a_test_beside_a_running_governor_finds_the_plant_and_hands_the_knob_back() {
    let Some(rig) = Rig::new().await else {
        return;
    };
    let _governor = rig.fixture.serve_with(&["--roles", "governor"], &[]);
    eventually("the governor turns the knob", SOON, || async {
        (rig.status().await.knobs.by == "governor").then_some(())
    })
    .await;

    let arguments = [
        "--yes",
        "--write",
        "--json",
        "--pulse-s",
        "8",
        "--halves",
        "4",
    ];
    let path = rig
        .fixture
        .command()
        .get_current_dir()
        .unwrap()
        .join(format!("{THROTTLE}.toml"));
    let child = rig.start(&arguments);
    eventually("the test has the knob", SOON, || async {
        (rig.status().await.knobs.by == calibration::CALIBRATION_ACTOR).then_some(())
    })
    .await;
    // A person edits the file meanwhile.
    let edited = std::fs::read_to_string(&path).unwrap() + "gain = 1.5\n";
    std::fs::write(&path, edited).unwrap();
    let mut output = ended(child, Duration::from_secs(240)).await;
    // On a machine that stalls for seconds the test rightly aborts.
    for _ in 0..2 {
        if !output.status.success() && printed(&output).contains("ended early") {
            println!("{}", printed(&output));
            output = ended(rig.start(&arguments), Duration::from_secs(240)).await;
        }
    }
    assert!(output.status.success(), "{}", printed(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("{answer:#}");

    let truth = (1.0 - BACKGROUND) / COST;
    let found = answer["found"]["rate_at_setpoint"].as_f64().unwrap();
    assert!((0.5..2.0).contains(&(found / truth)), "{found} of {truth}");
    let lag_s = answer["found"]["lag_s"].as_f64().unwrap();
    assert!(lag_s <= 15.0, "{lag_s}");
    assert_eq!(
        (&answer["policy"]["lag_s"], &answer["written"]),
        (&Value::from(60.0), &Value::from(true))
    );
    let text = std::fs::read_to_string(path).unwrap();
    assert!(
        text.contains(&format!("lag_s = {lag_s} # a guess\n"))
            && text.contains("\"it-load\"   # ours\n")
            && text.ends_with("tick_s = 1\ngain = 1.5\n"),
        "{text}"
    );
    eventually("the governor has the knob again", SOON, || async {
        let status = rig.status().await;
        (status.knobs.by == "governor" && status.effective_rps.number() > 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn however_a_test_ends_the_throttle_is_safe() {
    let Some(rig) = Rig::new().await else {
        return;
    };
    let before = rig.status().await;
    let knob = |status: &Status| {
        (
            status.raw["rps"].clone(),
            status.raw.get("valid_until").cloned(),
        )
    };

    // Without a terminal there is no confirmation.
    let unasked = ended(rig.start(&[]), SOON).await;
    assert_eq!(unasked.status.code(), Some(4), "{}", printed(&unasked));
    assert!(
        printed(&unasked).contains("confirmation requires a terminal; add --yes"),
        "{}",
        printed(&unasked)
    );
    assert_eq!(rig.status().await.raw, before.raw);

    // Ctrl-C.
    let child = rig.under_way().await;
    let status = rig.status().await;
    assert!(status.knobs.valid_until_ms.is_some(), "{:?}", status.raw);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let interrupted = ended(child, SOON).await;
    assert_eq!(interrupted.status.code(), Some(1));
    assert!(
        printed(&interrupted).contains("interrupted. The knob is back at 20."),
        "{}",
        printed(&interrupted)
    );
    assert_eq!(knob(&rig.status().await), ("20".to_owned(), None));

    // Its terminal closes: nobody reads what it says.
    if !ignores_hangup() {
        let mut child = rig.under_way().await;
        drop(child.stderr.take());
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::HUP).unwrap();
        let hung_up = ended(child, SOON).await;
        assert_eq!(hung_up.status.code(), Some(1), "{}", printed(&hung_up));
        assert_eq!(knob(&rig.status().await), ("20".to_owned(), None));
    }

    // A runaway load that Prometheus does not show: the restored rate is below the last safe one.
    let child = rig.under_way().await;
    *rig.frozen.lock().unwrap() = Some(0.5);
    *rig.cost.lock().unwrap() = 20.0 * COST;
    let over = ended(child, SOON).await;
    *rig.cost.lock().unwrap() = COST;
    *rig.frozen.lock().unwrap() = None;
    assert_eq!(over.status.code(), Some(1));
    assert!(
        printed(&over).contains("ended early: a probe would trip the breaker"),
        "{}",
        printed(&over)
    );
    assert_eq!(
        knob(&rig.status().await),
        ("14.286".to_owned(), None),
        "{}",
        printed(&over)
    );

    // A person changes the rate meanwhile.
    eventually("the load is gone", SOON, || async {
        let output = ended(
            rig.start(&["--yes", "--pulse-s", "4", "--signal", "none"]),
            SOON,
        )
        .await;
        assert!(
            printed(&output)
                .contains("\"none\" is not a load from Prometheus; allowed are: it-load"),
            "{}",
            printed(&output)
        );
        let child = rig.start(&["--yes", "--pulse-s", "1200"]);
        let begun = poll(Duration::from_secs(8), || async {
            (rig.status().await.knobs.by == calibration::CALIBRATION_ACTOR).then_some(())
        });
        if begun.await.is_none() {
            // The previous load is rejected.
            let mut child = child;
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        rig.fixture
            .redis(&format!("HSET {{}}throttle:{THROTTLE}:knobs rps 7"))
            .await;
        let turned = ended(child, SOON).await;
        assert!(
            printed(&turned).contains("The knob keeps the value that someone else has set: 7."),
            "{}",
            printed(&turned)
        );
        Some(())
    })
    .await;
    assert_eq!(knob(&rig.status().await), ("7".to_owned(), None));

    // Killed, it cannot restore anything: the lease expires, and a governor continues from the safe
    // rate.
    let mut child = rig.under_way().await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(rig.status().await.knobs.by, calibration::CALIBRATION_ACTOR);
    eventually("the lease lapses", SOON, || async {
        rig.status().await.lease_expired.then_some(())
    })
    .await;
    assert_eq!(rig.status().await.effective_rps.number(), 5.0);
    let _governor = rig.fixture.serve_with(&["--roles", "governor"], &[]);
    let taken = eventually("the governor takes over", SOON, || async {
        let status = rig.status().await;
        (status.knobs.by == "governor").then_some(status.knobs.rps.number())
    })
    .await;
    assert!(taken <= 10.0, "{taken}");
}
