//! Checks of throttles: whether those that jobs name exist, their knobs, and their governors.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::finding::{Finding, Findings, Health};
use super::work::LISTED;
use super::work::counted;
use crate::api::own_throttles;
use crate::app;
use crate::governor::actuator::is_stopped_by_breaker;
use crate::governor::explain::seconds;
use crate::governor::explain::why::gone_s;
use crate::governor::policy::SignalSource;
use crate::governor::{GovernorView, Journal, Policy, SignalView};
use crate::jobs::Queue;
use crate::throttle::api_limit::API_PREFIX;
use crate::throttle::caller_knobs::bounds_reached;
use crate::throttle::rules::{self, Knob};
use crate::throttle::status::EXPIRES;
use crate::throttle::{
    ANOTHER_THROTTLE, ApiLimit, KnobProblem, KnobsFile, Makers, Mode, Name, OWN_API, RedisStore,
    Status, Store, refused_part,
};

const CHECK: &str = "throttles";

/// Checks that the throttles that jobs and limits of requests name exist and can be read, and that
/// others can be made on first use.
pub(super) async fn check_throttles(
    queue: &Queue,
    store: &RedisStore,
    (made_max, files, limits): (usize, &[KnobsFile], &[ApiLimit]),
    prefix: &str,
    report: &mut Findings,
) {
    let policies = app::policies(files).unwrap_or_default();
    let states = Journal::new(queue.pool.clone()).load_all().await;
    let states: BTreeMap<String, Value> = states.unwrap_or_default().into_iter().collect();
    let (Ok(depths), Ok(names)) = (queue.depths().await, store.names().await) else {
        return;
    };
    let mut findings = Vec::new();
    let waiting = depths
        .throttles
        .iter()
        .filter(|depth| depth.ready + depth.scheduled > 0);
    let makers = Makers::of(&names, made_max);
    for depth in waiting {
        // The first of its jobs that asks for tokens makes one of a pattern, within the bound.
        let is_made = |name: Name| makers.pattern_of(&name).is_some();
        if !names.iter().any(|name| name.as_str() == depth.throttle)
            && !Name::new(depth.throttle.as_str()).is_ok_and(is_made)
        {
            let jobs = depth.ready + depth.scheduled;
            let wait = if jobs == 1 { "waits" } else { "wait" };
            let name = &depth.throttle;
            let remedy = match refused_part(name) {
                Some(part) => {
                    format!("none can have a part {part} in its name: {ANOTHER_THROTTLE}")
                }
                None => format!("create it: flyball throttle set {name} rps=10"),
            };
            findings.push(Finding::fail(
                CHECK,
                format!(
                    "there is no throttle {name}, for which {} {wait}",
                    counted(jobs)
                ),
                remedy,
            ));
        }
    }
    findings.extend(of_limits(limits, &names));
    for (tenant, throttles) in bounds_reached(&names, made_max) {
        let owner = tenant.map_or_else(String::new, |tenant| format!(" of tenant {tenant}"));
        findings.push(Finding::warn(
            CHECK,
            format!("{throttles} throttles{owner} exist, so none is made on first use any more"),
            "delete those that are not needed, or raise throttles_created_max",
        ));
    }
    for name in &names {
        let Ok(Some(status)) = store.status(name).await else {
            continue;
        };
        let stored = states.get(name.as_str()).cloned();
        let policy = policies.iter().find(|(governed, _)| governed == name);
        let view = policy.zip(stored).and_then(|((_, policy), state)| {
            GovernorView::of_stored(state, policy, status.at_us as f64 / 1e6)
        });
        findings.extend(of_knobs(prefix, &status));
        let looked_at = view.as_ref().map(|view| view.at);
        findings.extend(of_governor(&status, policy.is_some(), looked_at));
        if let Some((view, (_, policy))) = view.as_ref().zip(policy) {
            findings.extend(of_signals(&status, view, policy));
        }
    }
    let mut findings = listed(findings);
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            format!("{} exist, and every knob is valid", names.len()),
        ));
    }
    report.extend(findings);
}

