//! The driver of the channel `inapp`: writes into the inbox of the recipient.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::postgres::{Inbox, InboxDelivery, NewInboxMessage};
use crate::jobs::Issue;
use crate::providers::{Driver, Message, Provider, ProviderResponse, Scope, SendContext, Sent};

/// The longest subject, in bytes.
pub const SUBJECT_BYTES: usize = 1024;

/// The longest body, in bytes.
pub const BODY_BYTES: usize = 16_384;

/// The wait of a message while too many publications of its tenant wait.
const FULL_DELAY: Duration = Duration::from_secs(1);

/// The wait of the messages of a recipient whose inbox another transaction has locked.
const LOCKED_DELAY: Duration = Duration::from_secs(1);

/// The driver of the inbox.
pub struct InboxDriver(Inbox);

impl InboxDriver {
    /// Creates the driver of these inboxes.
    pub fn new(inbox: Inbox) -> Self {
        Self(inbox)
    }

    async fn write(&self, message: &Message, context: &SendContext) -> Sent {
        let number = message.id.strip_prefix("job_");
        let Some(job_id) = number.and_then(|number| number.parse().ok()) else {
            let reason = "the message has no job".to_owned();
            return Sent::PermanentRequest { reason };
        };
        let new = NewInboxMessage {
            job_id,
            recipient: message.to.address().to_owned(),
            subject: message.subject.clone(),
            body: message.body.clone(),
        };
        // A write whose answer is lost is not ambiguous: repeated, it writes nothing.
        match tokio::time::timeout(context.timeout, self.0.deliver(new)).await {
            Ok(Ok(InboxDelivery::Kept)) => Sent::Delivered { provider_id: None },
            Ok(Ok(InboxDelivery::Full)) => Sent::Throttled {
                scope: Scope::Sender,
                key: None,
                delay: Some(FULL_DELAY),
                reason: "as many publications of the tenant wait as may".to_owned(),
            },
            Ok(Ok(InboxDelivery::Locked)) => Sent::Throttled {
                scope: Scope::Recipient,
                key: None,
                delay: Some(LOCKED_DELAY),
                reason: "a transaction of another has locked the inbox".to_owned(),
            },
            Ok(Err(_)) | Err(_) => Sent::Transient {
                reason: "Postgres did not write the message".to_owned(),
            },
        }
    }
}

impl Driver for InboxDriver {
    fn provider(&self) -> Provider {
        Provider::Inbox
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = Vec::new();
        let is_given = [
            ("/from", message.from.is_some()),
            ("/html", message.html.is_some()),
            ("/extra", !message.extra.is_empty()),
        ];
        for (pointer, _) in is_given.iter().filter(|(_, is_given)| *is_given) {
            issues.push(Issue::new(*pointer, "must be left out for the inbox"));
        }
        let subject = message.subject.as_deref().unwrap_or_default();
        for (pointer, text, most) in [
            ("/subject", subject, SUBJECT_BYTES),
            ("/body", &message.body, BODY_BYTES),
        ] {
            if text.len() > most {
                let bytes = text.len();
                let words = format!("must be at most {most} bytes, not {bytes}");
                issues.push(Issue::new(pointer, words));
            } else if text.contains('\0') {
                issues.push(Issue::new(pointer, "must not contain the character NUL"));
            }
        }
        issues
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        Box::pin(async move { ProviderResponse::new(self.write(message, context).await, "") })
    }
}
