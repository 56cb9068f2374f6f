//! For any recipient, the only address on the wire is the one used for suppressions.

use flyball::providers::{Channel, Message, Recipient};
use flyball_fakes::{Fake, FakeOptions};
use lettre::message::Mailboxes;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::Value;

use super::Pair;
use super::subjects::{Subject, subjects};

/// Texts for one driver.
const CASES: usize = 120;

/// The parts of generated texts: valid recipients, and every separator, quote and comment.
const PIECES: &[&str] = &[
    "victim@example.com",
    "bob@example.net",
    "Victim",
    "Bob",
    "bücher.example",
    "@",
    "\"",
    "\\",
    "<",
    ">",
    ",",
    ";",
    ":",
    " ",
    "\r\n",
    "\t",
    "Bcc:",
    "=?utf-8?q?b=40y?=",
    "(",
    ")",
    "ü",
    "＠",
    "%40",
    "%2c",
    ".",
    "\0",
    "+15550100000",
    "+15550199999",
    "whatsapp:",
    "-",
    "(0)",
    "/topics/",
    "news",
    "C0CHANNEL",
    "4711",
    "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0",
    "@news",
    "#general",
    "?to=",
    "&",
    "/",
    "#",
];

/// Recipients with names, capitals and blanks, as people write them.
fn usual(channel: Channel, own: &str) -> BoxedStrategy<String> {
    let own = own.to_owned();
    match channel {
        Channel::Email => (
            "[A-Za-z][a-z0-9+]{0,9}",
            "[A-Za-zü ,.;]{0,12}",
            "(example\\.com|EXAMPLE\\.net|b[uü]cher\\.example)",
            0..4,
        )
            .prop_map(|(local, name, domain, form)| match form {
                0 => format!("{local}@{domain}"),
                1 => format!("{name} <{local}@{domain}>"),
                2 => format!("\"{name}\" <{local}@{domain}>"),
                _ => format!("\t{local}@{domain} "),
            })
            .boxed(),
        Channel::Sms => (
            "(|whatsapp:|WhatsApp: )",
            "[1-9][0-9]{3}[-(). ]{0,2}[0-9]{3}[-(). ]{0,2}[0-9]{3,7}",
        )
            .prop_map(|(prefix, digits)| format!("{prefix}+{digits}"))
            .boxed(),
        Channel::Push => "[ ]?(/topics/[a-z]{1,8}|[a-zA-Z0-9:_-]{8,64}|[0-9a-fA-F]{64})".boxed(),
        Channel::Chat => {
            "[ ]?(-?[0-9]{4,12}|[+]00[0-9]{3}|@[A-Za-z]{5,9}|C[0-9A-Z]{9}|#[A-Za-z-]{3,9})".boxed()
        }
        Channel::Webhook => (
            "(/[a-zA-Z%~.0-9]{0,6}|/\\.\\./x|/%7[eE]a|/a%2fb){1,3}",
            "(|\\?a=[b-z%2c]{0,5}|#part)",
        )
            .prop_map(move |(path, rest)| {
                format!("{}{path}{rest}", own.replacen("http", "HTTP", 1))
            })
            .boxed(),
        Channel::InApp => "[a-zA-Z0-9:_-]{1,64}".boxed(),
    }
}

/// Arbitrary text.
fn texts(channel: Channel, own: &str) -> BoxedStrategy<String> {
    let odd = proptest::collection::vec(proptest::sample::select(PIECES), 1..6)
        .prop_map(|pieces| pieces.concat());
    prop_oneof![2 => usual(channel, own), 1 => odd].boxed()
}

/// Returns every address in the last request, by an independent parser.
fn on_the_wire(subject: &Subject, fake: &Fake) -> Vec<String> {
    let (path, headers, body) = fake.last().unwrap_or_default();
    let json = || serde_json::from_str::<Value>(&body).unwrap();
    let fields = |names: &[&str]| -> Vec<String> {
        let form = url::form_urlencoded::parse(body.as_bytes());
        form.filter(|(name, _)| names.contains(&name.as_ref()))
            .map(|(_, value)| value.into_owned())
            .collect()
    };
    let mailboxes = |lists: Vec<String>| -> Vec<String> {
        let all = lists.iter().flat_map(|list| {
            list.parse::<Mailboxes>()
                .unwrap_or_else(|error| panic!("{list:?}: {error}"))
        });
        all.map(|mailbox| mailbox.email.to_string()).collect()
    };
    let listed = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .into_iter()
            .flatten()
            .flat_map(|(_, list)| list.as_array().cloned().unwrap_or_default())
            .map(|one| {
                one["email"]
                    .as_str()
                    .or(one.as_str())
                    .unwrap_or_else(|| panic!("{one} is no address"))
                    .to_owned()
            })
            .collect()
    };
    match subject.name {
        "twilio" => fields(&["To"]),
        "mailgun" => mailboxes(fields(&["to", "cc", "bcc", "h:To", "h:Cc", "h:Bcc"])),
        "sendgrid" => json()["personalizations"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(listed)
            .collect(),
        "ses" => mailboxes(listed(&json()["Destination"])),
        "fcm" => ["token", "topic", "condition"]
            .iter()
            .filter_map(|key| Some((*key, json()["message"][*key].as_str()?.to_owned())))
            .map(|(key, value)| {
                if key == "topic" {
                    format!("/topics/{value}")
                } else {
                    value
                }
            })
            .collect(),
        "apns" => vec![path.rsplit('/').next().unwrap().to_owned()],
        "telegram" => vec![json()["chat_id"].as_str().unwrap().to_owned()],
        "slack by Web API" => vec![json()["channel"].as_str().unwrap().to_owned()],
        "webhook" => vec![format!(
            "http://{}{path}",
            headers["host"].to_str().unwrap()
        )],
        other => panic!("{other} has no reader"),
    }
}