/// Returns the findings that are listed, failures first, with the number of the others.
fn listed(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|one| one.health != Health::Fail);
    let others = findings.len().saturating_sub(LISTED);
    if others == 0 {
        return findings;
    }
    let failed = findings[LISTED..]
        .iter()
        .any(|one| one.health == Health::Fail);
    findings.truncate(LISTED);
    let seen = format!("{others} more findings about throttles are not listed");
    let todo = "see to these first, and run flyball doctor again";
    findings.push(match failed {
        true => Finding::fail(CHECK, seen, todo),
        false => Finding::warn(CHECK, seen, todo),
    });
    findings
}

/// Returns the limits of requests whose throttles are missing: they let every request through.
fn of_limits(limits: &[ApiLimit], names: &[Name]) -> Vec<Finding> {
    let of_others = limits.iter().filter(|limit| limit.api != OWN_API);
    let throttles = of_others.flat_map(|limit| [limit.of_keys(), limit.of_customers()]);
    // Before the first server has started none is missing.
    let has_api = names
        .iter()
        .any(|name| name.as_str().starts_with(API_PREFIX));
    let own = own_throttles(limits).into_iter().filter(|_| has_api);
    let all = throttles.flatten().chain(own);
    all.filter(|name| !names.contains(name))
        .map(|name| {
            Finding::warn(
                CHECK,
                format!("there is no throttle {name}, so this limit of requests lets all through"),
                "restart a server: it creates the throttle from its settings",
            )
        })
        .collect()
}

/// Returns the faults of the knobs of a throttle: the first that is unusable, and their expiry.
/// `prefix` is that of all keys in Redis.
fn of_knobs(prefix: &str, status: &Status) -> Vec<Finding> {
    let name = &status.name;
    let (expiry, unusable): (Vec<_>, Vec<_>) = status
        .problems
        .iter()
        .partition(|problem| problem.field == EXPIRES);
    let mut findings = Vec::new();
    if let Some(problem) = unusable.first() {
        findings.push(of_problem(prefix, name, problem));
    }
    if !expiry.is_empty() {
        let left = seconds(status.expires_in_s.unwrap_or_default());
        findings.push(Finding::warn(
            CHECK,
            format!("{name}: its knobs expire in {left}; after that its jobs wait"),
            "keep them: flyball throttle import-limitlion --yes",
        ));
    }
    findings
}

/// Returns the finding about an unusable knob. Its message says what is in force instead.
fn of_problem(prefix: &str, name: &Name, problem: &KnobProblem) -> Finding {
    let KnobProblem { field, message } = problem;
    let seen = match message.starts_with("must ") {
        true => format!("{name}: knob {field} {message}"),
        false => format!("{name}: {message}"),
    };
    let todo = match rules::knob(field).map(Knob::is_settable) {
        Some(true) => format!("set the knob: flyball throttle set {name} {field}=..."),
        Some(false) => {
            format!("remove the knob: redis-cli HDEL {prefix}throttle:{name}:knobs {field}")
        }
        // The key itself cannot hold knobs.
        None => format!("after that: flyball throttle set {name} rps=10"),
    };
    Finding::fail(CHECK, seen, todo)
}

/// Returns the finding about a throttle whose governor is gone: its lease has lapsed, or it has not
/// looked for long, or never although there is a policy. None is missing where a person turned it
/// off, or controls the rate without an end.
fn of_governor(status: &Status, has_policy: bool, looked_at: Option<Timestamp>) -> Option<Finding> {
    let now = status.at_us as f64 / 1e6;
    let is_away = looked_at.map_or(has_policy, |at| gone_s(at, now).is_some());
    let is_gone = status.needs_governor() && is_away;
    if !status.lease_expired && !is_gone {
        return None;
    }
    let so = match (is_stopped_by_breaker(&status.raw), status.lease_expired) {
        (true, _) => "its breaker stays open and nothing restarts it",
        (false, true) => "it runs at safe_rps at most",
        (false, false) => "its knob stays as it is",
    };
    Some(Finding::fail(
        CHECK,
        format!("{}: no governor is at work, so {so}", status.name),
        "check that a process with the role governor is running, reaches Postgres and Redis, and has \
         the throttle's knobs file with a [[signal]]; or set mode=manual",
    ))
}

