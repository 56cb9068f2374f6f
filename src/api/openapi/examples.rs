//! Examples for `/openapi.json`: a body for each operation that takes one, and the main answers. A
//! test validates each against its schema.

use serde_json::{Map, Value, json};

use super::operation_id::id_of;

/// Adds the examples of an operation to its body and to its first successful answer.
pub(super) fn apply(operation: &mut Map<String, Value>) {
    let id = id_of(operation).to_owned();
    if let (Some(example), Some(content)) = (
        body(&id),
        operation
            .get_mut("requestBody")
            .and_then(|body| body.pointer_mut("/content/application~1json")),
    ) {
        content["example"] = example;
    }
    let answers = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut);
    for (status, answered) in answers.into_iter().flatten() {
        let Some(content) = answered.pointer_mut("/content/application~1json") else {
            continue;
        };
        if let Some(example) = answer(&id).filter(|_| status.starts_with('2')) {
            content["example"] = of_status(&id, status, example);
        }
    }
}

/// Returns the example of an operation for another status of the same answer.
fn of_status(operation: &str, status: &str, mut example: Value) -> Value {
    if status == "200" && ["enqueue_job", "notify", "run_schedule"].contains(&operation) {
        example["duplicate"] = json!(true);
    }
    if status == "200" && operation == "enqueue_jobs" {
        example["jobs"][0]["duplicate"] = json!(true);
    }
    if status == "200" && operation == "notify_many" {
        return answer("show_batch").unwrap_or_default();
    }
    if status == "200" && operation == "suppress" {
        example["changed"] = json!(false);
    }
    example
}

fn body(operation: &str) -> Option<Value> {
    let signed = || json!({ "by": "alice", "why": "search is being upgraded" });
    Some(match operation {
        "enqueue_job" => new_job(),
        "enqueue_jobs" => {
            json!([new_job(), { "kind": "http", "args": { "url": "https://example.org/other" } }])
        }
        "create_group" => json!({
            "name": "import of 2026-11-20", "callback": { "kind": "http", "args": { "method": "POST", "url": "https://example.org/imported" } },
            "jobs": [new_job(), { "kind": "http", "args": { "url": "https://example.org/other" } }],
        }),
        "cancel_jobs" => {
            json!({ "throttle": "hooks", "created_before": "2026-11-20T00:00:00Z", "dry_run": true })
        }
        "requeue_dead" | "discard_dead" => {
            json!({ "throttle": "hooks", "error_like": "timeout%", "limit": 500 })
        }
        "claim_jobs" => json!({
            "worker": "pdf-1", "kinds": ["render_pdf"], "throttles": ["pdf"], "limit": 2, "wait_s": 30, "lease_s": 60,
        }),
        "heartbeat_job" => json!({
            "lease": LEASE, "checkpoint": { "page": 41 }, "progress": { "done": 41, "total": 200, "note": "41 of 200 pages" },
        }),
        "complete_job" => json!({ "lease": LEASE, "result": { "pages": 200 }, "cost": 3 }),
        "fail_job" => json!({ "lease": LEASE, "error": "the template is missing", "retry": false }),
        "snooze_job" => json!({ "lease": LEASE, "for_s": 600 }),
        "throttle_job" => json!({ "lease": LEASE, "retry_after_s": 5, "error": "answered 429" }),
        "release_job" => json!({ "lease": LEASE }),
        "retry_job" => json!({ "keep_attempts": false, "by": "alice" }),
        "update_job" => {
            json!({ "priority": 0, "timeout": "2 minutes", "by": "alice", "why": "the customer is waiting" })
        }
        "reschedule_job" => {
            json!({ "run_at": "2030-01-31T09:30:00Z", "by": "alice", "why": "the receiver is down till then" })
        }
        "edit_throttle" => {
            json!({ "rps": 5, "mode": "manual", "by": "alice", "why": "search is being upgraded" })
        }
        "acquire_tokens" => json!({ "key": "acme", "tokens": 2, "wait_ms": 1000 }),
        "peek_tokens" => json!({ "key": "acme", "tokens": 2 }),
        "return_tokens" => json!({ "key": "acme", "tokens": 2 }),
        "settle_tokens" => json!({ "key": "acme", "charged": 2, "cost": 3.5 }),
        "report_refusal" => {
            json!({ "key": "acme", "retry_after_s": 5, "error": "answered 429" })
        }
        "report_ends" => json!({ "key": "acme", "succeeded": 1, "remaining": 12, "reset_s": 30 }),
        "requeue_unsent" => json!({ "limit": 500, "by": "alice", "why": "the accounts are paid" }),
        "register_kind" => json!({ "public": false, "by": "alice" }),
        "check_request" => {
            json!({ "method": "POST", "path": "/api/v1/lead/7", "key": "key-1", "customer": "acme" })
        }
        "replan_recipient" => {
            json!({ "tenant": "acme", "by": "alice", "why": "she has moved to Tokyo" })
        }
        "create_ticket" => {
            json!({ "channels": ["room.*"], "recipient": "user-7", "publish": false })
        }
        "publish_message" => json!({ "data": { "order": 17, "state": "packed" } }),
        "pause_key" => json!({ "seconds": 5, "why": "429" }),
        "edit_lane" => json!({ "weight": 2.5, "by": "alice" }),
        "set_schedule" => json!({
            "expression": "30 2 * * MON-FRI", "time_zone": "Europe/Berlin", "kind": "http",
            "args": { "url": "https://example.com/report" }, "by": "alice",
        }),
        "notify" => {
            json!({ "channel": "email", "to": "ada@example.com", "subject": "Welcome", "body": "Hello Ada" })
        }
        "notify_many" => {
            json!({ "channel": "email", "recipients": ["ada@example.com", "bob@example.com"], "subject": "News", "body": "Hello" })
        }
        "suppress" => {
            json!({ "channel": "email", "recipient": "ada@example.com", "reason": "asked for it by phone", "by": "alice" })
        }
        "import_recipients" => json!({ "recipients": [new_recipient()], "by": "alice" }),
        "set_recipient" => {
            let mut profile = new_recipient();
            if let Some(profile) = profile.as_object_mut() {
                profile.remove("id");
            }
            profile
        }
        "mark_inbox" => json!({ "all_up_to": "17", "as": "seen" }),
        "set_recipient_defaults" => {
            json!({ "time_zone": "Europe/Berlin", "quiet_hours": { "sms": { "start": "22:00", "end": "08:00" } } })
        }
        "pause_all"
        | "resume_all"
        | "pause_throttle"
        | "resume_throttle"
        | "resume_key"
        | "discard_job"
        | "resume_account"
        | "run_schedule"
        | "pause_schedule"
        | "resume_schedule"
        | "pause_batch"
        | "resume_batch"
        | "cancel_batch"
        | "cancel_notification"
        | "cancel_group" => signed(),
        _ => return None,
    })
}

