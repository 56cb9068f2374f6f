//! Profiles of recipients: by SQL and by the store, and everything that is erased with one.

use std::time::Duration;

use flyball::jobs::{Attribution, NewJob, Queue};
use flyball::notify::{Attempt, Deliveries, DeliveryState, DeliveryUpdate};
use flyball::providers::{Channel, Recipient};
use flyball::recipient::address::RecipientKey;
use flyball::recipient::new_recipient::NewRecipient;
use flyball::recipient::postgres::RecipientProfiles;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor};

use crate::support::{Database, database};

/// An address that SQL cannot read.
const FAR: &str = "Ada <ada@bücher.example>";

async fn store() -> (Database, Queue, RecipientProfiles) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 4, Duration::from_secs(20))
        .await
        .unwrap();
    let profiles = RecipientProfiles::new(queue.pool.clone());
    (database, queue, profiles)
}

fn new(id: &str, profile: Value) -> NewRecipient {
    NewRecipient {
        id: id.to_owned(),
        profile,
    }
}

fn signed() -> Attribution {
    Attribution {
        by: "ann".to_owned(),
        why: "a test".to_owned(),
        ..Attribution::default()
    }
}

async fn run(database: &Database, sql: &str) {
    database
        .pool()
        .execute(AssertSqlSafe(sql.to_owned()))
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn value(database: &Database, sql: &str) -> Value {
    let sql = AssertSqlSafe(format!("select to_jsonb(({sql}))"));
    let found: Option<Value> = sqlx::query_scalar(sql)
        .fetch_one(database.pool())
        .await
        .unwrap();
    found.unwrap_or_default()
}

async fn refusal(database: &Database, sql: &str) -> String {
    let sql = AssertSqlSafe(format!("select flyball.{sql}"));
    database.pool().execute(sql).await.unwrap_err().to_string()
}

/// The lines of the audit log: action, subject and the rest.
async fn audit(database: &Database) -> Vec<(String, String, String)> {
    sqlx::query_as(
        "select action, subject, coalesce(before::text, '') || coalesce(after::text, '') from flyball.audit order by id",
    )
    .fetch_all(database.pool())
    .await
    .unwrap()
}

fn hex(key: &RecipientKey) -> String {
    key.as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn key(tenant: &str, channel: Channel, to: &str) -> RecipientKey {
    RecipientKey::of_address(tenant, &Recipient::parse(channel, to).unwrap())
}

#[tokio::test]
async fn keys_are_the_same_in_sql() {
    let (database, ..) = store().await;
    for (tenant, channel, to) in [
        ("acme", Channel::Email, "Ada <ADA@example.com>"),
        ("", Channel::Sms, "+1 (555) 010-0000"),
        ("a/b:c", Channel::Push, "abc"),
        ("acme", Channel::Chat, "@News"),
        ("acme", Channel::Webhook, "https://hooks.example.com"),
    ] {
        let known = hex(&key(tenant, channel, to));
        let word = channel.as_str();
        let made: String = sqlx::query_scalar(
            "select replace(flyball.recipient_key('address', $1, $2, flyball.normal_recipient($2, $3))::text, '-', '')",
        )
        .bind(tenant)
        .bind(word)
        .bind(to)
        .fetch_one(database.pool())
        .await
        .unwrap();
        assert_eq!(made, known, "{word} {to}");
        for id in ["user-7", "Jürgen 😀", "a"] {
            let known = hex(&RecipientKey::of_subscriber(tenant, channel, id));
            let is_among: bool =
                sqlx::query_scalar("select $1::uuid = any(flyball.recipient_keys($2, $3, null))")
                    .bind(&known)
                    .bind(tenant)
                    .bind(id)
                    .fetch_one(database.pool())
                    .await
                    .unwrap();
            assert!(is_among, "{word} {id}");
        }
    }
}

#[tokio::test]
async fn a_profile_is_set_shown_and_changed_by_sql() {
    let (database, _, profiles) = store().await;
    let set = "flyball.set_recipient('ada', '{\"addresses\": {\"email\": \"ada@example.com\"}, \"time_zone\": null}')";
    assert_eq!(value(&database, set).await, true);
    assert_eq!(value(&database, set).await, false);
    let shown = value(&database, "flyball.recipient('ada')").await;
    assert_eq!(
        (&shown["id"], &shown["addresses"], shown.get("time_zone")),
        (&json!("ada"), &json!({"email": "ada@example.com"}), None)
    );
    assert_eq!(
        value(&database, "flyball.recipient('bob')").await,
        Value::Null
    );
    // The store has the same rows, and an operator may act for a tenant.
    assert!(profiles.find("", "ada").await.unwrap().is_some());
    run(
        &database,
        "begin; select flyball.as_tenant('acme'); select flyball.set_recipient('bob', '{}'); commit",
    )
    .await;
    assert!(profiles.find("acme", "bob").await.unwrap().is_some());
    assert!(profiles.find("", "bob").await.unwrap().is_none());

    let zone = "flyball.set_recipient_defaults('{\"time_zone\": \"Asia/Tokyo\"}')";
    assert_eq!(value(&database, zone).await, true);
    assert_eq!(value(&database, zone).await, false);
    let defaults = profiles.defaults("").await.unwrap();
    assert_eq!(defaults.profile, json!({"time_zone": "Asia/Tokyo"}));

    let lines = audit(&database).await;
    let actions: Vec<(&str, &str)> = lines
        .iter()
        .map(|(action, subject, _)| (action.as_str(), subject.as_str()))
        .collect();
    assert_eq!(
        actions,
        [
            ("recipient.set", "ada"),
            ("recipient.set", "bob"),
            ("recipient.defaults", "")
        ],
        "what changes nothing is no line"
    );
    assert!(
        lines[0].2.contains("\"channels\": [\"email\"]"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn sql_refuses_another_shape_and_never_shows_an_address() {
    let (database, ..) = store().await;
    for (call, told) in [
        (
            "set_recipient('', '{}')",
            "id: must be a text of 1 to 128 bytes",
        ),
        ("set_recipient('check', '{}')", "id: must not be check"),
        (
            "set_recipient('a', 'null')",
            "profile: must be a JSON object",
        ),
        (
            "set_recipient('a', '\"ada@example.com\"')",
            "profile: must be a JSON object",
        ),
        (
            "set_recipient('a', '{\"zone\": 1}')",
            "zone: is not a field",
        ),
        (
            "set_recipient('a', '{\"addresses\": \"ada@example.com\"}')",
            "addresses: must be an object",
        ),
        (
            "set_recipient('a', '{\"addresses\": {\"ada@example.com\": 1}}')",
            "addresses: has a name that is no channel",
        ),
        (
            "set_recipient('a', '{\"addresses\": {\"sms\": [\"ada@example.com\"]}}')",
            "addresses.sms: must be a text",
        ),
        (
            "set_recipient('a', '{\"time_zone\": \"Mars/Base\"}')",
            "time_zone: must be the IANA name",
        ),
        (
            "set_recipient('a', '{\"quiet_hours\": {\"sms\": {\"from\": 1}}}')",
            "quiet_hours.sms: must be an object; its fields are start",
        ),
        (
            "set_recipient('a', '{\"preferences\": {\"news\": true}}')",
            "preferences: must have the fields all",
        ),
        (
            "set_recipient_defaults('{\"addresses\": {}}')",
            "addresses: is not a field",
        ),
        ("delete_recipient(null)", "id: must be a text"),
    ] {
        let error = refusal(&database, call).await;
        assert!(error.contains(told), "{call}: {error}");
        assert!(!error.contains("ada@example"), "{call}: {error}");
    }
    assert_eq!(audit(&database).await, []);
}

#[tokio::test]
async fn sql_takes_the_zones_that_programs_take() {
    let (database, ..) = store().await;
    for zone in ["Europe/Berlin", "UTC", "Etc/GMT+5", "NZ-CHAT", "EST5EDT"] {
        let set = format!("flyball.set_recipient('{zone}', '{{\"time_zone\": \"{zone}\"}}')");
        assert_eq!(value(&database, &set).await, true, "{zone}");
    }
    for zone in [
        "localtime",
        "posixrules",
        "Factory",
        "posix/Europe/Berlin",
        "right/Europe/Berlin",
        "Pacific/Auckland5",
        "Europe/Berlin-1",
        "Abc/Def5",
        "Etc/GMT+13",
        "CEST",
    ] {
        let set = format!("set_recipient('a', '{{\"device_time_zone\": \"{zone}\"}}')");
        let told = refusal(&database, &set).await;
        assert!(
            told.contains("device_time_zone: must be the IANA name"),
            "{zone}: {told}"
        );
    }
}

#[tokio::test]
async fn a_role_reaches_the_recipients_of_its_tenant_alone() {
    let (database, _, profiles) = store().await;
    let role = format!("crm_{}", &crate::support::unique()[..8]);
    let mut connection = database.superuser().acquire().await.unwrap();
    let rights = format!(
        "create role {role}; grant usage on schema flyball to {role};
         grant execute on function flyball.set_recipient, flyball.recipient, flyball.delete_recipient to {role}"
    );
    connection.execute(AssertSqlSafe(rights)).await.unwrap();
    let all = [new("ada", json!({"time_zone": "UTC"}))];
    for tenant in ["", "zeta"] {
        profiles.put(tenant, &all, &signed()).await.unwrap();
    }
    let act = format!("set role {role}");
    connection.execute(AssertSqlSafe(act)).await.unwrap();
    let refused = connection
        .execute("select flyball.recipient('ada')")
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("has no tenant"), "{refused}");

    let tenant = format!("insert into flyball.producer (role, tenant) values ('{role}', 'acme')");
    run(&database, &tenant).await;
    let seen: Option<Value> = sqlx::query_scalar("select flyball.recipient('ada')")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(seen, None);
    // A setting is no right.
    connection
        .execute("set flyball.tenant = 'zeta'; select flyball.set_recipient('ada', '{}', by => 'root'); select flyball.delete_recipient('ada')")
        .await
        .unwrap();
    for tenant in ["", "zeta"] {
        assert!(profiles.find(tenant, "ada").await.unwrap().is_some());
    }
    let actors: Vec<String> =
        sqlx::query_scalar("select actor from flyball.audit where after ->> 'tenant' = 'acme'")
            .fetch_all(database.pool())
            .await
            .unwrap();
    assert_eq!(actors, [role.clone(), role.clone()]);
    let refused = connection
        .execute("select flyball.erase_recipient('zeta', 'ada', '{}', '{}', '', '')")
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("permission denied"), "{refused}");
    connection.execute("reset role").await.unwrap();
    let gone = format!("drop owned by {role}; drop role {role}");
    connection.execute(AssertSqlSafe(gone)).await.unwrap();
}

#[tokio::test]
async fn an_import_is_one_change_and_one_line() {
    let (database, _, profiles) = store().await;
    let many: Vec<NewRecipient> = (0..1000)
        .map(|n| new(&format!("user-{n:03}"), json!({"time_zone": "UTC"})))
        .collect();
    let put = profiles.put("acme", &many, &signed()).await.unwrap();
    assert_eq!((put.created, put.changed), (1000, 0));
    let put = profiles.put("acme", &many[..10], &signed()).await.unwrap();
    assert_eq!((put.created, put.changed), (0, 0));
    let other = [new("user-001", json!({})), new("user-xyz", json!({}))];
    let put = profiles.put("acme", &other, &signed()).await.unwrap();
    assert_eq!((put.created, put.changed), (1, 1));
    let first = profiles.list("acme", "", 3).await.unwrap();
    let next = profiles.list("acme", &first[2].id, 2).await.unwrap();
    let ids: Vec<&str> = first
        .iter()
        .chain(&next)
        .map(|one| one.id.as_str())
        .collect();
    assert_eq!(
        ids,
        ["user-000", "user-001", "user-002", "user-003", "user-004"]
    );
    assert_eq!(profiles.list("zeta", "", 3).await.unwrap(), []);
    let lines = audit(&database).await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0].2, "{\"changed\": 0, \"created\": 1000}");
}

/// Puts something about a recipient into every table that knows recipients by a key. Its claim is that
/// of a message that is kept.
async fn traces(database: &Database, key: &RecipientKey, job: i64, kept: i64) {
    let key = hex(key);
    run(
        database,
        &format!("insert into flyball.cap values ('{key}', 1, '{{5}}'), ('{key}', 2, '{{5}}')"),
    )
    .await;
    run(
        database,
        &format!("insert into flyball.cap_reservation values ('{key}', 1, 9, {job}, false)"),
    )
    .await;
    run(
        database,
        &format!(
            "insert into flyball.dedup values (flyball.first_claim('{key}') + {job}, {kept}, -9)"
        ),
    )
    .await;
    run(
        database,
        &format!(
            "with made as (
                insert into flyball.digest (tenant, type, recipient, channel, address, throttle, closes_at, items)
                values ('acme', 'daily-{job}', '{key}', 'email', 'ada@example.com', 'mail', now(), 1) returning id),
             item as (insert into flyball.digest_item (digest_id, job_id, item, at)
                select id, {job}, '{{\"to\": \"ada\"}}', now() from made)
             insert into flyball.message_plan (job_id, recipient, state, gate, digest_id) select {job}, '{key}', 'collected', 'digest', id from made"
        ),
    )
    .await;
}

