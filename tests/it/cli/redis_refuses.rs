//! The answers of commands while Redis answers and accepts no writes.

use serde_json::json;

use super::shell::shell;
use crate::support::connect_redis;
use crate::support::redis_server::Server;

async fn configure(server: &Server, words: [&str; 2]) {
    let mut connection = connect_redis(&server.url()).await.unwrap();
    redis::cmd("CONFIG")
        .arg("SET")
        .arg(&words)
        .exec_async(&mut connection)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn throttles_are_shown_and_why_tells_the_refusal_and_what_follows() {
    let server = Server::start();
    let shell = shell().await.with("REDIS_URL", &server.url());
    shell.ok(&["throttle", "set", "hooks", "rps=5"]);
    shell.ok(&["throttle", "set", "notices", "rps=5", "on_store_loss=open"]);
    let args = json!({"url": "https://hooks.example.com"}).to_string();
    let enqueue = [
        "enqueue",
        "http",
        "--args",
        args.as_str(),
        "--throttle",
        "hooks",
        "--json",
    ];
    let id = shell.ok(&enqueue).json()["jobs"][0]["id"].to_string();
    configure(&server, ["maxmemory-policy", "noeviction"]).await;
    configure(&server, ["maxmemory", "1"]).await;

    let told = shell.ok(&["why", "hooks"]).out;
    assert!(
        told.contains("No job starts, because Redis refuses requests for tokens (OOM")
            && told.contains("on_store_loss of hooks is closed.")
            && told.contains("5 rps, set by"),
        "{told}"
    );
    let open = shell.ok(&["why", "notices"]).out;
    assert!(
        open.contains("Jobs start without a limit, because"),
        "{open}"
    );
    let job = shell.ok(&["why", "--job", &id]).out;
    assert!(
        job.contains("Redis refuses requests for tokens (OOM"),
        "{job}"
    );
    assert!(shell.ok(&["throttle", "list"]).out.contains("hooks"));
    assert!(shell.ok(&["throttle", "show", "hooks"]).out.contains("rps"));
    shell.refused(&["throttle", "set", "hooks", "rps=6"], 69, "OOM");
}
