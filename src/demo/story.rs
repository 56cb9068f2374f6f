//! The story of the demo: starts everything, enqueues the reindex, makes the documents harder,
//! sends the campaign, and reports the results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::campaign::{self, Provider};
use super::corpus::{self, Corpus};
use super::knobs::{self, THROTTLE};
use super::report::{DemoReport, Machine, RunSettings, measure};
use super::run::{AppHandle, AppSettings, from_stack};
use super::store_process::StoreProcess;
use super::tally::Campaign;
use super::watch::{StoreClient, StoreWatch};
use super::{
    Act, DemoOptions, GovernorSwitch, campaign_plot, narrate, plot, pool, postgres, store,
};
use crate::config::{ReindexSettings, SinkSettings, SourceSettings};
use crate::jobs::{JobFilter, NewJob, Queue, State};
use crate::postgres::Db;
use crate::throttle::{Change, Name};
use crate::{reindex, stack};

/// The interval at which Prometheus scrapes the store, in milliseconds.
const SCRAPE_EVERY_MS: u64 = 2_000;
/// The name of the documents' source in the settings.
const SOURCE: &str = "demo";
/// The name of the search store in the settings.
const SINK: &str = "store";
/// The most documents in one bulk request.
///
/// It is small, so that few documents are in flight when they become harder.
const BATCH_DOCS: usize = 20;
/// The most bulk requests in flight.
const CONCURRENCY: usize = 6;
/// The number of the store's engine connections.
const STORE_CORES: u32 = 2;
/// The time limit for the first document.
const FIRST_WITHIN: Duration = Duration::from_secs(60);
/// The time limit for cancelling the reindex of an earlier demo, including the time to live of a
/// dead worker.
const CANCELLED_WITHIN: Duration = Duration::from_secs(90);
/// The time for which documents flow before the governor takes over the knob.
const FLOWING_FOR: Duration = Duration::from_secs(3);
/// The interval at which the story checks its job.
const STORY_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The least interval between two lines of progress, in seconds.
const PROGRESS_INTERVAL_S: f64 = 10.0;
/// The time at which the second act begins in a run that is not headless, in seconds since the
/// first document.
const SECOND_ACT_AFTER_S: f64 = 180.0;
/// The time limit for stopping the application.
const APP_STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// Runs the demo; `start_app` starts the application on the given settings, with all its roles.
pub async fn run(
    options: DemoOptions,
    start_app: impl AsyncFnOnce(AppSettings) -> anyhow::Result<AppHandle>,
) -> anyhow::Result<()> {
    let stop = stop_when_told()?;
    // Missing packages are reported before anything is started.
    let words = match options.act {
        Act::Campaign => None,
        Act::Both | Act::Reindex => Some(corpus::find(options.corpus.as_deref())?),
    };
    if options.fresh {
        wipe(&options.dir).await?;
    }
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("creating {}", options.dir.display()))?;
    print_line("starting Postgres, Redis, Prometheus and the servers of the demo");
    let store_dir = options.dir.join("store");
    let start_store = async {
        match words {
            Some(_) => StoreProcess::start(&store_dir).await.map(Some),
            None => Ok(None),
        }
    };
    let start_provider = async {
        match options.act {
            Act::Reindex => Ok(None),
            Act::Both | Act::Campaign => Provider::start(&options.dir).await.map(Some),
        }
    };
    let (services, store, provider) =
        tokio::try_join!(start_services(&options), start_store, start_provider)?;
    let knobs_dir = write_knobs(
        &options.dir,
        store.as_ref().map(|store| store.url.as_str()),
        provider.is_some(),
    )?;
    let app = start_app(AppSettings {
        database_url: services.urls.database_url.clone(),
        redis_url: services.urls.redis_url.clone(),
        prometheus_url: services.urls.prometheus_url.clone(),
        listen: options.listen.clone(),
        knobs_dir,
        pools: provider
            .iter()
            .map(|provider| (pool::POOL.to_owned(), provider.table.clone()))
            .collect(),
        reindex: store
            .as_ref()
            .map(|store| places(&store.url))
            .unwrap_or_default(),
    })
    .await?;
    let told = match words.as_deref().zip(store.as_ref()) {
        Some((words, store)) => {
            run_acts(
                &options,
                words,
                &services.urls,
                &store.url,
                provider.as_ref(),
                &app,
                &stop,
            )
            .await
        }
        None => run_campaign_alone(&options, provider.as_ref(), &services.urls, &app, &stop).await,
    };
    let stopped = timeout(APP_STOP_TIMEOUT, app.stop).await;
    if let Some(store) = store {
        store.stop().await;
    }
    // Dropping the services waits until the servers have ended, which blocks.
    tokio::task::spawn_blocking(move || drop(services)).await?;
    told?;
    stopped.with_context(|| format!("the application did not stop within {APP_STOP_TIMEOUT:?}"))
}

