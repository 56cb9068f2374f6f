//! Messages and batches on the command line and over HTTP, beside a server of its own process.

use reqwest::Method;
use serde_json::{Value, json};

use super::shell::{Serve, Shell, shell};

const SETTINGS: &str = r#"
module_messages_per_minute = 1
problem_types = "https://errors.example/"

[pools.mail]
provider = "sendgrid"

[[pools.mail.accounts]]
name = "main"
from = "News <news@example.com>"
api_key_env = "SENDGRID_API_KEY"

[api_tokens.web]
tenant = "acme"
secret_env = "WEB_TOKEN"
scopes = ["notify:send", "notify:read"]

[api_tokens.night]
tenant = "acme"
module = "alarms"
secret_env = "NIGHT_TOKEN"
scopes = ["notify:send", "notify:critical"]

[api_tokens.other]
tenant = "zeta"
secret_env = "OTHER_TOKEN"
scopes = ["notify:send", "notify:read"]

[api_tokens.all]
tenant = "*"
secret_env = "ALL_TOKEN"
scopes = ["notify:send", "notify:critical", "notify:read"]

[api_tokens.plain]
secret_env = "PLAIN_TOKEN"
scopes = ["notify:send", "notify:read"]
"#;

/// A shell with a pool and tokens, in which no pool sends.
async fn sender() -> Shell {
    let shell = shell()
        .await
        .with("SENDGRID_API_KEY", "SG.0123456789abcdef")
        .with("WEB_TOKEN", "0123456789abc-web")
        .with("NIGHT_TOKEN", "0123456789abc-night")
        .with("OTHER_TOKEN", "0123456789abc-other")
        .with("ALL_TOKEN", "0123456789abc-all")
        .with("PLAIN_TOKEN", "0123456789abc-plain");
    shell.write("flyball.toml", SETTINGS);
    shell
}

struct Served {
    server: Serve,
    client: reqwest::Client,
}

impl Served {
    async fn start(shell: &Shell) -> Self {
        let server = Serve::start(shell);
        shell.ok(&["throttle", "pause", "mail"]);
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { server, client }
    }

    async fn ask(&self, token: &str, method: Method, path: &str, body: Value) -> reqwest::Response {
        let url = format!("{}/api/v1/notifications{path}", self.server.url);
        let request = self.client.request(method, url).bearer_auth(token);
        request.json(&body).send().await.unwrap()
    }

