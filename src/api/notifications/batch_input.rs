//! Requests to send a batch, checked recipient by recipient.

use serde_json::{Map, Value};

use super::input;
use crate::admission::RECIPIENTS_MAX;
use crate::api::http::fields::{Errors, FieldError, describe, missing};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::{body, budget};
use crate::input::Issue;
use crate::input::issue::{IssueSink as _, unknown_fields};
use crate::input::json::{self, JsonReadError};
use crate::jobs::{Kinds, NewJob};
use crate::notify::args::FIELDS;
use crate::providers::Pools;
use crate::recipient::postgres::Addressless;

/// The fields that a recipient may have of its own.
pub const OF_RECIPIENT: [&str; 5] = ["to", "recipient", "data", "key", "unique_key"];

/// The fields of a message that a batch cannot have, because each recipient has its own.
const NEVER_SHARED: [&str; 3] = ["to", "recipient", "unique_key"];

/// The fields of a batch besides those of its messages.
const OF_BATCH: [&str; 4] = ["key", "run_at", "recipients", "partial"];

/// The messages of a batch.
#[derive(Debug)]
pub struct Recipients {
    /// The jobs of the valid recipients, at least one.
    pub jobs: Vec<NewJob>,
    /// The index of each of them in the request.
    pub places: Vec<usize>,
    /// The invalid recipients with their errors; empty unless the request allows some.
    pub refused: Vec<(usize, Vec<FieldError>)>,
    is_partial: bool,
}

impl Recipients {
    /// Refuses those of the valid recipients at these indexes, with what is wrong with their
    /// address.
    pub fn refuse_addressless(mut self, found: &[Addressless]) -> Result<Self, Problem> {
        if found.is_empty() {
            return Ok(self);
        }
        for one in found {
            let place = self.places[one.index];
            refuse(&mut self, place, "/to", one.problem().to_owned());
        }
        let is_kept = |at: &usize| found.iter().all(|one| one.index != *at);
        let kept: Vec<usize> = (0..self.jobs.len()).filter(is_kept).collect();
        if !self.is_partial || kept.is_empty() {
            let mut errors = Errors::default();
            for error in self.refused.into_iter().flat_map(|(_, of_one)| of_one) {
                errors.body(error.pointer, error.message);
            }
            return Err(Problem::fields(Code::InvalidFields, errors));
        }
        self.places = kept.iter().map(|at| self.places[*at]).collect();
        let jobs = self.jobs.into_iter().enumerate();
        let kept = jobs.filter(|(at, _)| kept.binary_search(at).is_ok());
        self.jobs = kept.map(|(_, job)| job).collect();
        Ok(self)
    }
}

/// The most bytes of JSON of all messages of a batch together, as many as its body may have.
const MESSAGES_BYTES_MAX: usize = body::BATCH_BYTES_MAX;

/// The most memory of all messages of a batch together, in bytes, as much as its body may take.
const MESSAGES_MEMORY_MAX: usize = body::BATCH_VALUE_MAX;

/// A batch whose messages are not made yet. Each of them has the fields of the batch, so together
/// they may be five hundred times as large as the request.
#[derive(Debug)]
pub struct BatchBody {
    base: Map<String, Value>,
    recipients: Vec<Value>,
    is_partial: bool,
    errors: Errors,
    /// The bytes of JSON of all messages together.
    pub bytes: usize,
}