/// Returns the table that the reindex may read and the indexes that it may write.
fn places(store_url: &str) -> ReindexSettings {
    let source = SourceSettings {
        tables: vec!["demo.to_index".to_owned()],
        ..SourceSettings::default()
    };
    let sink = SinkSettings {
        kind: "elastic".to_owned(),
        url: Some(store_url.to_owned()),
        indexes: vec!["documents-*".to_owned()],
        ..SinkSettings::default()
    };
    ReindexSettings {
        sources: BTreeMap::from([(SOURCE.to_owned(), source)]),
        sinks: BTreeMap::from([(SINK.to_owned(), sink)]),
    }
}

/// Returns a token that the first SIGINT or SIGTERM cancels; a second one ends the process at once.
fn stop_when_told() -> anyhow::Result<CancellationToken> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if told.is_cancelled() {
                std::process::exit(130);
            }
            told.cancel();
        }
    });
    Ok(stop)
}

/// Runs the first act, and the second one if there is a provider for it.
async fn run_acts(
    options: &DemoOptions,
    words: &Path,
    urls: &stack::Urls,
    store_url: &str,
    provider: Option<&Provider>,
    app: &AppHandle,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let store = StoreClient::new(store_url)?;
    let file = knobs::read()?;
    let (mut pass, watch) = tokio::select! {
        begun = begin(options, words, urls, &store, store_url, app, file.knobs.rps) => begun?,
        () = stop.cancelled() => return Ok(()),
    };
    let began_s = first_document(&watch).await?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the report says when it was made"
    )]
    let began_at = jiff::Timestamp::now();
    if options.governor == GovernorSwitch::On {
        let_govern(app).await?;
    }
    let harder_s = began_s + options.harder_after_s();
    let end_s = match (options.headless, provider) {
        (true, _) => began_s + options.reindex_s(),
        (false, Some(_)) => began_s + SECOND_ACT_AFTER_S,
        (false, None) => f64::INFINITY,
    };
    let setpoint = file.signal[0].setpoint;
    let times = (began_s, harder_s, end_s);
    course(
        options, app, &watch, &mut pass, &store, times, setpoint, stop,
    )
    .await?;
    if let Some(path) = &options.report {
        report_reindex(
            options, path, app, &watch, &store, &pass, &file, times, began_at,
        )
        .await?;
    }
    let Some(provider) = provider.filter(|_| !stop.is_cancelled()) else {
        return Ok(());
    };

    let why = "the second act needs the machine";
    turn(app, THROTTLE, &[("paused", Some("1"))], why).await?;
    let lost = second_act(options, provider, app, stop).await?;
    if !options.headless && !stop.is_cancelled() {
        print_line("the reindex continues; Ctrl-C ends the demo");
        turn(app, THROTTLE, &[("paused", Some("0"))], why).await?;
        let times = (began_s, harder_s, f64::INFINITY);
        course(
            options, app, &watch, &mut pass, &store, times, setpoint, stop,
        )
        .await?;
    }
    none_is(lost)
}

/// Runs the second act alone.
async fn run_campaign_alone(
    options: &DemoOptions,
    provider: Option<&Provider>,
    urls: &stack::Urls,
    app: &AppHandle,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(provider) = provider else {
        return Ok(());
    };
    scrape(urls, &[("flyball", &app.url)])?;
    if !options.headless {
        println!("{}", narrate::greet(&app.url, pool::POOL));
    }
    let lost = second_act(options, provider, app, stop).await?;
    if !options.headless && !stop.is_cancelled() {
        print_line("the dashboard keeps running; Ctrl-C ends the demo");
        stop.cancelled().await;
    }
    none_is(lost)
}

