//! The messages that a tenant sends beyond its limit: those that come within one spacing are
//! accepted in one transaction, so that a tenant that sends a hundred times its limit takes little
//! time from the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Admission;
use super::postgres::{self, AcceptRequest, Acceptance, Digests};
use super::service::WaitingMessage;
use crate::jobs::{Error, NewJob};

/// The time between the transactions of one tenant. The first message that waits is accepted at
/// once; those after it are answered at most this much later.
const SPACING: Duration = Duration::from_millis(50);

/// The longest time for which messages are taken to wait without asking: a limit that is raised
/// frees them within a second.
const KNOWN_MAX: Duration = Duration::from_secs(1);

/// The most messages of one transaction, which holds locks until its end.
const GROUP_MAX: usize = 64;

/// A message for which no slot was free.
#[derive(Clone, Debug)]
pub struct ExcessMessage {
    /// The module that sends it.
    pub module: String,
    /// The digests of the request.
    pub digests: Digests,
    /// The job of the message.
    pub job: NewJob,
}

/// The result of a message for which no slot was free.
#[derive(Debug)]
pub struct ExcessAnswer {
    /// The result of the request.
    pub acceptance: Acceptance,
    /// The wait of a message that was accepted; `None` if it does not wait any more.
    pub waiting: Option<WaitingMessage>,
}

struct Pending {
    message: ExcessMessage,
    answer: oneshot::Sender<Result<ExcessAnswer, Error>>,
}

/// A tenant that sends more than its limit.
#[derive(Default)]
struct TenantExcess {
    /// The messages that are not accepted yet.
    pending: Vec<Pending>,
    /// The modules of which messages wait for their admission, and until when that is sure.
    waiting: HashMap<String, Instant>,
}

/// The tenants that sent more than their limit within the last spacing.
#[derive(Clone, Default)]
pub(super) struct Excess {
    tenants: Arc<Mutex<HashMap<String, TenantExcess>>>,
}

impl Excess {
    /// Adds a message; returns true if nobody accepts those of this tenant yet.
    fn push(&self, tenant: &str, pending: Pending) -> bool {
        let mut tenants = self.tenants.lock();
        let is_first = !tenants.contains_key(tenant);
        let excess = tenants.entry(tenant.to_owned()).or_default();
        excess.pending.push(pending);
        is_first
    }

    /// Returns the messages to accept next; empty if there are none, and then the tenant is
    /// forgotten.
    fn take(&self, tenant: &str) -> Vec<Pending> {
        let mut tenants = self.tenants.lock();
        let group: Vec<Pending> = tenants.get_mut(tenant).map_or_else(Vec::new, |excess| {
            let many = excess.pending.len().min(GROUP_MAX);
            excess.pending.drain(..many).collect()
        });
        if group.is_empty() {
            tenants.remove(tenant);
        }
        group
    }

    /// Notes that messages of a module wait at least this long.
    fn note_waiting(&self, tenant: &str, module: &str, least: Duration) {
        if let Some(excess) = self.tenants.lock().get_mut(tenant) {
            let until = Instant::now() + least.min(KNOWN_MAX);
            excess.waiting.insert(module.to_owned(), until);
        }
    }
}

/// The work for one tenant. If it panics, those who wait are told that it ended, and the next
/// message begins anew.
struct Accepting<'a>(&'a Excess, &'a str);

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.tenants.lock().remove(self.1);
        }
    }
}

impl Admission {
    /// Returns true if the tenant sent more than its limit a moment ago.
    pub fn is_in_excess(&self, tenant: &str) -> bool {
        self.excess.tenants.lock().contains_key(tenant)
    }

    /// Returns true if messages of a module are known to wait, so that a new one gets no slot.
    pub fn is_waiting(&self, tenant: &str, module: &str) -> bool {
        let tenants = self.excess.tenants.lock();
        let until = tenants.get(tenant).and_then(|of| of.waiting.get(module));
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Accepts a message for which no slot was free, with the others of its tenant that come within
    /// 50 ms.
    pub async fn accept_excess(
        &self,
        tenant: &str,
        message: ExcessMessage,
    ) -> Result<ExcessAnswer, Error> {
        let (answer, answered) = oneshot::channel();
        if self.excess.push(tenant, Pending { message, answer }) {
            let (admission, tenant) = (self.clone(), tenant.to_owned());
            tokio::spawn(async move { admission.accept_groups(&tenant).await });
        }
        answered
            .await
            .unwrap_or_else(|_| Err(Error::Lost("accepting the message was given up".to_owned())))
    }

    async fn accept_groups(&self, tenant: &str) {
        let _accepting = Accepting(&self.excess, tenant);
        loop {
            let begun = Instant::now();
            let group = self.excess.take(tenant);
            if group.is_empty() {
                return;
            }
            self.accept_group(tenant, group).await;
            tokio::time::sleep_until(begun + SPACING).await;
        }
    }

    async fn accept_group(&self, tenant: &str, mut group: Vec<Pending>) {
        // Equal requests lock their digest: in one order for all, two processes never wait for
        // each other.
        group.sort_by(|a, b| a.message.digests.request.cmp(&b.message.digests.request));
        let mut modules: BTreeMap<String, Vec<Pending>> = BTreeMap::new();
        for pending in group {
            let module = pending.message.module.clone();
            modules.entry(module).or_default().push(pending);
        }
        for (module, pending) in modules {
            self.accept_of_module(tenant, &module, pending).await;
        }
    }

    async fn accept_of_module(&self, tenant: &str, module: &str, pending: Vec<Pending>) {
        let messages: Vec<&ExcessMessage> = pending.iter().map(|of| &of.message).collect();
        let accepted = self.accept_each((tenant, module), &messages).await;
        let ids: Vec<i64> = accepted.iter().filter_map(held).collect();
        // A message without a place here is looked up again by itself.
        let waiting = match ids.is_empty() {
            true => Ok(HashMap::new()),
            false => self.waiting_each(&ids).await,
        };
        let mut waiting = waiting.unwrap_or_else(|error| {
            tracing::debug!(%error, "the places of waiting messages could not be read");
            HashMap::new()
        });
        if let Some(longest_s) = waiting.values().map(|message| message.wait_s).max() {
            // Seconds are rounded up.
            let least = Duration::from_secs(longest_s.saturating_sub(1));
            self.excess.note_waiting(tenant, module, least);
        }
        for (acceptance, pending) in accepted.into_iter().zip(pending) {
            let waiting = held(&acceptance).and_then(|id| waiting.remove(&id));
            let answer = acceptance.map(|acceptance| ExcessAnswer {
                acceptance,
                waiting,
            });
            // A client that went away meanwhile asks again.
            let _ = pending.answer.send(answer);
        }
    }

    /// Accepts messages in one transaction; if Postgres refuses one of them, each in its own, so
    /// that each has its own error.
    async fn accept_each(
        &self,
        sender: (&str, &str),
        messages: &[&ExcessMessage],
    ) -> Vec<Result<Acceptance, Error>> {
        let refused = match postgres::accept_excess(&self.queue, sender, messages).await {
            Ok(accepted) => return accepted.into_iter().map(Ok).collect(),
            Err(error) => error,
        };
        match refused {
            // Postgres may have committed before it was lost.
            Error::Lost(reason) => {
                let lost = || Err(Error::Lost(reason.clone()));
                return messages.iter().map(|_| lost()).collect();
            }
            _ if messages.len() == 1 => return vec![Err(refused)],
            _ => {}
        }
        let mut accepted = Vec::with_capacity(messages.len());
        for message in messages {
            let request = AcceptRequest {
                tenant: sender.0,
                module: sender.1,
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
