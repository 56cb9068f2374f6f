//! Schedules over HTTP and on the command line.

use std::process::Command;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::{Kinds, Queue};
use serde_json::{Value, json};

use super::fixture::SOON;
use crate::support::{PROGRAM, app_environment, database, eventually};

#[tokio::test]
async fn a_process_serves_schedules_over_http_and_runs_them() {
    let (database, folder) = (database().await, tempfile::tempdir().unwrap());
    let environment = app_environment(&database, folder.path()).await;
    let mut kinds = Kinds::default();
    kinds.register_fn("report", |_, _| async { flyball::jobs::Outcome::Done });
    let app = App::start(
        &Settings::load(None, &environment).unwrap(),
        Roles::ALL,
        kinds,
    )
    .await
    .unwrap();
    let base = format!("http://{}/api/v1/crons", app.address.unwrap());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();

    let body = json!({"expression": "* * * * * *", "time_zone": "Europe/Berlin", "kind": "report", "key": "a", "why": "a test"});
    let made = client
        .put(format!("{base}/tick"))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(made.status(), 201);
    let made: Value = made.json().await.unwrap();
    assert_eq!(
        (
            made["upcoming"].as_array().unwrap().len(),
            &made["catch_up"],
            &made["overlap"]
        ),
        (5, &json!("one"), &json!("skip"))
    );
    assert_eq!(
        client
            .put(format!("{base}/tick"))
            .json(&body)
            .send()
            .await
            .unwrap()
            .status(),
        200
    );

    let show = || async {
        client
            .get(format!("{base}/tick"))
            .send()
            .await
            .unwrap()
            .json::<Value>()
            .await
            .unwrap()
    };
    eventually("it makes a job", SOON, || async {
        show().await["last_job_id"].as_i64()
    })
    .await;
    let ran = client
        .post(format!("{base}/tick/run"))
        .json(&json!({"by": "alice", "why": "now"}))
        .send()
        .await
        .unwrap();
    assert!(
        [200, 201].contains(&ran.status().as_u16()),
        "{}",
        ran.status()
    );
    let pause = client
        .post(format!("{base}/tick/pause"))
        .json(&json!({"by": "bob", "why": "too loud"}));
    let paused: Value = pause.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&paused["paused"], &paused["next_at"]),
        (&json!(true), &Value::Null)
    );
    let resumed: Value = client
        .post(format!("{base}/tick/resume"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(resumed["paused"], false, "nobody need say why");
    assert_eq!(
        client
            .post(format!("{base}/tick/pause"))
            .json(&json!({"wy": "?"}))
            .send()
            .await
            .unwrap()
            .status(),
        422
    );
    assert_eq!(
        client
            .delete(format!("{base}/tick?wy=x"))
            .send()
            .await
            .unwrap()
            .status(),
        400
    );

    let wrong = json!({"expression": "61 * * * *", "kind": "report"});
    let refused = client
        .put(format!("{base}/tick"))
        .json(&wrong)
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 422);
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(refused["errors"][0]["pointer"], "/expression");
    let url = format!("{base}/../cron-next?expression=@daily&time_zone=posixrules");
    let preview = client.get(url).send().await.unwrap();
    assert_eq!(preview.status(), 400, "a schedule could not have this zone");
    let all: Value = client
        .get(&base)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(all["crons"][0]["name"], "tick");
    assert_eq!(
        client
            .delete(format!("{base}/tick?by=carol&why=done%20with"))
            .send()
            .await
            .unwrap()
            .status(),
        204
    );
    let gone = client.delete(format!("{base}/tick")).send().await.unwrap();
    assert_eq!(
        (
            gone.status().as_u16(),
            gone.json::<Value>().await.unwrap()["code"].clone()
        ),
        (404, json!("schedule_not_found"))
    );
    let sql = "select concat_ws(' ', action, nullif(actor, 'http'), why) from flyball.audit where subject = 'tick' order by id";
    let audit: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert_eq!(
        audit[..4],
        [
            "cron.set a test",
            "cron.set a test",
            "cron.run alice now",
            "cron.pause bob too loud"
        ]
    );
    assert_eq!(
        (audit[4].trim(), audit[5].as_str()),
        ("cron.resume", "cron.delete carol done with")
    );
    app.stop().await;
}

