//! The usage of a tenant and of one of its modules, and the time at which a waiting message is
//! due. Pure; the time comes with the figures.

use super::pause::{ModulePause, PausedBy};
use crate::throttle::admission::TenantLimits;
use crate::throttle::rolling_window::{OpenWindow, WindowLimit, WindowUsage};
use crate::throttle::{Knobs, RateLimit};

/// The span of the limits in the settings, in seconds.
const MINUTE_S: f64 = 60.0;

/// The time after which a client should ask again while the store is away, in seconds.
pub const AWAY_RETRY_S: u64 = 5;

/// The spans of a wait that an estimate looks at.
const SPANS_MAX: usize = 200;

/// A level of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AdmissionLevel {
    /// The tenant: all its modules together.
    Tenant,
    /// One module of the tenant.
    Module,
}

impl AdmissionLevel {
    /// Returns the level as the first word of a sentence.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tenant => "Tenant",
            Self::Module => "Module",
        }
    }
}

/// The usage of one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelUsage {
    /// The most messages within the span.
    pub limit: u64,
    /// The span, in seconds.
    pub span_s: f64,
    /// The messages that count now; more than the limit if critical ones went beyond it.
    pub used: u64,
    /// The messages that may be sent now.
    pub remaining: u64,
    /// The time at which the next one may be sent, in unix seconds; now if any remains.
    pub next_at_s: i64,
    /// The time at which the oldest message that counts leaves the window, in unix seconds; if more
    /// count than the limit allows, the time at which the next one may be sent; now if none counts.
    pub resets_at_s: i64,
}

impl LevelUsage {
    /// Returns the usage of a level of which nothing is used, with the limit of the settings.
    fn unused(limit: u32, now_s: i64) -> Self {
        Self {
            limit: u64::from(limit),
            span_s: MINUTE_S,
            used: 0,
            remaining: u64::from(limit),
            next_at_s: now_s,
            resets_at_s: now_s,
        }
    }
}

/// A message that waits for its admission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitingMessage {
    /// The estimated time until it is released, in whole seconds, at least 1; while its tenant is
    /// paused the time after which to ask again.
    pub wait_s: u64,
    /// The level for which it waits; `None` while the store is away or its tenant is paused.
    pub level: Option<AdmissionLevel>,
    /// The side that paused the messages of its tenant; `None` while they go.
    pub paused_by: Option<PausedBy>,
    /// The pause of its module, whose end the time respects; `None` if there is none.
    pub module_pause: Option<ModulePause>,
    /// Its place among the waiting messages of its module, from 1.
    pub place: i64,
    /// Its priority, 0 to 3.
    pub priority: i32,
    /// The usage of its tenant and module; `None` while the store is away.
    pub usage: Option<AdmissionUsage>,
}

impl WaitingMessage {
    /// Returns the seconds until it is released, as estimated; `None` if nobody knows.
    pub fn until_s(&self) -> Option<u64> {
        self.paused_by.is_none().then_some(self.wait_s)
    }

    /// Returns the answer to its sender.
    pub fn sentence(&self) -> String {
        match (self.paused_by, self.module_pause, self.level) {
            (Some(by), ..) => format!(
                "The notifications of this tenant are {}. Notification queued until they are \
                 resumed.",
                by.words()
            ),
            (None, Some(pause), Some(_)) => format!(
                "The notifications of this module are {}. Notification queued with {}s delay.",
                pause.by.words(),
                self.wait_s
            ),
            (None, None, Some(level)) => format!(
                "{} rate limit exceeded. Notification queued with {}s delay.",
                level.word(),
                self.wait_s
            ),
            (None, _, None) => {
                "The rate limits cannot be read now. Notification queued until they can.".to_owned()
            }
        }
    }

    /// Returns what it waits for, as a sentence without its subject.
    pub fn reason(&self) -> String {
        let why = match (self.paused_by, self.module_pause, self.level) {
            (Some(by), ..) => by.words(),
            (None, Some(pause), Some(_)) => match pause.by {
                PausedBy::Tenant => "its module is paused by the tenant",
                _ => "its module is paused by operators",
            },
            (None, None, Some(AdmissionLevel::Tenant)) => "the tenant is at its limit",
            (None, None, Some(AdmissionLevel::Module)) => "its module is at its limit",
            (None, _, None) => "they cannot be read now",
        };
        format!("waits for the limits of its tenant: {why}")
    }
}