async fn counts(database: &Database) -> Vec<i64> {
    let mut all = Vec::new();
    for of in [
        "recipient",
        "cap",
        "cap_reservation",
        "dedup",
        "digest",
        "digest_item",
        "delivery where recipient_digest is not null",
    ] {
        let sql = AssertSqlSafe(format!("select count(*) from flyball.{of}"));
        let count = sqlx::query_scalar(sql).fetch_one(database.pool()).await;
        all.push(count.unwrap());
    }
    all
}

/// Sends a message of a tenant, whose provider quotes the address.
async fn send(queue: &Queue, deliveries: &Deliveries, tenant: &str, to: &str) -> i64 {
    let args = json!({"channel": "email", "to": to, "body": "hello"});
    let job = NewJob::new("notification", args).throttle("mail");
    let owner = format!("tenant:{tenant}");
    let id = queue.enqueue_for(&owner, "", &[job]).await.unwrap()[0].id;
    let attempt = Attempt {
        at: jiff::Timestamp::UNIX_EPOCH,
        account: "a1".to_owned(),
        outcome: "permanent_recipient",
        status: "550".to_owned(),
        reason: format!("<{to}> is unknown"),
        took: Duration::from_millis(12),
    };
    let update = DeliveryUpdate {
        job_id: id,
        channel: Channel::Email,
        pool: "mail".to_owned(),
        provider: "sendgrid",
        account: Some("a1".to_owned()),
        state: DeliveryState::Bounced,
        provider_id: None,
        recipient: Some(Recipient::parse(Channel::Email, to).unwrap()),
        category: String::new(),
        attempts: vec![attempt],
        suppress: None,
        met: None,
    };
    deliveries.record(update).await.unwrap();
    id
}

