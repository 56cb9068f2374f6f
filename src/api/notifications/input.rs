//! Requests to notify, checked field by field: the job of a message, or every error in it.

use serde_json::{Map, Value};

use crate::api::http::fields::{Errors, ObjectReader, describe, missing};
use crate::api::jobs::input::{ARGS_BYTES_MAX, KEY_BYTES_MAX, find_nul, run_at};
use crate::input::wording::any_of;
use crate::jobs::{Kinds, NewJob};
use crate::notify::args::{FIELDS, PRIORITIES, USUAL_PRIORITY};
use crate::notify::recipient::KIND;
use crate::providers::{Channel, Pool, Pools};

/// The fields of the job itself.
const OF_JOB: [&str; 3] = ["key", "run_at", "unique_key"];

/// Reads the job of a message, or lists every error in it. The check of the job's kind validates
/// the arguments.
pub fn message(body: Value, kinds: &Kinds, pools: &Pools) -> Result<NewJob, Errors> {
    let mut errors = Errors::default();
    let allowed: Vec<&str> = FIELDS.iter().chain(&OF_JOB).copied().collect();
    let Some(mut fields) = ObjectReader::open(body, "", &allowed, &mut errors) else {
        return Err(errors);
    };
    let mut job = NewJob::new(KIND, Value::Null);
    if let Some(key) = fields.text("key", 0..=KEY_BYTES_MAX) {
        job.key = key;
    }
    if let Some(value) = fields.take_nullable("run_at") {
        job.run_at = run_at(&mut fields, &value);
    }
    if let Some(value) = fields.take_nullable("unique_key") {
        job.unique_key = fields.text_of("unique_key", value, 1..=KEY_BYTES_MAX);
    }
    let mut args = Map::new();
    for name in FIELDS {
        if let Some(value) = fields.take(name) {
            args.insert(name.to_owned(), value);
        }
    }
    // The check of the kind reports an invalid priority.
    let word = args.get("priority").and_then(Value::as_str);
    job.priority = PRIORITIES
        .iter()
        .find(|(known, _)| Some(*known) == word)
        .map_or(USUAL_PRIORITY, |(_, priority)| *priority);
    let routed = route(&args, pools);
    job.args = Value::Object(args);

    let bytes = job.args.to_string().len();
    if bytes > ARGS_BYTES_MAX {
        fields.wrong_whole(format!(
            "must be at most {ARGS_BYTES_MAX} bytes (256 KiB), not {bytes}"
        ));
    }
    let mut nuls = Vec::new();
    find_nul(&job.args, "", &mut nuls);
    for at in &nuls {
        fields.wrong_at(
            at,
            "must be without the character NUL (\\u0000), which cannot be stored; remove it",
        );
    }
    let issues = kinds
        .get(KIND)
        .and_then(|handler| handler.prepare(&job.args).err())
        .unwrap_or_default();
    for issue in &issues {
        fields.wrong_at(&issue.pointer, issue.message.clone());
    }
    match routed {
        Ok(pool) => job.throttle.clone_from(&pool.name),
        // The check of the kind may have reported the same field.
        Err((name, message)) => {
            if !issues
                .iter()
                .any(|issue| issue.pointer == format!("/{name}"))
            {
                fields.wrong(name, message);
            }
        }
    }
    if errors.is_empty() {
        Ok(job)
    } else {
        Err(errors)
    }
}