#[tokio::test]
async fn the_command_line_has_the_same_schedules() {
    let (database, folder) = (database().await, tempfile::tempdir().unwrap());
    let run = |words: &[&str]| {
        let mut command = Command::new(PROGRAM.as_path());
        command
            .args(words)
            .env_clear()
            .env("DATABASE_URL", database.url())
            .env("USER", "tester")
            .current_dir(folder.path());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let set = [
        "cron",
        "set",
        "beat",
        "30 2 * * *",
        "http",
        "--args",
        r#"{"url":"https://example.com/"}"#,
        "--time-zone",
        "Europe/Berlin",
    ];

    let (code, out, err) = run(&set);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("schedule beat is created; next occurrences:\n")
            && out.matches("02:30:00 +0").count() == 5,
        "{out}"
    );
    assert!(run(&set).1.starts_with("schedule beat is unchanged; next"));
    let in_paris = set.map(|word| word.replace("Berlin", "Paris"));
    let in_paris: Vec<&str> = in_paris.iter().map(String::as_str).collect();
    for other in [&in_paris[..], &set[..]] {
        assert!(run(other).1.starts_with("schedule beat is changed; next"));
    }
    let (_, out, _) = run(&["cron", "list"]);
    assert!(
        out.contains("NEXT") && out.contains("beat") && out.contains("Europe/Berlin"),
        "{out}"
    );
    let (_, out, _) = run(&["cron", "next", "beat", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap()["upcoming"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
    assert!(
        run(&["cron", "next", "--expression", "@weekly"])
            .1
            .contains("Sun ")
    );
    assert_eq!(
        run(&["cron", "pause", "beat"]).1,
        "schedule beat is paused\n"
    );
    assert!(
        run(&["cron", "next", "beat"])
            .1
            .starts_with("note: it is paused\n")
    );
    assert_eq!(
        run(&["cron", "resume", "beat"]).1,
        "schedule beat is running\n"
    );
    assert!(run(&["cron", "run", "beat"]).1.starts_with("enqueued job "));
    assert!(
        run(&["cron", "run", "beat"])
            .1
            .contains("is unfinished; no other job was created")
    );
    assert_eq!(
        run(&["cron", "delete", "beat"]).1,
        "schedule beat is deleted\n"
    );

    for (words, code, printed) in [
        (
            vec!["cron", "delete", "beat"],
            3,
            "there is no schedule beat",
        ),
        (vec!["cron", "next", "beat"], 3, "there is no schedule beat"),
        (
            vec!["cron", "next", "beat", "--time-zone", "UTC"],
            2,
            "cannot be used with",
        ),
        (
            vec![
                "cron",
                "set",
                "beat",
                "61 * * * *",
                "http",
                "--args",
                r#"{"url":"https://example.com/"}"#,
            ],
            4,
            "minute: 61 is out of range",
        ),
        (vec!["cron", "set", "beat", "@daily", "http"], 4, "args/url"),
        (
            vec!["cron", "set", "beat", "@daily", "no-such-kind"],
            4,
            "is not a kind",
        ),
        (
            vec!["cron", "next", "--expression", "* *"],
            4,
            "has 2 fields",
        ),
        (
            vec![
                "cron",
                "next",
                "--expression",
                "@daily",
                "--time-zone",
                "localtime",
            ],
            4,
            "time_zone: \"localtime\" is not",
        ),
        (
            vec![
                "cron",
                "set",
                "beat",
                "@daily",
                "http",
                "--overlap",
                "maybe",
            ],
            2,
            "skip",
        ),
    ] {
        let (was, _, err) = run(&words);
        assert!(
            was == code && err.contains(printed),
            "{words:?}: {was} {err}"
        );
    }
    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();
    let who: Vec<String> = sqlx::query_scalar("select distinct actor from flyball.audit")
        .fetch_all(&queue.pool)
        .await
        .unwrap();
    assert_eq!(who, ["tester"]);
}
