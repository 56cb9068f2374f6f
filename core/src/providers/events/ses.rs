//! The contents of an SES notice that SNS delivers: one event of one mail, possibly for several
//! recipients.

use jiff::Timestamp;
use serde_json::Value;

use super::super::{Account, EventKind, ProviderEvent, RejectedWebhook, words};

/// Parses the events of a notice. `notice_id` is the envelope's id, and `at_s` its time in unix
/// seconds.
pub fn events(
    account: &Account,
    text: &str,
    notice_id: &str,
    at_s: i64,
) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
    // SES sends a plain sentence when a topic is set up.
    let notice: Value = match serde_json::from_str(text) {
        Ok(notice) => notice,
        Err(_) if text.starts_with("Successfully validated SNS topic") => return Ok(Vec::new()),
        Err(error) => return Err(RejectedWebhook::Unreadable(error.to_string())),
    };
    let word = notice["eventType"]
        .as_str()
        .or_else(|| notice["notificationType"].as_str());
    let word =
        word.ok_or_else(|| RejectedWebhook::Unreadable("eventType is missing".to_owned()))?;
    let Some((event_type, part)) = event_type(word, &notice) else {
        return Ok(Vec::new());
    };
    let provider_id = notice["mail"]["messageId"].as_str();
    let provider_id = provider_id
        .ok_or_else(|| RejectedWebhook::Unreadable("mail.messageId is missing".to_owned()))?;
    let at_s = part["timestamp"]
        .as_str()
        .and_then(|time| time.parse::<Timestamp>().ok())
        .map_or(at_s, Timestamp::as_second);
    let event = |(index, (recipient, reason)): (usize, (Option<&str>, String))| ProviderEvent {
        event_id: format!("{notice_id}:{index}"),
        provider_id: provider_id.to_owned(),
        event_type,
        recipient: recipient.map(str::to_owned),
        at_s,
        reason: words::tidy(account, &format!("{word} {reason}")),
    };
    Ok(recipients(part, &notice["mail"])
        .into_iter()
        .enumerate()
        .map(event)
        .collect())
}

/// Returns the kind of the event and the part of the notice with its details; `None` for an event
/// that is ignored.
fn event_type<'a>(word: &str, notice: &'a Value) -> Option<(EventKind, &'a Value)> {
    let event_type = |name: &str, event_type| Some((event_type, &notice[name]));
    match word {
        "Send" => event_type("send", EventKind::Sent),
        "Delivery" => event_type("delivery", EventKind::Delivered),
        "Bounce" if notice["bounce"]["bounceType"] == "Permanent" => {
            event_type("bounce", EventKind::Bounced)
        }
        "Bounce" => event_type("bounce", EventKind::Failed),
        // The recipient wants the mail: it was marked as spam and is no longer.
        "Complaint" if notice["complaint"]["complaintFeedbackType"] == "not-spam" => None,
        "Complaint" => event_type("complaint", EventKind::Complained),
        "Reject" => event_type("reject", EventKind::Failed),
        "Rendering Failure" => event_type("failure", EventKind::Failed),
        "Subscription"
            if notice["subscription"]["newTopicPreferences"]["unsubscribeAll"] == true =>
        {
            event_type("subscription", EventKind::Unsubscribed)
        }
        _ => None,
    }
}