/// Returns the findings about the signals without readings of a governor at work. Those of
/// Prometheus have a check of their own.
fn of_signals(status: &Status, view: &GovernorView, policy: &Policy) -> Vec<Finding> {
    let now = status.at_us as f64 / 1e6;
    let is_governed =
        matches!(status.knobs.mode, Mode::Auto | Mode::Shadow) && !status.knobs.paused;
    if !is_governed || status.lease_expired || gone_s(view.at, now).is_some() {
        return Vec::new();
    }
    let name = &status.name;
    let is_elsewhere = |signal: &&SignalView| {
        let about = policy.signal(&signal.name);
        about.is_some_and(|about| about.source != SignalSource::Prometheus)
    };
    let silent = view.signals.iter().filter(|signal| signal.stale);
    let of = |signal: &SignalView| {
        let since = match signal.age_s {
            Some(age_s) => format!("has had no new reading for {}", seconds(age_s)),
            None => "has never been read".to_owned(),
        };
        Finding::fail(
            CHECK,
            format!("{name}: signal {} {since}", signal.name),
            format!(
                "flyball why {name} says why; until it is read the governor lowers the rate to {}, \
                 or leaves the work stopped",
                view.actuator.refuge()
            ),
        )
    };
    silent.filter(is_elsewhere).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::governor::{Bounds, ControlState, Observation};
    use crate::throttle::RateLimit;
    use crate::throttle::bucket::UsageCounters;

    const NOW_US: i64 = 1_700_000_000_000_000;

    fn status(fields: &[(&str, &str)]) -> Status {
        let raw = fields.iter();
        let raw = raw.map(|(field, text)| ((*field).to_owned(), (*text).to_owned()));
        Status::read(
            Name::new("hooks").unwrap(),
            raw.collect(),
            &UsageCounters::default(),
            NOW_US,
        )
    }

    #[test]
    fn a_failure_is_listed_before_many_warnings_and_the_others_are_counted() {
        let warned = |n: usize| Finding::warn(CHECK, format!("{n}"), "wait");
        let few: Vec<Finding> = (0..LISTED).map(warned).collect();
        assert_eq!(listed(few).len(), LISTED);

        let mut many: Vec<Finding> = (0..LISTED + 2).map(warned).collect();
        many.push(Finding::fail(CHECK, "broken", "repair it"));
        let listed = listed(many);
        assert_eq!(listed.len(), LISTED + 1);
        assert_eq!(listed[0].seen, "broken");
        let last = &listed[LISTED];
        assert_eq!(last.health, Health::Warn);
        assert!(last.seen.starts_with("3 more findings"), "{last:?}");
    }

    #[test]
    fn an_expiry_is_no_unusable_knob() {
        let found = of_knobs("", &status(&[("rps", "5")]).expiring_in(90_000));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0].seen,
            "hooks: its knobs expire in 90 s; after that its jobs wait"
        );
        let found = of_knobs("", &status(&[("rps", "fast")]));
        assert!(found[0].seen.starts_with("hooks: knob rps"), "{found:?}");
        assert!(of_knobs("", &status(&[("rps", "5")])).is_empty());
    }

    #[test]
    fn a_limit_of_requests_whose_throttle_is_gone_is_told() {
        let limit = |api: &str| ApiLimit {
            name: "lead".to_owned(),
            api: api.to_owned(),
            methods: Vec::new(),
            prefix: "/lead".to_owned(),
            key_rps: 1.0,
            key_burst: 1.0,
            window: 1.0,
            customer_multiple: 3.0,
        };
        let names = [Name::new("limit:lead").unwrap()];

        let found = of_limits(&[limit("crm")], &names);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .seen
                .starts_with("there is no throttle limit:lead:customer, "),
            "{found:?}"
        );
        assert!(of_limits(&[limit(OWN_API)], &[]).is_empty());

        let mut names = own_throttles(&[limit(OWN_API)]);
        assert!(of_limits(&[limit(OWN_API)], &names).is_empty());
        names.retain(|name| name.as_str() != "api:denied");
        let found = of_limits(&[limit(OWN_API)], &names);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .seen
                .starts_with("there is no throttle api:denied, "),
            "{found:?}"
        );
    }

    #[test]
    fn an_unusable_knob_says_what_is_in_force_and_a_key_of_another_type_how_to_get_rid_of_it() {
        let told = |status: &Status| {
            let found = of_knobs("test:", status).remove(0);
            (found.seen, found.todo.unwrap())
        };
        let (seen, todo) = told(&status(&[("rps", "5"), ("over_limit", "perhaps")]));
        assert!(seen.starts_with("hooks: knob over_limit must be"), "{seen}");
        assert!(
            !seen.contains("safe_rps"),
            "it runs at its own rate: {seen}"
        );
        assert_eq!(
            todo,
            "set the knob: flyball throttle set hooks over_limit=..."
        );

        let (_, todo) = told(&status(&[("rps", "5"), ("valid_until", "x")]));
        assert_eq!(
            todo,
            "remove the knob: redis-cli HDEL test:throttle:hooks:knobs valid_until"
        );

        let (seen, todo) = told(&Status::no_hash(
            Name::new("hooks").unwrap(),
            "test:throttle:hooks:knobs",
            NOW_US,
        ));
        assert!(
            seen.starts_with("hooks: the key test:throttle:hooks:knobs in Redis is not a hash")
                && seen.ends_with("nothing flows"),
            "{seen}"
        );
        assert_eq!(todo, "after that: flyball throttle set hooks rps=10");
    }

    #[test]
    fn a_governor_that_is_gone_says_what_stays_as_it_is() {
        let lapsed = |rps| status(&[("rps", rps), ("mode", "auto"), ("valid_until", "1")]);
        let seen = |status: &Status| of_governor(status, false, None).map(|one| one.seen);
        assert!(seen(&lapsed("5")).unwrap().ends_with("at safe_rps at most"));
        assert!(
            seen(&lapsed("0.000"))
                .unwrap()
                .ends_with("nothing restarts it")
        );
        assert_eq!(seen(&status(&[("rps", "5")])), None);
        // While it is paused no governor renews its lease.
        let fields = [
            ("rps", "5"),
            ("paused", "1"),
            ("mode", "auto"),
            ("valid_until", "1"),
        ];
        assert_eq!(seen(&status(&fields)), None);
        let long_ago = Timestamp::from_microsecond(NOW_US - 400_000_000).unwrap();
        for looked_at in [Some(long_ago), None] {
            let told = |mode| of_governor(&status(&[("mode", mode)]), true, looked_at).is_some();
            assert_eq!((told("auto"), told("off")), (true, false), "{looked_at:?}");
        }
    }

    #[test]
    fn a_signal_past_prometheus_without_readings_is_told_while_a_governor_is_at_work() {
        let text = "[[signal]]\nname = \"waiting\"\nsource = \"depth\"\nquery = \"mails\"\nsetpoint = 10.0\n\
                    [[signal]]\nname = \"load\"\nquery = \"q\"\nsetpoint = 1.0\n";
        let policy = Policy::parse(text, "f").unwrap().unwrap();
        let bounds = Bounds {
            min: 1.0,
            max: 100.0,
            safe_rps: 5.0,
        };
        let now = NOW_US as f64 / 1e6;
        let rate = RateLimit::PerSecond(5.0);
        let mut state = ControlState::new(&policy, bounds, rate, now - 100.0);
        let seen = Observation {
            now,
            ..Observation::default()
        };
        state.tick(&policy, bounds, &seen);
        let view = GovernorView::new(&state, &policy, now).unwrap();
        let told = |view: &GovernorView, mode| {
            let found = of_signals(&status(&[("rps", "5"), ("mode", mode)]), view, &policy);
            found.into_iter().map(|one| one.seen).collect::<Vec<_>>()
        };
        assert_eq!(
            told(&view, "auto"),
            ["hooks: signal waiting has never been read"]
        );
        assert!(told(&view, "manual").is_empty());
        let gone = GovernorView {
            at: Timestamp::from_microsecond(NOW_US - 400_000_000).unwrap(),
            ..view
        };
        assert!(told(&gone, "auto").is_empty());
    }
}
