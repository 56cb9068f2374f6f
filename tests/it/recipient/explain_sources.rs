//! Explanations that tell who set a rule, and when.

use flyball::jobs::Attribution;
use flyball::recipient::gates::MessagePlan;
use flyball::recipient::new_recipient::NewRecipient;
use flyball::recipient::postgres::RecipientProfiles;
use flyball::recipient::rule_source::RuleSource;
use serde_json::{Value, json};

use super::fixture::GatesFixture;

const NEWS: &str = "# Our own rules.\n\n[categories.news]\nvalid_for_s = 2592000\n\
                    caps.sms = { per_day = \"1 per 24h\" }\n";

async fn source(gates: &GatesFixture, id: i64, gate: &str) -> (RuleSource, String) {
    let explained = gates.gates.explain(id, None).await.unwrap().unwrap();
    let step = explained.gates.into_iter().find(|step| step.gate == gate);
    let step = step.unwrap();
    let source = step.set_by.clone();
    (
        source.unwrap_or_else(|| panic!("no source: {step:?}")),
        explained.sentence,
    )
}

fn by(name: &str) -> Attribution {
    Attribution {
        by: name.to_owned(),
        ..Attribution::default()
    }
}

async fn put(gates: &GatesFixture, id: &str, profile: Value, name: &str) {
    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    let id = id.to_owned();
    let new = [NewRecipient { id, profile }];
    profiles.put("", &new, &by(name)).await.unwrap();
}

#[tokio::test]
async fn a_cap_has_a_line_in_the_file_or_ships_or_is_the_senders_own() {
    let gates = GatesFixture::new(NEWS).await;
    let news = |n: u8| json!({"category": "news", "dedup_key": n.to_string()});
    gates.planned(news(1)).await;
    let (id, _) = gates.planned(news(2)).await;
    let (found, sentence) = source(&gates, id, "caps").await;
    assert_eq!(
        (found.of, found.place.as_str()),
        ("rules", "test.toml, line 5")
    );
    assert!(
        sentence.ends_with("; the rule is in test.toml, line 5"),
        "{sentence}"
    );

    let marketing = |n: u8| json!({"category": "marketing", "dedup_key": format!("m{n}")});
    gates.planned(marketing(1)).await;
    let (id, _) = gates.planned(marketing(2)).await;
    assert_eq!(source(&gates, id, "caps").await.0.of, "shipped");

    let own = |n: u8| {
        json!({
            "category": "billing", "template_id": "t", "at_most": "1 per 1h", "template": "{{ n }}", "data": {"n": n}, "body": null,
        })
    };
    gates.planned(own(1)).await;
    let (id, plan) = gates.planned(own(2)).await;
    assert!(matches!(plan, MessagePlan::Held { .. }), "{plan:?}");
    assert_eq!(source(&gates, id, "caps").await.0.of, "message");

    // The rules changed after the gates looked.
    let (id, _) = gates.planned(news(3)).await;
    let rules = flyball::recipient::rules::RecipientRules::parse("test.toml", "").unwrap();
    gates.gates.rules.store(rules);
    assert_eq!(source(&gates, id, "caps").await.0.of, "gone");
}

#[tokio::test]
async fn quiet_hours_and_preferences_name_the_author_of_the_profile_or_of_the_defaults() {
    let gates = GatesFixture::new("").await;
    let before = gates.now().await;
    put(&gates, "ada", gates.quiet_today().await, "ann").await;
    let (id, _) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    let (found, sentence) = source(&gates, id, "quiet_hours").await;
    assert_eq!((found.of, found.by.as_str()), ("profile", "ann"));
    assert!(found.at.unwrap() >= before);
    assert!(
        sentence.contains("the rule is of the profile of the recipient, last changed by ann at 20"),
        "{sentence}"
    );

    put(
        &gates,
        "bob",
        json!({"addresses": {"sms": "+15550160"}}),
        "ann",
    )
    .await;
    let profiles = RecipientProfiles::new(gates.fixture.queue.pool.clone());
    let unwanted = json!({"preferences": {"categories": {"product": false}}});
    profiles
        .set_defaults("", &unwanted, &by("root"))
        .await
        .unwrap();
    let (id, _) = gates
        .planned(json!({"recipient": "bob", "category": "product"}))
        .await;
    let (found, _) = source(&gates, id, "preferences").await;
    assert_eq!((found.of, found.by.as_str()), ("defaults", "root"));
}

#[tokio::test]
async fn a_rule_that_a_profile_had_is_not_told_as_that_of_its_next_author() {
    let gates = GatesFixture::new("[categories.online]\nquiet = \"drop\"\n").await;
    let mut profile = gates.quiet_today().await;
    profile["preferences"] = json!({"categories": {"product": false}});
    put(&gates, "ada", profile, "ann").await;
    let to_ada = |category: &str| json!({"recipient": "ada", "category": category});
    let (unwanted, _) = gates.planned(to_ada("product")).await;
    let (dropped, _) = gates.planned(to_ada("online")).await;
    let ended = [(unwanted, "preferences"), (dropped, "quiet_hours")];
    for (id, gate) in ended {
        let (found, _) = source(&gates, id, gate).await;
        assert_eq!((found.of, found.by.as_str()), ("profile", "ann"), "{gate}");
    }
    let wanted = json!({
        "addresses": {"sms": "+15550111"}, "preferences": {"categories": {"product": true}},
    });
    put(&gates, "ada", wanted, "bob").await;
    for (id, gate) in ended {
        let (found, sentence) = source(&gates, id, gate).await;
        assert_eq!((found.of, found.by.as_str()), ("gone", ""), "{gate}");
        let told = "; the rules have changed since";
        assert!(sentence.ends_with(told), "{sentence}");
    }
}

#[tokio::test]
async fn a_suppression_tells_since_when() {
    let gates = GatesFixture::new("").await;
    let suppressed = sqlx::query("select flyball.suppress('sms', '+15550100', 'asked to')");
    suppressed
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let (id, _) = gates.planned(json!({"category": "billing"})).await;
    let (found, sentence) = source(&gates, id, "suppression").await;
    assert_eq!(found.of, "suppression");
    assert!(found.at.is_some());
    assert!(
        sentence.contains("the address is suppressed since 20"),
        "{sentence}"
    );
}
