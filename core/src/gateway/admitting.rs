//! The pace of tenants: how many of their messages may go now, by the limits of their channels.

use std::time::Duration;

use tokio::time::Instant;

use super::limits::delay_line;
use super::pace::Pace;
use super::postgres::{TenantGrant, WaitingPublications};
use super::service::Gateway;
use crate::throttle::admission::channels_throttle_of;
use crate::throttle::rolling_window::{OpenWindow, WindowGrants, WindowLimit};
use crate::throttle::{AcquireRequest, LaneRequest};

/// The pause of a collector while another process keeps the windows.
const OTHERS: Duration = Duration::from_millis(250);

impl Gateway {
    /// Decides how many messages of each tenant may go now.
    pub(super) async fn admit(&self, waiting: Vec<WaitingPublications>) -> Vec<TenantGrant> {
        let mut grants = Vec::with_capacity(waiting.len());
        for one in waiting {
            grants.push(self.admit_tenant(one).await);
        }
        grants
    }

    async fn admit_tenant(&self, waiting: WaitingPublications) -> TenantGrant {
        let WaitingPublications { tenant, messages } = waiting;
        let now = Instant::now().into_std();
        let later = |tenant, wait| TenantGrant {
            tenant,
            messages: 0,
            wait: Some(wait),
            reported: None,
        };
        let all = |tenant, messages| TenantGrant {
            tenant,
            messages,
            wait: None,
            reported: None,
        };
        if messages == 0 {
            return all(tenant, 0);
        }
        let pace = self.limited.lock().pace(&tenant, messages, now);
        let want = match pace {
            Pace::Ask(want) => want,
            Pace::Wait(wait) => return later(tenant, wait),
        };
        let Some((granted, wait)) = self.take(&tenant, want).await else {
            self.limited.lock().postpone(&tenant, OTHERS, now);
            return later(tenant, OTHERS);
        };
        if granted >= messages {
            return all(tenant, granted);
        }
        let needs_rate = self.limited.lock().needs_rate(&tenant, now);
        let per_second = match needs_rate {
            true => Some(self.rate_of(&tenant).await),
            false => None,
        };
        let left = messages - granted;
        let mut limited = self.limited.lock();
        let step = limited.note(&tenant, left, wait, per_second, now);
        TenantGrant {
            tenant,
            messages: granted,
            wait: Some(step.wait),
            reported: step.reported,
        }
    }

    /// Returns the messages per second that the limit of a tenant admits; the setting while the
    /// store of throttles is away.
    pub async fn rate_of(&self, tenant: &str) -> f64 {
        let own = f64::from(self.limits.per_second);
        let Some(throttle) = channels_throttle_of(self.throttle_tenant(tenant)) else {
            return own;
        };
        let usage = self.store.window_usage(&throttle, "").await;
        let limit = usage.ok().flatten().and_then(|usage| {
            let limit = usage.throttle.first()?.limit();
            Some(limit.tokens / limit.span_s)
        });
        limit.unwrap_or(own)
    }

    /// Returns the messages of a tenant that may wait before publications of its clients are refused,
    /// by its limit as it was about a second ago.
    pub async fn delay_line(&self, tenant: &str) -> i64 {
        let known = self.rates.lock().get(tenant, Instant::now().into_std());
        if let Some(per_second) = known {
            return delay_line(per_second);
        }
        let per_second = self.rate_of(tenant).await;
        let now = Instant::now().into_std();
        self.rates.lock().set(tenant, per_second, now);
        delay_line(per_second)
    }

    /// Takes tokens for up to `want` messages of a tenant; returns their number, and the time until
    /// the next if some must wait. `None` while the store of throttles is away and another process
    /// keeps the windows.
    async fn take(&self, tenant: &str, want: u32) -> Option<(u32, Option<Duration>)> {
        let Some(throttle) = channels_throttle_of(self.throttle_tenant(tenant)) else {
            return self.take_leased(tenant, want).await;
        };
        let lane = LaneRequest {
            want,
            ..LaneRequest::default()
        };
        let ask = AcquireRequest {
            throttle,
            lanes: vec![lane],
            holder: None,
        };
        let answer = self.store.acquire(&ask).await;
        let grant = answer.lanes.first().filter(|_| answer.is_decided());
        match grant.map(|grant| (grant.granted, grant.wait)) {
            Some((granted, _)) if granted >= want => Some((want, None)),
            Some((granted, wait)) => Some((granted, Some(wait))),
            None => self.take_leased(tenant, want).await,
        }
    }

    /// Takes from a window of this process, if no other process uses its own.
    async fn take_leased(&self, tenant: &str, want: u32) -> Option<(u32, Option<Duration>)> {
        let is_ours = self.window_lease.holds().await;
        is_ours.then(|| self.take_own(tenant, want))
    }

    /// Takes from a window of this process by the limit of the settings.
    fn take_own(&self, tenant: &str, want: u32) -> (u32, Option<Duration>) {
        let limit = WindowLimit {
            tokens: f64::from(self.limits.per_second),
            span_s: 1.0,
        };
        let now_us = self.began.elapsed().as_micros() as f64;
        let mut windows = self.own_windows.lock();
        let known = windows.remove(tenant).into_iter().collect::<Vec<_>>();
        let mut grants = known.first().cloned().unwrap_or(WindowGrants {
            span_s: limit.span_s,
            grants: Vec::new(),
        });
        let open = OpenWindow::open_all(&[limit], &known, now_us);
        let Some(window) = open.first() else {
            return (want, None);
        };
        let granted = (window.units(1.0) as u32).min(want);
        grants.grants.retain(|(at, _)| at + 1e6 > now_us);
        if granted > 0 {
            grants.grants.push((now_us, f64::from(granted)));
        }
        windows.retain(|_, known| known.grants.last().is_some_and(|(at, _)| at + 1e6 > now_us));
        windows.insert(tenant.to_owned(), grants);
        let wait = Duration::from_micros(window.wait_us(1.0, now_us) as u64);
        (granted, (granted < want).then_some(wait))
    }
}