fn new_recipient() -> Value {
    json!({
        "id": "user-7", "addresses": { "email": "ada@example.com" }, "time_zone": "Europe/Berlin",
        "quiet_hours": { "email": { "start": "22:00", "end": "08:00" } },
        "preferences": { "categories": { "marketing": false } },
    })
}

fn answer(operation: &str) -> Option<Value> {
    let with = |mut whole: Value, more: Value| {
        if let (Some(whole), Value::Object(more)) = (whole.as_object_mut(), more) {
            whole.extend(more);
        }
        whole
    };
    let ticket = json!({ "id": ID, "duplicate": false, "replaced": false, "backlog": null });
    Some(match operation {
        "enqueue_job" => with(
            detail(),
            json!({ "duplicate": false, "replaced": false, "backlog": null, "warnings": [] }),
        ),
        "enqueue_jobs" => json!({ "jobs": [ticket], "warnings": [] }),
        "create_group" => with(
            group(),
            json!({ "members": [{ "id": ID, "duplicate": false }, { "id": ID + 2, "duplicate": false }], "warnings": [] }),
        ),
        "cancel_group" => json!({ "cancelled": 120, "requested": 3, "more": false }),
        "show_group" | "seal_group" => group(),
        "list_groups" => json!({ "groups": [group()], "next": null }),
        "list_jobs" => {
            json!({ "jobs": [summary()], "next": format!("/api/v1/jobs?limit=1&before={ID}") })
        }
        "show_job" | "retry_job" | "reschedule_job" | "update_job" => with(
            detail(),
            json!({ "waiting": { "reason": "throttle hooks grants 5 tokens a second, and has none left now", "until": null } }),
        ),
        "cancel_job" | "discard_job" => {
            with(detail(), json!({ "state": "cancelled", "waiting": null }))
        }
        "claim_jobs" => json!({ "worker_id": 12, "jobs": [{
            "id": ID, "lease": LEASE, "lease_expires_at": AT, "kind": "render_pdf", "args": { "order": 17 }, "throttle": "pdf",
            "key": "acme", "tenant": "", "priority": 1, "attempt": 1, "max_attempts": 10, "cost": 1.0, "created_at": AT,
            "timeout_s": null, "traceparent": null,
            "checkpoint": { "cursor": { "page": 41 }, "done": 41, "total": 200, "note": "41 of 200 pages" },
        }] }),
        "heartbeat_job" => json!({ "lease_expires_at": AT, "cancelled": false }),
        "complete_job" => json!({ "id": ID, "state": "completed" }),
        "fail_job" => json!({ "id": ID, "state": "dead" }),
        "snooze_job" => json!({ "id": ID, "state": "scheduled" }),
        "throttle_job" | "release_job" => json!({ "id": ID, "state": "ready" }),
        "list_channel_usage" => json!({ "at": AT, "next": null, "tenants": [{
            "tenant": "acme", "connections": 412, "connections_max": 1000, "messages_used": 37, "messages_max": 200,
            "messages": 91_250, "waiting": 0, "limited": 3, "limited_at": AT, "warnings": 1236,
        }] }),
        "create_ticket" => {
            json!({ "ticket": "8a5f0c3e6d1b4f729c0e5a7d3b1f8e24", "expires_in_s": 30 })
        }
        "publish_message" => json!({ "id": "4711", "waiting": 0 }),
        "list_attempts" => json!({ "attempts": [attempt()], "next": null }),
        "cancel_jobs" => {
            json!({ "jobs": 10000, "requested": 0, "dry_run": true, "more": true, "next": null })
        }
        "requeue_dead" | "discard_dead" | "purge_lane" => {
            json!({ "jobs": 42, "requested": 0, "dry_run": false, "more": false, "next": null })
        }
        "list_failures" => json!({ "failures": [{
            "job_id": ID, "kind": "http", "throttle": "hooks", "key": "acme", "tenant": "shop", "attempt": 1, "outcome": "failed",
            "error": "answered 500", "at": AT, "group": null,
        }] }),
        "show_pause" => json!({ "paused": null, "changed": false }),
        "pause_all" => {
            json!({ "paused": { "since": AT, "by": "alice", "why": "search is being upgraded" }, "changed": true })
        }
        "resume_all" => json!({ "paused": null, "changed": true }),
        "list_throttles" => {
            json!({ "at": AT, "may_change": true, "may_enqueue": true, "throttles": [throttle()] })
        }
        "show_throttle" | "edit_throttle" | "resume_throttle" => throttle(),
        "pause_throttle" => with(
            throttle(),
            json!({ "paused": true, "state": "paused", "effective_rps": 0.0 }),
        ),
        "delete_throttle" => {
            json!({ "throttle": "hooks", "waiting": { "jobs": 532, "more": false } })
        }
        "explain_throttle" => {
            json!({ "throttle": "hooks", "sentence": "hooks runs at 5 a second; its knobs were last changed by alice", "decisions": [] })
        }
        "show_throttle_history" => json!({
            "throttle": "hooks", "key": null, "range_s": 3600, "step_s": 15, "problem": null,
            "series": [{ "name": "allowed", "unit": "1/min", "points": [{ "at": 1_795_513_739.0, "value": 1200.0 }] }]
        }),
        "acquire_tokens" | "peek_tokens" => json!({
            "allowed": false, "granted": 0, "remaining": 1, "retry_after_ms": 400, "wait_s": 0.4, "until": AT,
            "limit": { "level": "throttle" }, "reason": "throttle hooks grants 5 tokens a second, and has none left now",
            "effective_rps": 5.0, "limits_concurrency": false,
        }),
        "check_request" => {
            json!({ "allowed": true, "limit": "lead", "level": null, "remaining": 39, "reset_s": 0.0 })
        }
        "return_tokens" => {
            json!({ "throttle": "hooks", "key": "acme", "returned": 2.0, "remaining": 7 })
        }
        "settle_tokens" => {
            json!({ "throttle": "hooks", "key": "acme", "settled": 1.5, "remaining": 7 })
        }
        "report_refusal" => {
            json!({ "throttle": "hooks", "key": "acme", "paused_until": AT, "wait_s": 5.2 })
        }
        "report_ends" => {
            json!({ "throttle": "hooks", "key": "acme", "succeeded": 1, "failed": 0 })
        }
        "requeue_unsent" => json!({ "jobs": 500, "more": true }),
        "list_kinds" => json!({ "kinds": [kind()] }),
        "register_kind" => kind(),
        "preview_expression" => json!({
            "expression": "30 2 * * MON-FRI", "time_zone": "Europe/Berlin", "upcoming": [AT],
        }),
        "pause_key" => json!({ "throttle": "hooks", "key": "acme", "until": AT }),
        "resume_key" => json!({ "throttle": "hooks", "key": "acme", "resumed": true }),
        "list_lanes" => json!({ "throttle": "hooks", "at": AT, "next": null, "lanes": [{
            "key": "acme", "depth": 532, "counted_at": AT, "oldest_ready_s": 61.5, "weight": 1.0, "first_seen": AT, "paused": null,
        }] }),
        "show_lane" | "edit_lane" => json!({
            "throttle": "hooks", "key": "acme", "weight": 2.5, "waiting": { "jobs": 532, "more": false }, "oldest_ready_s": 61.5,
            "first_seen": AT, "paused": null,
        }),
        "list_schedules" => json!({ "crons": [schedule()] }),
        "show_schedule" | "set_schedule" | "pause_schedule" | "resume_schedule" => schedule(),
        "run_schedule" => json!({ "id": ID, "duplicate": false }),
        "notify" => {
            json!({ "id": ID, "pool": "mail", "duplicate": false, "priority": "normal", "warnings": [] })
        }
        "notify_many" => json!({
            "id": 17, "state": "running", "recipients": 2, "priority": "normal", "warnings": [],
            "results": [{ "recipient": 0, "id": ID, "status": "queued" }, { "recipient": 1, "id": ID, "status": "waiting" }],
        }),
        "list_tenants" => json!({ "at": AT, "next": null, "tenants": [{
            "tenant": "acme", "throttle": "notify:acme", "state": "waiting", "per_module": { "limit": 50, "span_s": 60.0 },
            "window": { "limit": 100, "span_s": 60.0, "used": 100, "remaining": 0, "next_at": AT, "resets_at": AT },
            "waiting": 37, "scheduled": 0, "oldest_waiting_s": 12.5, "counted_at": AT, "pending": 61, "pending_max": 10000,
        }] }),
        "list_modules" => json!({ "tenant": "acme", "at": AT, "next": null, "modules": [{
            "module": "invoices", "state": "waiting", "waiting": 37, "oldest_waiting_s": 12.5, "counted_at": AT, "next_at": AT,
            "window": { "limit": 50, "span_s": 60.0, "used": 50, "remaining": 0, "next_at": AT, "resets_at": AT }, "paused": null,
        }] }),
        "list_batches" => {
            json!({ "at": AT, "next": null, "may_change": true, "may_overrule": true, "batches": [{
            "id": 17, "tenant": "acme", "module": "invoices", "state": "running", "paused_by_operators": false, "problem": null, "recipients": 300,
            "counts": { "waiting": 200, "sent": 100 }, "estimate": AT, "created_at": AT, "updated_at": AT,
        }] })
        }
        "show_batch" => json!({
            "id": 17, "tenant": "acme", "module": "invoices", "state": "running", "paused_by_operators": false, "problem": null, "recipients": 2,
            "counts": { "sent": 1, "waiting": 1 }, "estimate": AT, "created_at": AT, "updated_at": AT,
        }),
        "pause_batch" => json!({ "state": "paused" }),
        "resume_batch" => json!({ "state": "running" }),
        "cancel_batch" => {
            json!({ "state": "cancelled", "sent": 1, "cancelled": 1, "too_late": 0, "ended": {} })
        }
        "list_recipients" => json!({ "recipients": [{
            "id": "user-7", "addresses": { "email": "a***@e***.com" }, "time_zone": "Europe/Berlin", "updated_at": AT,
        }], "next": null }),
        "import_recipients" => json!({ "created": 1, "changed": 0 }),
        "show_recipient" | "set_recipient" => with(
            new_recipient(),
            json!({ "device_time_zone": null, "masked": false, "updated_at": AT }),
        ),
        "delete_recipient" => json!({
            "profile": true, "caps": 4, "reservations": 0, "claims": 2, "digests": 1, "items": 3, "messages": 17,
            "cancelled": 1, "arguments": 18, "inbox": 5,
        }),
        "show_recipient_defaults" | "set_recipient_defaults" => json!({
            "time_zone": "Europe/Berlin", "quiet_hours": { "sms": { "start": "22:00", "end": "08:00" } },
            "preferences": {}, "updated_at": AT,
        }),
        "list_inbox" => json!({ "messages": [{
            "id": "17", "notification_id": ID, "category": "product", "template_id": "comment", "actor": "bob", "subject": "New comment",
            "body": "Bob answered", "data": { "url": "/posts/7" }, "state": "unseen", "created_at": AT, "seen_at": null, "read_at": null,
            "archived_at": null,
        }], "counts": { "unseen": 1, "unread": 4 }, "next": "/api/v1/recipients/user-7/inbox?limit=1&cursor=17" }),
        "count_inbox" => json!({ "unseen": 1, "unread": 4 }),
        "mark_inbox" => json!({ "changed": 1, "unseen": 0, "unread": 4 }),
        "explain_notification" => explanation(),
        "cancel_notification" => json!({ "id": ID, "state": "cancelled" }),
        "check_recipient" => recipient(),
        "replan_recipient" => json!({ "messages": 2 }),
        "list_digests" => {
            json!({ "at": AT, "next": null, "may_change": true, "digests": [digest()] })
        }
        "withdraw_item" => json!({ "id": ID, "digest": "new-comment" }),
        "show_gates" => json!({
            "held": [{ "name": "quiet_hours", "messages": 1200, "next_at": AT }],
            "collected": [{ "name": "new-comment", "messages": 31, "digests": 12, "next_at": AT }], "more": false,
        }),
        "suppress" => json!({ "suppressed": true, "changed": true }),
        "unsuppress" => json!({ "suppressed": false, "changed": true }),
        "resume_account" => json!({ "changed": true }),
        "list_audit" => json!({ "entries": [{
            "id": 7, "at": AT, "actor": "alice", "token": "default", "tenant": null, "action": "throttle.set", "subject": "hooks",
            "before": { "rps": "10" }, "after": { "rps": "5" }, "why": "search is being upgraded",
        }] }),
        "list_decisions" => json!({ "decisions": [] }),
        "show_liveness" => json!({ "status": "alive" }),
        "show_readiness" => {
            json!({ "status": "ready", "checks": { "postgres": "ok", "redis": "ok" } })
        }
        _ => return None,
    })
}

