//! The handler of the kind `http`: one request, one outcome.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::apart::apart;
use super::guard::Guard;
use super::host_backoff::{HostBackoffs, HostKey, is_of_host};
use super::hyper::{HttpClient, TransportError};
use super::quota::quota;
use super::request::{MAX_TIMEOUT_MS, Request};
use super::resolve::{Lookup, Resolver};
use super::response::Response;
use super::signature::{PREFIX, Secrets, TENANTS, is_name};
use super::template;
use crate::jobs::{
    Context, Handler, Issue, Job, OnAmbiguous, Outcome, PreparedJob, Scope, TenantRule, WEBHOOKS,
};
use crate::trace::{OpenSpan, SpanValue, parent};

/// Delay of a job if this process has no descriptor left, which is not the job's fault and uses no
/// attempt.
const SHORT_DELAY: Duration = Duration::from_secs(2);

/// Settings of the kind, the same for all its jobs.
#[derive(Clone, Default)]
pub struct HttpConfig {
    /// The addresses that jobs may reach besides the public internet.
    pub guard: Guard,
    /// The secrets that sign requests.
    pub secrets: Secrets,
    /// A replacement for the system's name lookup.
    pub lookup: Option<Lookup>,
}

/// The reason for which a job waits that was not sent.
const HOST_RESTS: &str = "not sent: its host asked another job to slow down";

/// The HTTP client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("setting up the HTTP client failed: {0}")]
pub struct ClientSetUpError(#[from] std::io::Error);

/// The handler of the kind `http`.
pub struct HttpHandler {
    client: HttpClient,
    secrets: Secrets,
    rests: Mutex<HostBackoffs>,
    begun: Instant,
}

impl HttpHandler {
    /// Creates a handler with its own client.
    pub fn new(config: HttpConfig) -> Result<Self, ClientSetUpError> {
        let resolver = Resolver::new(config.guard.clone(), config.lookup);
        let client = HttpClient::new(config.guard, resolver)?;
        Ok(Self {
            client,
            secrets: config.secrets,
            rests: Mutex::default(),
            begun: Instant::now(),
        })
    }

    async fn deliver(
        &self,
        mut request: Request,
        job: &Job,
        context: &Context,
    ) -> Result<Outcome, Outcome> {
        let begun = Instant::now();
        // The job chooses the server, so its answers are not trusted.
        context.report_untrusted();
        // The calls of a tenant have its name as their key, and go to many servers.
        let has_key_of_many =
            job.throttle == WEBHOOKS && !job.key.is_empty() && !is_of_host(&job.key, &request.url);
        let host = (job.key.is_empty() || has_key_of_many)
            .then(|| HostKey::of(&job.throttle, &job.key, &request.url));
        if let Some(delay) = self.put_off(host.as_ref(), context).await {
            return Ok(Outcome::Snooze { delay });
        }
        let body = match request.template.take() {
            Some((text, data)) => Some(
                fill(text, data)
                    .await
                    .map_err(|error| Outcome::Dead { error })?,
            ),
            None => request.body.take(),
        };
        request.timeout = time_left(request.timeout, job.timeout, begun.elapsed());
        if request.timeout.is_zero() {
            return Ok(Outcome::Retry {
                after: None,
                error: "the time of the job was over before its request was sent".to_owned(),
            });
        }
        let mut headers = self
            .sign(&request, job, body.as_deref())
            .map_err(|error| Outcome::Dead { error })?;
        let call = match request.has_header(parent::HEADER) {
            true => None,
            false => context.job.open_call(|| request.method.clone()),
        };
        headers.extend(
            call.as_ref()
                .map(|call| (parent::HEADER, call.context.to_string())),
        );
        let policy = request.on_ambiguous;
        context.hand_over(policy);
        let sent = self
            .client
            .send(&request, &headers, body, &context.cancelled)
            .await;
        context.answered();
        if let Some(call) = call {
            end_call(call, &request.method, &sent);
        }
        Ok(match sent {
            Ok(response) => {
                // A quota under such a key would slow down the calls to other servers.
                if !has_key_of_many && let Some(quota) = quota(&response.headers, now_s()) {
                    context.report_quota(quota);
                }
                let outcome = response.outcome(&request, now_s());
                // With a wider trusted scope the refusal concerns the lane.
                if has_key_of_many
                    && outcome.is_refusal()
                    && context.trust_scope().await == Scope::Key
                {
                    context.report_alone();
                }
                self.record_outcome(host, &outcome);
                outcome
            }
            Err(TransportError::Unsent(error)) => Outcome::Retry { after: None, error },
            Err(short @ TransportError::Short(_)) => {
                tracing::warn!(job_id = job.id, error = %short, "a job waits because this process has too many files open");
                Outcome::Snooze { delay: SHORT_DELAY }
            }
            Err(TransportError::Unanswered(error)) => Outcome::Ambiguous { policy, error },
            // The runner knows the reason for the stop: a cancelled job ends, and a job of a
            // stopping worker runs again elsewhere, unless it must not run twice.
            Err(stopped @ TransportError::Stopped { sent: true })
                if policy == OnAmbiguous::Dead =>
            {
                Outcome::Ambiguous {
                    policy,
                    error: stopped.to_string(),
                }
            }
            Err(TransportError::Stopped { .. }) => Outcome::HandedBack,
            Err(never @ (TransportError::Refused(_) | TransportError::Unsendable(_))) => {
                Outcome::Dead {
                    error: never.to_string(),
                }
            }
        })
    }

    /// Returns the delay of a job without a key of its host that pushed back, and refunds its tokens.
    async fn put_off(&self, host: Option<&HostKey>, context: &Context) -> Option<Duration> {
        let host = host?;
        let delay = self
            .rests()
            .wait(host, self.begun.elapsed(), rand::random())?;
        // A throttle with a wider trusted scope has paused the lane itself, so the jobs that it
        // grants may go.
        if context.trust_scope().await != Scope::Key {
            return None;
        }
        context.report_cost(0.0);
        context.report_put_off(HOST_RESTS);
        Some(delay)
    }

    /// Records a host's answer to a job without a key of that host.
    fn record_outcome(&self, host: Option<HostKey>, outcome: &Outcome) {
        let Some(host) = host else { return };
        match outcome {
            Outcome::Throttled { delay, .. } | Outcome::Overloaded { delay, .. } => {
                self.rests().refused(host, *delay, self.begun.elapsed());
            }
            _ => self.rests().welcomed(&host),
        }
    }

    fn rests(&self) -> MutexGuard<'_, HostBackoffs> {
        self.rests.lock()
    }

    fn sign(
        &self,
        request: &Request,
        job: &Job,
        body: Option<&str>,
    ) -> Result<Vec<(&'static str, String)>, String> {
        let Some(name) = &request.secret else {
            return Ok(Vec::new());
        };
        let id = format!("job_{}", job.id);
        let signed = self
            .secrets
            .sign(name, &id, now_s(), body.unwrap_or_default().as_bytes());
        let variable = format!("{PREFIX}{}", name.to_ascii_uppercase());
        signed
            .map(Vec::from)
            .ok_or_else(|| format!("/secret names {name:?}, but this worker has no {variable}"))
    }
}

