//! The program of the version before and this one beside one schema: `make upgrade-test` builds the
//! older one, and so does `scripts/test.sh` where the history of the repository is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::process::SOON;
use crate::support::process::{Process, ProcessFixture};
use crate::support::{PROGRAM, eventually, skip};

/// Names the program of the version before.
const OLDER: &str = "FLYBALL_OLDER_PROGRAM";

/// Jobs that each of the interfaces enqueues in each round.
const JOBS: usize = 25;
const ROUNDS: usize = 4;

/// The two programs on one schema, which the older one made.
struct Sisters {
    fixture: ProcessFixture,
    older: PathBuf,
}

impl Sisters {
    /// Returns `None`, and says so, if there is no older program.
    async fn new(knobs: &str) -> Option<Self> {
        let Some(older) = std::env::var_os(OLDER).map(PathBuf::from) else {
            skip("the program of the version before was not built: make upgrade-test");
            return None;
        };
        let fixture = ProcessFixture::new(knobs).await;
        sqlx::raw_sql("drop schema flyball cascade")
            .execute(fixture.pool())
            .await
            .unwrap();
        let sisters = Self { fixture, older };
        sisters.migrate(&sisters.older);
        Some(sisters)
    }

    fn command(&self, program: &Path) -> Command {
        self.fixture.command_of(program)
    }

    fn serve(&self, program: &Path) -> Process {
        let mut command = self.command(program);
        command.arg("serve");
        Process::start(command)
    }

    fn migrate(&self, program: &Path) {
        let output = self.command(program).arg("migrate").output().unwrap();
        assert!(output.status.success(), "{program:?}: {output:?}");
    }

    /// Runs a command that must succeed, and returns what it printed as JSON.
    fn runs(&self, program: &Path, arguments: &[&str]) -> Value {
        let output = self
            .command(program)
            .args(arguments)
            .arg("--json")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{program:?} {arguments:?}: {output:?}"
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns a job that calls the server at this path.
    fn job(&self, path: &str) -> Value {
        json!({"kind": "http", "args": {"url": format!("{}/{path}", self.fixture.target.url)}, "max_attempts": 20})
    }

    /// Enqueues jobs by the HTTP API of a process.
    async fn post(&self, server: &Process, name: &str) -> Vec<i64> {
        let jobs: Vec<Value> = (0..JOBS)
            .map(|n| self.job(&format!("{name}-{n}")))
            .collect();
        let url = format!("{}/api/v1/jobs/batch", server.url().await);
        let answer = reqwest::Client::new().post(url).json(&jobs).send().await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 201, "{}", answer.text().await.unwrap());
        let made: Value = answer.json().await.unwrap();
        let made = made["jobs"].as_array().unwrap();
        made.iter().map(|one| one["id"].as_i64().unwrap()).collect()
    }