/// Runs the campaign and returns the number of lost messages.
async fn second_act(
    options: &DemoOptions,
    provider: &Provider,
    app: &AppHandle,
    stop: &CancellationToken,
) -> anyhow::Result<u64> {
    let bound = options.headless.then(|| options.campaign_s());
    let Some(campaign) = campaign::run(provider, app, bound, stop).await? else {
        return Ok(0);
    };
    if let Some(path) = &options.report {
        write_campaign(path, &campaign)?;
    }
    Ok(campaign.lost)
}

fn none_is(lost: u64) -> anyhow::Result<()> {
    if lost > 0 {
        bail!("{lost} messages of the campaign were lost, which is a defect of this program");
    }
    Ok(())
}

/// Writes the figures of the first act.
#[expect(
    clippy::too_many_arguments,
    reason = "everything that a run consists of, used once"
)]
async fn report_reindex(
    options: &DemoOptions,
    path: &Path,
    app: &AppHandle,
    watch: &StoreWatch,
    store: &StoreClient,
    pass: &Pass,
    file: &knobs::File,
    (began_s, harder_s, end_s): (f64, f64, f64),
    began_at: jiff::Timestamp,
) -> anyhow::Result<()> {
    let pool = &app.queue.pool;
    let samples = watch.samples();
    let until_s = samples.last().map_or(end_s, |s| s.t_s).min(end_s);
    let setpoint = file.signal[0].setpoint;
    let (mut documents, load, course) = measure(&samples, began_s, harder_s, until_s, setpoint);
    documents.corpus = postgres::count(pool).await? as u64;
    documents.in_index = store.count(&pass.index).await?;
    let report = DemoReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        began_at: began_at.to_string(),
        settings: RunSettings {
            governor: if options.governor == GovernorSwitch::On {
                "on"
            } else {
                "off"
            }
            .to_owned(),
            seconds: until_s - began_s,
            harder_after_s: options.harder_after_s(),
            rps: options.rps.unwrap_or(file.knobs.rps),
            setpoint,
            store_cores: STORE_CORES,
            load_averaged_over_s: store::load::AVERAGED_OVER_S,
            batch_docs: BATCH_DOCS,
            concurrency: CONCURRENCY,
        },
        machine: machine(),
        documents,
        load,
        trips: postgres::trips(pool, THROTTLE, began_at.as_microsecond() as f64 / 1e6).await?,
        course,
    };
    println!("{}", report.summary());
    write_report(path, &report)
}

/// Loads the documents, enqueues the reindex and waits for the first document.
async fn begin(
    options: &DemoOptions,
    words: &Path,
    urls: &stack::Urls,
    store: &StoreClient,
    store_url: &str,
    app: &AppHandle,
    first_rps: f64,
) -> anyhow::Result<(Pass, StoreWatch)> {
    scrape(urls, &[("search-store", store_url), ("flyball", &app.url)])?;
    postgres::prepare(&app.queue.pool).await?;
    load(&app.queue.pool, words).await?;
    let pass = Pass::begin(options, app, store, first_rps).await?;
    if !options.headless {
        println!(
            "{}",
            narrate::welcome(
                &app.url,
                urls,
                store_url,
                &pass.index,
                options.harder_after_s()
            )
        );
    }
    let watch = StoreWatch::start(store.clone(), app.throttles.clone(), Name::new(THROTTLE)?);
    first_document(&watch).await?;
    Ok((pass, watch))
}

