//! The part of the live stream that a listener asks for.

use serde_json::Value;

use super::live::StreamEvent;
use crate::api::http::query::Query;
use crate::api::jobs::input::GROUP_IDS;
use crate::throttle::Name;
use crate::throttle::name::MAX_BYTES;

/// The filters of a listener; an event passes if it concerns all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamFilter {
    /// Only this throttle, its decisions, failures and changes.
    throttle: Option<String>,
    /// Only failures and changes of this job.
    job: Option<i64>,
    /// Only failures of jobs of this group, and changes of the group.
    group: Option<i64>,
}

impl StreamFilter {
    /// Reads the filters from the parameters of a query.
    pub fn read(query: &mut Query) -> Self {
        let throttle = query.text("throttle", MAX_BYTES);
        if let Some(Err(error)) = throttle.as_deref().map(Name::new) {
            query.wrong("throttle", error.to_string());
        }
        Self {
            throttle,
            job: query.whole("job", 1..=i64::MAX),
            group: query.whole("group", GROUP_IDS),
        }
    }

    /// Returns the event with what passes of it, or `None`. Ticks always go on, as the sign that the
    /// stream lives; with a job or a group they hold no throttles.
    pub fn pass(&self, event: StreamEvent) -> Option<StreamEvent> {
        if *self == Self::default() {
            return Some(event);
        }
        if let Some(whole) = &event.whole {
            return StreamEvent::of_tick(&whole.part(|name| self.is_wanted(name)));
        }
        let mut value: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name {
            "decision" => {
                (!self.is_of_jobs() && self.is_throttle(&value["throttle"])).then_some(event)
            }
            "failure" => {
                let passes = self.is_throttle(&value["throttle"])
                    && self.job.is_none_or(|job| value["job_id"] == job)
                    && self.group.is_none_or(|group| value["group"] == group);
                passes.then_some(event)
            }
            "audit" => self.is_subject(&value).then_some(event),
            _ => {
                match value.get_mut("ticks").and_then(Value::as_array_mut) {
                    Some(ticks) => ticks.iter_mut().for_each(|tick| self.narrow(tick)),
                    None => self.narrow(&mut value),
                }
                Some(StreamEvent {
                    data: value.to_string().into(),
                    ..event
                })
            }
        }
    }

    fn is_of_jobs(&self) -> bool {
        self.job.is_some() || self.group.is_some()
    }

    fn is_throttle(&self, found: &Value) -> bool {
        let wanted = self.throttle.as_deref();
        wanted.is_none_or(|throttle| found == throttle)
    }