/// The number of the job in the examples.
const ID: i64 = 450_359_962_737_050;

/// The lease of the examples.
const LEASE: &str = "4f1c03a97be25d08";

/// The time of the examples.
const AT: &str = "2026-11-20T15:04:05.2Z";

fn digest() -> Value {
    json!({
        "id": 7, "tenant": "acme", "type": "new-comment", "channel": "email", "recipient": "ada", "to": "", "actor": "",
        "opened_at": AT, "closes_at": AT, "items": 3, "gate": "", "rule": "",
    })
}

fn gates(held: bool) -> Value {
    let names = [
        "deadline",
        "suppression",
        "preferences",
        "dedup",
        "digest",
        "local_time",
        "quiet_hours",
        "caps",
        "pool",
    ];
    let step = |name: &str| {
        let passed = json!({ "gate": name, "finding": "passed", "rule": "", "until": null });
        match name {
            "quiet_hours" if held => json!({
                "gate": name, "finding": "waits", "rule": "22:00-08:00 Europe/Berlin", "since": AT, "until": AT,
            }),
            "pool" if held => {
                json!({ "gate": name, "finding": "not_reached", "rule": "", "until": null })
            }
            _ => passed,
        }
    };
    names.into_iter().map(step).collect()
}

fn explanation() -> Value {
    let sentence = format!(
        "message {ID} waits for quiet hours (22:00-08:00 Europe/Berlin) until 2026-11-21T07:00:00Z"
    );
    json!({
        "id": ID, "tenant": "acme", "state": "queued", "sentence": sentence, "gates": gates(true),
        "first_planned_at": AT, "planned_at": AT, "digest": null, "forecast": passing(),
    })
}