/// The usage of a tenant, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantUsage {
    /// The tenant; `None` if it has no limit.
    pub tenant: Option<LevelUsage>,
    /// The limit of each of its modules; `None` if they have none.
    pub per_module: Option<ModuleLimit>,
    /// True while its throttle is paused or stopped, so that no message is released.
    pub is_paused: bool,
}

impl TenantUsage {
    /// Returns the usage from the grants that count.
    pub fn of(usage: &WindowUsage, is_paused: bool) -> Self {
        let rate = |limit: &WindowLimit| limit.tokens / limit.span_s;
        let per_module = usage.key.iter().map(OpenWindow::limit);
        let narrowest = per_module.min_by(|a, b| rate(a).total_cmp(&rate(b)));
        Self {
            tenant: level(&usage.throttle, usage.at_us as f64),
            per_module: narrowest.map(|limit| ModuleLimit {
                limit: limit.tokens as u64,
                span_s: limit.span_s,
            }),
            is_paused,
        }
    }

    /// Returns the usage of a tenant that has no throttle, because it has sent nothing lately.
    pub fn unused(limits: &TenantLimits, now_s: i64) -> Self {
        Self {
            tenant: Some(LevelUsage::unused(limits.per_tenant, now_s)),
            per_module: Some(ModuleLimit {
                limit: u64::from(limits.per_module),
                span_s: MINUTE_S,
            }),
            is_paused: false,
        }
    }
}

/// The limit of each module of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct ModuleLimit {
    /// The most messages within the span.
    pub limit: u64,
    /// The span, in seconds.
    pub span_s: f64,
}

/// The usage of a tenant and of one of its modules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdmissionUsage {
    /// The time, in unix seconds.
    pub now_s: i64,
    /// The tenant; `None` if it has no limit.
    pub tenant: Option<LevelUsage>,
    /// The module; `None` if it has no limit.
    pub module: Option<LevelUsage>,
}

impl AdmissionUsage {
    /// Returns the usage from the grants that count; `waits` says that messages of the module
    /// wait, so that nothing remains for a further one.
    pub fn of(usage: &WindowUsage, waits: bool) -> Self {
        let now_us = usage.at_us as f64;
        let mut module = level(&usage.key, now_us);
        if let Some(module) = module.as_mut().filter(|_| waits) {
            module.remaining = 0;
        }
        Self {
            now_s: (now_us / 1e6).ceil() as i64,
            tenant: level(&usage.throttle, now_us),
            module,
        }
    }

    /// Returns the usage while the store is away: nothing remains until it is asked again.
    pub fn away(limits: &TenantLimits, now_s: i64) -> Self {
        let again_s = now_s + AWAY_RETRY_S as i64;
        let level = |limit: u32| {
            Some(LevelUsage {
                remaining: 0,
                ..LevelUsage::unused(limit, again_s)
            })
        };
        Self {
            now_s,
            tenant: level(limits.per_tenant),
            module: level(limits.per_module),
        }
    }

    /// Returns the usage of a tenant that has no throttle, because it has sent nothing lately.
    pub fn unused(limits: &TenantLimits, now_s: i64) -> Self {
        Self {
            now_s,
            tenant: Some(LevelUsage::unused(limits.per_tenant, now_s)),
            module: Some(LevelUsage::unused(limits.per_module, now_s)),
        }
    }

    /// Returns the time at which the next message of the module may be sent, in unix seconds; now
    /// if both levels have a slot.
    pub fn next_at_s(&self) -> i64 {
        let levels = [self.tenant, self.module].into_iter().flatten();
        levels
            .map(|level| level.next_at_s)
            .fold(self.now_s, i64::max)
    }

    /// Returns the reset of the level that binds: the one with less remaining, or of two equal ones
    /// the later.
    pub fn resets_at_s(&self) -> i64 {
        let levels = [self.tenant, self.module].into_iter().flatten();
        levels
            .min_by_key(|level| (level.remaining, -level.resets_at_s))
            .map_or(self.now_s, |level| level.resets_at_s)
    }
}

