//! Whether the jobs of a request are ones that its token may enqueue.

use std::collections::BTreeSet;

use super::auth::Caller;
use super::fields::Errors;
use super::postgres;
use super::problem::{Code, Problem};
use super::state::App;
use super::within::{ONE, within};
use crate::jobs::NewJob;

/// Lets jobs pass, or names each that the token may not enqueue; `is_batch` puts the place of a job into its pointer.
pub async fn check(
    app: &App,
    caller: &Caller,
    jobs: &[NewJob],
    is_batch: bool,
) -> Result<(), Problem> {
    let leave = &caller.leave;
    if leave.is_admin() {
        return Ok(());
    }
    let public = match leave.kinds {
        Some(_) => BTreeSet::new(),
        None => public_kinds(app, jobs).await?,
    };
    let may = |kind: &String| leave.kinds.as_ref().unwrap_or(&public).contains(kind);
    let mut errors = Errors::default();
    for (index, job) in jobs.iter().enumerate() {
        let at = if is_batch {
            format!("/{index}")
        } else {
            String::new()
        };
        if !may(&job.kind) {
            let allowed = match &leave.kinds {
                Some(kinds) => kinds
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(", "),
                None => "kinds that are public".to_owned(),
            };
            let message = format!(
                "token {} may not enqueue kind {:?}; allowed: {allowed}",
                caller.token_name(),
                job.kind
            );
            errors.body(format!("{at}/kind"), message);
        }
        if !leave.may_use(&job.throttle) {
            let (token, throttle, allowed) =
                (caller.token_name(), &job.throttle, leave.throttles_told());
            errors.body(
                format!("{at}/throttle"),
                format!(
                    "token {token} may not give work to throttle {throttle}; allowed: {allowed}"
                ),
            );
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::fields(Code::NotAllowed, errors))
    }
}

/// Those of the jobs' kinds that are public: by the handlers of this process, and by the word of others on kinds that only they run.
async fn public_kinds(app: &App, jobs: &[NewJob]) -> Result<BTreeSet<String>, Problem> {
    let here = &app.deps.kinds;
    let named: BTreeSet<&String> = jobs.iter().map(|job| &job.kind).collect();
    let mut public: BTreeSet<String> = named
        .iter()
        .filter(|kind| here.get(kind).is_some_and(|handler| handler.public()))
        .map(|kind| (*kind).clone())
        .collect();
    if named.iter().any(|kind| here.get(kind).is_none()) {
        let elsewhere = within(ONE, postgres::read_public_kinds(&app.deps.queue.pool)).await?;
        public.extend(
            elsewhere
                .into_iter()
                .filter(|kind| here.get(kind).is_none()),
        );
    }
    Ok(public)
}