fn passing() -> Value {
    json!({ "at": AT, "is_of_digest": false, "sentence": "passes all gates", "gates": gates(false), "goes_at": AT })
}

fn recipient() -> Value {
    json!({
        "allowed": true, "remaining": 1, "resetAt": AT, "rule": "per_day", "quiet_until": null, "quiet_rule": "", "suppressed": false,
        "rules": [{
            "allowed": true, "remaining": 1, "resetAt": AT, "rule": "per_day", "cap": "2 per 1d", "is_of_actor": false,
            "reserved": 0, "sent_at": [AT],
        }],
        "preference": { "wanted": true, "rule": "" }, "to": "a***@e***.com", "digests": [digest()], "held": [],
        "history": [{
            "id": ID, "state": "delivered", "category": "product", "gate": "", "rule": "", "accepted_at": AT, "changed_at": AT, "until": null,
        }],
        "forecast": passing(),
    })
}

fn new_job() -> Value {
    json!({
        "kind": "http", "args": { "method": "POST", "url": "https://example.org/hook" }, "throttle": "hooks", "key": "acme",
        "max_attempts": 5, "timeout": "30 seconds", "tags": ["import"],
    })
}

fn group() -> Value {
    json!({
        "id": 17, "name": "import of 2026-11-20", "tenant": "shop", "state": "running", "jobs": 2, "pending": 2, "completed": 0, "dead": 0,
        "cancelled": 0, "created_at": AT, "sealed_at": AT, "cancelled_at": null, "ended_at": null,
        "callback": { "kind": "http", "args": { "method": "POST", "url": "https://example.org/imported" } }, "callback_job_id": null,
        "callback_problem": null,
    })
}

