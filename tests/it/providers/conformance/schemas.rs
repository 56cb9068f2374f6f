//! Requests are valid by their providers' published schemas, of which the relevant parts are copied
//! here by hand. Unknown fields fail.

use flyball::providers::{Message, Recipient};
use flyball_fakes::FakeOptions;
use serde_json::{Value, json};

use super::subjects::subjects;

/// Lists the violations of a JSON schema in the subset of keywords used here.
fn wrong(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !fits {
        found.push(format!("{at} is {value}, not {}", schema["type"]));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        found.push(format!("{at} is {value}, not one of {allowed:?}"));
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as u64;
        if length > schema["maxLength"].as_u64().unwrap_or(u64::MAX)
            || length < schema["minLength"].as_u64().unwrap_or(0)
        {
            found.push(format!("{at} has {length} characters"));
        }
    }
    if let Some(fields) = value.as_object() {
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !fields.contains_key(name) {
                found.push(format!("{at} lacks {name}"));
            }
        }
        for (name, value) in fields {
            match schema["properties"]
                .get(name)
                .or(schema.get("additionalProperties"))
            {
                Some(part) => wrong(part, value, &format!("{at}/{name}"), found),
                None => found.push(format!("{at}/{name} is no field")),
            }
        }
    }
    for (n, value) in value.as_array().into_iter().flatten().enumerate() {
        wrong(&schema["items"], value, &format!("{at}/{n}"), found);
    }
    let items = value.as_array().map_or(0, Vec::len) as u64;
    if items > schema["maxItems"].as_u64().unwrap_or(u64::MAX)
        || (value.is_array() && items < schema["minItems"].as_u64().unwrap_or(0))
    {
        found.push(format!("{at} has {items} items"));
    }
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

fn list(items: &Value, least: u64, most: u64) -> Value {
    json!({ "type": "array", "items": items, "minItems": least, "maxItems": most })
}

/// SendGrid's `POST /v3/mail/send`: `custom_args` of the mail is a string, that of a
/// personalization an object of strings.
fn sendgrid() -> Value {
    let text = json!({ "type": "string", "minLength": 1 });
    let texts =
        json!({ "type": "object", "properties": {}, "additionalProperties": { "type": "string" } });
    let person = object(&["email"], json!({ "email": text, "name": text }));
    let any = json!({ "type": "object", "properties": {}, "additionalProperties": {} });
    let personalization = object(
        &["to"],
        json!({ "to": list(&person, 1, 1000), "custom_args": texts, "dynamic_template_data": any, "headers": texts, "subject": text,
            "send_at": { "type": "integer" } }),
    );
    let content = object(&["type", "value"], json!({ "type": text, "value": text }));
    object(
        &["personalizations", "from"],
        json!({ "personalizations": list(&personalization, 1, 1000), "from": person, "reply_to": person, "subject": text,
            "content": list(&content, 1, 10), "template_id": text, "headers": texts, "custom_args": { "type": "string" },
            "categories": list(&json!({ "type": "string", "maxLength": 255 }), 0, 10), "send_at": { "type": "integer" },
            "asm": object(&["group_id"], json!({ "group_id": { "type": "integer" } })),
            "ip_pool_name": { "type": "string", "minLength": 2, "maxLength": 64 } }),
    )
}

/// `SendEmail` of SES v2.
fn ses() -> Value {
    let text = json!({ "type": "string", "minLength": 1 });
    let pair = object(
        &["Name", "Value"],
        json!({ "Name": { "type": "string", "minLength": 1, "maxLength": 256 }, "Value": text }),
    );
    let data = object(
        &["Data"],
        json!({ "Data": { "type": "string" }, "Charset": text }),
    );
    let headers = list(&pair, 0, 15);
    let simple = object(
        &["Subject", "Body"],
        json!({ "Subject": data, "Body": object(&[], json!({ "Text": data, "Html": data })), "Headers": headers }),
    );
    let template = object(
        &[],
        json!({ "TemplateName": text, "TemplateData": { "type": "string" }, "Headers": headers }),
    );
    let addresses = list(&text, 0, 50);
    object(
        &["Content"],
        json!({ "FromEmailAddress": text, "ReplyToAddresses": addresses, "EmailTags": list(&pair, 0, 50), "ConfigurationSetName": text,
            "Destination": object(&[], json!({ "ToAddresses": addresses, "CcAddresses": addresses, "BccAddresses": addresses })),
            "Content": object(&[], json!({ "Simple": simple, "Template": template })) }),
    )
}