/// Returns the pool that sends a message, or the field that is wrong if there is none.
fn route<'a>(
    args: &Map<String, Value>,
    pools: &'a Pools,
) -> Result<&'a Pool, (&'static str, String)> {
    let words = || any_of(&Channel::WORDS.map(|(word, _)| word));
    let channel = match args.get("channel") {
        None | Some(Value::Null) => {
            return Err(("channel", missing(&words())));
        }
        Some(value) => value
            .as_str()
            .and_then(|text| Channel::WORDS.iter().find(|(word, _)| *word == text)),
    };
    let Some((word, channel)) = channel else {
        return Err(("channel", format!("must be {}", words())));
    };
    let named = match args.get("provider") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name.as_str()),
        Some(_) => {
            return Err((
                "provider",
                "must be the name of a pool or of a provider".to_owned(),
            ));
        }
    };
    pools.route(*channel, named).ok_or_else(|| {
        let carrying: Vec<&str> = pools
            .0
            .values()
            .filter(|pool| pool.channel() == *channel)
            .map(|pool| pool.name.as_str())
            .collect();
        match named {
            Some(name) if !carrying.is_empty() => (
                "provider",
                format!(
                    "must be a pool or provider that carries {word}, not {}; allowed: {}",
                    describe(&name.into()),
                    carrying.join(", ")
                ),
            ),
            _ => (
                "channel",
                format!("no pool carries {word}; set one up as [pools.<name>] in the settings"),
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::jobs::{Handler, Issue, Outcome, PreparedJob};

    /// A handler whose check requires a recipient.
    struct Wants;

    impl Handler for Wants {
        fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
            let issue = Issue {
                pointer: "/to".into(),
                message: "the field is missing".into(),
            };
            if args["to"].is_string() {
                Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
            } else {
                Err(vec![issue])
            }
        }
    }

    fn read(body: Value) -> Result<NewJob, Vec<String>> {
        let mut kinds = Kinds::default();
        kinds.register(KIND, Wants);
        let pools = crate::api::notifications::events::example_pools();
        message(body, &kinds, &pools).map_err(|errors| {
            errors
                .listed
                .iter()
                .map(|error| error.pointer.clone())
                .collect()
        })
    }

    #[test]
    fn what_is_the_jobs_goes_to_the_job_and_the_rest_to_its_arguments() {
        let job = read(
            json!({"channel": "email", "to": "a@b.c", "body": "x", "key": "acme", "unique_key": "u", "priority": "low"}),
        );

        let job = job.unwrap();
        assert_eq!(
            (job.kind.as_str(), job.throttle.as_str(), job.key.as_str()),
            ("notification", "mail", "acme")
        );
        assert_eq!(
            job.args,
            json!({"channel": "email", "to": "a@b.c", "body": "x", "priority": "low"})
        );
        assert_eq!((job.unique_key.as_deref(), job.priority), (Some("u"), 3));
    }

    #[test]
    fn the_word_for_the_priority_is_the_priority_of_the_job() {
        let priority = |more: Value| {
            let mut body = json!({"channel": "email", "to": "a@b.c", "body": "x"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            read(body).unwrap().priority
        };
        let words =
            ["critical", "high", "normal", "low"].map(|word| priority(json!({ "priority": word })));
        assert_eq!(
            (
                words,
                priority(json!({})),
                priority(json!({"priority": null}))
            ),
            ([0, 1, 2, 3], 2, 2)
        );
    }

    #[test]
    fn everything_that_is_wrong_is_listed_at_once() {
        let wrong = read(
            json!({"chanel": "email", "key": 7, "run_at": "soon", "unique_key": "", "body": "\0"}),
        )
        .unwrap_err();
        assert_eq!(
            wrong,
            [
                "/chanel",
                "/key",
                "/run_at",
                "/unique_key",
                "/body",
                "/to",
                "/channel"
            ]
        );
    }

    #[test]
    fn a_message_that_no_pool_carries_names_the_field_to_change() {
        let with = |more: Value| {
            let mut body = json!({"channel": "email", "to": "a@b.c"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            read(body)
        };
        assert_eq!(
            with(json!({"provider": "mailgun"})).unwrap().throttle,
            "mail"
        );
        assert_eq!(
            with(json!({"provider": "twilio"})),
            Err(vec!["/provider".into()])
        );
        assert_eq!(with(json!({"provider": 1})), Err(vec!["/provider".into()]));
        assert_eq!(
            with(json!({"channel": "fax"})),
            Err(vec!["/channel".into()])
        );
        assert_eq!(
            with(json!({"channel": "sms", "provider": "mail"})),
            Err(vec!["/channel".into()])
        );
    }

    #[test]
    fn refusals_are_as_pinned() {
        let email = |more: Value| {
            let mut body = json!({"channel": "email", "to": "a@b.c"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        let cases = [
            json!([]),
            json!({}),
            email(
                json!({"chanel": "email", "key": 7, "run_at": "soon", "unique_key": "", "body": "\0"}),
            ),
            email(json!({"provider": "twilio"})),
            email(json!({"provider": 1})),
            email(json!({"channel": "fax"})),
            email(json!({"channel": "sms"})),
        ];
        crate::input::pinned::check(
            "notify",
            cases.map(|body| {
                let mut kinds = Kinds::default();
                kinds.register(KIND, Wants);
                let pools = super::super::events::example_pools();
                let errors = message(body.clone(), &kinds, &pools).unwrap_err().listed;
                let lines = errors
                    .into_iter()
                    .map(|error| format!("{}: {}", error.pointer, error.message));
                (body.to_string(), lines.collect())
            }),
        );
    }
}
