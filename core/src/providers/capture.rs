//! Accounts in test mode: messages are checked as for a real account and then kept, not sent.

use futures_util::future::{BoxFuture, ready};

use super::{Account, Driver, Message, Provider, ProviderResponse, SendContext, Sent};
use crate::jobs::Issue;

/// The setting of an account that captures its messages.
pub const CAPTURE: &str = "capture";

/// The status of a captured message.
const CAPTURED: &str = "captured";

/// The driver of an account whose messages nobody gets.
struct CaptureDriver(Box<dyn Driver>);

/// Returns the driver of an account, which sends nothing if the account captures.
pub fn captured(account: &Account, driver: Box<dyn Driver>) -> Box<dyn Driver> {
    match account.option(CAPTURE) {
        Some("true") => Box::new(CaptureDriver(driver)),
        _ => driver,
    }
}

impl Driver for CaptureDriver {
    fn provider(&self) -> Provider {
        self.0.provider()
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        self.0.check(message)
    }

    fn send<'a>(&'a self, _: &'a Message, _: &'a SendContext) -> BoxFuture<'a, ProviderResponse> {
        let sent = Sent::Delivered { provider_id: None };
        Box::pin(ready(ProviderResponse::new(sent, CAPTURED)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::providers::{Channel, build, examples};

    #[test]
    fn a_captured_message_is_checked_and_goes_nowhere() {
        let options = [
            ("account_sid", "AC1"),
            ("from", "+15550100"),
            (CAPTURE, "true"),
        ];
        let account = Account {
            base_url: Some("http://127.0.0.1:9".to_owned()),
            ..examples::account(&options, &[("auth_token", "t")])
        };
        let driver = build::build(Provider::Twilio, &account, &examples::tools()).unwrap();
        let context = SendContext {
            now_s: examples::NOW_S,
            timeout: Duration::from_secs(1),
            stop: CancellationToken::new(),
        };
        let message = examples::message(Channel::Sms, "+4915112345678", json!({}));
        let answer = driver.send(&message, &context).now_or_never().unwrap();
        assert_eq!(
            (answer.sent, answer.status.as_str()),
            (Sent::Delivered { provider_id: None }, CAPTURED)
        );
        let wrong = examples::message(Channel::Sms, "+4915112345678", json!({"nonsense": 1}));
        assert!(driver.check(&message).is_empty() && !driver.check(&wrong).is_empty());
    }
}