/// `projects.messages.send` of FCM v1.
fn fcm() -> Value {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "object", "properties": {}, "additionalProperties": text });
    let android = object(
        &[],
        json!({ "collapse_key": text, "ttl": text, "priority": { "enum": ["normal", "high", "NORMAL", "HIGH"] } }),
    );
    let apns = object(
        &[],
        json!({ "headers": texts, "payload": { "type": "object", "properties": {}, "additionalProperties": {} } }),
    );
    let message = object(
        &[],
        json!({ "token": text, "topic": text, "data": texts, "notification": object(&[], json!({ "title": text, "body": text, "image": text })),
            "android": android, "apns": apns }),
    );
    object(
        &["message"],
        json!({ "message": message, "validate_only": { "type": "boolean" } }),
    )
}

fn telegram() -> Value {
    let flag = json!({ "type": "boolean" });
    object(
        &["chat_id", "text"],
        json!({ "chat_id": { "type": "string" }, "text": { "type": "string", "minLength": 1, "maxLength": 4096 },
            "parse_mode": { "enum": ["HTML", "Markdown", "MarkdownV2"] }, "disable_notification": flag, "protect_content": flag,
            "message_thread_id": { "type": "integer" } }),
    )
}

fn slack(is_web: bool) -> Value {
    let any = json!({ "type": "object", "properties": {}, "additionalProperties": {} });
    let mut schema = object(
        &["text"],
        json!({ "text": { "type": "string", "maxLength": 40_000 }, "blocks": list(&any, 0, 50), "thread_ts": { "type": "string" },
            "unfurl_links": { "type": "boolean" } }),
    );
    if is_web {
        schema["properties"]["channel"] = json!({ "type": "string", "minLength": 1 });
        schema["required"] = json!(["channel", "text"]);
    }
    schema
}

fn apns() -> Value {
    let text = json!({ "type": "string" });
    let aps = object(
        &[],
        json!({ "alert": object(&[], json!({ "title": text, "body": text, "subtitle": text })), "badge": { "type": "integer" }, "sound": {},
            "mutable-content": { "enum": [1] }, "content-available": { "enum": [1] }, "thread-id": text }),
    );
    json!({ "type": "object", "required": ["aps"], "properties": { "aps": aps }, "additionalProperties": {} })
}

/// The fields of a form, each with its allowed number of occurrences.
fn form(name: &str) -> &'static [(&'static str, usize)] {
    match name {
        "twilio" => &[
            ("To", 1),
            ("From", 1),
            ("MessagingServiceSid", 1),
            ("Body", 1),
            ("MediaUrl", 10),
            ("ContentSid", 1),
            ("ContentVariables", 1),
            ("StatusCallback", 1),
            ("ScheduleType", 1),
            ("SendAt", 1),
            ("ValidityPeriod", 1),
            ("MaxPrice", 1),
            ("SmartEncoded", 1),
        ],
        _ => &[
            ("from", 1),
            ("to", 1),
            ("subject", 1),
            ("text", 1),
            ("html", 1),
            ("template", 1),
            ("t:variables", 1),
            ("o:tag", 10),
            ("o:deliverytime", 1),
            ("o:testmode", 1),
            ("h:Reply-To", 1),
            ("h:X-A", 1),
            ("v:k", 1),
            ("v:flyball_id", 1),
        ],
    }
}