    async fn send(&self, token: &str, to: &str, priority: &str) -> reqwest::Response {
        let body = json!({"channel": "email", "to": to, "subject": "s", "body": "x", "priority": priority});
        self.ask(token, Method::POST, "", body).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_from_the_command_line_and_bad_input_is_named() {
    let shell = sender().await;
    let _served = Served::start(&shell).await;
    let plain = [
        "notify",
        "email",
        "ada@example.com",
        "--body",
        "x",
        "--more",
        r#"{"subject": "Hello"}"#,
    ];
    let with = |more: &[&'static str]| [&plain[..], more].concat();

    let said = shell.ok(&plain).out;
    assert!(
        said.starts_with("message ") && said.ends_with(" is queued\n"),
        "{said}"
    );
    // Another worker may have the pool.
    let elsewhere = shell.ok(&with(&["--pool", "mial"])).err;
    assert!(
        elsewhere
            .starts_with("flyball: there is no pool mial in the settings; they have inapp, mail"),
        "{elsewhere}"
    );
    // The address may come from the profile.
    let profile = r#"{"addresses": {"email": "ada@example.com"}}"#;
    shell.ok(&["recipient", "set", "ada", "--profile", profile]);
    let named = [
        "notify",
        "email",
        "--recipient",
        "ada",
        "--body",
        "x",
        "--more",
        r#"{"subject": "s"}"#,
    ];
    assert!(shell.ok(&named).out.ends_with(" is planning\n"));
    let unknown = [
        "notify",
        "email",
        "--recipient",
        "eve",
        "--body",
        "x",
        "--more",
        r#"{"subject": "s"}"#,
    ];
    shell.refused(
        &unknown,
        4,
        "to: must be given, because the recipient has no profile",
    );
    shell.refused(&["notify", "email", "--body", "x"], 2, "<TO>");
    let later = shell.ok(&with(&["--run-at", "2h"])).out;
    assert!(later.ends_with(" is scheduled\n"), "{later}");
    let unique = with(&["--unique-key", "once", "--json"]);
    assert_eq!(shell.ok(&unique).json()["status"], "queued");
    assert_eq!(shell.ok(&unique).json()["status"], "duplicate");

    let nowhere = json!({"provider": "z".repeat(100)}).to_string();
    let clipped = format!("provider \"{}…\" for the channel email", "z".repeat(40));
    for (args, words) in [
        (&["notify", "fax", "x"][..], "channel: must be"),
        (
            &["notify", "email", "a@b.c", "--more", nowhere.as_str()],
            clipped.as_str(),
        ),
        (&["notify", "email", "nobody", "--body", "x"], "to: must be"),
        (
            &[
                "notify",
                "sms",
                "+15550100",
                "--body",
                "x",
                "--local-time",
                "9:00",
            ],
            "local_time: must be a time of the recipient's clock as HH:MM",
        ),
        (&["notify", "check", "fax", "x"], "channel: must be one of"),
        (&["notify", "check", "email", "nobody"], "to: must be"),
        (&["notify", "email", "ada@example.com"], "body: "),
        (&with(&["--priority", "urgent"]), "priority: must be"),
        (
            &["notify", "email", "a@b.c", "--more", "[1]"],
            "more: must be a JSON object",
        ),
        (
            &[
                "notify",
                "email",
                "a@b.c",
                "--more",
                r#"{"to": "b@b.c", "body": "x"}"#,
            ],
            "more: must be without to, which the command line gives as well",
        ),
        (
            &[
                "notify",
                "email",
                "a@b.c",
                "--body",
                "x",
                "--more",
                r#"{"subjekt": "x"}"#,
            ],
            "subjekt: ",
        ),
        (
            &["notify", "sms", "+15550100", "--body", "x"],
            "channel: there is no pool for the channel sms; pools are inapp, mail",
        ),
        (
            &with(&["--tenant", "a b"]),
            "\"a b\" is not a tenant; use 1 to 64 letters",
        ),
        (&with(&["--pool", "notify:acme"]), "takes no jobs"),
        (&with(&["--unique-key", ""]), "unique_key: "),
    ] {
        shell.refused(args, 4, words);
    }
    for (args, words) in [
        (with(&["--module", "web"]), "--tenant"),
        (with(&["--run-at", "soon"]), "allowed are a time such as"),
        (vec!["notify", "email"], "<TO>"),
    ] {
        shell.refused(&args, 2, words);
    }
    let jobs: i64 =
        sqlx::query_scalar("select count(*) from flyball.job where kind = 'notification'")
            .fetch_one(shell.database.pool())
            .await
            .unwrap();
    assert_eq!(jobs, 5);

    // A full queue of the tenant can be tried again later.
    sqlx::query("insert into flyball.tenant_limit values ('full', 1)")
        .execute(shell.database.pool())
        .await
        .unwrap();
    let full = with(&["--tenant", "full", "--module", "web"]);
    shell.ok(&full);
    shell.refused(
        &full,
        75,
        "tenant \"full\": 1 messages are pending; the limit is 1",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_message_waits_and_the_command_line_tells_how_long_and_why() {
    let shell = sender().await;
    let served = Served::start(&shell).await;
    let web = &shell.variables["WEB_TOKEN"];
    // The module's only slot of this minute.
    assert_eq!(served.send(web, "a@b.c", "normal").await.status(), 202);
    let said = shell.ok(&[
        "notify",
        "email",
        "ada@example.com",
        "--body",
        "x",
        "--more",
        r#"{"subject": "s"}"#,
        "--tenant",
        "acme",
        "--module",
        "web",
    ]);
    assert!(
        said.out
            .contains(" is held: it waits for the limits of tenant acme, until about 2"),
        "{}",
        said.out
    );
    let why = shell.ok(&["why", "notify:acme"]).out;
    assert!(
        why.starts_with(
            "at most 100 messages a minute, and for each module 1 message a minute, set by flyball"
        ),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_shown_paused_resumed_and_cancelled_on_the_command_line() {
    let shell = sender().await;
    let served = Served::start(&shell).await;
    let web = &shell.variables["WEB_TOKEN"];
    let body = json!({"channel": "email", "subject": "s", "body": "x", "recipients": ["a@b.c", "d@e.f", "g@h.i"]});
    let sent = served.ask(web, Method::POST, "/batch", body).await;
    assert_eq!(sent.status(), 202);
    let id = sent.json::<Value>().await.unwrap()["id"].to_string();
    let id = id.as_str();

    let shown = shell.ok(&["batch", "show", id]).out;
    assert!(
        shown.starts_with(&format!(
            "batch {id} of tenant acme is running; its 3 messages: 1 queued, 2 waiting\nthe limits let the last one go at about 2"
        )),
        "{shown}"
    );
    let shown = shell.ok(&["batch", "show", id, "--json"]).json();
    assert_eq!(shown["counts"], json!({"queued": 1, "waiting": 2}));
    // Without Redis nobody knows when the last one goes.
    let mut away = shell.command(&["batch", "show", id]);
    let away = away
        .env("REDIS_URL", "redis://127.0.0.1:1")
        .output()
        .unwrap();
    let said = String::from_utf8(away.stdout).unwrap();
    assert!(
        away.status.success()
            && said.contains("2 waiting\nwhen the limits let the last one go is not known: "),
        "{said}"
    );
    let says = |command: &str, words: &str| {
        let said = shell
            .ok(&["batch", command, id, "--why", "a wrong list"])
            .out;
        assert_eq!(said, format!("batch {id} is {words}\n"));
    };
    says("pause", "paused");
    says("pause", "paused");
    says("resume", "running");
    let paused = shell.ok(&["batch", "pause", id, "--json"]).json();
    assert_eq!(paused["state"], "paused");
    says(
        "cancel",
        "cancelled: 0 messages were sent, 3 will not be sent, 0 are being sent",
    );
    for change in ["pause", "resume"] {
        shell.refused(
            &["batch", change, id],
            4,
            &format!("batch {id} is cancelled and cannot be {change}d"),
        );
    }
    let again = shell.ok(&["batch", "cancel", id, "--json"]).json();
    assert_eq!(
        again,
        json!({"state": "cancelled", "sent": 0, "cancelled": 3, "too_late": 0, "ended": {}})
    );
    for command in ["show", "pause", "resume", "cancel"] {
        shell.refused(&["batch", command, "999"], 3, "there is no batch 999");
        for bad in ["0", "-1", "x", "99999999999999999999"] {
            shell.refused(&["batch", command, bad], 2, bad);
        }
        shell.refused(&["batch", command], 2, "<ID>");
    }
    // What changed a batch is in the audit log, once.
    let log: Vec<(String, String, String, String)> = sqlx::query_as(
        "select actor, action, subject, why from flyball.audit where action like 'batch.%' order by id",
    )
    .fetch_all(shell.database.pool())
    .await
    .unwrap();
    let told: Vec<&str> = log.iter().map(|line| line.1.as_str()).collect();
    assert_eq!(
        told,
        ["batch.pause", "batch.resume", "batch.pause", "batch.cancel"]
    );
    let (actor, _, subject, why) = &log[0];
    assert_eq!([actor, subject, why], ["tester", id, "a wrong list"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_send_as_their_tenant_with_their_scopes() {
    let shell = sender().await;
    let served = Served::start(&shell).await;
    let token = |name: &str| shell.variables[format!("{name}_TOKEN").as_str()].clone();
    let (web, night) = (token("WEB"), token("NIGHT"));
    let remaining = |answer: &reqwest::Response| {
        let value = answer.headers().get("x-ratelimit-remaining-module");
        value.map(|value| value.to_str().unwrap().to_owned())
    };

    let refused = served.send(&web, "a@b.c", "critical").await;
    assert_eq!(refused.status(), 403);
    assert_eq!(remaining(&refused).as_deref(), Some("1"));
    let body: Value = refused.json().await.unwrap();
    assert!(
        body["detail"].as_str().unwrap().contains("notify:critical"),
        "{body}"
    );
    let sent = served.send(&web, "a@b.c", "normal").await;
    assert_eq!(
        (sent.status().as_u16(), remaining(&sent).as_deref()),
        (202, Some("0"))
    );
    let location = sent.headers()["location"].to_str().unwrap().to_owned();
    let waits = served.send(&web, "b@b.c", "high").await;
    assert_eq!(waits.status(), 429);
    let kind = waits.json::<Value>().await.unwrap()["type"].clone();
    assert_eq!(kind, "https://errors.example/rate-limit-exceeded");
    // The other module has a slot of its own, and its critical messages need none.
    for n in 0..2 {
        let sent = served.send(&night, &format!("n{n}@b.c"), "critical").await;
        assert_eq!(sent.status(), 202);
        assert_eq!(sent.json::<Value>().await.unwrap()["priority"], "critical");
    }
    let waits = served.send(&night, "n2@b.c", "normal").await;
    assert_eq!(waits.status(), 429);

    // Another tenant does not see the message, and those of all tenants do.
    let id = location.rsplit('/').next().unwrap();
    let look = async |token: &str| {
        let found = served
            .ask(token, Method::GET, &format!("/{id}"), json!({}))
            .await;
        found.status().as_u16()
    };
    assert_eq!(look(&token("OTHER")).await, 404);
    for all in ["ALL", "PLAIN"] {
        assert_eq!(look(&token(all)).await, 200, "{all}");
        // It has no tenant, so no limit of one.
        for n in 0..3 {
            let sent = served
                .send(&token(all), &format!("{all}{n}@b.c"), "normal")
                .await;
            assert_eq!((sent.status().as_u16(), remaining(&sent)), (202, None));
        }
    }
    assert_eq!(
        served
            .send(&token("ALL"), "a@b.c", "critical")
            .await
            .status(),
        202
    );
    let plain = served.send(&token("PLAIN"), "a@b.c", "critical").await;
    assert_eq!(plain.status(), 403, "it lacks the scope");
    let whose: Vec<(String, String)> = sqlx::query_as(
        "select distinct tenant, module from flyball.job where kind = 'notification' and tenant <> '' order by 1, 2",
    )
    .fetch_all(shell.database.pool())
    .await
    .unwrap();
    let named = |tenant: &str, module: &str| (tenant.to_owned(), module.to_owned());
    assert_eq!(whose, [named("acme", "alarms"), named("acme", "web")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_runs_a_held_message_now_reads_that_its_gates_are_asked_again() {
    let shell = sender().await;
    shell.ok(&["migrate"]);
    let held = |more: &str| {
        let args = format!(
            r#"{{"channel": "email", "to": "ada@example.com", "subject": "s", "body": "x"{more}}}"#
        );
        let enqueue = [
            "enqueue",
            "notification",
            "--args",
            args.as_str(),
            "--run-at",
            "2h",
        ];
        let enqueued = shell.ok(&[&enqueue[..], &["--json"]].concat()).json();
        enqueued["jobs"][0]["id"].to_string()
    };
    let (plain, gated, read) = (
        held(""),
        held(r#", "category": "news""#),
        held(r#", "category": "news""#),
    );

    assert_eq!(
        shell.ok(&["job", "retry", &plain]).out,
        format!("job {plain} is ready\n")
    );
    assert_eq!(
        shell.ok(&["job", "retry", &gated]).out,
        format!(
            "job {gated} is ready; the gates of its recipient are asked again before it is sent, \
             and may hold it once more: flyball why --message {gated}\n"
        )
    );
    assert_eq!(
        shell.ok(&["job", "retry", &read, "--json"]).json()["result"],
        "ready"
    );
}
