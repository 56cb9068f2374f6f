//! Checks of a message by the drivers of its pool, before anything is sent.

use crate::jobs::Issue;
use crate::notify::args::NotificationArgs;
use crate::providers::Driver;

/// Returns the first driver's issues if every account refuses the message. Texts of a template are
/// not rendered yet, so their issues are ignored.
pub(super) fn refused_by_all(
    notification: &NotificationArgs,
    drivers: &[Box<dyn Driver>],
) -> Vec<Issue> {
    // The address of a profile is known at the attempt.
    let Some(to) = notification.to.clone() else {
        return Vec::new();
    };
    let message = notification.message(String::new(), to, notification.texts.clone(), None);
    let is_text = |issue: &Issue| ["/body", "/subject", "/html"].contains(&issue.pointer.as_str());
    let mut first = None;
    for driver in drivers {
        let mut issues = driver.check(&message);
        issues.retain(|issue| notification.data.is_none() || !is_text(issue));
        if issues.is_empty() {
            return issues;
        }
        first.get_or_insert(issues);
    }
    first.unwrap_or_default()
}

pub(super) fn listed(issues: &[Issue]) -> String {
    let each: Vec<String> = issues
        .iter()
        .map(|issue| format!("{} {}", issue.pointer, issue.message))
        .collect();
    each.join("; ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::outbound::Guard;
    use crate::providers::{Account, AccountSecret, DriverClients, Http, twilio};

    #[test]
    fn what_every_account_refuses_is_reported_before_a_job_is_made() {
        let http = || Arc::new(Http::new(Guard::open()).unwrap());
        let tools = DriverClients {
            http: http(),
            guarded: http(),
        };
        let driver = |from: Option<&str>| {
            let mut account = Account {
                name: "a".to_owned(),
                ..Account::default()
            };
            account.options.insert(
                "account_sid".to_owned(),
                "AC00000000000000000000000000000000".to_owned(),
            );
            account
                .options
                .extend(from.map(|from| ("from".to_owned(), from.to_owned())));
            account.secrets.insert(
                "auth_token".to_owned(),
                AccountSecret::new("0123456789abcdef0123456789abcdef"),
            );
            twilio::build(&account, &tools).unwrap()
        };
        let wrong = |drivers: &[Box<dyn Driver>], more: Value| -> Vec<String> {
            let mut args = json!({"channel": "sms", "to": "+15550100"});
            args.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let notification = NotificationArgs::parse(&args).ok().unwrap();
            refused_by_all(&notification, drivers)
                .into_iter()
                .map(|issue| issue.pointer)
                .collect()
        };
        let drivers = [driver(None), driver(Some("+15550199"))];

        assert_eq!(
            wrong(&drivers, json!({"body": "hello"})),
            Vec::<String>::new()
        );
        assert_eq!(wrong(&drivers[..1], json!({"body": "hello"})), ["/from"]);
        assert_eq!(
            wrong(
                &drivers[1..],
                json!({"from": "+0", "body": "hello", "extra": {"colour": 1}})
            ),
            ["/extra/colour", "/from"]
        );
        // The length of a template's text is not known yet.
        let long = "x".repeat(2000);
        assert_eq!(wrong(&drivers[1..], json!({ "body": long })), ["/body"]);
        assert_eq!(
            wrong(&drivers[1..], json!({ "template": long })),
            Vec::<String>::new()
        );
    }
}