fn summary() -> Value {
    json!({
        "id": ID, "kind": "http", "throttle": "hooks", "key": "acme", "tenant": "shop", "state": "ready", "priority": 1, "attempt": 0,
        "max_attempts": 5, "cost": 1.0, "created_at": AT, "due_at": null, "ended_at": null, "last_error": null, "group": null,
        "tags": ["import"],
    })
}

fn attempt() -> Value {
    json!({
        "attempt": 1, "outcome": "failed", "worker": "web-1", "started_at": AT, "finished_at": AT, "error": "answered 500",
    })
}

fn detail() -> Value {
    let mut job = summary();
    let more = json!({
        "args": { "method": "POST", "url": "https://example.org/hook" }, "unique": false, "attempts": [], "worker": null,
        "heartbeat_at": null, "heartbeat_age_s": null, "started_at": null, "timeout_s": 30.0, "traceparent": null,
        "cancelling": false, "progress": null, "after": [], "after_failure": null, "waits_for": [],
        "on_complete": null, "on_dead": "https://example.org/hooks/jobs", "webhook_secret": "jobs", "retry": { "delay_s": 5.0, "factor": 2.0, "max_delay_s": 600.0 },
    });
    if let (Some(job), Value::Object(more)) = (job.as_object_mut(), more) {
        job.extend(more);
    }
    job
}

