//! A file is pure unless it is listed here as an adapter or a service.

use std::collections::BTreeSet;

use super::sources::{is_at, sources};

/// Adapters and services may wait, do I/O and read a clock. Each entry has its reason. All other
/// files are pure.
///
/// A pattern that ends in `/` is a folder; one that begins with `**/` matches in every folder.
const SERVICES: &[(&str, &str)] = &[
    ("trace/tracer.rs", "Reads the clock for its room."),
    ("trace/otlp/export.rs", "Sends spans to their collector."),
    ("cli/", "Opens what the command line names and prints."),
    ("app/", "Puts the parts of the program together."),
    ("api/", "HTTP entry points."),
    ("stack/", "Starts and watches processes."),
    ("admission/service.rs", "Takes slots and accepts messages."),
    ("admission/accept_excess.rs", "Accepts messages together."),
    ("admission/expand.rs", "Runs the kind batch."),
    (
        "admission/survey.rs",
        "Reads the standing of tenants for operators.",
    ),
    (
        "recipient/service.rs",
        "Plans messages and settles attempts.",
    ),
    (
        "recipient/service_reads.rs",
        "Reads plans and what decides about recipients.",
    ),
    (
        "recipient/replay_log.rs",
        "Reads a log while other cores decide.",
    ),
    (
        "gateway/service.rs",
        "Publishes, collects and reads channels.",
    ),
    ("gateway/admitting.rs", "Takes slots of tenants' limits."),
    ("gateway/collecting.rs", "Moves publications."),
    ("gateway/reading.rs", "Reads channels for a connection."),
    ("gateway/renewing.rs", "Looks for the end of the history."),
    ("gateway/notifications.rs", "Hears collectors."),
    ("gateway/hub.rs", "Wakes connections."),
    ("gateway/window_lease.rs", "Holds a lease in Postgres."),
    ("gateway/batches.rs", "Batches requests of connections."),
    (
        "gateway/connection_counts.rs",
        "Reports open connections to a store.",
    ),
    ("service/", "Runs loops, batches and supervisors."),
    ("**/postgres", "Adapter to Postgres."),
    ("notify/alarm_postgres.rs", "Adapter to Postgres."),
    ("signals/complaints_postgres.rs", "Adapter to Postgres."),
    ("signals/own_database.rs", "Waits for Postgres."),
    ("**/redis", "Adapter to Redis."),
    ("throttle/leased.rs", "Adapter to Redis."),
    ("throttle/foreign.rs", "Adapter to Redis."),
    ("throttle/pattern_store.rs", "Wraps a store."),
    ("throttle/caller_knobs.rs", "Wraps a store."),
    ("throttle/listing.rs", "Wraps a store."),
    ("throttle/take.rs", "Wraps a store."),
    ("config.rs", "Reads the settings' files."),
    ("config/pools.rs", "Reads the settings' files."),
    ("throttle/file.rs", "Reads the settings' files."),
    ("throttle/seed.rs", "Reads the settings' files."),
    ("calibrate/knob.rs", "Drives a throttle while it measures."),
    ("calibrate/run.rs", "Drives a throttle while it measures."),
    ("cron/scheduler.rs", "Wakes when a schedule is due."),
    (
        "governor/run/fast_path.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    (
        "governor/run/governed.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    (
        "governor/run/governor.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    (
        "governor/run/knob_writer.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    (
        "governor/run/records.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    (
        "governor/run/sources.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    (
        "governor/run/tick.rs",
        "Ticks: reads signals, writes knobs.",
    ),
    (
        "input/pinned.rs",
        "Reads and renews the pins of the unit tests.",
    ),
    ("inbox/driver.rs", "Writes into inboxes."),
    ("inbox/keep.rs", "Deletes old messages of inboxes."),
    ("jobs/context.rs", "Runs a user's code, which is async."),
    ("jobs/handler.rs", "Runs a user's code, which is async."),
    ("notify/deliver/handler.rs", "Sends, watches and cleans up."),
    ("notify/deliver/judge.rs", "Sends, watches and cleans up."),
    (
        "notify/deliver/postpone.rs",
        "Sends, watches and cleans up.",
    ),
    ("notify/deliver/run.rs", "Sends, watches and cleans up."),
    ("notify/deliver/send.rs", "Sends, watches and cleans up."),
    ("notify/maintenance.rs", "Sends, watches and cleans up."),
    ("notify/watch.rs", "Sends, watches and cleans up."),
    ("outbound/apart.rs", "Sends HTTP requests."),
    ("outbound/deliver.rs", "Sends HTTP requests."),
    ("outbound/descriptors.rs", "Sends HTTP requests."),
    ("outbound/guard.rs", "Sends HTTP requests."),
    ("outbound/hyper.rs", "Sends HTTP requests."),
    ("outbound/mod.rs", "Sends HTTP requests."),
    ("outbound/reqwest.rs", "Sends HTTP requests."),
    ("outbound/resolve.rs", "Sends HTTP requests."),
    ("providers/apns/connections.rs", "Adapter to providers."),
    ("providers/apns/driver.rs", "Adapter to providers."),
    ("providers/events/read.rs", "Adapter to providers."),
    ("providers/events/sns.rs", "Adapter to providers."),
    ("providers/exchange.rs", "Adapter to providers."),
    ("providers/fcm.rs", "Adapter to providers."),
    ("providers/http.rs", "Adapter to providers."),
    ("providers/oauth.rs", "Adapter to providers."),
    ("providers/ses.rs", "Adapter to providers."),
    ("providers/slack.rs", "Adapter to providers."),
    ("providers/smtp/connections.rs", "Adapter to providers."),
    ("providers/smtp/driver.rs", "Adapter to providers."),
    ("providers/telegram.rs", "Adapter to providers."),
    ("providers/webhook.rs", "Adapter to providers."),
    (
        "providers/pool/account_pool.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    (
        "providers/pool/outcomes.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    (
        "providers/pool/serve.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    (
        "providers/pool/shared.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    (
        "providers/pool/breakers.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    (
        "providers/pool/maintenance.rs",
        "Chooses accounts and keeps their breakers in step with the store.",
    ),
    ("providers/clock.rs", "Reads the clock for its room."),
    ("testing/clock.rs", "Reads the clock for its room."),
    (
        "reindex/backfill.rs",
        "Copies pages from a source to a sink.",
    ),
    (
        "reindex/backfill/checkpoint.rs",
        "Copies pages from a source to a sink.",
    ),
    (
        "reindex/connect.rs",
        "Copies pages from a source to a sink.",
    ),
    (
        "reindex/backfill/follow.rs",
        "Copies changes from a source to a sink.",
    ),
    (
        "reindex/backfill/settle.rs",
        "Reports answers to the throttle and schedules retries.",
    ),
    ("reindex/source/mongodb/scan.rs", "Adapter to MongoDB."),
    ("reindex/source/mongodb/source.rs", "Adapter to MongoDB."),
    ("signals/mongodb.rs", "Adapter to MongoDB."),
    ("signals/elasticsearch.rs", "Asks a search engine."),
    ("reindex/flight.rs", "Copies pages from a source to a sink."),
    (
        "reindex/handler.rs",
        "Copies pages from a source to a sink.",
    ),
    ("reindex/hidden.rs", "Copies pages from a source to a sink."),
    ("reindex/reader.rs", "Copies pages from a source to a sink."),
    (
        "reindex/sink/elastic.rs",
        "Copies pages from a source to a sink.",
    ),
    ("replay/prometheus.rs", "Asks Prometheus."),
    ("signals/direct.rs", "Asks Prometheus."),
    ("signals/probe.rs", "Asks Prometheus."),
    ("signals/prometheus.rs", "Asks Prometheus."),
    ("signals/range.rs", "Asks Prometheus."),
    ("signals/server.rs", "Asks Prometheus."),
    (
        "runner/completions.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/secrets.rs", "Claims, executes and finishes jobs."),
    ("runner/claim.rs", "Claims, executes and finishes jobs."),
    (
        "runner/remote/broker.rs",
        "Hands jobs to workers elsewhere.",
    ),
    (
        "runner/remote/brokers.rs",
        "Hands jobs to workers elsewhere.",
    ),
    ("runner/remote/count.rs", "Hands jobs to workers elsewhere."),
    (
        "runner/remote/hand_over.rs",
        "Hands jobs to workers elsewhere.",
    ),
    ("runner/remote/kind.rs", "Hands jobs to workers elsewhere."),
    (
        "runner/remote/leases.rs",
        "Hands jobs to workers elsewhere.",
    ),
    ("runner/remote/polls.rs", "Hands jobs to workers elsewhere."),
    ("runner/release.rs", "Releases messages to their lanes."),
    ("runner/slots.rs", "Lets claimed jobs wait for a slot."),
    ("runner/depth.rs", "Claims, executes and finishes jobs."),
    ("runner/discover.rs", "Claims, executes and finishes jobs."),
    ("runner/dispatch.rs", "Claims, executes and finishes jobs."),
    ("runner/execute.rs", "Claims, executes and finishes jobs."),
    ("runner/ending.rs", "Claims, executes and finishes jobs."),
    ("runner/finisher.rs", "Claims, executes and finishes jobs."),
    ("runner/heartbeat.rs", "Claims, executes and finishes jobs."),
    (
        "runner/hold_reports.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/look.rs", "Claims, executes and finishes jobs."),
    (
        "runner/maintenance.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/notifier.rs", "Claims, executes and finishes jobs."),
    (
        "runner/report_completions.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/running.rs", "Claims, executes and finishes jobs."),
    ("runner/settle.rs", "Claims, executes and finishes jobs."),
    ("runner/shared.rs", "Claims, executes and finishes jobs."),
    ("runner/unserved.rs", "Claims, executes and finishes jobs."),
    (
        "runner/uncertain_claims.rs",
        "Claims, executes and finishes jobs.",
    ),
    ("runner/worker.rs", "Claims, executes and finishes jobs."),
    ("testing/backing.rs", "Runs a user's jobs inside a test."),
    ("testing/memory.rs", "Runs a user's jobs inside a test."),
    ("testing/queue.rs", "Runs a user's jobs inside a test."),
    ("throttle/cost.rs", "Traits with async methods."),
    ("throttle/mod.rs", "Traits with async methods."),
];