    /// Enqueues jobs by SQL, as a producer does that knows no version.
    async fn insert(&self, name: &str) -> Vec<i64> {
        let jobs: Vec<Value> = (0..JOBS)
            .map(|n| self.job(&format!("{name}-{n}")))
            .collect();
        sqlx::query_scalar("select job_id from flyball.enqueue_many($1)")
            .bind(Value::Array(jobs))
            .fetch_all(self.fixture.pool())
            .await
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_run_side_by_side_and_nothing_is_lost() {
    let Some(sisters) = Sisters::new("rps = -1").await else {
        return;
    };
    let (fixture, older, newer) = (&sisters.fixture, &sisters.older, &*PROGRAM);
    let mut old = [sisters.serve(older), sisters.serve(older)];
    for process in &old {
        process.worker_started().await;
    }
    let mut jobs = sisters.post(&old[0], "before").await;

    // The schema becomes the new one while the old workers run.
    fixture.target.delay(std::time::Duration::from_millis(20));
    jobs.extend(sisters.insert("meanwhile").await);
    sisters.migrate(newer);
    let mut new = sisters.serve(newer);
    new.worker_started().await;

    for round in 0..ROUNDS {
        jobs.extend(sisters.post(&old[0], &format!("by-old-{round}")).await);
        jobs.extend(sisters.post(&new, &format!("by-new-{round}")).await);
        jobs.extend(sisters.insert(&format!("by-sql-{round}")).await);
        // A process that crashes starts again as what it was.
        let crashed = &mut old[1];
        crashed.kill();
        *crashed = sisters.serve(older);
        crashed.worker_started().await;
        new.kill();
        new = sisters.serve(newer);
        new.worker_started().await;
    }

    fixture.until_completed(&jobs, SOON).await;
    let calls = fixture.target.counts();
    assert_eq!(calls.len(), jobs.len(), "each job has called");
    let twice = calls.values().filter(|calls| **calls > 1).count();
    // Only what a killed process ran at that moment is called again.
    let most = 2 * ROUNDS * 8;
    assert!(
        twice <= most,
        "{twice} of {} twice, at most {most}",
        jobs.len()
    );
    let programs = fixture
        .count("select count(distinct worker_id) from flyball.attempt")
        .await;
    println!(
        "{programs} workers of both versions, {twice} of {} jobs twice",
        jobs.len()
    );

    // Rolling back: the old program alone finishes what the new one accepted.
    fixture.target.delay(std::time::Duration::ZERO);
    let last = sisters.post(&new, "rolled-back").await;
    new.kill();
    fixture.until_completed(&last, SOON).await;
    let log = old[1].log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_version_operates_what_the_other_made() {
    let Some(sisters) = Sisters::new("rps = 0").await else {
        return;
    };
    let (fixture, older, newer) = (&sisters.fixture, &sisters.older, &*PROGRAM);
    sisters.migrate(newer);
    let programs = BTreeMap::from([("older", older), ("newer", newer)]);
    let servers: BTreeMap<_, _> = programs
        .iter()
        .map(|(name, program)| (*name, sisters.serve(program)))
        .collect();

    for (maker, operator) in [("older", "newer"), ("newer", "older")] {
        let made = sisters.post(&servers[maker], maker).await;
        let by = programs[operator];
        let ids: Vec<String> = made.iter().map(i64::to_string).collect();
        assert_eq!(
            sisters.runs(by, &["job", "show", &ids[0]])["state"],
            "ready"
        );
        sisters.runs(by, &["job", "cancel", &ids[0]]);
        sisters.runs(by, &["job", "reschedule", &ids[1], "--run-at", "1h"]);
        let state =
            |n: usize| sisters.runs(programs[maker], &["job", "show", &ids[n]])["state"].clone();
        assert_eq!(
            (state(0), state(1)),
            (json!("cancelled"), json!("scheduled"))
        );

        let group = sisters.runs(
            programs[maker],
            &[
                "group",
                "create",
                "--jobs",
                &json!([sisters.job("grouped")]).to_string(),
            ],
        );
        let number = group["id"].to_string();
        assert_eq!(
            sisters.runs(by, &["group", "show", &number])["jobs"],
            1,
            "{group}"
        );
        sisters.runs(by, &["group", "cancel", &number]);
        let url = format!("{}/api/v1/groups/{number}", servers[maker].url().await);
        eventually("the group has ended", SOON, || async {
            let group: Value = reqwest::get(&url).await.ok()?.json().await.ok()?;
            (group["state"] == "ended").then_some(())
        })
        .await;
    }

    // A dead letter of one is requeued by the other, whatever the knobs of the moment.
    fixture.redis("HSET {}throttle:default:knobs rps -1").await;
    for (maker, operator) in [("older", "newer"), ("newer", "older")] {
        let mut job = sisters.job(&format!("bad-{maker}"));
        job["max_attempts"] = json!(1);
        let url = format!("{}/api/v1/jobs", servers[maker].url().await);
        let answer = reqwest::Client::new().post(url).json(&job).send().await;
        let made: Value = answer.unwrap().json().await.unwrap();
        let id = made["id"].to_string();
        let state = async |wanted: &str| {
            eventually(wanted, SOON, || async {
                let job = sisters.runs(programs[operator], &["job", "show", &id]);
                (job["state"] == wanted).then_some(())
            })
            .await;
        };
        state("dead").await;
        sisters.runs(programs[operator], &["job", "retry", &id]);
        state("dead").await;
    }
}