/// Returns the time that a request has. Only this code knows if the request was sent, so its timeout
/// must fire before the job's, of which the attempt has used a part.
fn time_left(own: Duration, of_job: Option<Duration>, used: Duration) -> Duration {
    let left = of_job.map(|limit| limit.mul_f64(0.95).saturating_sub(used));
    left.map_or(own, |left| left.min(own))
}

/// Ends the span of a request. The receiver's address stays out, because it may tell whose it is.
fn end_call(mut call: OpenSpan, method: &str, sent: &Result<Response, TransportError>) {
    call.note(|| {
        let end = match sent {
            Ok(response) => (
                "http.response.status_code",
                SpanValue::Number(response.status.into()),
            ),
            Err(error) => ("error.type", SpanValue::Text(error.name().into())),
        };
        let method = SpanValue::Text(method.to_owned().into());
        vec![("http.request.method", method), end]
    });
    call.end(
        sent.as_ref()
            .map_or(true, |response| response.status >= 400),
    );
}

/// Renders a template on a separate thread, where it blocks no other task.
async fn fill(text: String, data: Value) -> Result<String, String> {
    let filled = apart(move |until| template::render(&text, &data, move || until.is_over())).await;
    filled
        .unwrap_or_else(|| Err("cannot be filled in".to_owned()))
        .map_err(|error| format!("/template {error}"))
}

/// Returns the local time in unix seconds, for signatures and for servers that send dates without a
/// `Date` to compare them with.
#[allow(
    clippy::disallowed_methods,
    reason = "the server's clock is used if its answer contains one"
)]
fn now_s() -> i64 {
    Timestamp::now().as_second()
}

impl Handler for HttpHandler {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let request = Request::parse(args)?;
        self.client
            .check_url(&request.url)
            .map_err(|message| vec![Issue::new("/url", message)])?;
        let secret = request.secret.as_deref();
        if let Some(message) = secret.and_then(|name| self.secrets.url_problem(name, &request.url))
        {
            return Err(vec![Issue::new("/url", message)]);
        }
        Ok(PreparedJob::new(move |job, context| async move {
            self.deliver(request, &job, &context)
                .await
                .unwrap_or_else(|outcome| outcome)
        }))
    }

    fn needs(&self, args: &Value) -> Vec<String> {
        let name = args.get("secret").and_then(Value::as_str);
        name.filter(|name| is_name(name))
            .map(|name| format!("secret {}", name.to_ascii_uppercase()))
            .into_iter()
            .collect()
    }

    fn tenants(&self, args: &Value) -> Option<TenantRule> {
        let name = args.get("secret").and_then(Value::as_str)?;
        let tenants = self.secrets.tenants(name)?.to_vec();
        let variable = format!("{PREFIX}{}{TENANTS}", name.to_ascii_uppercase());
        let message = format!(
            "names {name:?}, which jobs of this tenant may not use: the workers' variable {variable} must list the tenant"
        );
        Some(TenantRule {
            tenants,
            issue: Issue::new("/secret", message),
        })
    }

    fn capabilities(&self) -> BTreeMap<String, String> {
        self.secrets
            .names()
            .map(|name| (format!("secret {name}"), String::new()))
            .collect()
    }

    fn timeout(&self) -> Option<Duration> {
        // The request has a timeout of its own; this one is for a client that hangs nevertheless.
        Some(Duration::from_millis(MAX_TIMEOUT_MS + 10_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_ends_before_its_job_however_long_it_took_to_prepare() {
        let s = Duration::from_secs;
        let limit = Some(s(100));
        assert_eq!(time_left(s(200), limit, s(0)), s(95));
        assert_eq!(time_left(s(200), limit, s(10)), s(85));
        assert_eq!(time_left(s(30), limit, s(10)), s(30));
        assert_eq!(time_left(s(30), limit, s(96)), s(0));
        assert_eq!(time_left(s(30), None, s(96)), s(30));
    }
}
