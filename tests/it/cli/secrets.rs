//! Keys and secret arguments on the command line and over HTTP.

use serde_json::{Value, json};

use super::shell::{Serve, shell};

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_encrypted_by_every_command_and_shown_by_none() {
    let shell = shell().await;
    let key = shell.ok(&["secret-key"]).out.trim().to_owned();
    assert_ne!(key, shell.ok(&["secret-key"]).out.trim());
    let args = r#"{"url":"http://example.com/","headers":{"authorization":{"$secret":"Bearer 5up3r-53cret"}}}"#;
    shell.refused(
        &["enqueue", "http", "--args", args],
        4,
        "args/headers/authorization: is marked as secret, and this process has no key",
    );
    let shell = shell.with("FLYBALL_SECRET_KEYS", &key);

    let id = shell
        .ok(&["enqueue", "http", "--args", args, "--json"])
        .json()["jobs"][0]["id"]
        .to_string();
    let mut seen = shell.ok(&["job", "show", &id]).out;
    assert!(seen.contains("[secret]"), "{seen}");
    seen += &shell.ok(&["job", "show", &id, "--json"]).out;
    shell.ok(&[
        "cron",
        "set",
        "nightly",
        "0 2 * * *",
        "http",
        "--args",
        args,
    ]);
    seen += &shell.ok(&["cron", "show", "nightly"]).out;
    seen += &shell.ok(&["cron", "list", "--json"]).out;
    let callback = format!(r#"{{"kind":"http","args":{args}}}"#);
    let group = shell
        .ok(&["group", "create", "--callback", &callback, "--json"])
        .json();
    seen += &shell.ok(&["group", "show", &group["id"].to_string()]).out;
    let printed = shell
        .ok(&["encrypt", "--kind", "http", "Bearer 5up3r-53cret"])
        .out;
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert!(printed["$encrypted"].as_str().unwrap().starts_with("v1."));
    seen += &printed.to_string();
    let long = "918273645546372819001";
    let rounded = ["encrypt", "--kind", "http", long];
    shell.refused(
        &rounded,
        4,
        "value: has an integer of more than 64 bits, which would be rounded",
    );
    seen += &shell.run(&rounded).err;
    let twice = r#"{"5up3r": 1, "5up3r": 2}"#;
    let twice = ["encrypt", "--kind", "http", twice];
    shell.refused(&twice, 4, "value: has a field that is given twice");
    seen += &shell.run(&twice).err;
    shell.ok(&["encrypt", "--kind", "http", &format!("\"{long}\"")]);
    let sql = "select string_agg(t, ' ') from (select args::text from flyball.job
        union all select args::text from flyball.cron union all select callback::text from flyball.job_group
        union all select (a.*)::text from flyball.audit a) x(t)";
    let stored: String = sqlx::query_scalar(sql)
        .fetch_one(shell.database.pool())
        .await
        .unwrap();
    seen += &stored;
    for part in ["5up3r", "$secret", long] {
        assert!(!seen.contains(part), "{part}: {seen}");
    }
    assert!(!seen.contains(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_encrypted_over_http_and_what_cannot_be_is_refused_at_its_place() {
    let shell = shell().await;
    let key = shell.ok(&["secret-key"]).out.trim().to_owned();
    let shell = shell.with("FLYBALL_SECRET_KEYS", &key);
    let served = Serve::start(&shell);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let post = async |path: &str, body: Value| {
        let url = format!("{}{path}", served.url);
        let answer = client.post(url).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let args = json!({"url": "http://example.com/", "headers": {"authorization": {"$secret": "Bearer 5up3r-53cret"}}});
    let later = "2030-01-01T00:00:00Z";

    let (status, body) = post(
        "/api/v1/jobs",
        json!({"kind": "http", "args": args, "run_at": later}),
    )
    .await;
    assert_eq!(status, 201, "{body}");
    assert!(
        body.contains("[secret]") && !body.contains("5up3r"),
        "{body}"
    );
    let (status, body) = post(
        "/api/v1/jobs/batch",
        json!([{"kind": "http", "args": args, "run_at": later}]),
    )
    .await;
    assert_eq!(status, 201, "{body}");
    for (args, pointer, what) in [
        (
            json!({"url": {"$secret": "no-url-s3cret"}}),
            "/args/url",
            "must be a URL",
        ),
        (
            json!({"url": "http://a/", "headers": {"x": {"$secret": "a", "b": 1}}}),
            "/args/headers/x",
            "only field",
        ),
        (
            json!({"url": "http://a/", "body": {"$encrypted": "v1.x"}}),
            "/args/body",
            "flyball encrypt",
        ),
    ] {
        let (status, body) = post("/api/v1/jobs", json!({"kind": "http", "args": args})).await;
        let problem: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, 422, "{body}");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
        assert!(body.contains(what) && !body.contains("s3cret"), "{body}");
    }
    let sql = "select count(*), string_agg(args::text, ' ') from flyball.job";
    let (jobs, stored): (i64, String) = sqlx::query_as(sql)
        .fetch_one(shell.database.pool())
        .await
        .unwrap();
    assert_eq!(jobs, 2);
    assert!(!stored.contains("5up3r"), "{stored}");
}
