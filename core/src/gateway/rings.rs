//! Rings: the notifications with which collectors tell all gateways of messages and of tenants at
//! their limit.
//!
//! Every role of the database may send one, so a ring is a hint and no more: of messages the
//! gateway reads the history, and of limits the table that only collectors write.

use std::time::Duration;

use super::postgres;
use super::service::Gateway;
use super::tenant_mark::TenantMark;
use crate::jobs::Error;

/// The time after a collector has told of a limit in which a ring about it is believed.
const BELIEVED_FOR: Duration = Duration::from_secs(3);

impl Gateway {
    /// Takes the notification of a publication. That of a tenant at its limit waits for the steps in
    /// which this process moves its messages.
    pub(super) fn hear_publication(&self, mark: Option<TenantMark>) {
        let is_paced = |mark| self.limited.lock().has_mark(mark);
        if !mark.is_some_and(is_paced) {
            self.due.publications.notify_one();
        }
    }

    /// Takes a ring: an empty one tells of messages, another one of a tenant at its limit.
    pub(super) fn hear(&self, payload: &str) {
        let limited = payload
            .split_once(' ')
            .and_then(|(wait_ms, tenant)| Some((wait_ms.parse().ok()?, tenant)));
        let Some((wait_ms, tenant)) = limited else {
            return self.due.channel_messages.notify_one();
        };
        if self.hub.has_tenant(tenant) {
            let wait = Duration::from_millis(wait_ms);
            self.heard.lock().insert(tenant.to_owned(), wait);
            self.has_heard.notify_one();
        }
    }

    /// Warns the connections of tenants of whose limits a collector has told.
    pub(super) async fn tell_limits(&self) -> Result<(), Error> {
        let heard = std::mem::take(&mut *self.heard.lock());
        if heard.is_empty() {
            return Ok(());
        }
        let tenants: Vec<&str> = heard.keys().map(String::as_str).collect();
        for tenant in postgres::limited_tenants(&self.db, &tenants, BELIEVED_FOR).await? {
            if let Some(wait) = heard.get(&tenant) {
                let warned = self.hub.limit(&tenant, *wait);
                self.metrics.warned(warned as u64);
            }
        }
        Ok(())
    }
}