    /// Returns true if a change concerns all that is asked for. The subject of a lane is its throttle
    /// and its key.
    fn is_subject(&self, entry: &Value) -> bool {
        let subject = entry["subject"].as_str().unwrap_or_default();
        let action = entry["action"].as_str().unwrap_or_default();
        let is_numbered = |area: &str, number: Option<i64>| {
            number.is_none_or(|number| {
                action.starts_with(area) && subject.parse::<i64>() == Ok(number)
            })
        };
        let is_throttle = self.throttle.as_deref().is_none_or(|throttle| {
            let rest = subject.strip_prefix(throttle);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        is_throttle && is_numbered("job.", self.job) && is_numbered("group.", self.group)
    }

    /// Returns true for a throttle that stays in the ticks.
    fn is_wanted(&self, name: &str) -> bool {
        let wanted = self.throttle.as_deref();
        !self.is_of_jobs() && wanted.is_none_or(|wanted| name == wanted)
    }

    fn narrow(&self, tick: &mut Value) {
        let mut running = 0;
        if let Some(throttles) = tick.get_mut("throttles").and_then(Value::as_object_mut) {
            throttles.retain(|name, _| self.is_wanted(name));
            let jobs = throttles.values().map(|one| one["running"].as_i64());
            running = jobs.flatten().sum();
        }
        if let Some(total) = tick.get_mut("running_total") {
            *total = running.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::stream::live_sample::LiveSample;
    use crate::api::stream::sample::tick as sample_tick;
    use crate::api::throttles::measured::Measured;

    fn filter(pairs: &[(&str, &str)]) -> (StreamFilter, usize) {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut query = Query::open(pairs.collect(), &["throttle", "job", "group"]);
        let read = StreamFilter::read(&mut query);
        (read, query.errors.total)
    }

    /// Returns the data of the events that pass.
    fn passed(filter: &StreamFilter, events: &[(&'static str, Value)]) -> Vec<Value> {
        let each = events.iter().filter_map(|(name, data)| {
            let event = StreamEvent::of(name, data)?;
            let event = filter.pass(event)?;
            serde_json::from_str(&event.data).ok()
        });
        each.collect()
    }

    #[test]
    fn an_event_passes_if_it_concerns_all_that_is_asked_for() {
        let tick = |throttles: Value, running: i64| json!({"at": 7, "throttles": throttles, "running_total": running});
        let both = tick(json!({"mail": {"running": 2}, "sms": {"running": 3}}), 9);
        let failure = |job: i64, throttle: &str, group: Value| json!({"job_id": job, "throttle": throttle, "group": group});
        let audit = |action: &str, subject: &str| json!({"action": action, "subject": subject});
        let events = [
            ("history", json!({"ticks": [both]})),
            ("tick", both.clone()),
            ("decision", json!({"throttle": "mail"})),
            ("decision", json!({"throttle": "sms"})),
            ("failure", failure(8, "mail", json!(17))),
            ("failure", failure(10, "mail", Value::Null)),
            ("failure", failure(12, "sms", json!(17))),
            ("audit", audit("throttle.set", "mail")),
            ("audit", audit("lane.purge", "mail/acme")),
            ("audit", audit("throttle.set", "mailgun")),
            ("audit", audit("job.cancel", "8")),
            ("audit", audit("group.cancel", "17")),
        ];
        let mail = tick(json!({"mail": {"running": 2}}), 2);
        let none = tick(json!({}), 0);
        for (pairs, wanted) in [
            (
                vec![("throttle", "mail")],
                vec![
                    json!({"ticks": [mail]}),
                    mail.clone(),
                    json!({"throttle": "mail"}),
                    failure(8, "mail", json!(17)),
                    failure(10, "mail", Value::Null),
                    audit("throttle.set", "mail"),
                    audit("lane.purge", "mail/acme"),
                ],
            ),
            (
                vec![("job", "8")],
                vec![
                    json!({"ticks": [none]}),
                    none.clone(),
                    failure(8, "mail", json!(17)),
                    audit("job.cancel", "8"),
                ],
            ),
            (
                vec![("group", "17")],
                vec![
                    json!({"ticks": [none]}),
                    none.clone(),
                    failure(8, "mail", json!(17)),
                    failure(12, "sms", json!(17)),
                    audit("group.cancel", "17"),
                ],
            ),
            (
                vec![("group", "17"), ("throttle", "sms")],
                vec![
                    json!({"ticks": [none]}),
                    none.clone(),
                    failure(12, "sms", json!(17)),
                ],
            ),
        ] {
            let (filter, errors) = filter(&pairs);
            assert_eq!(errors, 0);
            assert_eq!(passed(&filter, &events), wanted, "{pairs:?}");
        }
        let (open, _) = filter(&[]);
        assert_eq!(passed(&open, &events).len(), events.len());
    }

    #[test]
    fn a_throttle_is_found_in_a_tick_that_is_cut() {
        let mut sample = LiveSample::default();
        for i in 0..300 {
            let measured = Measured::default();
            sample.throttles.insert(format!("t{i:03}"), measured);
        }
        let tick = sample_tick(&sample);
        let event = StreamEvent::of_tick(&tick).unwrap();
        assert!(!event.data.contains("t299"));
        let (one, _) = filter(&[("throttle", "t299")]);

        let passed = one.pass(event.clone()).unwrap();

        let passed: Value = serde_json::from_str(&passed.data).unwrap();
        let names: Vec<&String> = passed["throttles"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["t299"]);
        let (of_a_job, _) = filter(&[("job", "8")]);
        assert!(!of_a_job.pass(event).unwrap().data.contains("t000"));
    }

    #[test]
    fn a_filter_that_is_none_is_refused() {
        for wrong in [
            ("throttle", "two words"),
            ("job", "0"),
            ("job", "mine"),
            ("group", "1.5"),
        ] {
            assert_eq!(filter(&[wrong]).1, 1, "{wrong:?}");
        }
    }
}
