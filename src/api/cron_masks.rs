//! The check that a schedule is not replaced by its own masked arguments.

use serde_json::Value;

use crate::api::http::fields::{self, Errors};
use crate::api::http::problem::{Code, Problem};
use crate::cron::Schedule;
use crate::jobs::secret;
use crate::notify::recipient;

/// The text within masks of credentials, recipients and contents.
const STARS: &str = "***";

/// Refuses arguments that hold a mask where `shown`, the schedule as readers see it, holds it too:
/// the mask would replace the value.
pub(super) fn refuse_masks(shown: &Schedule, sent: &Value) -> Result<(), Problem> {
    let mut errors = Errors::default();
    let is_mask = |at: &str, text: &str| is_mask(&shown.kind, at, text);
    find(&shown.args, sent, "/args", &is_mask, &mut errors);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::fields(Code::InvalidFields, errors))
    }
}

fn find(
    shown: &Value,
    sent: &Value,
    at: &str,
    is_mask: &dyn Fn(&str, &str) -> bool,
    errors: &mut Errors,
) {
    match (shown, sent) {
        (Value::String(shown), Value::String(sent)) if shown == sent && is_mask(at, sent) => {
            let message = format!("is the mask {sent:?} that readers see; send the value itself");
            errors.body(at, message);
        }
        (Value::Object(shown), Value::Object(sent)) => {
            for (name, sent) in sent {
                if let Some(shown) = shown.get(name) {
                    find(shown, sent, &fields::pointer(at, name), is_mask, errors);
                }
            }
        }
        (Value::Array(shown), Value::Array(sent)) => {
            for (index, (shown, sent)) in shown.iter().zip(sent).enumerate() {
                find(shown, sent, &format!("{at}/{index}"), is_mask, errors);
            }
        }
        _ => {}
    }
}

fn is_mask(kind: &str, at: &str, text: &str) -> bool {
    if text == secret::MASK {
        return true;
    }
    match kind {
        "http" => {
            let is_header = at.starts_with("/args/headers/") && text == STARS;
            let is_url = at == "/args/url" && (text == STARS || text.contains("//***@"));
            is_header || is_url
        }
        recipient::KIND => text.contains(STARS),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(kind: &str, shown: &Value, sent: &Value) -> Vec<String> {
        let mut errors = Errors::default();
        let is_mask = |at: &str, text: &str| is_mask(kind, at, text);
        find(shown, sent, "/args", &is_mask, &mut errors);
        let mut pointers: Vec<String> = errors.listed.into_iter().map(|one| one.pointer).collect();
        pointers.sort();
        pointers
    }

    #[test]
    fn a_mask_that_would_replace_its_value_is_refused() {
        let http = json!({"url": "https://***@example.com/x", "headers": {"authorization": "***"},
            "body": "***", "list": [{"a": "[secret]"}]});
        assert_eq!(
            refused("http", &http, &http),
            ["/args/headers/authorization", "/args/list/0/a", "/args/url"]
        );
        let message = json!({"channel": "email", "to": "a***@e***.com", "data": {"code": "***"}});
        assert_eq!(
            refused("notification", &message, &message),
            ["/args/data/code", "/args/to"]
        );
    }

    #[test]
    fn values_that_are_no_masks_pass() {
        let shown = json!({"url": "https://example.com/***", "headers": {"authorization": "***"},
            "body": "***"});
        let mut sent = shown.clone();
        sent["headers"]["authorization"] = json!("Bearer new");
        assert!(refused("http", &shown, &sent).is_empty());
        assert!(refused("report", &shown, &shown).is_empty());
        assert!(refused("http", &json!({}), &shown).is_empty());
    }
}
