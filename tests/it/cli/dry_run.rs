//! `flyball notify dry-run` over the messages of a database.

use serde_json::Value;

use super::shell::shell;

const ENQUEUE: &str = r#"
    select flyball.enqueue('notification', throttle => 'mail', args => jsonb_build_object(
        'channel', 'email', 'to', 'ada@example.com', 'category', 'marketing', 'body', 'Hello ' || n))
    from generate_series(1, 4) n;
    select flyball.enqueue('notification', throttle => 'mail', args =>
        '{"channel": "email", "recipient": "bob", "category": "billing", "body": "Pay"}'::jsonb);
    insert into flyball.recipient (tenant, id, profile) values ('', 'bob',
        '{"addresses": {"email": "bob@example.com"}}');
    select flyball.enqueue('http', args => '{"url": "http://localhost/"}'::jsonb);
    select flyball.enqueue('notification', throttle => 'mail', args => '{"channel": "pigeon"}'::jsonb);
    "#;

#[tokio::test]
async fn the_messages_of_the_last_hours_are_replayed_under_old_and_new_rules() {
    let shell = shell().await;
    shell.ok(&["migrate"]);
    let pool = shell.database.pool();
    sqlx::raw_sql(ENQUEUE).execute(pool).await.unwrap();
    let new = "[categories.marketing]\nover_cap = \"hold\"\nvalid_for_s = 172800\ncaps.email = { per_day = \"3 per 1d\" }\n";
    shell.write("new.toml", new);
    shell.write("broken.toml", "release_share = 2\n");

    let dry = ["notify", "dry-run", "--rules", "new.toml", "--since", "1h"];
    let report = shell.ok(&[&dry[..], &["--json"]].concat()).json();

    assert_eq!(
        (&report["messages"], &report["unreadable"]),
        (&Value::from(5), &Value::from(1))
    );
    assert_eq!(
        report["changed"], 2,
        "the third goes, and the fourth is held"
    );
    let of = |category: &str| {
        let rows = report["categories"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == category).unwrap()
    };
    let marketing = of("marketing");
    assert_eq!(
        (&marketing["old"]["sent"], &marketing["old"]["capped"]),
        (&2.into(), &2.into())
    );
    assert_eq!(
        (&marketing["new"]["sent"], &marketing["new"]["held"]),
        (&3.into(), &1.into())
    );
    assert_eq!(
        of("billing")["new"]["sent"],
        1,
        "the address is that of the profile"
    );
    assert_eq!(report["tenants"][0]["changed"], 2);

    let said = shell.ok(&dry).out;
    for words in [
        "5 messages since",
        "of which 2 have another outcome",
        "OPTED OUT",
        "marketing",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let broken = ["notify", "dry-run", "--rules", "broken.toml"];
    shell.refused(&broken, 78, "broken.toml:1: release_share: must be");
    let ended: i64 = sqlx::query_scalar("select count(*) from flyball.job")
        .fetch_one(pool)
        .await
        .unwrap();
    assert_eq!(ended, 7, "nothing was written");
}
