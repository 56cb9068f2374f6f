//! Accepts the messages that tenants send beyond their limits: those that come within 50 ms in one
//! transaction, so that a tenant that sends a hundred times its limit takes little time from the
//! others.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::excess::{ExcessAnswer, PendingMessage};
use super::postgres::{self, AcceptRequest, Acceptance, CountedPlace, ExcessMessage, Place};
use super::service::Admission;
use crate::jobs::Error;

/// The time between the transactions of one tenant. The first message that waits is accepted at
/// once; those after it are answered at most this much later.
const SPACING: Duration = Duration::from_millis(50);

/// The timeout of one of them. A longer one hangs, on a silently lost connection for example, and
/// all messages of its tenant would wait behind it.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);

/// The work for one tenant. If it panics, those who wait are told that it ended, and the next
/// message begins again.
struct Accepting<'a>(&'a Admission, &'a str);

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.excess.lock().forget(self.1);
        }
    }
}

impl Admission {
    /// Returns true if the tenant sent more than its limit a moment ago.
    pub fn is_in_excess(&self, tenant: &str) -> bool {
        self.excess.lock().has(tenant)
    }

    /// Returns true if messages of a module are known to wait, so that a new one gets no slot.
    pub fn is_waiting(&self, tenant: &str, module: &str) -> bool {
        let now = Instant::now().into_std();
        self.excess.lock().is_waiting(tenant, module, now)
    }

    /// Accepts a message for which no slot was free, with the others of its tenant that come within
    /// 50 ms.
    pub async fn accept_excess(
        &self,
        tenant: &str,
        message: ExcessMessage,
    ) -> Result<ExcessAnswer, Error> {
        let (tell, answered) = oneshot::channel();
        // A client that went away meanwhile asks again.
        let answer = Box::new(|answer| _ = tell.send(answer));
        let is_first = self
            .excess
            .lock()
            .push(tenant, PendingMessage { message, answer });
        if is_first {
            let (admission, tenant) = (self.clone(), tenant.to_owned());
            let accept = async move { admission.accept_groups(&tenant).await };
            tokio::spawn(accept.boxed());
        }
        answered
            .await
            .unwrap_or_else(|_| Err(Error::Lost("accepting the message was given up".to_owned())))
    }

    async fn accept_groups(&self, tenant: &str) {
        let _accepting = Accepting(self, tenant);
        loop {
            let begun = Instant::now();
            let group = self.excess.lock().take(tenant);
            if group.is_empty() {
                return;
            }
            // The answers are dropped with the group, which tells those who wait.
            if timeout(ACCEPT_TIMEOUT, self.accept_group(tenant, group))
                .await
                .is_err()
            {
                tracing::warn!(tenant, "accepting messages took too long and was given up");
            }
            tokio::time::sleep_until(begun + SPACING).await;
        }
    }

    async fn accept_group(&self, tenant: &str, mut group: Vec<PendingMessage>) {
        // Equal requests lock their digest: in one order for all, two processes never wait for
        // each other.
        group.sort_by(|a, b| a.message.digests.request.cmp(&b.message.digests.request));
        let mut modules: BTreeMap<String, Vec<PendingMessage>> = BTreeMap::new();
        for pending in group {
            let module = pending.message.module.clone();
            modules.entry(module).or_default().push(pending);
        }
        for (module, pending) in modules {
            self.accept_of_module(tenant, &module, pending).await;
        }
    }

    async fn accept_of_module(&self, tenant: &str, module: &str, pending: Vec<PendingMessage>) {
        let messages: Vec<&ExcessMessage> = pending.iter().map(|of| &of.message).collect();
        let accepted = self.accept_each((tenant, module), &messages).await;
        let ids: Vec<i64> = accepted.iter().filter_map(held).collect();
        // A message without a place here is looked up again by itself.
        let places = match ids.is_empty() {
            true => Ok(HashMap::new()),
            false => self.places(tenant, module, &ids).await,
        };
        let places = places.unwrap_or_else(|error| {
            tracing::debug!(%error, "the places of waiting messages could not be read");
            HashMap::new()
        });
        let mut waiting = self.waits(&places).await;
        if let Some(longest_s) = waiting.values().map(|message| message.wait_s).max() {
            // Seconds are rounded up.
            let least = Duration::from_secs(longest_s.saturating_sub(1));
            let now = Instant::now().into_std();
            self.excess.lock().note_waiting(tenant, module, least, now);
        }
        for (acceptance, pending) in accepted.into_iter().zip(pending) {
            let waiting = held(&acceptance).and_then(|id| waiting.remove(&id));
            let answer = acceptance.map(|acceptance| ExcessAnswer {
                acceptance,
                waiting,
            });
            (pending.answer)(answer);
        }
    }

    /// Returns the places of messages of one module. Counting reads all messages before them, so it
    /// is done when the last counted place is too old, when the lane moved on, and beside other
    /// modules that wait; else the places follow from the counted one.
    async fn places(
        &self,
        tenant: &str,
        module: &str,
        job_ids: &[i64],
    ) -> Result<HashMap<i64, Place>, Error> {
        let now = Instant::now().into_std();
        let counted = self.excess.lock().counted(tenant, module, now);
        if let Some(counted) = counted {
            let behind = postgres::behind(&self.queue, &counted).await?;
            if let Some(places) = counted.places(job_ids, &behind) {
                return Ok(places);
            }
        }
        let places = postgres::places(&self.queue, job_ids).await?;
        if let Some(counted) = CountedPlace::last(&places) {
            let mut excess = self.excess.lock();
            excess.note_counted(tenant, module, counted, now);
        }
        Ok(places)
    }

    /// Accepts messages in one transaction; if Postgres refuses one of them, each in its own, so
    /// that each has its own error.
    async fn accept_each(
        &self,
        sender: (&str, &str),
        messages: &[&ExcessMessage],
    ) -> Vec<Result<Acceptance, Error>> {
        let error = match postgres::accept_excess(&self.queue, sender, messages).await {
            Ok(accepted) => return accepted.into_iter().map(Ok).collect(),
            Err(error) => error,
        };
        if messages.len() == 1 {
            return vec![Err(error)];
        }
        if !error.is_rolled_back() {
            let reason = error.to_string();
            let lost = || Err(Error::Lost(reason.clone()));
            return messages.iter().map(|_| lost()).collect();
        }
        let mut accepted = Vec::with_capacity(messages.len());
        for message in messages {
            let request = AcceptRequest {
                tenant: sender.0,
                module: sender.1,
                owner: None,
                digests: &message.digests,
                admitted: false,
                job: &message.job,
            };
            accepted.push(self.accept(&request).await);
        }
        accepted
    }
}

/// Returns the id of a message that waits for its admission.
fn held(accepted: &Result<Acceptance, Error>) -> Option<i64> {
    match accepted {
        Ok(Acceptance::Accepted {
            job_id, held: true, ..
        }) => Some(*job_id),
        _ => None,
    }
}