impl BatchBody {
    /// Reads the fields of the batch itself. Refuses too many recipients, and messages that are too
    /// large together, before any of them is made; takes their memory from the budget.
    pub fn open(body: Value) -> Result<Self, Problem> {
        let mut errors = Errors::default();
        let Value::Object(mut base) = body else {
            errors.body("", format!("must be an object, not {}", describe(&body)));
            return Err(Problem::fields(Code::InvalidFields, errors));
        };
        let is_partial = match base.remove("partial") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(is_partial)) => is_partial,
            Some(other) => {
                let message = format!("must be true or false, not {}", describe(&other));
                errors.body("/partial", message);
                false
            }
        };
        let shared = FIELDS.iter().filter(|field| !NEVER_SHARED.contains(field));
        let allowed: Vec<&str> = shared.chain(&OF_BATCH).copied().collect();
        let is_known = |name: &str| allowed.contains(&name) || NEVER_SHARED.contains(&name);
        let names = base.keys().map(String::as_str);
        for issue in unknown_fields("", names.filter(|name| !is_known(name)), &allowed) {
            errors.add(issue);
        }
        base.retain(|name, _| is_known(name));
        for field in NEVER_SHARED {
            if base.contains_key(field) {
                errors.body(
                    format!("/{field}"),
                    "belongs to each recipient of a batch; move it into recipients",
                );
            }
        }
        let recipients = match base.remove("recipients") {
            Some(Value::Array(recipients)) => recipients,
            None => {
                errors.body("/recipients", missing("a list of 1 to 500 recipients"));
                Vec::new()
            }
            Some(other) => {
                let message = format!("must be a list of recipients, not {}", describe(&other));
                errors.body("/recipients", message);
                Vec::new()
            }
        };
        if recipients.len() > RECIPIENTS_MAX {
            let message = format!(
                "must have at most {RECIPIENTS_MAX} recipients, not {}; send several batches",
                recipients.len()
            );
            errors.body("/recipients", message);
            return Err(Problem::fields(Code::BatchLimitExceeded, errors));
        }
        if recipients.is_empty() && errors.total == 0 {
            errors.body("/recipients", "must have 1 to 500 recipients, not 0");
        }
        let (bytes, memory) = sizes(&base, &recipients);
        for (size, most, unit) in [
            (bytes, MESSAGES_BYTES_MAX, "bytes"),
            (memory, MESSAGES_MEMORY_MAX, "bytes of memory"),
        ] {
            if size > most {
                let message = format!(
                    "must be messages of at most {most} {unit} ({} MiB) together, each with the \
                     fields of the batch, not {size}; send several batches",
                    most / (1024 * 1024)
                );
                errors.body("/recipients", message);
                return Err(Problem::fields(Code::BatchLimitExceeded, errors));
            }
        }
        // The messages, and their text for Postgres.
        if !budget::take(memory + bytes) {
            return Err(JsonReadError::NoRoom.into());
        }
        Ok(Self {
            base,
            recipients,
            is_partial,
            errors,
            bytes,
        })
    }

    /// Makes the messages, or lists every error in them.
    pub fn read(self, kinds: &Kinds, pools: &Pools) -> Result<Recipients, Problem> {
        let Self {
            base,
            recipients,
            is_partial,
            mut errors,
            ..
        } = self;
        let mut found = Recipients {
            jobs: Vec::new(),
            places: Vec::new(),
            refused: Vec::new(),
            is_partial,
        };
        let mut has_reported_base = false;
        for (place, recipient) in recipients.into_iter().enumerate() {
            // A text is the address itself; all fields are those of the batch.
            let is_address = recipient.is_string();
            let merged = match merge(&base, recipient) {
                Ok(merged) => merged,
                Err(wrong) => {
                    for issue in wrong {
                        refuse(&mut found, place, &issue.pointer, issue.message);
                    }
                    continue;
                }
            };
            match input::message(merged, kinds, pools) {
                Ok(job) => {
                    found.jobs.push(job);
                    found.places.push(place);
                }
                Err(wrong) => {
                    for error in wrong.listed {
                        let field = error.pointer.split('/').nth(1).unwrap_or_default();
                        if is_address && field == "to" {
                            refuse(&mut found, place, "", error.message);
                        } else if !is_address && OF_RECIPIENT.contains(&field) {
                            refuse(&mut found, place, &error.pointer, error.message);
                        } else if !has_reported_base {
                            errors.body(error.pointer, error.message);
                        }
                    }
                    // Errors of the batch itself are the same for every recipient.
                    has_reported_base |= errors.total > 0;
                }
            }
        }
        if errors.total > 0 || (!is_partial && !found.refused.is_empty()) || found.jobs.is_empty() {
            for (_, of_one) in found.refused {
                for error in of_one {
                    errors.body(error.pointer, error.message);
                }
            }
            return Err(Problem::fields(Code::InvalidFields, errors));
        }
        Ok(found)
    }
}