/// Returns a value for nearly every field of each driver's `extra`.
fn extra(name: &str) -> Value {
    match name {
        "sendgrid" => {
            json!({ "reply_to": "Help <help@example.com>", "categories": ["a", "b"], "custom_args": { "k": "v" },
            "headers": { "X-A": "1" }, "asm_group_id": 7, "send_at": 1_800_000_000 })
        }
        "ses" => {
            json!({ "reply_to": ["a@example.com", "Ä <b@example.com>"], "tags": { "week": "7" }, "headers": { "X-A": "1" } })
        }
        "mailgun" => {
            json!({ "reply_to": "a@example.com", "tags": ["a", "b"], "variables": { "k": "v" }, "headers": { "X-A": "1" },
            "deliver_at": "Tue, 24 Nov 2026 18:00:00 +0000", "test_mode": true })
        }
        "twilio" => {
            json!({ "media_url": vec!["https://x.example/1.png"; 10], "max_price": "0.05", "smart_encoded": true })
        }
        "fcm" => {
            json!({ "data": { "order": "7" }, "image": "https://x.example/1.png", "collapse_key": "c", "priority": "high",
            "validate_only": false })
        }
        "apns" => {
            json!({ "badge": 1, "sound": "default", "mutable_content": true, "thread_id": "t", "subtitle": "s", "data": { "order": 7 } })
        }
        "telegram" => {
            json!({ "parse_mode": "HTML", "disable_notification": true, "message_thread_id": 7 })
        }
        "slack by webhook" | "slack by Web API" => {
            json!({ "blocks": [{ "type": "divider" }], "unfurl_links": false, "thread_ts": "1.2" })
        }
        _ => json!({}),
    }
}

#[tokio::test]
async fn every_request_is_valid_by_its_providers_published_schema() {
    for subject in subjects()
        .into_iter()
        .filter(|subject| !["smtp", "webhook"].contains(&subject.name))
    {
        let name = subject.name;
        let pair = subject.start(FakeOptions::default()).await;
        let plain = pair.subject.message(&pair.fake);
        let mut full = Message {
            expires_at_s: Some(4_000_000_000),
            ..plain.clone()
        };
        full.extra = extra(name).as_object().unwrap().clone();
        if pair.subject.channel == flyball::providers::Channel::Email {
            full.to = Recipient::parse(pair.subject.channel, "\"Ännchen, Dr.\" <ann@example.com>")
                .unwrap();
            full.html = Some("<b>Hello</b>".to_owned());
        }
        for message in [plain, full] {
            assert_eq!(pair.driver.check(&message), [], "{name}");
            let answer = pair
                .driver
                .send(
                    &message,
                    &super::context(std::time::Duration::from_secs(30)),
                )
                .await;
            assert_eq!(
                answer.sent.as_str(),
                pair.subject.success,
                "{name}: {answer:?}"
            );
            let (_, _, body) = pair.fake.last().unwrap();
            let mut found = Vec::new();
            match name {
                "twilio" | "mailgun" => {
                    let fields: Vec<(String, String)> =
                        url::form_urlencoded::parse(body.as_bytes())
                            .into_owned()
                            .collect();
                    for (field, _) in &fields {
                        let most = form(name)
                            .iter()
                            .find(|(known, _)| known == field)
                            .map_or(0, |(_, most)| *most);
                        let times = fields.iter().filter(|(other, _)| other == field).count();
                        if times > most {
                            found.push(format!("{field} comes {times} times, and may {most}"));
                        }
                    }
                }
                _ => {
                    let schema = match name {
                        "sendgrid" => sendgrid(),
                        "ses" => ses(),
                        "fcm" => fcm(),
                        "apns" => apns(),
                        "telegram" => telegram(),
                        _ => slack(name == "slack by Web API"),
                    };
                    wrong(
                        &schema,
                        &serde_json::from_str(&body).unwrap(),
                        "",
                        &mut found,
                    );
                    assert!(body.len() < 4096, "{name}: a small message is small");
                }
            }
            assert_eq!(found, Vec::<String>::new(), "{name}: {body}");
        }
    }
}