/// Runs the timeline of the reindex: makes the documents harder, starts further passes, prints
/// progress.
#[expect(
    clippy::too_many_arguments,
    reason = "everything that a run consists of, used once"
)]
async fn course(
    options: &DemoOptions,
    app: &AppHandle,
    watch: &StoreWatch,
    pass: &mut Pass,
    store: &StoreClient,
    (began_s, harder_s, end_s): (f64, f64, f64),
    setpoint: f64,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut look = interval(STORY_POLL_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let began =
        Instant::now() - Duration::from_secs_f64(watch.last().map_or(0.0, |s| s.t_s - began_s));
    let (mut hard, mut said_s, mut before) =
        (false, 0.0, watch.last().map(|s| (s.t_s, s.documents)));
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep_until(began + Duration::from_secs_f64(harder_s - began_s)), if !hard => {}
        }
        let t_s = began.elapsed().as_secs_f64();
        if t_s >= end_s - began_s {
            return Ok(());
        }
        if !hard && t_s >= harder_s - began_s {
            hard = true;
            postgres::set_hard(&app.queue.pool, true).await?;
            print_line(&format!(
                "{}  the documents are ten times harder to index from now on",
                clock(t_s)
            ));
        }
        pass.look(app, store).await?;
        if t_s - said_s >= PROGRESS_INTERVAL_S
            && let Some(now) = watch.last()
        {
            let rate = before.as_ref().map_or(0.0, |(at, documents)| {
                (now.documents - documents) / (now.t_s - at).max(0.25)
            });
            print_line(&narrate::line(
                t_s,
                &now,
                rate,
                now.documents as u64,
                setpoint,
            ));
            (said_s, before) = (t_s, Some((now.t_s, now.documents)));
        }
        if options.headless && pass.job.is_none() {
            bail!("the reindex did not end in time");
        }
    }
}

// === A pass over the corpus: one job, one index ===

struct Pass {
    job: Option<i64>,
    number: i32,
    index: String,
}

