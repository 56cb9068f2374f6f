//! The notifications of collectors: of new messages, and of tenants at their limit.
//!
//! Every role of the database may send one, so a notification is a hint and no more: of messages
//! the gateway reads the history, of limits the table that only collectors write, and of erased
//! inboxes whether they, or what their channels kept, are gone.

use std::collections::HashSet;
use std::time::Duration;

use super::channel_name::ChannelName;
use super::postgres;
use super::service::Gateway;
use super::tenant_mark::TenantMark;
use crate::jobs::Error;

/// The time after a collector has recorded a limit in which a notification of it is believed.
const BELIEVED_FOR: Duration = Duration::from_secs(3);

/// The time since a collector has recorded a limit where notifications are not heard. It records a
/// limit again every second.
const RECORDED_WITHIN: Duration = Duration::from_millis(1500);

/// The wait that connections are told there, because only the notification has it.
const USUAL_WAIT: Duration = Duration::from_secs(1);

/// The most erased inboxes that are noted at once: one transaction may erase many.
const ERASED_MAX: usize = 10_000;

impl Gateway {
    /// Takes the notification of a publication. If the tenant is at its limit, the notification
    /// waits for the steps in which this process moves the tenant's messages.
    pub(super) fn hear_publication(&self, mark: Option<TenantMark>) {
        let is_paced = |mark| self.limited.lock().has_mark(mark);
        if !mark.is_some_and(is_paced) {
            self.due.publications.notify_one();
        }
    }

    /// Takes a notification: an empty one is about messages, others are about an inbox that was
    /// erased, or a tenant at its limit.
    pub(super) fn hear(&self, payload: &str) {
        if let Some(mark) = payload.strip_prefix("erased ") {
            return self.hear_erased(mark);
        }
        let limited = payload
            .split_once(' ')
            .and_then(|(wait_ms, mark)| Some((wait_ms.parse().ok()?, TenantMark::parse(mark)?)));
        let Some((wait_ms, mark)) = limited else {
            return self.due.channel_messages.notify_one();
        };
        if let Some(tenant) = self.hub.tenant_of(mark) {
            let wait = Duration::from_millis(wait_ms);
            self.heard.lock().insert(tenant.to_string(), wait);
            self.has_heard.notify_one();
        }
    }

    fn hear_erased(&self, mark: &str) {
        if note_erased(&mut self.erased.lock(), mark) {
            self.has_heard.notify_one();
        }
    }

    /// Tells the connections that read erased inboxes to list them again. Nothing is published,
    /// because that would keep the name of the recipient.
    pub(super) async fn report_erased(&self) -> Result<(), Error> {
        let marks = std::mem::take(&mut *self.erased.lock());
        if marks.is_empty() {
            return Ok(());
        }
        let mut inboxes = self.hub.inboxes();
        inboxes.retain(|(tenant, channel)| {
            let mark = TenantMark::of(&format!("{tenant}\u{1f}{channel}"));
            marks.contains(&mark)
        });
        let gone = postgres::gone_inboxes(&self.db, &inboxes).await;
        // Postgres tells of them once.
        for (tenant, recipient) in gone.inspect_err(|_| self.erased.lock().extend(marks))? {
            self.hub
                .report_gap(&tenant, &ChannelName::of_inbox(&recipient));
        }
        Ok(())
    }

    /// Warns the connections of tenants whose limits a collector has recorded.
    pub(super) async fn warn_tenants(&self) -> Result<(), Error> {
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

    /// Warns the connections of tenants whose limits a collector has recorded, in a process that
    /// hears no notifications.
    pub(super) async fn warn_unheard_tenants(&self) -> Result<(), Error> {
        let tenants = self.hub.tenant_names();
        if tenants.is_empty() {
            return Ok(());
        }
        let tenants: Vec<&str> = tenants.iter().map(|tenant| &**tenant).collect();
        for tenant in postgres::limited_tenants(&self.db, &tenants, RECORDED_WITHIN).await? {
            let warned = self.hub.limit(&tenant, USUAL_WAIT);
            self.metrics.warned(warned as u64);
        }
        Ok(())
    }
}

/// Notes the mark of an erased inbox; returns true if it was not noted yet, and has room.
fn note_erased(erased: &mut HashSet<TenantMark>, written: &str) -> bool {
    match TenantMark::parse(written) {
        Some(mark) if erased.len() < ERASED_MAX => erased.insert(mark),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_may_erase_thousands_and_whoever_sends_more_takes_no_more_room() {
        let mut erased = HashSet::new();
        let mut note = |mark: usize| note_erased(&mut erased, &format!("{mark:016x}"));
        assert!((0..5_000).all(&mut note));
        assert!(!note(7));
        let more = (5_000..20_000).filter(|mark| note(*mark)).count();
        assert_eq!(more, ERASED_MAX - 5_000);
        assert!(!note_erased(&mut erased, "acme"));
        assert_eq!(erased.len(), ERASED_MAX);
    }
}
