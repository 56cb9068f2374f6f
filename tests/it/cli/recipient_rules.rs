//! The file of the rules for recipients: checked, refused at the start, and changed while the
//! server runs.

use super::shell::{SOON, Serve, Shell, shell};
use crate::docs::read;
use crate::support::eventually;

const BROKEN: &str = "release_share = 2\n\n[categories.news]\nquiet = \"never\"\n";

const WEEKLY: &str =
    "[digests.weekly]\ntemplate = \"week\"\ncategory = \"product\"\nwindow_s = 604800\n";

#[tokio::test]
async fn a_file_is_checked_with_all_its_problems_and_a_valid_one_is_summed_up() {
    let shell = shell().await;
    shell.write("recipients.toml", BROKEN);
    let check = ["notify", "check-rules", "recipients.toml"];
    for place in [
        "recipients.toml:1: release_share: must be",
        "recipients.toml:4: categories.news.quiet: must be hold, digest_on_wake, drop or always",
    ] {
        shell.refused(&check, 78, place);
    }
    let said = shell.run(&check).err;
    let guide = read("docs/gates.md");
    assert!(
        guide.contains(&format!("$ flyball {}\n{said}```", check.join(" "))),
        "{said}"
    );
    shell.refused(
        &["notify", "check-rules", "none.toml"],
        3,
        "cannot read none.toml: No such file",
    );

    shell.write("recipients.toml", WEEKLY);
    let said = shell.ok(&check).out;
    for words in [
        "5 categories and 5 types",
        "sms 1 per 1d, 8 per 30d, 3 per 1w",
        "weekly",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let json = shell.ok(&[&check[..], &["--json"]].concat()).json();
    assert_eq!(json["categories"][0]["category"], "billing");
    assert_eq!(json["digests"][3]["template"], "week");
}

#[tokio::test]
async fn the_summary_has_the_mode_of_quiet_hours_of_every_channel() {
    let shell = shell().await;
    shell.write(
        "recipients.toml",
        "[categories.product]\nquiet = \"digest_on_wake\"\n\
         quiet_on = { email = \"always\", sms = \"drop\" }\n",
    );

    let check = ["notify", "check-rules", "recipients.toml", "--json"];
    let json = shell.ok(&check).json();

    let quiet = |category: &str| {
        let all = json["categories"].as_array().unwrap();
        let found = all.iter().find(|one| one["category"] == category);
        found.unwrap()["quiet"].clone()
    };
    assert_eq!(quiet("product"), "digest_on_wake; sms drop; email always");
    assert_eq!(quiet("billing"), "hold");
}

#[tokio::test]
async fn a_message_still_needs_its_channel_and_recipient() {
    let shell = shell().await;
    shell.refused(&["notify", "email"], 2, "<TO>");
    shell.refused(&["notify"], 2, "<CHANNEL>");
}

#[tokio::test]
async fn a_broken_file_stops_the_start() {
    let shell = shell()
        .await
        .with("FLYBALL_RECIPIENTS_FILE", "recipients.toml");
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    shell.refused(
        &serve,
        78,
        "cannot read recipients.toml (setting recipients_file)",
    );
    shell.write("recipients.toml", BROKEN);
    shell.refused(&serve, 78, "recipients.toml:1: release_share: must be");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_change_while_the_server_runs_and_a_type_with_open_digests_stays() {
    let shell = shell()
        .await
        .with("FLYBALL_RECIPIENTS_FILE", "recipients.toml");
    shell.write("recipients.toml", WEEKLY);
    let serve = Serve::start(&shell);
    valid(&serve, 1).await;

    shell.write("recipients.toml", BROKEN);
    valid(&serve, 0).await;
    shell.write("recipients.toml", WEEKLY);
    valid(&serve, 1).await;

    run(
        &shell,
        "insert into flyball.digest (tenant, type, recipient, channel, throttle, closes_at, items)
         select '', 'weekly', gen_random_uuid(), 'email', 'mail', now() + interval '1 day', 1
         from generate_series(1, 3)",
    )
    .await;
    shell.write("recipients.toml", "");
    valid(&serve, 0).await;
    run(&shell, "delete from flyball.digest").await;
    valid(&serve, 1).await;
}

/// Waits until the metric has this value.
async fn valid(serve: &Serve, value: u8) {
    let line = format!("flyball_recipient_rules_valid {value}");
    eventually(&line, SOON, || async {
        let text = serve.text("/metrics").await;
        text.lines().any(|found| found == line).then_some(())
    })
    .await;
}

async fn run(shell: &Shell, statement: &'static str) {
    let pool = shell.database.pool();
    sqlx::raw_sql(statement).execute(pool).await.unwrap();
}
