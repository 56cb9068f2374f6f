//! The meaning of a server's answers.

use std::time::Duration;

use crate::outbound::retry_after::MAX_RETRY_AFTER;
use crate::providers::code::row;
use crate::providers::outcome::{self, ResponseDetails};
use crate::providers::{Class, Code, ProviderResponse, Scope, code};

/// The stage of the dialogue at which the server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Stage {
    /// Connecting, greeting, and encryption.
    Connect,
    /// Authentication.
    Login,
    /// `MAIL FROM`.
    Mail,
    /// `RCPT TO`.
    Rcpt,
    /// `DATA`.
    Data,
    /// The contents and the final dot.
    Dot,
}

impl Stage {
    pub(super) fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The meaning of answers: the enhanced code is looked up first, then the three digits. The code of
/// a row is the stage (`connect`, `login`, `mail`, `rcpt`, `data`, `dot`), `phrase` for one of the
/// account's `throttle_phrases`, `greylist` for a server that makes every unknown sender retry, or
/// `relay`, `quota` or `busy` for the words of `SAYINGS`. A 530, 534, 535 or 538 counts as an
/// answer to the login at every stage, because it has no other meaning (RFC 4954).
#[rustfmt::skip]
pub const CODES: &[Code] = &[
    row("*", "phrase", Class::Throttled(Scope::Account), "the text contains one of `throttle_phrases`"),
    row("*", "greylist", Class::Throttled(Scope::Recipient), "greylisted: the server accepts the second attempt of an unknown sender"),
    row("5.x.x", "relay", Class::Account, "the server does not relay mail for this account"),
    row("5xx", "relay", Class::Account, "the server does not relay mail for this account"),
    row("5.x.x", "quota", Class::Throttled(Scope::Account), "the account's own sending limit is reached"),
    row("5xx", "quota", Class::Throttled(Scope::Account), "the account's own sending limit is reached"),
    row("5.x.x", "busy", Class::Throttled(Scope::Recipient), "the mailbox gets mail too quickly"),
    row("5xx", "busy", Class::Throttled(Scope::Recipient), "the mailbox gets mail too quickly"),
    row("4.1.x", "", Class::Transient, "an address cannot be looked up at the moment"),
    row("4.2.x", "", Class::Throttled(Scope::Recipient), "the mailbox is full, busy, or gets mail too quickly"),
    row("4.3.x", "", Class::Throttled(Scope::Account), "the server is full or not accepting mail at the moment"),
    row("4.4.5", "", Class::Throttled(Scope::Account), "congestion"),
    row("4.4.x", "", Class::Transient, "network error or time-out"),
    row("4.5.3", "", Class::Throttled(Scope::Account), "too many recipients at once"),
    row("4.7.x", "", Class::Throttled(Scope::Account), "too much mail from this sender or address"),
    row("4.x.x", "", Class::Transient, "temporary error"),
    row("5.1.x", "mail", Class::Request, "the sender's address is not valid"),
    row("5.1.1", "", Class::Suppress, "the mailbox does not exist"),
    row("5.1.6", "", Class::Suppress, "the mailbox has moved"),
    row("5.1.10", "", Class::Suppress, "the domain accepts no mail"),
    row("5.1.7", "", Class::Request, "the sender's address is not valid"),
    row("5.1.8", "", Class::Request, "the sender's domain is not valid"),
    row("5.1.x", "", Class::Recipient, "the address is not valid"),
    row("5.2.1", "", Class::Suppress, "the mailbox is disabled"),
    row("5.2.3", "", Class::Request, "the message is too long for the mailbox"),
    row("5.2.x", "", Class::Recipient, "the mailbox accepts no mail"),
    row("5.3.4", "", Class::Request, "the message is too large"),
    row("5.3.x", "", Class::Recipient, "the recipient's server accepts no mail"),
    row("5.4.5", "", Class::Throttled(Scope::Account), "the account's daily limit at Google is reached"),
    row("5.4.x", "", Class::Recipient, "no route to the recipient's server"),
    row("5.5.x", "login", Class::Account, "the login was not understood"),
    row("5.5.x", "", Class::Request, "the request is not valid"),
    row("5.6.x", "", Class::Request, "the content is not valid"),
    row("5.7.x", "connect", Class::Account, "the server rejects connections from this sender"),
    row("5.7.x", "login", Class::Account, "the login is not valid"),
    row("5.7.x", "mail", Class::Account, "the account may not send from this address"),
    row("5.7.8", "", Class::Account, "the login is not valid"),
    row("5.7.9", "", Class::Account, "the authentication method is too weak"),
    row("5.7.11", "", Class::Account, "encryption is required"),
    row("5.7.13", "", Class::Account, "the account is disabled"),
    row("5.7.14", "", Class::Account, "the account is not trusted"),
    row("5.7.2x", "", Class::Account, "the sender fails SPF, DKIM, DMARC or reverse DNS"),
    row("5.7.x", "", Class::Recipient, "rejected by a policy of the recipient's server"),
    row("5.x.x", "login", Class::Account, "the login failed"),
    row("5.x.x", "connect", Class::Account, "the server rejects the connection"),
    row("5.x.x", "rcpt", Class::Recipient, "the recipient is refused"),
    row("5.x.x", "", Class::Request, "the message is refused"),
    row("2xx", "dot", Class::Accepted, "accepted"),
    row("421", "", Class::Throttled(Scope::Account), "too many connections or messages, or the server is shutting down"),
    row("450", "", Class::Throttled(Scope::Recipient), "the mailbox is busy"),
    row("452", "", Class::Throttled(Scope::Account), "the server is full"),
    row("454", "", Class::Throttled(Scope::Account), "Amazon SES throttles, or the login is temporarily unavailable"),
    row("4xx", "", Class::Transient, "temporary error"),
    row("530", "", Class::Account, "a login is required"),
    row("534", "", Class::Account, "the authentication method is too weak"),
    row("535", "", Class::Account, "the login is not valid"),
    row("538", "", Class::Account, "encryption is required"),
    row("551", "", Class::Recipient, "the mailbox has moved to another server"),
    row("552", "", Class::Request, "the message is too large"),
    row("5xx", "connect", Class::Account, "the server rejects the connection"),
    row("5xx", "login", Class::Account, "the login failed"),
    row("5xx", "rcpt", Class::Recipient, "the recipient is refused"),
    row("5xx", "", Class::Request, "the message is refused"),
];

/// Words of servers whose codes do not show that the account is meant, or that the mailbox is only
/// busy, with the code of their rows. They have blanks, so that no address can contain them.
const SAYINGS: &[(&str, &str)] = &[
    ("relay access denied", "relay"),
    ("relaying denied", "relay"),
    ("relay denied", "relay"),
    ("relay not permitted", "relay"),
    ("unable to relay", "relay"),
    ("credentials for relay", "relay"),
    ("sending limit exceeded", "quota"),
    ("sending quota exceeded", "quota"),
    ("relay limit exceeded", "quota"),
    ("daily limit for message recipients", "quota"),
    ("receiving mail at a rate", "busy"),
];

/// The delay after an account's own limit, which usually counts a day.
const QUOTA_DELAY: Duration = Duration::from_secs(3600);

/// Returns the code of the rows for an answer: what its words say, else the stage.
fn word(digits: &str, low: &str, stage: Stage, phrases: &[String]) -> &'static str {
    if phrases.iter().any(|phrase| low.contains(phrase)) {
        return "phrase";
    }
    if digits.starts_with('4') && (low.contains("greylist") || low.contains("graylist")) {
        return "greylist";
    }
    let own = own_words(low);
    let saying = SAYINGS
        .iter()
        .find(|(words, _)| digits.starts_with('5') && own.contains(words));
    match saying {
        Some(&(_, word)) => word,
        None if ["530", "534", "535", "538"].contains(&digits) => Stage::Login.as_str(),
        None => stage.as_str(),
    }
}

