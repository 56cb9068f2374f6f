//! The same operations on the command line.

use flyball::jobs::State;
use serde_json::{Value, json};

use super::fixture::operator;

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_changed_on_the_command_line_only_when_it_says_yes() {
    let operator = operator().await;
    operator.enqueue(5, "t", "a").await;

    operator
        .refuses(
            &["job", "cancel", "--throttle", "t"],
            4,
            "5 jobs would be cancelled; add --yes to do it",
        )
        .await;
    assert_eq!(
        operator
            .output(&["job", "cancel", "--throttle", "t", "--dry-run"])
            .await,
        "5 jobs would be cancelled\n"
    );
    operator
        .refuses(
            &["job", "cancel"],
            4,
            "give the number of a job, or one or more of --kind",
        )
        .await;
    operator
        .refuses(
            &["job", "cancel", "5", "--throttle", "t"],
            2,
            "cannot be used with",
        )
        .await;
    for only_for_many in [&["--dry-run"][..], &["--yes"], &["--limit", "1"]] {
        operator
            .refuses(
                &[&["job", "cancel", "5"], only_for_many].concat(),
                2,
                "cannot be used with",
            )
            .await;
    }
    operator
        .refuses(
            &[
                "job",
                "cancel",
                "--throttle",
                "t",
                "--state",
                "dead",
                "--yes",
            ],
            4,
            "state: \"dead\" is not a state that can be cancelled",
        )
        .await;
    operator
        .refuses(
            &["job", "cancel", "--created-before", "soon", "--yes"],
            2,
            "allowed are a time such as",
        )
        .await;
    assert_eq!(
        operator
            .output(&["job", "cancel", "--created-before", "1h", "--yes"])
            .await,
        "0 jobs cancelled\n"
    );
    assert_eq!(
        operator
            .output(&[
                "job",
                "cancel",
                "--throttle",
                "t",
                "--yes",
                "--limit",
                "2",
                "--why",
                "moved"
            ])
            .await,
        "2 jobs cancelled\n"
    );
    let output: Value = serde_json::from_str(
        &operator
            .output(&["lane", "purge", "t", "a", "--yes", "--json"])
            .await,
    )
    .unwrap();
    assert_eq!(output, json!({"jobs": 3, "requested": 0}));
    let actions = operator.actions().await;
    assert_eq!(
        actions,
        [
            ("tester".to_owned(), "jobs.cancel".to_owned()),
            ("tester".to_owned(), "lane.purge".to_owned())
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_requeued_and_discarded_on_the_command_line() {
    let operator = operator().await;
    let ids = operator.enqueue(4, "t", "a").await;
    operator.kill("timeout after 30 s").await;

    operator
        .refuses(
            &["dead", "requeue", "--yes"],
            4,
            "error_like: is missing, as is every other filter",
        )
        .await;
    operator
        .refuses(
            &["dead", "requeue", "--error-like", "timeout%"],
            4,
            "4 jobs would be requeued; add --yes",
        )
        .await;
    assert_eq!(
        operator
            .output(&[
                "dead",
                "requeue",
                "--error-like",
                "timeout%",
                "--limit",
                "3",
                "--yes"
            ])
            .await,
        "3 jobs requeued\n"
    );
    let output: Value = serde_json::from_str(
        &operator
            .output(&[
                "dead",
                "discard",
                "--throttle",
                "t",
                "--died-after",
                "1h",
                "--yes",
                "--json",
            ])
            .await,
    )
    .unwrap();
    assert_eq!(output["jobs"], 1);
    assert_eq!(
        (operator.state(ids[0]).await, operator.state(ids[3]).await),
        (State::Ready, State::Cancelled)
    );

    let id = ids[0].to_string();
    assert!(
        operator
            .output(&["job", "reschedule", &id, "--run-at", "2h"])
            .await
            .starts_with(&format!("job {id} is scheduled for 2"))
    );
    operator
        .refuses(
            &["job", "discard", &id],
            4,
            "is scheduled; only dead jobs can be discarded",
        )
        .await;
    operator
        .refuses(
            &["job", "reschedule", &id, "--run-at", "9000-01-01T00:00:00Z"],
            4,
            "ten years from now",
        )
        .await;
    operator
        .refuses(
            &["job", "reschedule", "7", "--run-at", "2h"],
            3,
            "there is no job 7",
        )
        .await;
    let updated = [
        "job",
        "update",
        &id,
        "--args",
        "{\"url\": \"http://127.0.0.1/new\"}",
        "--priority",
        "0",
        "--timeout",
        "2m",
        "--tag",
        "x",
    ];
    assert_eq!(
        operator.output(&updated).await,
        format!("job {id} is updated\n")
    );
    let shown = operator.output(&["job", "show", &id, "--json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        serde_json::json!([
            shown["priority"],
            shown["timeout_s"],
            shown["tags"],
            shown["args"]["url"]
        ]),
        serde_json::json!([0, 120.0, ["x"], "http://127.0.0.1/new"])
    );
    operator
        .output(&[
            "job", "update", &id, "--clear", "timeout", "--clear", "tags",
        ])
        .await;
    for (arguments, code, words) in [
        (
            &["--priority", "9", "--cost", "0"][..],
            4,
            "cost: is 0; allowed is more than 0",
        ),
        (&["--args", "{"], 4, "args: is not JSON"),
        (&["--args", "{}"], 4, "args/url: is missing"),
        (
            &["--clear", "tags", "--tag", "x"],
            4,
            "clear: names tags, which is given as well",
        ),
        (&["--clear", "kind"], 2, "possible values: timeout, tags"),
        (
            &[],
            4,
            "flyball: update: nothing to change; give one or more of args",
        ),
    ] {
        let all = [&["job", "update", &id][..], arguments].concat();
        operator.refuses(&all, code, words).await;
    }
    operator
        .refuses(
            &["job", "update", "7", "--priority", "1"],
            3,
            "there is no job 7",
        )
        .await;
    operator
        .output(&["job", "retry", &id, "--keep-attempts"])
        .await;
    assert!(
        operator
            .output(&["job", "list", "--state", "ended", "--created-after", "1h"])
            .await
            .contains("cancelled")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_and_lanes_are_operated_on_the_command_line() {
    let operator = operator().await;
    operator.turn("t", &[("rps", "5")]).await;
    operator.enqueue(2, "t", "a").await;
    operator.queue.ready_lanes().await.unwrap();

    assert!(operator.output(&["status"]).await.starts_with(
        "running: no pause of everything\n0 live workers: no job runs; start one: flyball serve\n"
    ));
    assert!(
        operator
            .output(&["pause", "--why", "upgrade"])
            .await
            .ends_with("by tester: upgrade\n")
    );
    assert!(
        operator
            .output(&["pause"])
            .await
            .starts_with("everything is already paused since")
    );
    let status = operator.output(&["status"]).await;
    let flows_at_five = status
        .lines()
        .any(|line| line.split_whitespace().take(2).eq(["t", "5"]));
    assert!(
        status.starts_with("everything is paused since") && flows_at_five,
        "{status}"
    );
    let output: Value =
        serde_json::from_str(&operator.output(&["status", "--json"]).await).unwrap();
    assert_eq!(
        (
            &output["paused"]["why"],
            &output["throttles"][0]["effective_rps"]
        ),
        (&json!("upgrade"), &json!(5.0))
    );
    assert_eq!(
        operator.output(&["resume"]).await,
        "everything is resumed\n"
    );
    assert_eq!(
        operator.output(&["resume"]).await,
        "everything was running already\n"
    );

    assert_eq!(
        operator.output(&["lane", "weight", "t", "a", "2.5"]).await,
        "lane \"a\" of t has the weight 2.5; before it was 1\n"
    );
    operator
        .refuses(
            &["lane", "weight", "t", "a", "0"],
            4,
            "weight: is 0; allowed are 0.001 to 1000",
        )
        .await;
    operator
        .refuses(
            &["lane", "purge", "two words", "a", "--yes"],
            4,
            "two words",
        )
        .await;
    assert!(
        operator
            .output(&["lane", "list", "t", "--by-key"])
            .await
            .contains("2.5")
    );
    assert!(
        operator
            .output(&["lane", "show", "t", "a"])
            .await
            .contains("waiting    2")
    );
}