fn level(windows: &[OpenWindow], now_us: f64) -> Option<LevelUsage> {
    // If more count than the limit allows, there is room only after several have left.
    let resets_us = |window: &OpenWindow| window.frees_us(now_us).max(window.wait_us(1.0, now_us));
    let binding = windows.iter().min_by(|a, b| {
        let order = |window: &OpenWindow| (window.left(), -resets_us(window));
        order(a)
            .partial_cmp(&order(b))
            .unwrap_or(std::cmp::Ordering::Equal)
    })?;
    let wait_us = windows.iter().map(|window| window.wait_us(1.0, now_us));
    Some(LevelUsage {
        limit: binding.limit().tokens as u64,
        span_s: binding.limit().span_s,
        used: binding.used().round() as u64,
        remaining: binding.left() as u64,
        next_at_s: ((now_us + wait_us.fold(0.0, f64::max)) / 1e6).ceil() as i64,
        resets_at_s: ((now_us + resets_us(binding)) / 1e6).ceil() as i64,
    })
}

/// Returns the seconds until a waiting message is due, at least 1, and the level with the longest
/// wait. `place` is its place among the messages of its module, from 1; `tenant_place` returns the
/// place among those of the tenant of the module's message at a place.
///
/// With `m` the limit of the module and `w` its span, the message at place `k` goes no earlier than
///
/// ```text
///   the k-th slot of the module, if nothing but the module delays it
///   the slot of the tenant for the place k - j m, and j w after it; j = 0, 1, .. while k > j m
/// ```
///
/// because each message uses the slot that the one `m` places before it frees.
pub fn due_in_s(
    usage: &WindowUsage,
    place: f64,
    tenant_place: impl Fn(f64) -> f64,
) -> (u64, AdmissionLevel) {
    let now_us = usage.at_us as f64;
    let wait_us = |windows: &[OpenWindow], place: f64| {
        windows
            .iter()
            .map(|window| window.place_us(place, now_us))
            .fold(0.0, f64::max)
    };
    let tenant_us = |place: f64| wait_us(&usage.throttle, tenant_place(place));
    let behind_tenant_us = |module: WindowLimit| {
        let further = ((place - 1.0) / module.tokens).floor().max(0.0) as usize;
        // Of a wait of hundreds of spans not each has to be looked at.
        (1..=further)
            .rev()
            .step_by((further / SPANS_MAX).max(1))
            .map(|j| j as f64)
            .map(|j| tenant_us(place - j * module.tokens) + j * module.span_s * 1e6)
            .fold(0.0, f64::max)
    };
    let module_us = usage
        .key
        .iter()
        .map(|window| behind_tenant_us(window.limit()))
        .fold(wait_us(&usage.key, place), f64::max);
    let tenant_us = tenant_us(place);
    let level = match tenant_us > module_us || usage.key.is_empty() {
        true => AdmissionLevel::Tenant,
        false => AdmissionLevel::Module,
    };
    let seconds = (tenant_us.max(module_us) / 1e6).ceil() as u64;
    (seconds.max(1), level)
}

/// Returns the seconds until the message at `place` of its module is due after a pause of the
/// module, at least 1. No grant of the module counts then whose span the pause outlasts.
pub fn after_pause_s(usage: &WindowUsage, place: f64, pause: ModulePause) -> u64 {
    let left_us = pause.left_us as f64;
    let spans_us = usage.key.iter().map(|window| {
        let limit = window.limit();
        ((place - 1.0) / limit.tokens).floor().max(0.0) * limit.span_s * 1e6
    });
    let wait_us = left_us + spans_us.fold(0.0, f64::max);
    ((wait_us / 1e6).ceil() as u64).max(1)
}

/// Returns the seconds until the message at these places of its module and of its tenant is due by
/// the rates of the throttle, at least 1, with the level of the slower one; `None` if it has no
/// rate.
pub fn by_rate_s(
    knobs: &Knobs,
    now_us: i64,
    place: f64,
    tenant_place: f64,
) -> Option<(u64, AdmissionLevel)> {
    let wait_s = |rate: RateLimit, place: f64| match rate {
        RateLimit::PerSecond(rps) => Some(place / rps),
        RateLimit::Stopped | RateLimit::Unlimited => None,
    };
    let waits = [
        (
            wait_s(knobs.effective_rps(now_us), tenant_place),
            AdmissionLevel::Tenant,
        ),
        (wait_s(knobs.key_rps, place), AdmissionLevel::Module),
    ];
    let (wait_s, level) = waits
        .into_iter()
        .filter_map(|(wait_s, level)| Some((wait_s?, level)))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(((wait_s.ceil() as u64).max(1), level))
}