/// Returns the part of a lower-case text before an answer of another server that it repeats, as a
/// relay does that asks the recipient's server: `host a.example said: 554 relay access denied`.
/// That server means its own recipient, and whoever runs it chooses its words.
fn own_words(low: &str) -> &str {
    let is_repeated = |word: &str| {
        let digits = word.split('-').next().unwrap_or_default();
        let is_code = digits.len() == 3
            && digits.starts_with(['4', '5'])
            && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_code || word == "said:"
    };
    let mut end = 0;
    for word in low.split([' ', '\t', '\r', '\n']) {
        if is_repeated(word) {
            return &low[..end];
        }
        end += word.len() + 1;
    }
    low
}

/// Maps an answer to an outcome. `phrases` are in lower case; `to` is the recipient.
pub(super) fn judge(
    digits: u16,
    text: &str,
    stage: Stage,
    phrases: &[String],
    to: &str,
) -> ProviderResponse {
    let (digits, low) = (digits.to_string(), text.to_lowercase());
    let enhanced = enhanced(text).filter(|code| code.starts_with(&digits[..1]));
    let word = word(&digits, &low, stage, phrases);
    let row = enhanced
        .and_then(|code| code::find(CODES, code, word))
        .or_else(|| code::find(CODES, &digits, word));
    let class = row.map_or(Class::Transient, |row| row.class);
    let reason = outcome::line(&format!("{digits} {text} ({})", stage.as_str()), &[to]);
    let is_quota = row.is_some_and(|row| row.code == "quota" || row.status == "5.4.5");
    let delay = delay_in(&low).or(is_quota.then_some(QUOTA_DELAY));
    let facts = ResponseDetails {
        provider_id: None,
        key: Some(to.to_owned()),
        delay,
        reason,
    };
    ProviderResponse {
        delay,
        ..ProviderResponse::new(outcome::sent(class, facts), enhanced.unwrap_or(&digits))
    }
}