fn kind() -> Value {
    json!({ "name": "report", "public": true, "registered_at": AT, "attempts": 120, "mean_cost": 1.5 })
}

fn throttle() -> Value {
    let knobs = json!({
        "rps": 5.0, "manual_until_ms": null, "burst": 1.0, "window": 1.0, "min": 0.1, "max": 1000.0, "safe_rps": 1.0,
        "capacity": -1.0, "capacity_reason": "", "key_rps": -1.0, "key_burst": 1.0, "cost_factor": 1.0, "windows": "",
        "key_windows": "", "on_store_loss": "closed", "borrow": false,
        "on_429": "active-informed", "trust_scope": "key", "max_pause": null, "concurrency": -1, "key_concurrency": -1,
        "weight": 1.0, "over_limit": "wait", "max_cost": 1000.0, "max_backlog": null, "on_backlog": "signal",
        "valid_until_ms": null, "by": "alice", "at_ms": 1_795_273_445_200_i64, "why": "search is being upgraded",
    });
    json!({
        "name": "hooks", "mode": "manual", "parent": null, "paused": false, "seq": 17, "effective_rps": 5.0, "achieved_rps": 4.9,
        "limiting_share": 0.97, "state": "flowing", "problems": [], "governor": null,
        "depth": { "ready": 532, "scheduled": 0, "running": 3, "dead": 1, "oldest_ready_s": 61.5, "at": AT },
        "knobs": knobs,
    })
}

fn schedule() -> Value {
    json!({
        "name": "nightly-report", "expression": "30 2 * * MON-FRI", "time_zone": "Europe/Berlin", "kind": "http",
        "args": { "url": "https://example.com/report" }, "throttle": "default", "key": "", "priority": 1, "max_attempts": 10,
        "cost": 1.0, "timeout": null, "tags": [], "retry": null, "catch_up": "one", "overlap": "skip", "paused": false, "next_at": "2026-11-23T01:30:00Z",
        "upcoming": ["2026-11-23T01:30:00Z", "2026-11-24T01:30:00Z"], "last_at": "2026-11-20T01:30:00Z", "last_job_id": ID,
        "skipped_at": null, "problem": null, "updated_at": AT,
    })
}
