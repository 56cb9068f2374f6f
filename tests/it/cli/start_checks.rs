//! Settings with which no server starts: `flyball serve` refuses them before it reaches a server,
//! and the doctor names them.

use super::shell::{Shell, shell};

/// A shell whose database nobody can reach.
async fn without_postgres() -> Shell {
    let nowhere = "postgres://nobody@127.0.0.1:1/none";
    shell().await.with("DATABASE_URL", nowhere)
}

/// Checks that both name the fault.
fn is_named(shell: &Shell, serve: &[&str], words: &str) {
    shell.refused(serve, 78, words);
    let report = shell.run(&["doctor", "--json"]);
    assert_eq!(report.code, 1, "{}{}", report.out, report.err);
    let named = report.json()["checks"]
        .as_array()
        .unwrap()
        .iter()
        .any(|one| {
            one["check"] == "settings"
                && one["status"] == "fail"
                && one["seen"].as_str().unwrap().contains(words)
        });
    assert!(named, "{words}: {}", report.out);
}

const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

#[tokio::test(flavor = "multi_thread")]
async fn variables_that_cannot_be_used_are_named_before_postgres_is_reached() {
    for (variable, value, words) in [
        (
            "FLYBALL_SERVE_KINDS",
            "nope",
            "FLYBALL_SERVE_KINDS (setting serve_kinds): must be kinds of this process",
        ),
        (
            "FLYBALL_ALLOW_URLS",
            "10.1.0.0/99",
            "FLYBALL_ALLOW_URLS (setting allow_urls): \"10.1.0.0/99\" is not a host name",
        ),
        (
            "FLYBALL_WEBHOOK_SECRET_ACME",
            "short",
            "FLYBALL_WEBHOOK_SECRET_ACME: cannot be used: it must be",
        ),
        (
            "PROMETHEUS_URL",
            "http://",
            "PROMETHEUS_URL (setting prometheus_url): signal address \"http://\" is not allowed",
        ),
        (
            "DATABASE_DIRECT_URL",
            "postgres://[",
            "DATABASE_DIRECT_URL (setting database_direct_url): must be a URL like",
        ),
        (
            "FLYBALL_METRICS_LISTEN",
            "banana",
            "FLYBALL_METRICS_LISTEN \"banana\" is not an address",
        ),
        (
            "FLYBALL_METRICS_LISTEN",
            "0.0.0.0:0",
            "without a token; set FLYBALL_API_TOKEN, or FLYBALL_METRICS_LISTEN=127.0.0.1:8080",
        ),
        (
            "FLYBALL_LOG",
            "flyball=loud",
            "FLYBALL_LOG (setting log): must be error, warn",
        ),
    ] {
        let shell = without_postgres().await.with(variable, value);
        is_named(&shell, &SERVE, words);
    }
    let open = without_postgres().await.with("FLYBALL_LISTEN", "0.0.0.0:0");
    is_named(
        &open,
        &["serve"],
        "without a token; set FLYBALL_API_TOKEN, or FLYBALL_LISTEN=127.0.0.1:8080",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_url_that_cannot_be_parsed_is_named_by_every_command() {
    let words = "DATABASE_URL (setting database_url): must be a URL like postgres://";
    for url in [
        "postgres://ann:s3cret-word@127.0.0.1:port/x",
        "postgres://ann:s3cret-word@one:5432,two:5432/x",
        "postgres://ann:s3cret-word@127.0.0.1/x?sslmode=maybe",
    ] {
        let shell = shell().await.with("DATABASE_URL", url);
        for args in [&SERVE[..], &["migrate"], &["job", "list"]] {
            shell.refused(args, 78, words);
            let printed = shell.run(args);
            assert!(!printed.err.contains("s3cret-word"), "{}", printed.err);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_alerts_that_no_variable_defines_is_warned_about() {
    let shell = shell()
        .await
        .with("SENDGRID_API_KEY", "SG.0123456789abcdef");
    shell.write(
        "flyball.toml",
        "[pools.mail]\nprovider = \"sendgrid\"\nalert_url = \"https://example.com/on-call\"\nalert_secret = \"alerts\"\n\
         [[pools.mail.accounts]]\nname = \"main\"\nfrom = \"News <news@example.com>\"\napi_key_env = \"SENDGRID_API_KEY\"\n",
    );
    let words = "pools.mail.alert_secret: no variable defines the secret \"alerts\"; its alerts wait \
                 for a worker with FLYBALL_WEBHOOK_SECRET_ALERTS";

    let report = shell.ok(&["doctor"]).out;
    // Without a token it does not start, after it has warned.
    let serve = ["serve", "--listen", "0.0.0.0:0"];
    let refused = shell.run(&serve);

    assert!(
        report.contains(&format!("warn settings   {words}")),
        "{report}"
    );
    assert!(refused.err.contains(words), "{}", refused.err);
    let secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3";
    let set = shell.with("FLYBALL_WEBHOOK_SECRET_ALERTS", secret);
    assert!(!set.ok(&["doctor"]).out.contains("alert_secret"));
    assert!(!set.run(&serve).err.contains("alert_secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_and_knobs_files_that_cannot_be_used_are_named_before_postgres_is_reached() {
    let shell = without_postgres().await;
    for (text, words) in [
        (
            "[prometheus.east]\nurl = \"http://east\"\ntoken_env = \"NOT_SET\"\n",
            "settings of [prometheus.east]: token_env: the environment variable NOT_SET is not set",
        ),
        (
            "[prometheus.east]\nurl = \"http://east\"\nheaders = { \"a b\" = \"c\" }\n",
            "one of its headers has no such name",
        ),
        (
            "[prometheus.east]\nurl = \"https://east\"\nca_file = \"none.pem\"\n",
            "settings of [prometheus.east]: ca_file cannot be read",
        ),
        (
            "[postgres.shop]\nurl_env = \"NOT_SET\"\n",
            "settings of [postgres.shop]: url_env: the environment variable NOT_SET is not set",
        ),
        (
            "[postgres.shop]\nurl_file = \"none\"\n",
            "settings of [postgres.shop]: url_file: the file none cannot be read",
        ),
        (
            "[jwt]\nissuer = \"i\"\naudience = [\"a\"]\nalgorithms = [\"HS256\"]\nsecret_env = \"NOT_SET\"\n",
            "jwt.secret_env: must name an environment variable that is set",
        ),
    ] {
        shell.write("flyball.toml", text);
        is_named(&shell, &SERVE, words);
    }
    shell.write("flyball.toml", "");
    shell.write(
        "knobs/search.toml",
        "[knobs]\nrps = 5\n[governor]\n[[signal]]\nname = \"load\"\nserver = \"west\"\nquery = \"load\"\nsetpoint = 2\n",
    );
    is_named(
        &shell,
        &SERVE,
        "knobs/search.toml: prometheus \"west\" cannot be used",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_leads_nowhere_is_not_taken_for_nothing() {
    let shell = without_postgres().await;
    for (name, words) in [
        (
            "flyball.toml",
            "cannot read flyball.toml, a link to nowhere: No such file",
        ),
        ("knobs", "knobs: cannot be read: No such file"),
    ] {
        let link = shell.folder.path().join(name);
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        is_named(&shell, &SERVE, words);
        std::fs::remove_file(link).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_has_a_line_for_each_fault_of_a_file() {
    let shell = without_postgres().await;
    shell.write("knobs/bad.toml", "[knobs]\nrps = \"fast\"\nburts = 1\n");
    shell.write(
        "settings.toml",
        "colour = 1\n\n[kinds.mail]\ntimeout_s = 0\n",
    );
    for (arguments, starts) in [
        (
            &["doctor"][..],
            [
                "knobs/bad.toml:2: knobs.rps: ",
                "knobs/bad.toml:3: knobs.burts: ",
            ],
        ),
        (
            &["doctor", "--config", "settings.toml"],
            [
                "settings.toml:1: colour: ",
                "settings.toml:4: kinds.mail.timeout_s: ",
            ],
        ),
    ] {
        let printed = shell.run(arguments);
        for start in starts {
            let start = format!("fail settings   {start}");
            let named = printed.out.lines().any(|line| line.starts_with(&start));
            assert!(named, "{start}: {}", printed.out);
        }
    }
}
