//! Explanations, checks and digests by HTTP: what a tenant reads, and what nobody reads.

use flyball::jobs::postgres::NewMessage;
use reqwest::Method;
use serde_json::{Value, json};

use super::tenants_fixture::{TwoTenants, secret, two_tenants};
use crate::recipient::gates;

const ADDRESS: &str = "grace.hopper@navy.example";

/// Sends a message of a tenant and plans it.
async fn planned(world: &TwoTenants, tenant: &str, more: Value) -> i64 {
    let mut message = json!({"channel": "email", "to": ADDRESS, "subject": "s", "body": "b"});
    let fields = message.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    let message = NewMessage::new("mail", message);
    let sent = world.queue.notify_as(tenant, "", &message).await.unwrap();
    let planned = gates(&world.queue).plan_jobs(&[sent.id]).await.unwrap();
    assert_eq!(planned.len(), 1);
    sent.id
}

async fn get(world: &TwoTenants, who: &str, path: &str) -> (u16, Value) {
    let answer = world.ask(Method::GET, path, Some(&secret(who)), None).await;
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    assert!(!text.contains(ADDRESS), "{path} shows an address: {text}");
    assert!(!text.contains("hopper"), "{path} shows an address: {text}");
    (status, serde_json::from_str(&text).unwrap())
}

fn comment(n: u8) -> Value {
    json!({
        "category": "product", "template_id": "comment", "digest": "new-comment", "body": null, "template": "{{ n }}",
        "data": {"n": n},
    })
}

#[tokio::test]
async fn a_tenant_reads_how_its_messages_fare_and_no_address() {
    let world = two_tenants().await;
    let own = planned(&world, "acme", comment(1)).await;
    let foreign = planned(&world, "zeta", comment(1)).await;
    let reader = "notify:read";

    let (status, found) = get(
        &world,
        reader,
        &format!("/api/v1/notifications/{own}/explain"),
    )
    .await;
    assert_eq!(status, 200, "{found}");
    assert_eq!(found["state"], "collected");
    assert_eq!(found["digest"]["type"], "new-comment");
    assert_eq!(found["gates"][4]["finding"], "collected");
    assert_eq!(found["forecast"]["is_of_digest"], true);
    let path = format!("/api/v1/notifications/{foreign}/explain");
    assert_eq!(get(&world, reader, &path).await.0, 404);
    assert_eq!(get(&world, "operator", &path).await.0, 200);

    let (_, shown) = get(&world, reader, &format!("/api/v1/notifications/{own}")).await;
    assert_eq!(shown["digest"]["items"], 1);
    assert_eq!(shown["held_by"], Value::Null);

    let (_, digests) = get(&world, reader, "/api/v1/digests").await;
    let listed = digests["digests"].as_array().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["tenant"], "acme");
    assert_eq!(digests["may_change"], false);
    let (_, all) = get(&world, "operator", "/api/v1/digests?limit=1").await;
    let next = all["next"].as_str().unwrap().to_owned();
    let (_, rest) = get(&world, "operator", &next).await;
    assert_ne!(all["digests"][0]["id"], rest["digests"][0]["id"]);
    assert_eq!(rest["digests"].as_array().unwrap().len(), 1);
    let (_, of_zeta) = get(&world, "operator", "/api/v1/digests?tenant=zeta").await;
    assert_eq!(of_zeta["digests"][0]["tenant"], "zeta");

    let asked = format!("/api/v1/recipients/check?channel=email&to={ADDRESS}&category=product");
    let (status, checked) = get(&world, reader, &asked).await;
    assert_eq!(status, 200, "{checked}");
    assert_eq!(checked["allowed"], true);
    assert!(checked["resetAt"].is_string() && checked["rule"].is_string());
    assert_eq!(checked["digests"].as_array().unwrap().len(), 1);
    assert_eq!(checked["forecast"]["gates"].as_array().unwrap().len(), 9);
}

#[tokio::test]
async fn an_item_is_withdrawn_by_its_tenant_alone() {
    let world = two_tenants().await;
    let own = planned(&world, "acme", comment(1)).await;
    let foreign = planned(&world, "zeta", comment(1)).await;
    let withdraw = async |who: &str, id: i64| {
        let path = format!("/api/v1/digests/items/{id}?by=ann");
        let secret = secret(who);
        let asked = world.ask(Method::DELETE, &path, Some(&secret), None);
        let answer = asked.await;
        let status = answer.status().as_u16();
        (status, answer.json::<Value>().await.unwrap())
    };
    assert_eq!(withdraw("notify:read", own).await.0, 403);
    let (status, refused) = withdraw("notify:send", foreign).await;
    assert_eq!(
        (status, &refused["code"]),
        (404, &json!("digest_item_not_found"))
    );
    assert_eq!(
        withdraw("notify:send", own).await,
        (200, json!({"id": own, "digest": "new-comment"}))
    );
    assert_eq!(withdraw("notify:send", own).await.0, 404);
    assert_eq!(withdraw("operator", foreign).await.0, 200);
    let (_, shown) = get(
        &world,
        "notify:read",
        &format!("/api/v1/notifications/{own}"),
    )
    .await;
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&json!("failed"), &json!("withdrawn from its digest"))
    );
}

#[tokio::test]
async fn a_question_without_a_channel_or_a_recipient_is_refused() {
    let world = two_tenants().await;
    for (query, pointer, says) in [
        ("to=a@b.example", "/channel", "must be given: one of sms"),
        (
            "channel=email",
            "/to",
            "must be given, or the recipient's id",
        ),
        ("channel=fax&to=1", "/channel", "must be sms"),
        ("channel=email&to=nobody", "/to", ""),
        (
            "channel=email&to=a@b.example&categry=x",
            "/categry",
            "did you mean",
        ),
    ] {
        let path = format!("/api/v1/recipients/check?{query}");
        let (status, refused) = get(&world, "operator", &path).await;
        assert_eq!(status, 400, "{query}: {refused}");
        let error = &refused["errors"][0];
        assert_eq!(error["pointer"], pointer, "{query}: {refused}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(says), "{query}: {message}");
    }
}