/// Finds the first `x.y.z` at the beginning of a line.
fn enhanced(text: &str) -> Option<&str> {
    let words = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let is_code = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        let is_number = |part: &&str| {
            (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        parts.len() == 3 && parts[0].len() == 1 && parts.iter().all(is_number)
    };
    words.into_iter().find(is_code)
}

/// Finds the first number of seconds, minutes or hours in a lower-case text. Addresses and the
/// server's own ids may look like one: `24h@example.com`, `4xyz5m2`.
fn delay_in(text: &str) -> Option<Duration> {
    let words: Vec<&str> = text
        .split_whitespace()
        .filter(|word| !word.contains('@'))
        .collect();
    let text = words.join(" ");
    let is_part = |c: char| c.is_alphanumeric() || "._".contains(c);
    let mut rest = text.as_str();
    loop {
        let at = rest.find(|c: char| c.is_ascii_digit())?;
        let is_start = !rest[..at].ends_with(is_part);
        rest = &rest[at..];
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let behind_blanks = behind.trim_start_matches([' ', '-']);
        let end = behind_blanks
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(behind_blanks.len());
        let (unit, after) = behind_blanks.split_at(end);
        let is_whole = is_start && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let unit = match unit {
            _ if !is_whole => None,
            "s" | "sec" | "secs" | "second" | "seconds" => Some(1),
            "m" | "min" | "mins" | "minute" | "minutes" => Some(60),
            "h" | "hr" | "hrs" | "hour" | "hours" => Some(3600),
            _ => None,
        };
        if let (Some(unit), Ok(number)) = (unit, number.parse::<u64>()) {
            return Some(Duration::from_secs(number.saturating_mul(unit)).min(MAX_RETRY_AFTER));
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Sent;
    use crate::providers::wire_tests::class_of;

    const STAGES: [Stage; 6] = [
        Stage::Connect,
        Stage::Login,
        Stage::Mail,
        Stage::Rcpt,
        Stage::Data,
        Stage::Dot,
    ];

    fn judged(digits: u16, text: &str, stage: Stage) -> ProviderResponse {
        judge(
            digits,
            text,
            stage,
            &["too many messages".to_owned()],
            "ann@example.com",
        )
    }

    fn class(digits: u16, text: &str, stage: Stage) -> Class {
        class_of(&judged(digits, text, stage).sent)
    }

    /// Returns answers that the row might match: three digits, text and stage.
    fn answers(row: &Code) -> Vec<(u16, String, Stage)> {
        let stages = STAGES.into_iter().filter(|stage| {
            row.code == stage.as_str() || !STAGES.iter().any(|s| s.as_str() == row.code)
        });
        let text = match row.code {
            "phrase" => "Too many messages",
            "greylist" => "Greylisted, come again",
            "relay" => "Relay access denied",
            "quota" => "Daily user sending limit exceeded",
            "busy" => "The user is receiving mail at a rate that",
            _ => "because",
        };
        stages
            .flat_map(|stage| (0..10).map(move |digit| (stage, digit.to_string())))
            .map(|(stage, digit)| {
                let status = row.status.replace('x', &digit).replace('*', "450");
                match status.contains('.') {
                    true => (
                        status[..1].parse::<u16>().unwrap() * 100 + 50,
                        format!("{status} {text}"),
                        stage,
                    ),
                    false => (status.parse().unwrap(), text.to_owned(), stage),
                }
            })
            .collect()
    }

    #[test]
    fn every_row_is_what_its_answer_becomes() {
        for row in CODES {
            let found = |(digits, text, stage): &(u16, String, Stage)| {
                let own = ["phrase", "greylist", "relay", "quota", "busy"];
                let word = if own.contains(&row.code) {
                    row.code
                } else {
                    stage.as_str()
                };
                let digits = digits.to_string();
                let found = enhanced(text).map_or_else(
                    || code::find(CODES, &digits, word),
                    |e| code::find(CODES, e, word),
                );
                found.is_some_and(|found| found == row)
            };
            let own: Vec<_> = answers(row).into_iter().filter(found).collect();
            assert!(!own.is_empty(), "{row:?} is never reached");
            for (digits, text, stage) in own {
                assert_eq!(
                    class(digits, &text, stage),
                    row.class,
                    "{row:?} {digits} {text} {stage:?}"
                );
            }
        }
    }

    #[test]
    fn the_enhanced_code_comes_first() {
        assert_eq!(
            class(452, "4.2.2 Mailbox full", Stage::Rcpt),
            Class::Throttled(Scope::Recipient)
        );
        assert_eq!(
            class(450, "4.2.1 receiving mail too quickly", Stage::Rcpt),
            Class::Throttled(Scope::Recipient)
        );
        assert_eq!(
            class(452, "4.3.1 Insufficient storage", Stage::Data),
            Class::Throttled(Scope::Account)
        );
        assert_eq!(
            class(451, "4.7.500 Server busy", Stage::Mail),
            Class::Throttled(Scope::Account)
        );
        assert_eq!(
            class(450, "4.7.1 Greylisted", Stage::Rcpt),
            Class::Throttled(Scope::Recipient)
        );
        assert_eq!(
            class(
                454,
                "Throttling failure: Maximum sending rate exceeded.",
                Stage::Dot
            ),
            Class::Throttled(Scope::Account)
        );
        assert_eq!(
            class(550, "5.1.1 no such user", Stage::Rcpt),
            Class::Suppress
        );
        assert_eq!(
            class(550, "the user does not exist", Stage::Rcpt),
            Class::Recipient
        );
        assert_eq!(
            class(
                535,
                "5.7.8 Username and Password not accepted",
                Stage::Login
            ),
            Class::Account
        );
        assert_eq!(
            class(
                450,
                "5.1.1 a code of another class says nothing",
                Stage::Rcpt
            ),
            Class::Throttled(Scope::Recipient)
        );
        assert_eq!(
            judged(550, "5.1.1 <Ann@Example.com> unknown", Stage::Rcpt)
                .sent
                .reason(),
            "550 5.1.1 <***> unknown (rcpt)"
        );
    }

    #[test]
    fn a_fault_or_a_limit_of_the_account_is_no_fault_of_recipients() {
        let account = [
            (
                554,
                "5.7.1 <ann@example.com>: Relay access denied",
                Stage::Rcpt,
            ),
            (550, "relay not permitted", Stage::Rcpt),
            (550, "5.7.54 SMTP; Unable to relay recipient", Stage::Rcpt),
            (550, "5.7.1 Invalid credentials for relay", Stage::Rcpt),
            (530, "5.5.1 Authentication Required.", Stage::Mail),
            (530, "5.7.0 Authentication required", Stage::Rcpt),
        ];
        for (digits, text, stage) in account {
            assert_eq!(class(digits, text, stage), Class::Account, "{text}");
        }
        let limits = [
            (550, "5.4.5 Daily user sending quota exceeded.", Stage::Dot),
            (550, "5.7.1 Daily SMTP relay limit exceeded", Stage::Data),
            (550, "5.4.5 come again", Stage::Dot),
        ];
        for (digits, text, stage) in limits {
            let Sent::Throttled { scope, delay, .. } = judged(digits, text, stage).sent else {
                panic!("{text}")
            };
            assert_eq!(
                (scope, delay),
                (Scope::Account, Some(QUOTA_DELAY)),
                "{text}"
            );
        }
        assert_eq!(
            class(550, "5.1.1 Sender address rejected", Stage::Mail),
            Class::Request
        );
        assert_eq!(
            class(
                550,
                "5.2.1 The user is receiving mail at a rate that prevents more",
                Stage::Rcpt
            ),
            Class::Throttled(Scope::Recipient)
        );
        assert_eq!(
            class(550, "5.7.1 rejected by policy", Stage::Rcpt),
            Class::Recipient
        );
    }

    #[test]
    fn an_answer_of_the_recipients_server_that_a_relay_repeats_is_not_about_the_account() {
        let class = |text: &str| class(550, text, Stage::Rcpt);
        let repeated = [
            "554 5.7.1 <bob@example.net>: Relay access denied (in reply to RCPT TO command)",
            "550-5.7.1 Daily relay limit exceeded",
            "relaying denied",
        ];
        for said in repeated {
            let text = format!(
                "5.1.1 <bob@example.net>: Recipient address rejected: undeliverable address: \
                 host mx.example.net[192.0.2.1] said: {said}"
            );
            assert_eq!(class(&text), Class::Suppress, "{text}");
        }
        let callout = "Callout verification failed:\n550 relay not permitted";
        assert_eq!(class(callout), Class::Recipient);
        assert_eq!(class("relay not permitted (code 7)"), Class::Account);
    }

    #[test]
    fn a_phrase_of_the_account_is_a_throttle_and_the_text_reports_the_delay() {
        let answer = judged(
            550,
            "Too many messages. Try again in 92 seconds",
            Stage::Mail,
        );
        let Sent::Throttled { scope, delay, .. } = answer.sent else {
            panic!("not throttled")
        };
        assert_eq!(
            (scope, delay),
            (Scope::Account, Some(Duration::from_secs(92)))
        );
        let cases = [
            ("wait 5 minutes", Some(300)),
            ("4.7.1 slow down, 2 hours", Some(7200)),
            ("retry in 60s", Some(60)),
            ("10-minute limit", Some(600)),
            (
                "quota of 200 messages in 99999999999999999999 seconds",
                None,
            ),
            ("99999999999999 hours", Some(86_400)),
            ("200 messages", None),
            ("2-5 minutes", Some(300)),
            ("4.7.1 <24h@example.com>: slow down", None),
            ("4.7.1 24h@example.com, wait (60 s)", Some(60)),
            ("queued as 4xyz5m2 and b7h", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(delay_in(text), expected.map(Duration::from_secs), "{text}");
        }
    }
}
