//! The frames of an inbox: a recipient whose ticket names it reads and marks its messages.

use super::session::{Ended, Session};
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::gateway::server_frame::{self, FrameError};
use crate::inbox::request::{MarkRequest, PageRequest};
use crate::jobs::Error;

impl Session {
    /// Answers with a page of the recipient's own inbox, and with its counts.
    pub(super) async fn list_inbox(
        &mut self,
        asked: &PageRequest,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        let Some(recipient) = self.identity.recipient.clone() else {
            return self.has_no_inbox(reference).await;
        };
        let (state, tenant) = (self.state.clone(), self.identity.tenant.clone());
        let read = async {
            let _permit = state.inbox_asks.enter(&tenant).await;
            let inbox = &state.inbox;
            let page = inbox.page(&tenant, &recipient, asked).await?;
            let counts = inbox.counts(&tenant, &recipient).await?;
            Ok::<_, Error>((page, counts))
        };
        match with_timeout(LIST_TIMEOUT, read).await {
            Ok((page, counts)) => {
                let answer = server_frame::inbox(&page, counts, reference);
                self.send(answer).await
            }
            Err(_) => {
                let words = "Postgres does not answer; ask again soon";
                self.refuse(FrameError::Unavailable, words, reference).await
            }
        }
    }

    /// Marks messages of the recipient's own inbox; its other devices are told on its channel.
    pub(super) async fn mark_inbox(
        &mut self,
        asked: &MarkRequest,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        let Some(recipient) = self.identity.recipient.clone() else {
            return self.has_no_inbox(reference).await;
        };
        let (state, tenant) = (self.state.clone(), self.identity.tenant.clone());
        let waiting_max = state.gateway.delay_line(&tenant).await;
        let marked = async {
            let _permit = state.inbox_asks.enter(&tenant).await;
            let inbox = &state.inbox;
            inbox.mark(&tenant, &recipient, asked, waiting_max).await
        };
        match with_timeout(LIST_TIMEOUT, marked).await {
            Ok(marked) => {
                // A mark is a publication too.
                self.hold_at_limit();
                let answer = server_frame::inbox_counts(marked.counts, reference);
                self.send(answer).await
            }
            Err(_) => {
                let words = "Postgres does not answer; the messages may have been marked";
                self.refuse(FrameError::Unavailable, words, reference).await
            }
        }
    }

    async fn has_no_inbox(&mut self, reference: Option<&str>) -> Result<(), Ended> {
        let words = "the connection has no inbox: its ticket names no recipient";
        self.refuse(FrameError::ForbiddenChannel, words, reference)
            .await
    }
}
