//! Files that the command line names.

use super::shell::shell;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_may_begin_with_the_mark_of_an_editor() {
    let shell = shell().await;
    let args = "{\"url\": \"https://example.com/beat\"}";
    let line = format!("{{\"kind\": \"http\", \"args\": {args}}}\r\n");
    shell.write("args.json", format!("\u{feff}{args}\r\n"));
    shell.write("jobs.ndjson", format!("\u{feff}{line}{line}"));

    shell.ok(&["enqueue", "http", "--args", "@args.json"]);
    let many = shell.ok(&["enqueue", "--file", "jobs.ndjson"]);

    assert_eq!(many.out, "enqueued 2 jobs\n");
}
