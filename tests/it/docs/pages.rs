//! The pages under `docs/` are correct: links, the index, and the handlers of the guide. The
//! modules beside this one compare each reference table with the code.
//!
//! Other tests stand beside the code: `knobs.md` in `throttle/knobs_tests.rs`, `policy.md` in
//! `governor/policy/keys.rs`, `errors.md` in `api/http/code.rs`, and the API's part of `metrics.md`
//! in `api/metrics_tests.rs`.

use super::page::{blocks, pages, read, root};

#[test]
fn the_handlers_of_the_guide_are_code_that_is_compiled_and_run() {
    let sources = [
        "examples/greet.rs",
        "examples/program.rs",
        "tests/it/docs/handler.rs",
        "tests/it/library.rs",
    ]
    .map(read);
    let guide = read("docs/guides/handlers.md");
    let code: Vec<(String, String)> = blocks(&guide)
        .into_iter()
        .filter(|(language, _)| language == "rust")
        .collect();

    for (_, text) in &code {
        assert!(
            sources.iter().any(|source| source.contains(text.trim())),
            "not in the sources:\n{text}"
        );
    }
    assert!(code.len() >= 3);
}

#[test]
fn the_index_leads_to_every_page() {
    let index = read("docs/README.md");
    for page in pages() {
        let Some(page) = page
            .strip_prefix("docs/")
            .filter(|page| *page != "README.md")
        else {
            continue;
        };
        assert!(
            index.contains(&format!("]({page})")),
            "docs/README.md does not lead to {page}"
        );
    }
}

#[test]
fn every_gain_of_the_changelog_leads_to_a_page() {
    let page = read("CHANGELOG.md");
    let (_, release) = page.split_once("\n## 0.1.0").unwrap();
    let (gains, _) = release.split_once("\n### Names that changed").unwrap();
    let entries: Vec<&str> = gains
        .split("\n- ")
        .skip(1)
        .map(|entry| entry.split("\n\n").next().unwrap_or(entry))
        .collect();
    let mut without = entries.clone();
    without.retain(|entry| !entry.contains("]("));
    assert!(entries.len() > 50 && without.is_empty(), "{without:#?}");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let anchor = |heading: &str| -> String {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        text.chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() {
                root().join(&page)
            } else {
                root().join(&page).parent().unwrap().join(file)
            };
            let there = path.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&path).is_ok_and(|text| {
                        text.lines()
                            .any(|line| line.starts_with('#') && anchor(line) == heading)
                    }));
            if !there {
                wrong.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
