//! A page: its sections, tables, code blocks.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(crate::support::ROOT)
}

pub fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every page, relative to the root.
pub fn pages() -> Vec<String> {
    let mut pages = vec![
        "ARCHITECTURE.md".to_owned(),
        "CHANGELOG.md".to_owned(),
        "README.md".to_owned(),
    ];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    pages.retain(|page| root().join(page).exists());
    pages
}

/// Returns the section under a heading, up to the next heading of the same or a higher level.
pub fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let level = heading.split(' ').next().unwrap();
    let start = page
        .find(&format!("{heading}\n"))
        .unwrap_or_else(|| panic!("there is no heading {heading:?}"));
    let rest = &page[start + heading.len()..];
    let ends = (1..=level.len()).filter_map(|n| rest.find(&format!("\n{} ", "#".repeat(n))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

/// Returns the cells of the table rows that begin with a code span, without bars and without the
/// backticks of the first cell.
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.trim_matches('|')
            .split(" |")
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .map(cells)
        .collect()
}

/// Returns the text of a cell that is one code span.
pub fn code(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// Returns the code blocks of a page with their languages.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}