/// Pure files inside the folders above.
const PURE_ALL_THE_SAME: &[&str] = &[
    "api/http/connection_slots.rs",
    "postgres/replica_lag.rs",
    "throttle/redis/layout.rs",
];

/// Code that a pure file must not contain.
const IMPURE: &[&str] = &[
    "async fn",
    "async {",
    "async move",
    ".await",
    "tokio::",
    "redis::",
    "reqwest::",
    "axum::",
    "std::fs",
    "std::net",
    "::now()",
];

#[test]
fn a_file_is_pure_unless_it_is_an_adapter_or_a_service() {
    let sources = sources();
    let is_gone = |path: &str| !sources.iter().any(|source| source.path == path);
    let mut wrong: Vec<String> = PURE_ALL_THE_SAME
        .iter()
        .filter(|path| is_gone(path))
        .map(|path| format!("{path} is gone; say where its noun lives now"))
        .collect();
    let mut used = BTreeSet::new();
    for source in &sources {
        let place = SERVICES
            .iter()
            .find(|(pattern, _)| is_at(&source.path, pattern))
            .filter(|_| !PURE_ALL_THE_SAME.contains(&source.path.as_str()));
        let found = IMPURE.iter().filter(|word| source.code.contains(**word));
        for word in found {
            match place {
                Some((pattern, _)) => _ = used.insert(*pattern),
                None => wrong.push(format!("{} contains {word}", source.path)),
            }
        }
    }
    let unused = SERVICES
        .iter()
        .filter(|(pattern, _)| !used.contains(pattern));
    wrong.extend(unused.map(|(pattern, _)| format!("{pattern} is pure by now: take it out")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
