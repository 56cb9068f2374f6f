//! Fields of jobs on the command line that few jobs have: tags, `after`, webhooks.

use super::shell::shell;

const URL: &str = r#"{"url":"http://example.com/"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_enqueued_with_tags_after_another_and_with_webhooks_and_shows_them() {
    let shell = shell().await;
    let enqueued = |arguments: &[&str]| {
        let all = [&["enqueue", "http", "--args", URL, "--json"][..], arguments].concat();
        shell.ok(&all).json()["jobs"][0]["id"].to_string()
    };
    let first = enqueued(&[]);
    let after = enqueued(&[
        "--tag",
        "import",
        "--tag",
        "ticket-4711",
        "--after",
        &first,
        "--after-failure",
        "run",
        "--on-complete",
        "https://example.com/done",
        "--on-dead",
        "https://example.com/dead",
        "--webhook-secret",
        "jobs",
    ]);
    let shown = shell.ok(&["job", "show", &after]).out;
    for line in [
        "tags       import, ticket-4711\n".to_owned(),
        format!("after      {first}, whatever their ends\n"),
        format!("waits for  {first} (ready)\n"),
        "calls      https://example.com/done when it completes, signed with jobs\n".to_owned(),
        "calls      https://example.com/dead when it dies, signed with jobs\n".to_owned(),
    ] {
        assert!(shown.contains(&line), "{shown}");
    }
    let patient = enqueued(&[
        "--retry-delay",
        "5",
        "--retry-factor",
        "3",
        "--retry-max-delay",
        "10m",
    ]);
    let shown = shell.ok(&["job", "show", &patient]).out;
    let line = "retry      after 5 s, 3 times as long each time, at most 600 s\n";
    assert!(shown.contains(line), "{shown}");
    shell.ok(&[
        "job",
        "update",
        &patient,
        "--retry-delay",
        "1s",
        "--retry-factor",
        "1",
    ]);
    let shown = shell.ok(&["job", "show", &patient, "--json"]).json();
    assert_eq!(
        shown["retry"],
        serde_json::json!({"delay_s": 1.0, "factor": 1.0, "max_delay_s": 3600.0})
    );
    shell.ok(&["job", "update", &patient, "--clear", "retry"]);
    let shown = shell.ok(&["job", "show", &patient, "--json"]).json();
    assert!(shown["retry"].is_null(), "{shown}");
    shell.ok(&[
        "cron",
        "set",
        "nightly",
        "@daily",
        "http",
        "--args",
        URL,
        "--tag",
        "night",
        "--retry-delay",
        "30s",
    ]);
    let schedules = shell.ok(&["cron", "list", "--json"]).json();
    assert_eq!(schedules["crons"][0]["tags"], serde_json::json!(["night"]));
    assert_eq!(schedules["crons"][0]["retry"]["delay_s"], 30.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_cannot_be_are_refused_and_nothing_is_enqueued() {
    let shell = shell().await;
    let long = "x".repeat(65);
    for (arguments, code, message) in [
        (&["--tag", ""][..], 4, "tags: has an element of 0 bytes"),
        (&["--tag", &long], 4, "tags: has an element of 65 bytes"),
        (
            &["--after", "4711"],
            4,
            "after: 4711 is not the number of a job of yours",
        ),
        (&["--after", "0"], 2, "invalid value '0'"),
        (
            &["--after", "1", "--after-failure", "wait"],
            2,
            "\"wait\" is not known; allowed are cancel and run",
        ),
        (&["--after-failure", "run"], 2, "--after"),
        (
            &["--retry-delay", "0", "--retry-factor", "0"],
            4,
            "retry: delay_s is 0; allowed are 0.001 to 31622400 seconds (366 days); factor is 0",
        ),
        (&["--retry-factor", "2"], 2, "--retry-delay"),
        (
            &["--on-dead", "example.com"],
            4,
            "on_dead: must be a URL in ASCII",
        ),
        (
            &["--webhook-secret", "a"],
            4,
            "webhook_secret: needs an on_complete or an on_dead",
        ),
    ] {
        let all = [&["enqueue", "http", "--args", URL][..], arguments].concat();
        shell.refused(&all, code, message);
    }
    let listed = shell.ok(&["job", "list", "--json"]).json();
    assert_eq!(listed["jobs"], serde_json::json!([]));
}