impl Pass {
    /// Continues the interrupted pass of an earlier demo, or begins a new one.
    ///
    /// A headless run measures, so it always begins a new one.
    async fn begin(
        options: &DemoOptions,
        app: &AppHandle,
        store: &StoreClient,
        first_rps: f64,
    ) -> anyhow::Result<Self> {
        postgres::set_hard(&app.queue.pool, false).await?;
        let unfinished = unfinished(&app.queue).await?;
        let detail = match unfinished.last() {
            Some(id) if !options.headless => app.queue.get(*id).await?,
            _ => None,
        };
        let same_store = |args: &serde_json::Value| args["sink"]["name"] == SINK;
        if let Some(detail) = detail.filter(|d| same_store(&d.args)) {
            print_line(&format!(
                "continuing with job {} where the last demo stopped",
                detail.summary.id
            ));
            let index = detail.args["sink"]["index"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let number = index
                .rsplit('-')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
            set_knobs(options, app, first_rps).await?;
            return Ok(Self {
                job: Some(detail.summary.id),
                number,
                index,
            });
        }
        for id in unfinished {
            app.queue.cancel(id).await?;
        }
        // The job of a killed worker ends only after the worker is found lost.
        let asked = Instant::now();
        while !self::unfinished(&app.queue).await?.is_empty() {
            if asked.elapsed() > CANCELLED_WITHIN {
                bail!(
                    "an earlier reindex did not stop within {CANCELLED_WITHIN:?}; --fresh starts \
                     over"
                );
            }
            sleep(Duration::from_millis(200)).await;
        }
        set_knobs(options, app, first_rps).await?;
        let mut pass = Self {
            job: None,
            number: 0,
            index: String::new(),
        };
        pass.next(app, store).await?;
        Ok(pass)
    }

    /// Begins the next pass when this one is completed; after a cancelled or dead job no further
    /// pass begins.
    async fn look(&mut self, app: &AppHandle, store: &StoreClient) -> anyhow::Result<()> {
        let Some(job) = self.job else { return Ok(()) };
        // A failed query is repeated in a second.
        let Ok(Some(detail)) = app.queue.get(job).await else {
            return Ok(());
        };
        match detail.summary.state {
            State::Completed => {
                let stored = store.count(&self.index).await?;
                print_line(&format!(
                    "all {stored} documents are in the index {}; starting again with a new index",
                    self.index
                ));
                self.next(app, store).await
            }
            State::Cancelled => {
                print_line(&format!("job {job} was cancelled; the demo keeps running"));
                self.job = None;
                Ok(())
            }
            State::Dead => {
                let why = detail.summary.last_error.unwrap_or_default();
                print_line(&format!(
                    "job {job} is dead ({why}); `flyball job retry {job}` runs it again"
                ));
                self.job = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Enqueues a pass into a new index, because updates of unchanged documents would cost the
    /// store far less than inserts.
    async fn next(&mut self, app: &AppHandle, store: &StoreClient) -> anyhow::Result<()> {
        self.number = postgres::next_pass(&app.queue.pool).await?;
        self.index = format!("documents-{}", self.number);
        // A run that kept its store but not its database may have left an index of this name.
        store.remove(&self.index).await?;
        let args = json!({
            "source": {"name": SOURCE, "table": "demo.to_index", "key": "id"},
            "sink": {"name": SINK, "index": self.index},
            "batch_docs": BATCH_DOCS,
            "concurrency": CONCURRENCY,
        });
        let mut job = NewJob::new(reindex::KIND, args);
        job.throttle = THROTTLE.to_owned();
        job.unique_key = Some(format!("demo pass {}", self.number));
        job.max_attempts = 1000;
        let enqueued = app.queue.enqueue(&[job]).await?;
        self.job = enqueued.first().map(|e| e.id);
        // The index filled last is kept until the next one is full, so that one complete index can
        // always be searched.
        store
            .remove(&format!("documents-{}", self.number - 2))
            .await?;
        Ok(())
    }
}

async fn unfinished(queue: &Queue) -> anyhow::Result<Vec<i64>> {
    let mut ids = Vec::new();
    for state in [
        State::Scheduled,
        State::Ready,
        State::Retryable,
        State::Running,
    ] {
        let filter = JobFilter {
            state: Some(state),
            kind: Some(reindex::KIND.to_owned()),
            throttle: Some(THROTTLE.to_owned()),
            limit: 100,
            ..JobFilter::default()
        };
        ids.extend(queue.list(&filter).await?.iter().map(|job| job.id));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Sets the throttle's knobs to their initial values, which discards a person's changes of an
/// earlier demo.
async fn set_knobs(options: &DemoOptions, app: &AppHandle, first_rps: f64) -> anyhow::Result<()> {
    let rps = options.rps.unwrap_or(first_rps).to_string();
    let knobs = [
        ("rps", Some(rps.as_str())),
        ("mode", Some("manual")),
        ("paused", Some("0")),
        ("valid_until", None),
    ];
    turn(app, THROTTLE, &knobs, "the story begins").await
}

/// Gives the knob to the governor once documents flow, because a rate without traffic teaches it
/// nothing.
async fn let_govern(app: &AppHandle) -> anyhow::Result<()> {
    sleep(FLOWING_FOR).await;
    turn(app, THROTTLE, &[("mode", Some("auto"))], "the story begins").await
}

/// Sets knobs of a throttle.
pub(super) async fn turn(
    app: &AppHandle,
    throttle: &str,
    knobs: &[(&str, Option<&str>)],
    why: &str,
) -> anyhow::Result<()> {
    let change = Change {
        fields: knobs
            .iter()
            .map(|(knob, text)| ((*knob).to_owned(), text.map(str::to_owned)))
            .collect(),
        by: "demo".to_owned(),
        why: why.to_owned(),
        create: true,
        ..Change::default()
    };
    app.throttles.set(&Name::new(throttle)?, &change).await?;
    Ok(())
}

// === Setting up ===

async fn start_services(options: &DemoOptions) -> anyhow::Result<stack::RunningStack> {
    let given = |url: &Option<String>| url.clone().filter(|url| !url.trim().is_empty());
    let dir = options.dir.join("services");
    let wanted = stack::SpawnOptions {
        database_url: given(&options.database_url),
        redis_url: given(&options.redis_url),
        prometheus_url: given(&options.prometheus_url),
        scrape_interval_ms: SCRAPE_EVERY_MS,
        said: Some(options.dir.join("services.log")),
        ..stack::SpawnOptions::default()
    };
    tokio::task::spawn_blocking(move || stack::spawn(&dir, &wanted))
        .await?
        .map_err(from_stack)
}

async fn wipe(dir: &Path) -> anyhow::Result<()> {
    let dir = dir.to_path_buf();
    tokio::task::spawn_blocking(move || {
        for part in ["services", "store/engine"] {
            stack::supervise::wipe(&dir.join(part))?;
        }
        let _ = std::fs::remove_file(dir.join("store/port"));
        Ok(())
    })
    .await?
}

fn write_knobs(dir: &Path, store_url: Option<&str>, has_pool: bool) -> anyhow::Result<PathBuf> {
    let knobs_dir = dir.join("knobs");
    std::fs::create_dir_all(&knobs_dir)
        .with_context(|| format!("creating {}", knobs_dir.display()))?;
    // `default` is for the jobs that people enqueue while they watch.
    let files = [
        (THROTTLE, store_url.map(knobs::render)),
        (pool::POOL, has_pool.then(pool::knobs)),
        ("default", Some(knobs::DEFAULT.to_owned())),
    ];
    for (throttle, text) in files {
        let file = knobs_dir.join(format!("{throttle}.toml"));
        match text {
            Some(text) => std::fs::write(&file, text)
                .with_context(|| format!("writing {}", file.display()))?,
            // An earlier demo that showed another act left this file.
            None => drop(std::fs::remove_file(&file)),
        }
    }
    Ok(knobs_dir)
}

/// Registers the pages with our own Prometheus; the story needs the first one.
fn scrape(urls: &stack::Urls, pages: &[(&str, &str)]) -> anyhow::Result<()> {
    let Some(dir) = &urls.targets_dir else {
        if let [(_, needed), ..] = pages {
            print_line(&format!(
                "your Prometheus must scrape {needed}/metrics every 2 s"
            ));
        }
        return Ok(());
    };
    for (job, url) in pages {
        let target = url.trim_start_matches("http://");
        let text = json!([{"targets": [target], "labels": {"job": job}}]).to_string();
        // Prometheus watches the directory, so a file appears there whole or not at all.
        let (part, file) = (
            dir.join(format!(".{job}.part")),
            dir.join(format!("{job}.json")),
        );
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, &file))
            .with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

async fn load(pool: &Db, words: &Path) -> anyhow::Result<()> {
    let dir = words.to_path_buf();
    let corpus = tokio::task::spawn_blocking(move || {
        let mut corpus = Corpus::default();
        for (part, file) in corpus::FILES {
            let path = dir.join(file);
            let bytes =
                std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            corpus.read(part, &String::from_utf8_lossy(&bytes));
        }
        anyhow::Ok(corpus)
    })
    .await??;
    if corpus.is_empty() {
        bail!("{} contains no entries of WordNet", words.display());
    }
    if postgres::is_loaded(pool, &corpus).await? {
        return Ok(());
    }
    let bar = ProgressBar::new(corpus.len() as u64);
    bar.set_style(ProgressStyle::with_template(
        "loading documents {bar:40} {pos} of {len}, {eta} left",
    )?);
    postgres::load(pool, &corpus, |loaded| bar.set_position(loaded as u64)).await?;
    bar.finish_and_clear();
    print_line(&format!(
        "{} documents are loaded (WordNet 3.0, copyright 2006 by Princeton University)",
        corpus.len()
    ));
    Ok(())
}

/// Returns the time at which the first document was indexed, in seconds of the watch's time.
async fn first_document(watch: &StoreWatch) -> anyhow::Result<f64> {
    let began = Instant::now();
    loop {
        let samples = watch.samples();
        if let Some(first) = samples.first()
            && let Some(now) = samples.iter().find(|s| s.documents > first.documents)
        {
            return Ok(now.t_s);
        }
        if began.elapsed() > FIRST_WITHIN {
            bail!("no document was indexed within {FIRST_WITHIN:?}; see the workers' log");
        }
        sleep(Duration::from_millis(100)).await;
    }
}

// === Ending ===

fn write_report(path: &Path, report: &DemoReport) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    let picture = path.with_extension("svg");
    plot::draw(report, None, &picture)?;
    print_line(&format!(
        "the report is in {}, its chart in {}",
        path.display(),
        picture.display()
    ));
    Ok(())
}

fn write_campaign(path: &Path, campaign: &Campaign) -> anyhow::Result<()> {
    let (file, picture) = (
        path.with_extension("campaign.json"),
        path.with_extension("campaign.svg"),
    );
    let text = serde_json::to_string_pretty(campaign)?;
    std::fs::write(&file, text + "\n").with_context(|| format!("writing {}", file.display()))?;
    campaign_plot::draw(campaign, &picture)?;
    print_line(&format!(
        "the campaign's figures are in {}, their chart in {}",
        file.display(),
        picture.display()
    ));
    Ok(())
}

fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Machine::new(cores, &read("/proc/cpuinfo"), &read("/proc/meminfo"))
}

/// Formats seconds as minutes and seconds.
pub(super) fn clock(t_s: f64) -> String {
    format!("{:02}:{:02}", t_s as u64 / 60, t_s as u64 % 60)
}

/// Prints a line to standard output.
pub(super) fn print_line(line: &str) {
    println!("{line}");
}