/// Returns each recipient that a part names, with its reason; if it names none, the recipients of
/// the mail.
fn recipients<'a>(part: &'a Value, mail: &'a Value) -> Vec<(Option<&'a str>, String)> {
    let joined = |value: &Value, names: &[&str]| {
        names
            .iter()
            .filter_map(|name| value[*name].as_str())
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let common = joined(
        part,
        &[
            "bounceType",
            "bounceSubType",
            "complaintFeedbackType",
            "complaintSubType",
            "reason",
            "errorMessage",
            "smtpResponse",
        ],
    );
    let detailed = part["bouncedRecipients"]
        .as_array()
        .or_else(|| part["complainedRecipients"].as_array());
    if let Some(detailed) = detailed.filter(|all| !all.is_empty()) {
        let one = |recipient: &'a Value| {
            let own = joined(recipient, &["status", "diagnosticCode"]);
            (
                recipient["emailAddress"].as_str(),
                format!("{common} {own}").trim().to_owned(),
            )
        };
        return detailed.iter().map(one).collect();
    }
    let plain = part["recipients"]
        .as_array()
        .or_else(|| mail["destination"].as_array());
    match plain.filter(|all| !all.is_empty()) {
        Some(all) => all
            .iter()
            .map(|recipient| (recipient.as_str(), common.clone()))
            .collect(),
        None => vec![(None, common)],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_notice(notice: &Value) -> Vec<ProviderEvent> {
        events(&Account::default(), &notice.to_string(), "n1", 77).unwrap()
    }

    #[test]
    fn every_event_has_its_meaning() {
        let bounce =
            |kind: &str| json!({ "eventType": "Bounce", "bounce": { "bounceType": kind } });
        let subscription = |all: bool| json!({ "eventType": "Subscription", "subscription": { "newTopicPreferences": { "unsubscribeAll": all } } });
        let cases = [
            (json!({ "eventType": "Send" }), Some(EventKind::Sent)),
            (
                json!({ "eventType": "Delivery" }),
                Some(EventKind::Delivered),
            ),
            (
                json!({ "notificationType": "Delivery" }),
                Some(EventKind::Delivered),
            ),
            (bounce("Permanent"), Some(EventKind::Bounced)),
            (bounce("Transient"), Some(EventKind::Failed)),
            (bounce("Undetermined"), Some(EventKind::Failed)),
            (
                json!({ "eventType": "Complaint" }),
                Some(EventKind::Complained),
            ),
            (
                json!({ "eventType": "Complaint", "complaint": { "complaintFeedbackType": "not-spam" } }),
                None,
            ),
            (json!({ "eventType": "Reject" }), Some(EventKind::Failed)),
            (
                json!({ "eventType": "Rendering Failure" }),
                Some(EventKind::Failed),
            ),
            (subscription(true), Some(EventKind::Unsubscribed)),
            (subscription(false), None),
            (json!({ "eventType": "DeliveryDelay" }), None),
            (json!({ "eventType": "Open" }), None),
            (json!({ "eventType": "Click" }), None),
        ];
        for (mut notice, expected) in cases {
            notice["mail"] = json!({ "messageId": "m1", "destination": ["ann@example.com"] });
            let events = parse_notice(&notice);
            assert_eq!(
                events.first().map(|event| event.event_type),
                expected,
                "{notice}"
            );
            assert!(events.iter().all(|event| event.recipient.as_deref()
                == Some("ann@example.com")
                && event.at_s == 77));
        }
    }

    #[test]
    fn one_notice_reports_many_recipients() {
        let notice = json!({
            "notificationType": "Bounce",
            "mail": { "messageId": "m1", "destination": ["x@example.com"] },
            "bounce": { "bounceType": "Permanent", "bounceSubType": "General", "timestamp": "2023-11-14T22:13:20.000Z",
                "bouncedRecipients": [
                    { "emailAddress": "ann@example.com", "status": "5.1.1", "diagnosticCode": "smtp; 550 <ann@example.com> unknown" },
                    { "emailAddress": "bob@example.com" }
                ] }
        });
        let event = |index: u8, recipient: &str, reason: &str| ProviderEvent {
            event_id: format!("n1:{index}"),
            provider_id: "m1".into(),
            event_type: EventKind::Bounced,
            recipient: Some(recipient.into()),
            at_s: 1_700_000_000,
            reason: reason.into(),
        };
        let first = event(
            0,
            "ann@example.com",
            "Bounce Permanent General 5.1.1 smtp; 550 <***> unknown",
        );
        assert!(
            parse_notice(&notice)
                == [
                    first,
                    event(1, "bob@example.com", "Bounce Permanent General")
                ]
        );
        let complaint = json!({
            "eventType": "Complaint", "mail": { "messageId": "m1" },
            "complaint": { "complaintFeedbackType": "abuse", "complainedRecipients": [{ "emailAddress": "ann@example.com" }] }
        });
        assert_eq!(parse_notice(&complaint)[0].reason, "Complaint abuse");
        let delivery = json!({
            "eventType": "Delivery", "mail": { "messageId": "m1", "destination": ["z@example.com"] },
            "delivery": { "recipients": ["ann@example.com", "bob@example.com"], "smtpResponse": "250 OK" }
        });
        let recipients: Vec<_> = parse_notice(&delivery)
            .into_iter()
            .map(|event| (event.recipient.unwrap(), event.reason))
            .collect();
        let expected = ["ann@example.com", "bob@example.com"]
            .map(|to| (to.to_owned(), "Delivery 250 OK".to_owned()));
        assert_eq!(recipients, expected);
    }

    #[test]
    fn sentences_are_no_events_and_garbage_is_refused() {
        let events = |text: &str| events(&Account::default(), text, "n1", 0);
        assert_eq!(
            events("Successfully validated SNS topic for Amazon SES event publishing."),
            Ok(vec![])
        );
        for bad in ["", "hello", "{}", r#"{"eventType":"Delivery"}"#] {
            assert!(
                matches!(events(bad), Err(RejectedWebhook::Unreadable(_))),
                "{bad}"
            );
        }
    }
}