/// Sends to a text as the recipient; `None` if validation rejects it.
async fn sent(pair: &Pair, text: &str) -> Option<(Recipient, Vec<String>)> {
    let name = pair.subject.name;
    let recipient = Recipient::parse(pair.subject.channel, text).ok()?;
    let message = Message {
        to: recipient.clone(),
        ..pair.subject.message(&pair.fake)
    };
    if !pair.driver.check(&message).is_empty() {
        return None;
    }
    let before = pair.fake.totals_of_all().accepted;
    let answer = pair
        .driver
        .send(
            &message,
            &super::context(std::time::Duration::from_secs(30)),
        )
        .await;
    // These fakes accept a single path and hexadecimal tokens; the requests were sent all the same.
    if !["webhook", "apns"].contains(&name) {
        assert_eq!(
            answer.sent.as_str(),
            pair.subject.success,
            "{name}: {text:?}: {answer:?}"
        );
        assert_eq!(
            pair.fake.totals_of_all().accepted,
            before + 1,
            "{name}: {text:?} is one message"
        );
    }
    let wire = match name {
        "smtp" => vec![
            pair.fake
                .received(pair.subject.account)
                .last()
                .unwrap()
                .to
                .clone(),
        ],
        _ => on_the_wire(&pair.subject, &pair.fake),
    };
    Some((recipient, wire))
}

#[tokio::test]
async fn the_one_address_on_the_wire_is_the_one_that_suppressions_are_looked_up_by() {
    let mut names = std::collections::BTreeSet::new();
    for subject in subjects() {
        // A Slack webhook belongs to one channel, so no recipient is on the wire.
        if subject.name == "slack by webhook" {
            continue;
        }
        let pair = subject.start(FakeOptions::default()).await;
        let (name, channel) = (pair.subject.name, pair.subject.channel);
        let own = (pair.subject.to)(&pair.fake);
        let texts = texts(channel, &own);
        let mut runner = TestRunner::deterministic();
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..CASES {
            let text = texts.new_tree(&mut runner).unwrap().current();
            // No foreign host receives a request.
            if channel == Channel::Webhook
                && Recipient::parse(channel, &text)
                    .is_ok_and(|to| !to.address().starts_with(&pair.fake.url()))
            {
                continue;
            }
            let Some((recipient, wire)) = sent(&pair, &text).await else {
                refused += 1;
                continue;
            };
            accepted += 1;
            assert_eq!(wire, [recipient.address()], "{name}: {text:?}");
            let back = Recipient::parse(channel, &wire[0]).unwrap();
            assert_eq!(back.identity(), recipient.identity(), "{name}: {text:?}");
            if channel == Channel::Email {
                assert_eq!(
                    text.matches('@').count(),
                    1,
                    "{name}: {text:?} could reach two"
                );
            }
        }
        assert!(
            accepted >= 20,
            "{name}: {accepted} accepted, {refused} refused"
        );
        names.insert(pair.driver.provider().as_str());
    }
    assert_eq!(names.len(), 10, "every driver was asked: {names:?}");
}

#[test]
fn a_list_of_recipients_is_no_recipient() {
    let pairs = [
        (Channel::Email, "victim@example.com", "bob@example.net"),
        (Channel::Sms, "+15550100000", "+15550199999"),
        (Channel::Push, "token-of-ann", "token-of-bob"),
        (Channel::Chat, "C0123", "C0456"),
        (Channel::Webhook, "https://a.example/", "https://b.example/"),
    ];
    for (channel, one, other) in pairs {
        for between in [
            ", ",
            "; ",
            " ",
            "\n",
            "\r\nBcc: ",
            ", Bob <",
            " <",
            "\t",
            " or ",
        ] {
            for end in ["", ">"] {
                let text = format!("{one}{between}{other}{end}");
                assert!(Recipient::parse(channel, &text).is_err(), "{text:?}");
            }
        }
    }
}
