//! The story of the demo: starts everything, enqueues the reindex, makes the documents harder,
//! sends the campaign, and reports the results.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use flyball::config::Settings;
use flyball::stack;
use flyball::throttle::Name;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::campaign::{self, Provider};
use super::knobs::{self, THROTTLE};
use super::narrate::{clock, print_line};
use super::pass::{Pass, places};
use super::results::{report_reindex, write_campaign};
use super::run::{AppHandle, AppSettings};
use super::setup::{load, scrape, start_services, wipe, write_knobs};
use super::store_process::StoreProcess;
use super::watch::{StoreClient, StoreWatch};
use super::{Act, DemoOptions, GovernorSwitch, corpus, narrate, pool, postgres};

/// The time limit for the first document.
const FIRST_WITHIN: Duration = Duration::from_secs(60);
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

/// Runs the demo on these settings, as far as it does not bring its own.
pub(crate) async fn run(options: DemoOptions, settings: Settings) -> anyhow::Result<()> {
    let stop = stop_on_signal()?;
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
    let wanted = AppSettings {
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
    };
    let app = AppHandle::start(settings, wanted).await?;
    let ended = match words.as_deref().zip(store.as_ref()) {
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
    ended?;
    stopped.with_context(|| format!("the application did not stop within {APP_STOP_TIMEOUT:?}"))
}

/// Returns a token that the first SIGINT or SIGTERM cancels; a second one ends the process at once.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let stop = CancellationToken::new();
    let first = stop.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if first.is_cancelled() {
                std::process::exit(130);
            }
            first.cancel();
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
    app.set_knobs(THROTTLE, &[("paused", Some("1"))], why)
        .await?;
    let lost = second_act(options, provider, app, stop).await?;
    if !options.headless && !stop.is_cancelled() {
        print_line("the reindex continues; Ctrl-C ends the demo");
        app.set_knobs(THROTTLE, &[("paused", Some("0"))], why)
            .await?;
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
    let mut poll = interval(STORY_POLL_INTERVAL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let began =
        Instant::now() - Duration::from_secs_f64(watch.last().map_or(0.0, |s| s.t_s - began_s));
    let (mut hard, mut printed_s, mut before) =
        (false, 0.0, watch.last().map(|s| (s.t_s, s.documents)));
    loop {
        tokio::select! {
            _ = poll.tick() => {}
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
        pass.poll(app, store).await?;
        if t_s - printed_s >= PROGRESS_INTERVAL_S
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
            (printed_s, before) = (t_s, Some((now.t_s, now.documents)));
        }
        if options.headless && pass.job.is_none() {
            bail!("the reindex did not end in time");
        }
    }
}

/// Gives the knob to the governor once documents flow, because a rate without traffic teaches it
/// nothing.
async fn let_govern(app: &AppHandle) -> anyhow::Result<()> {
    sleep(FLOWING_FOR).await;
    let mode = [("mode", Some("auto"))];
    app.set_knobs(THROTTLE, &mode, "the story begins").await
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
