//! The answer of `flyball throttle set` to a name that no throttle has.

use super::shell::shell;

#[tokio::test(flavor = "multi_thread")]
async fn a_throttle_that_did_not_exist_is_said_to_be_new_with_those_of_similar_names() {
    let shell = shell().await;
    let set = |name: &str| shell.ok(&["throttle", "set", name, "rps=20"]).out;
    assert!(set("hooks").starts_with("created throttle hooks\n"));
    assert!(!set("hooks").contains("created"));

    let mistyped = set("hoks");

    assert!(
        mistyped.starts_with("created throttle hoks; there is also hooks\n"),
        "{mistyped}"
    );
    assert!(set("other").starts_with("created throttle other\n"));
}
