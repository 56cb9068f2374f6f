//! Standard streams that nobody reads any more.

use std::io;

use super::shell::shell;

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_standard_error_nobody_reads_ends_as_any_other() {
    let shell = shell().await;
    // There is another throttle, so that the missing one is told.
    shell.ok(&["throttle", "set", "quiet", "rps=1"]);
    let url = "{\"url\": \"https://example.com/beat\"}";
    let commands: [(&[&str], i32); 4] = [
        (
            &["enqueue", "http", "--args", url, "--throttle", "nosuch"],
            0,
        ),
        (&["job", "show", "1"], 3),
        (&["job", "show", "1", "--json"], 3),
        (&["job", "show", "one"], 2),
    ];

    for (args, code) in commands {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = shell.command(args).stderr(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
}
