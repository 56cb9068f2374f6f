//! `flyball notify check-rules`.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::output::say;
use crate::cli::{output, rules_file};
use crate::providers::Channel;
use crate::recipient::caps::CapRules;
use crate::recipient::quiet::QUIET_MODES;
use crate::recipient::rules::{CategoryRules, OverCap, RecipientRules};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A category as people and programs see it.
#[derive(Serialize)]
struct CategorySummary {
    category: String,
    mandatory: bool,
    caps: Vec<String>,
    over_cap: String,
    quiet: String,
    dedup_window_s: i64,
}

/// A type of digest as people and programs see it.
#[derive(Serialize)]
struct DigestSummary {
    digest: String,
    template: String,
    category: String,
    min_items: usize,
    max_items: usize,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let rules = rules_file::read(&args.file)?;
    let categories: Vec<CategorySummary> = rules
        .categories()
        .map(|(name, category)| summary(&rules, name, category))
        .collect();
    let digests: Vec<DigestSummary> = rules
        .digests()
        .map(|kind| DigestSummary {
            digest: kind.name.clone(),
            template: kind.template.clone(),
            category: kind.category.clone(),
            min_items: kind.min_items,
            max_items: kind.max_items,
        })
        .collect();
    let file = args.file.display().to_string();
    if args.json {
        let all = serde_json::json!({"file": file, "categories": categories, "digests": digests});
        output::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "{file}: valid, with {} categories and {} types of digest",
        categories.len(),
        digests.len()
    );
    output::table(
        &[
            "CATEGORY",
            "MANDATORY",
            "CAPS",
            "OVER A CAP",
            "IN QUIET HOURS",
            "SAME AGAIN",
        ],
        categories.into_iter().map(|category| {
            vec![
                category.category,
                if category.mandatory { "yes" } else { "no" }.to_owned(),
                category.caps.join("; "),
                category.over_cap,
                category.quiet,
                format!("after {} s", category.dedup_window_s),
            ]
        }),
    )?;
    output::table(
        &["DIGEST", "TEMPLATE", "CATEGORY", "ITEMS"],
        digests.into_iter().map(|kind| {
            let items = format!("{} to {}", kind.min_items, kind.max_items);
            vec![kind.digest, kind.template, kind.category, items]
        }),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn summary(rules: &RecipientRules, name: &str, category: &CategoryRules) -> CategorySummary {
    let of_channel = |(word, channel): &(&str, Channel)| {
        let caps = rules.caps(name, *channel);
        (!caps.0.is_empty()).then(|| format!("{word} {}", listed(&caps)))
    };
    let mut caps: Vec<String> = Channel::WORDS.iter().filter_map(of_channel).collect();
    if !category.actor_caps.0.is_empty() {
        caps.push(format!("actor {}", listed(&category.actor_caps)));
    }
    CategorySummary {
        category: name.to_owned(),
        mandatory: category.mandatory,
        caps,
        over_cap: match &category.over_cap {
            OverCap::Hold => "hold".to_owned(),
            OverCap::Drop => "drop".to_owned(),
            OverCap::Refuse => "refuse".to_owned(),
            OverCap::Digest(None) => "digest".to_owned(),
            OverCap::Digest(Some(kind)) => format!("digest:{kind}"),
        },
        quiet: quiet(category),
        dedup_window_s: category.dedup_window.as_secs(),
    }
}

fn listed(caps: &CapRules) -> String {
    let each: Vec<String> = caps.0.iter().map(ToString::to_string).collect();
    each.join(", ")
}

/// Returns the mode of most channels, then those of the others: `hold; email always`.
fn quiet(category: &CategoryRules) -> String {
    let mut modes: Vec<(&str, Vec<&str>)> = QUIET_MODES
        .iter()
        .map(|(word, mode)| {
            let channels = Channel::WORDS
                .iter()
                .filter(|(_, channel)| category.quiet_mode(*channel) == *mode)
                .map(|(channel, _)| *channel);
            (*word, channels.collect())
        })
        .collect();
    modes.retain(|(_, channels)| !channels.is_empty());
    modes.sort_by_key(|(_, channels)| Reverse(channels.len()));
    let each: Vec<String> = modes
        .iter()
        .enumerate()
        .map(|(nth, (word, channels))| match nth {
            0 => (*word).to_owned(),
            _ => format!("{} {word}", channels.join(", ")),
        })
        .collect();
    each.join("; ")
}