#[tokio::test]
async fn erasing_leaves_nothing_of_a_recipient_and_everything_of_the_others() {
    let (database, queue, profiles) = store().await;
    let deliveries = Deliveries::new(queue.pool.clone());
    let ada = json!({"addresses": {"email": FAR, "sms": "+15550100000"}});
    let recipients = [new("ada", ada.clone()), new("bob", json!({}))];
    profiles.put("acme", &recipients, &signed()).await.unwrap();
    profiles
        .put("zeta", &recipients[..1], &signed())
        .await
        .unwrap();
    let of_ada = [
        key("acme", Channel::Email, FAR),
        key("acme", Channel::Sms, "+15550100000"),
        RecipientKey::of_subscriber("acme", Channel::Push, "ada"),
    ];
    let of_others = [
        key("zeta", Channel::Email, FAR),
        key("acme", Channel::Email, "bob@example.com"),
        RecipientKey::of_subscriber("acme", Channel::Push, "bob"),
    ];
    let sent = send(&queue, &deliveries, "acme", FAR).await;
    let other = send(&queue, &deliveries, "zeta", FAR).await;
    for (key, job) in of_ada.iter().zip(1..) {
        traces(&database, key, job, sent).await;
    }
    for (key, job) in of_others.iter().zip(4..) {
        traces(&database, key, job, other).await;
    }
    send(&queue, &deliveries, "acme", "bob@example.com").await;
    assert_eq!(counts(&database).await, [3, 12, 6, 6, 6, 6, 3]);

    let erased = profiles.erase("acme", "ada", &signed()).await.unwrap();
    assert_eq!(
        serde_json::to_value(erased).unwrap(),
        json!({"profile": true, "caps": 6, "reservations": 3, "claims": 3, "digests": 3, "items": 3, "messages": 1, "cancelled": 1, "arguments": 1, "inbox": 0})
    );
    assert_eq!(counts(&database).await, [2, 6, 3, 3, 3, 3, 2]);
    let record = value(
        &database,
        &format!("select to_jsonb(d) from flyball.delivery d where job_id = {sent}"),
    )
    .await
    .to_string();
    assert!(
        !record.contains("bücher") && !record.contains("***"),
        "{record}"
    );
    let plans: Vec<(i64, String, String)> =
        sqlx::query_as("select job_id, state, reason from flyball.message_plan order by job_id")
            .fetch_all(database.pool())
            .await
            .unwrap();
    let states: Vec<&str> = plans.iter().map(|(_, state, _)| state.as_str()).collect();
    let (ended, open) = ("ended", "collected");
    assert_eq!(states, [ended, ended, ended, open, open, open]);

    // Nothing is left to erase, and that is no line of the log.
    let again = profiles.erase("acme", "ada", &signed()).await.unwrap();
    assert_eq!(again, Default::default());
    let lines = audit(&database).await;
    assert_eq!(lines.len(), 3, "{lines:?}");
    let erased = value(&database, "flyball.erased_name('acme', 'ada')").await;
    let erased = erased.as_str().unwrap().to_owned();
    assert_eq!(
        (lines[2].0.as_str(), lines[2].1.as_str()),
        ("recipient.delete", erased.as_str())
    );
    for (_, subject, rest) in &lines {
        assert!(!format!("{subject}{rest}").contains('@'), "{lines:?}");
    }
}

#[tokio::test]
async fn sql_erases_what_it_can_read_and_masks_an_id_that_is_an_address() {
    let (database, _, profiles) = store().await;
    let profile = json!({"addresses": {"email": "Ada <Ada@Example.com>"}});
    let recipients = [new("ada@example.com", profile)];
    profiles.put("", &recipients, &signed()).await.unwrap();
    traces(&database, &key("", Channel::Email, "ada@example.com"), 1, 1).await;
    let erased = value(&database, "flyball.delete_recipient('ada@example.com')").await;
    assert_eq!(
        (&erased["profile"], &erased["caps"], &erased["items"]),
        (&json!(true), &json!(2), &json!(1))
    );
    let subjects: Vec<String> = audit(&database)
        .await
        .into_iter()
        .map(|line| line.1)
        .collect();
    assert_eq!(subjects, ["a***@e***.com", "a***@e***.com"]);
}