/// Returns the bytes of JSON and of memory of all messages of a batch together. The fields of the
/// batch are measured once.
fn sizes(base: &Map<String, Value>, recipients: &[Value]) -> (usize, usize) {
    let bytes: usize = recipients.iter().map(json::text_len).sum();
    let memory: usize = recipients.iter().map(json::memory_of).sum();
    (
        bytes + recipients.len() * json::text_len(base),
        memory + recipients.len() * json::memory_of_fields(base),
    )
}

fn refuse(found: &mut Recipients, place: usize, below: &str, message: String) {
    let mut errors = Errors::default();
    errors.body(format!("/recipients/{place}{below}"), message);
    match found.refused.last_mut().filter(|(last, _)| *last == place) {
        Some((_, listed)) => listed.extend(errors.listed),
        None => found.refused.push((place, errors.listed)),
    }
}

/// Returns the message for one recipient, or what is wrong with the recipient.
fn merge(base: &Map<String, Value>, recipient: Value) -> Result<Value, Vec<Issue>> {
    let mut merged = base.clone();
    match recipient {
        Value::String(to) => drop(merged.insert("to".to_owned(), Value::String(to))),
        Value::Object(own) => {
            let wrong = unknown_fields("", own.keys().map(String::as_str), &OF_RECIPIENT);
            if !wrong.is_empty() {
                return Err(wrong);
            }
            merged.extend(own);
        }
        other => {
            let message = format!("must be an address or an object, not {}", describe(&other));
            return Err(vec![Issue::new("", message)]);
        }
    }
    Ok(Value::Object(merged))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::input::issue::UNKNOWN_MAX;
    use crate::jobs::{Handler, Outcome, PreparedJob};

    struct Wants;

    impl Handler for Wants {
        fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
            match args["to"].as_str() {
                Some(to) if to.contains('@') => {
                    Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
                }
                _ => Err(vec![Issue::new("/to", "must be an address")]),
            }
        }
    }

    fn read_it(body: Value) -> Result<Recipients, (u16, Vec<String>)> {
        let mut kinds = Kinds::default();
        kinds.register(crate::notify::recipient::KIND, Wants);
        let pools = crate::api::notifications::events::example_pools();
        let read = BatchBody::open(body).and_then(|batch| batch.read(&kinds, &pools));
        read.map_err(|problem| {
            let pointers = problem.errors.listed.into_iter();
            (
                problem.code.status().as_u16(),
                pointers.map(|error| error.pointer).collect(),
            )
        })
    }

    #[test]
    fn each_recipient_is_a_message_with_the_fields_of_the_batch_and_its_own() {
        let found = read_it(json!({
            "channel": "email", "body": "x", "priority": "low", "key": "all",
            "recipients": ["a@b.c", {"to": "d@e.f", "key": "own", "data": {"n": 1}, "unique_key": "u"}],
        }))
        .unwrap();
        let told: Vec<_> = found
            .jobs
            .iter()
            .map(|job| {
                (
                    job.args["to"].as_str().unwrap(),
                    job.key.as_str(),
                    job.priority,
                )
            })
            .collect();
        assert_eq!(told, [("a@b.c", "all", 3), ("d@e.f", "own", 3)]);
        assert_eq!(found.jobs[1].unique_key.as_deref(), Some("u"));
        assert_eq!(found.places, [0, 1]);
    }

    #[test]
    fn a_wrong_recipient_is_named_by_its_place_and_left_out_if_that_is_allowed() {
        let body = |partial: bool| json!({"channel": "email", "partial": partial, "recipients": ["a@b.c", "nobody", {"x": 1}, 7]});
        assert_eq!(
            read_it(body(false)).unwrap_err(),
            (
                422,
                ["/recipients/1", "/recipients/2/x", "/recipients/3"]
                    .map(str::to_owned)
                    .to_vec()
            )
        );
        let found = read_it(body(true)).unwrap();
        assert_eq!(found.places, [0]);
        let refused: Vec<usize> = found.refused.iter().map(|(place, _)| *place).collect();
        assert_eq!(refused, [1, 2, 3]);
    }

    #[test]
    fn a_recipient_with_very_many_unknown_fields_does_not_make_the_answer_large() {
        let many: Map<String, Value> = (0..5000).map(|n| (format!("x{n}"), json!(0))).collect();
        let body = json!({"channel": "email", "partial": true, "recipients": ["a@b.c", many]});
        let found = read_it(body).unwrap();
        let (place, errors) = &found.refused[0];
        assert_eq!((*place, errors.len()), (1, UNKNOWN_MAX + 1));
        assert_eq!(errors[UNKNOWN_MAX].pointer, "/recipients/1");
        let mut body = many;
        body.insert("channel".to_owned(), json!("email"));
        body.insert("recipients".to_owned(), json!(["a@b.c"]));
        let (status, pointers) = read_it(Value::Object(body)).unwrap_err();
        assert_eq!((status, pointers.len()), (422, UNKNOWN_MAX));
    }

    #[test]
    fn what_is_wrong_with_the_batch_is_said_once_and_nothing_is_partial_about_it() {
        let wrong = read_it(json!({
            "channel": "fax", "partial": true, "to": "a@b.c", "recipients": ["a@b.c", "d@e.f"],
        }));
        assert_eq!(
            wrong.unwrap_err(),
            (422, vec!["/to".to_owned(), "/channel".to_owned()])
        );
        let typos =
            BatchBody::open(json!({"channel": "email", "partal": true, "recipents": ["a@b.c"]}));
        let told = typos.unwrap().errors.listed.into_iter();
        let told: Vec<String> = told
            .map(|error| format!("{}: {}", error.pointer, error.message))
            .collect();
        assert_eq!(told.len(), 3);
        let partial =
            r#"/partal: is not a known field; did you mean "partial"? allowed: channel, from,"#;
        assert!(told[0].starts_with(partial), "{}", told[0]);
        assert!(told[0].ends_with("key, run_at, recipients, partial"));
        assert!(told[1].contains(r#"did you mean "recipients"?"#));
        assert!(told[2].starts_with("/recipients: is missing"));
        for recipients in [json!([]), json!("a@b.c"), json!(null)] {
            let wrong = read_it(json!({"channel": "email", "recipients": recipients}));
            assert_eq!(wrong.unwrap_err(), (422, vec!["/recipients".to_owned()]));
        }
    }

    #[test]
    fn messages_that_are_too_large_together_are_refused_before_they_are_made() {
        let told = |body: Value| {
            let problem = BatchBody::open(body).unwrap_err();
            let errors = &problem.errors.listed;
            assert_eq!((problem.code.status().as_u16(), errors.len()), (400, 1));
            (errors[0].pointer.clone(), errors[0].message.clone())
        };
        let to: Vec<String> = (0..500).map(|n| format!("a{n}@b.c")).collect();
        // Five hundred times a text that fits into a message is more than fits into a process.
        let large =
            |bytes: usize| json!({"channel": "email", "html": "x".repeat(bytes), "recipients": to});
        let (pointer, message) = told(large(250_000));
        assert_eq!(pointer, "/recipients");
        assert!(
            message.starts_with("must be messages of at most 33554432 bytes (32 MiB) together")
                && message.contains("not 125"),
            "{message}"
        );
        assert!(BatchBody::open(large(60_000)).is_ok());
        // Two bytes of a list are thirty-two of memory.
        let list = json!({"channel": "email", "data": {"n": vec![0; 30_000]}, "recipients": to});
        let (_, message) = told(list);
        assert!(
            message.contains("134217728 bytes of memory (128 MiB)"),
            "{message}"
        );
        // The data of the recipients counts as well.
        let own: Vec<Value> = to
            .iter()
            .map(|to| json!({"to": to, "data": {"x": "x".repeat(70_000)}}))
            .collect();
        let (_, message) = told(json!({"channel": "email", "recipients": own}));
        assert!(message.contains("33554432 bytes"), "{message}");
    }

    #[test]
    fn five_hundred_recipients_are_taken_and_one_more_is_not() {
        let body = |n: usize| {
            let all: Vec<String> = (0..n).map(|n| format!("a{n}@b.c")).collect();
            json!({"channel": "email", "recipients": all})
        };
        assert_eq!(read_it(body(500)).unwrap().jobs.len(), 500);
        assert_eq!(
            read_it(body(501)).unwrap_err(),
            (400, vec!["/recipients".to_owned()])
        );
    }
}