/// Returns the place among the waiting messages of a tenant of the one at `place` of its module, if
/// all modules have the same share. `beside` are the numbers of messages of its other modules.
pub fn place_of_tenant(place: f64, beside: &[i64]) -> f64 {
    let before = beside.iter().map(|messages| (*messages as f64).min(place));
    place + before.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::rolling_window::WindowGrants;

    /// The unix time at which the seed's sample begins.
    const BEGIN_S: f64 = 1_744_714_200.0;

    /// The windows of a tenant with 100 and a module with 50 a minute, at second `now` of the
    /// sample; the grants are seconds with numbers of messages, of the module and of others.
    fn usage(now: f64, module: &[(f64, f64)], others: &[(f64, f64)]) -> WindowUsage {
        let now_us = (BEGIN_S + now) * 1e6;
        let open = |limit: &str, grants: &mut dyn Iterator<Item = &(f64, f64)>| {
            let limits = WindowLimit::parse_all(limit).unwrap();
            let mut grants: Vec<(f64, f64)> =
                grants.map(|(at, n)| ((BEGIN_S + at) * 1e6, *n)).collect();
            grants.sort_by(|a, b| a.0.total_cmp(&b.0));
            let known = [WindowGrants {
                span_s: 60.0,
                grants,
            }];
            OpenWindow::open_all(&limits, &known, now_us)
        };
        WindowUsage {
            at_us: now_us as i64,
            throttle: open("100/60", &mut module.iter().chain(others)),
            key: open("50/60", &mut module.iter()),
        }
    }

    #[test]
    fn the_seeds_sample_comes_out() {
        let usage = usage(42.0, &[(0.0, 50.0)], &[]);
        let level_usage = AdmissionUsage::of(&usage, true);
        let (tenant, module) = (level_usage.tenant.unwrap(), level_usage.module.unwrap());
        assert_eq!((tenant.limit, tenant.remaining), (100, 50));
        assert_eq!((module.limit, module.remaining), (50, 0));
        assert_eq!((tenant.used, module.used), (50, 50));
        assert_eq!(level_usage.resets_at_s(), 1_744_714_260);
        assert_eq!(
            (tenant.next_at_s, module.next_at_s),
            (1_744_714_242, 1_744_714_260)
        );
        assert_eq!(level_usage.next_at_s(), 1_744_714_260);
        assert_eq!(due_in_s(&usage, 1.0, |k| k), (18, AdmissionLevel::Module));
    }

    #[test]
    fn the_kth_over_the_limit_waits_a_minute_more_for_each_fifty() {
        let usage = usage(42.0, &[(0.0, 50.0)], &[]);
        for k in 1..=500_u64 {
            let (wait_s, _) = due_in_s(&usage, k as f64, |k| k);
            assert_eq!(wait_s, 18 + 60 * ((k - 1) / 50), "{k}");
        }
    }

    #[test]
    fn a_third_module_is_refused_by_the_tenant_with_its_own_fifty_left() {
        let usage = usage(10.0, &[], &[(0.0, 50.0), (2.0, 50.0)]);
        let level_usage = AdmissionUsage::of(&usage, false);
        assert_eq!(level_usage.tenant.unwrap().remaining, 0);
        assert_eq!(level_usage.module.unwrap().remaining, 50);
        assert_eq!(level_usage.resets_at_s(), BEGIN_S as i64 + 60);
        assert_eq!(due_in_s(&usage, 1.0, |k| k), (50, AdmissionLevel::Tenant));
        // Five others of the tenant go before it.
        assert_eq!(
            due_in_s(&usage, 1.0, |_| 51.0),
            (52, AdmissionLevel::Tenant)
        );
    }

    #[test]
    fn a_module_without_a_name_waits_for_its_tenant_alone() {
        let mut usage = usage(10.0, &[(0.0, 100.0)], &[]);
        usage.key.clear();
        assert_eq!(AdmissionUsage::of(&usage, true).module, None);
        assert_eq!(due_in_s(&usage, 1.0, |k| k), (50, AdmissionLevel::Tenant));
        assert_eq!(due_in_s(&usage, 101.0, |k| k).0, 110);
    }

    #[test]
    fn critical_messages_beyond_the_limit_count_and_nothing_is_below_zero() {
        let usage = usage(30.0, &[(0.0, 50.0), (5.0, 20.0)], &[]);
        let level_usage = AdmissionUsage::of(&usage, false);
        assert_eq!(level_usage.module.unwrap().remaining, 0);
        assert_eq!(level_usage.tenant.unwrap().remaining, 30);
        assert_eq!(level_usage.module.unwrap().used, 70);
        assert_eq!(level_usage.next_at_s(), BEGIN_S as i64 + 60);
        // Twenty must leave more than usual.
        assert_eq!(due_in_s(&usage, 1.0, |k| k).0, 30);
        assert_eq!(due_in_s(&usage, 31.0, |k| k).0, 35);
    }

    #[test]
    fn who_has_sent_nothing_may_send_all_now() {
        let level_usage = AdmissionUsage::of(&usage(7.0, &[], &[]), false);
        assert_eq!(level_usage.module.unwrap().remaining, 50);
        assert_eq!(level_usage.resets_at_s(), level_usage.now_s);
        assert_eq!(level_usage.now_s, BEGIN_S as i64 + 7);
    }

    #[test]
    fn the_reset_is_told_once_there_is_room() {
        // The limit was lowered from 100 to 50: the fiftieth newest leaves at 65 s.
        let usage = usage(30.0, &[(0.0, 30.0), (5.0, 70.0)], &[]);
        let level_usage = AdmissionUsage::of(&usage, false);
        assert_eq!(level_usage.module.unwrap().resets_at_s, BEGIN_S as i64 + 65);
        assert_eq!(level_usage.module.unwrap().next_at_s, BEGIN_S as i64 + 65);
        assert_eq!(level_usage.tenant.unwrap().resets_at_s, BEGIN_S as i64 + 60);
        assert_eq!(level_usage.resets_at_s(), BEGIN_S as i64 + 65);
    }

    #[test]
    fn a_pause_of_the_module_and_a_rate_put_the_time_off() {
        let usage = usage(42.0, &[(0.0, 50.0)], &[]);
        let pause = ModulePause {
            by: PausedBy::Operators,
            left_us: 300_000_000,
        };
        assert_eq!(after_pause_s(&usage, 1.0, pause), 300);
        assert_eq!(after_pause_s(&usage, 50.0, pause), 300);
        assert_eq!(after_pause_s(&usage, 51.0, pause), 360);

        let rate = |rps, key_rps| Knobs {
            rps: RateLimit::new(rps),
            key_rps: RateLimit::new(key_rps),
            ..Knobs::default()
        };
        let by_rate = |knobs: &Knobs| by_rate_s(knobs, 0, 5.0, 20.0);
        assert_eq!(by_rate(&rate(-1.0, -1.0)), None);
        assert_eq!(
            by_rate(&rate(0.1, -1.0)),
            Some((200, AdmissionLevel::Tenant))
        );
        assert_eq!(
            by_rate(&rate(0.1, 0.02)),
            Some((250, AdmissionLevel::Module))
        );
    }

    #[test]
    fn what_waits_leaves_nothing_for_a_further_one() {
        let level_usage = AdmissionUsage::of(&usage(7.0, &[], &[]), true);
        assert_eq!(level_usage.module.unwrap().remaining, 0);
        assert_eq!(level_usage.tenant.unwrap().remaining, 100);
    }

    #[test]
    fn a_tenant_shows_its_own_window_and_the_limit_of_its_modules() {
        let usage = usage(10.0, &[], &[(0.0, 60.0), (2.0, 40.0)]);
        let level_usage = TenantUsage::of(&usage, true);
        let tenant = level_usage.tenant.unwrap();
        assert_eq!((tenant.used, tenant.remaining), (100, 0));
        assert_eq!(tenant.next_at_s, BEGIN_S as i64 + 60);
        let per_module = level_usage.per_module.unwrap();
        assert_eq!((per_module.limit, per_module.span_s), (50, 60.0));
        assert!(level_usage.is_paused);
    }

    #[test]
    fn a_paused_tenant_is_told_no_time_and_who_paused_it() {
        let waiting = |paused_by, level| WaitingMessage {
            wait_s: 60,
            level,
            paused_by,
            module_pause: None,
            place: 1,
            priority: 2,
            usage: None,
        };
        let paused = waiting(Some(PausedBy::Operators), None);
        assert_eq!(paused.until_s(), None);
        assert!(paused.sentence().contains("paused by operators"));
        assert_eq!(
            paused.reason(),
            "waits for the limits of its tenant: paused by operators"
        );
        let limited = waiting(None, Some(AdmissionLevel::Module));
        assert_eq!(limited.until_s(), Some(60));
        assert_eq!(
            limited.sentence(),
            "Module rate limit exceeded. Notification queued with 60s delay."
        );
    }
}

#[cfg(test)]
#[path = "usage_mix_tests.rs"]
mod mix_tests;
