//! Recipients on the command line.

use serde_json::json;

use super::shell::shell;

#[tokio::test]
async fn recipients_are_set_shown_imported_and_erased() {
    let shell = shell().await;
    shell.ok(&["migrate"]);
    let profile = r#"{"addresses": {"email": "ada@example.com"}, "time_zone": "Europe/Berlin"}"#;
    let set = ["recipient", "set", "ada", "--tenant", "acme", "--profile"];
    let with = |more: &[&'static str]| [&set[..], &[profile], more].concat();
    assert!(shell.ok(&with(&[])).out.contains("recipient ada is new"));
    assert_eq!(
        shell.ok(&with(&["--json"])).json(),
        json!({"created": 0, "changed": 0})
    );
    let shown = shell.ok(&["recipient", "show", "ada", "--tenant", "acme", "--json"]);
    assert_eq!(
        shown.json()["addresses"],
        json!({"email": "ada@example.com"})
    );
    let plain = shell.ok(&["recipient", "show", "ada", "--tenant", "acme"]);
    assert!(
        plain.out.contains("time_zone: Europe/Berlin"),
        "{}",
        plain.out
    );
    shell.refused(
        &["recipient", "show", "ada"],
        3,
        "there is no recipient ada",
    );

    shell.write(
        "all.ndjson",
        "{\"id\": \"bob\"}\n\n{\"id\": \"eve\", \"time_zone\": \"Asia/Tokyo\"}\n",
    );
    let import = ["recipient", "import", "all.ndjson", "--tenant", "acme"];
    let told = shell.ok(&import).out;
    assert!(
        told.contains("of 2 recipients 2 are new and 0 have changed"),
        "{told}"
    );
    // An editor has written a mark at the beginning.
    shell.write("marked.ndjson", "\u{feff}{\"id\": \"bob\"}\n");
    let marked = ["recipient", "import", "marked.ndjson", "--tenant", "acme"];
    let told = shell.ok(&marked).out;
    assert!(told.contains("0 are new"), "{told}");
    shell.write(
        "bad.ndjson",
        "{\"id\": \"x\", \"addresses\": {\"sms\": \"ada@example.com\"}}\nnonsense\n{\"id\": \"x\"}\n{\"id\": \"x\"}\n",
    );
    shell.refused(
        &["recipient", "import", "none.ndjson"],
        3,
        "cannot read none.ndjson",
    );
    let bad = ["recipient", "import", "bad.ndjson"];
    shell.refused(
        &bad,
        4,
        "bad.ndjson, line 1/addresses/sms: must be a number",
    );
    shell.refused(&bad, 4, "line 2: is not JSON");
    shell.refused(
        &bad,
        4,
        "line 4/id: must differ from those before it; nothing was changed",
    );
    assert!(!shell.run(&bad).err.contains("ada@example.com"));

    let list = ["recipient", "list", "--tenant", "acme"];
    let with = |more: &[&'static str]| shell.ok(&[&list[..], more].concat());
    assert_eq!(
        with(&[]).out,
        "ada  email a***@e***.com, Europe/Berlin\nbob  \neve  Asia/Tokyo\n"
    );
    let page = with(&["--limit", "1", "--json"]).json();
    assert_eq!(
        (&page["next"], &page["recipients"][0]["addresses"]["email"]),
        (&json!("ada"), &json!("a***@e***.com"))
    );
    let rest = with(&["--after", "ada", "--limit", "2"]);
    assert_eq!(rest.out, "bob  \neve  Asia/Tokyo\n");
    assert_eq!(rest.err, "flyball: more follow: --after eve\n");
    assert!(with(&["--addresses"]).out.contains("ada@example.com"));
    assert_eq!(
        shell.ok(&["recipient", "list"]).out,
        "there are no recipients\n"
    );
    shell.refused(&["recipient", "list", "--limit", "0"], 2, "--limit");

    let erased = shell.ok(&["recipient", "delete", "ada", "--tenant", "acme", "--json"]);
    assert_eq!(erased.json()["profile"], true);
    shell.refused(
        &["recipient", "show", "ada", "--tenant", "acme"],
        3,
        "there is no recipient ada",
    );
    let none = shell.ok(&["recipient", "defaults", "--tenant", "acme"]).out;
    assert!(none.contains("there are no defaults"), "{none}");
    let defaults = shell.ok(&[
        "recipient",
        "defaults",
        "--tenant",
        "acme",
        "--set",
        r#"{"time_zone": "UTC"}"#,
        "--json",
    ]);
    assert_eq!(defaults.json()["time_zone"], "UTC");

    let set = |profile| ["recipient", "set", "ada", "--profile", profile];
    shell.refused(&set("[]"), 4, "profile: must be a JSON object");
    shell.refused(&set("{"), 4, "profile: is not JSON");
    shell.refused(
        &set(r#"{"time_zone": "Mars/Base"}"#),
        4,
        "profile/time_zone: must be the IANA name",
    );
    shell.refused(
        &["recipient", "set", "check", "--profile", "{}"],
        4,
        "id: must not be check",
    );
    shell.refused(
        &["recipient", "show", "ada", "--tenant", "a b"],
        4,
        "tenant: must be a name",
    );
}
