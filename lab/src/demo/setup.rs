//! The servers, knobs files, scrape targets and documents that the story needs.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use flyball::postgres::Db;
use flyball::stack;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::corpus::{self, Corpus};
use super::knobs::{self, THROTTLE};
use super::narrate::print_line;
use super::run::from_stack;
use super::{DemoOptions, pool, postgres};

/// The interval at which Prometheus scrapes the store, in milliseconds.
const SCRAPE_EVERY_MS: u64 = 2_000;

/// Starts the private servers that the options do not replace.
pub(super) async fn start_services(options: &DemoOptions) -> anyhow::Result<stack::RunningStack> {
    let given = |url: &Option<String>| url.clone().filter(|url| !url.trim().is_empty());
    let dir = options.dir.join("services");
    let wanted = stack::SpawnOptions {
        database_url: given(&options.database_url),
        redis_url: given(&options.redis_url),
        prometheus_url: given(&options.prometheus_url),
        scrape_interval_ms: SCRAPE_EVERY_MS,
        stderr: Some(options.dir.join("services.log")),
        ..stack::SpawnOptions::default()
    };
    tokio::task::spawn_blocking(move || stack::spawn(&dir, &wanted))
        .await?
        .map_err(from_stack)
}

/// Removes the data of an earlier demo.
pub(super) async fn wipe(dir: &Path) -> anyhow::Result<()> {
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

/// Writes the knobs files of the acts that are shown, and returns their directory.
pub(super) fn write_knobs(
    dir: &Path,
    store_url: Option<&str>,
    has_pool: bool,
) -> anyhow::Result<PathBuf> {
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
pub(super) fn scrape(urls: &stack::Urls, pages: &[(&str, &str)]) -> anyhow::Result<()> {
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

/// Loads the corpus into the database, unless it is there.
pub(super) async fn load(pool: &Db, words: &Path) -> anyhow::Result<()> {
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
