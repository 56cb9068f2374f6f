//! The page of commands lists every command, option and exit code.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::LazyLock;

use super::page::{blocks, code, pages, read, rows, section};
use crate::support::{PROGRAM, database, stack};

/// The `--help` output of the real program for one command.
pub(super) struct Help {
    commands: Vec<String>,
    /// Long options with their defaults.
    options: BTreeMap<String, Option<String>>,
}

fn help(command: &[String]) -> Help {
    let output = Command::new(PROGRAM.as_path())
        .args(command)
        .arg("--help")
        .env_clear()
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !text.is_empty(), "{command:?}");
    let mut help = Help {
        commands: Vec::new(),
        options: BTreeMap::new(),
    };
    let mut part = "";
    let mut option = None;
    for line in text.lines() {
        let line = line.trim_end();
        let word = line.trim_start();
        match line {
            "Commands:" | "Options:" | "Arguments:" => part = line,
            _ if line.is_empty() => {}
            _ if !line.starts_with(' ') => part = "",
            _ if part == "Commands:" => help
                .commands
                .push(word.split(' ').next().unwrap().to_owned()),
            _ if part == "Options:" => {
                let long = word
                    .strip_prefix("-h, ")
                    .or(word.strip_prefix("-V, "))
                    .unwrap_or(word);
                if let Some(name) = long.strip_prefix("--") {
                    let name = format!("--{}", name.split([' ', '[']).next().unwrap());
                    help.options.insert(name.clone(), None);
                    option = Some(name);
                }
                if let (Some(name), Some((_, rest))) = (&option, line.split_once("[default: ")) {
                    help.options.insert(
                        name.clone(),
                        Some(rest.split(']').next().unwrap().to_owned()),
                    );
                }
            }
            _ => {}
        }
    }
    help.commands.retain(|name| name != "help");
    help
}

/// Every command with its help, subcommands after their parents. The program is asked once for all
/// tests.
pub(super) fn commands() -> &'static [(Vec<String>, Help)] {
    static COMMANDS: LazyLock<Vec<(Vec<String>, Help)>> = LazyLock::new(|| {
        let mut all = Vec::new();
        let mut next = vec![Vec::new()];
        while let Some(command) = next.pop() {
            let help = help(&command);
            next.extend(
                help.commands
                    .iter()
                    .map(|name| [command.as_slice(), std::slice::from_ref(name)].concat()),
            );
            all.push((command, help));
        }
        all
    });
    &COMMANDS
}

/// Options of every command, documented once on the page.
const COMMON: [&str; 3] = ["--config", "--help", "--version"];

#[test]
fn the_page_of_commands_has_every_command_with_every_option_and_its_default() {
    let page = read("docs/reference/cli.md");
    let mut headings = BTreeSet::new();
    for (command, help) in commands() {
        // A command that only groups others has no options of its own.
        let groups = !help.commands.is_empty()
            && help
                .options
                .keys()
                .all(|name| COMMON.contains(&name.as_str()));
        if groups {
            continue;
        }
        let heading = format!("## `flyball {}`", command.join(" "));
        let documented: BTreeMap<String, String> = rows(section(&page, &heading))
            .into_iter()
            .map(|row| (code(&row[0]).to_owned(), code(&row[1]).to_owned()))
            .collect();

        let wanted: BTreeSet<_> = help
            .options
            .keys()
            .filter(|name| !COMMON.contains(&name.as_str()))
            .collect();
        assert_eq!(
            documented.keys().collect::<BTreeSet<_>>(),
            wanted,
            "{heading}"
        );
        for (name, default) in help
            .options
            .iter()
            .filter(|(name, _)| !COMMON.contains(&name.as_str()))
        {
            if let Some(default) = default {
                assert_eq!(&documented[name], default, "{heading}: {name}");
            }
        }
        headings.insert(heading);
    }
    let answer: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with("## `"))
        .map(str::to_owned)
        .collect();
    assert_eq!(answer, headings, "commands that do not exist");
}

#[test]
fn the_page_of_commands_has_the_exit_codes_that_help_reports() {
    let output = Command::new(PROGRAM.as_path())
        .arg("--help")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let (_, printed) = printed.split_once("Exit codes:\n").unwrap();
    let printed: Vec<String> = printed
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect();

    let page = read("docs/reference/cli.md");
    let table = section(&page, "## Exit codes");
    let answer: Vec<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| line.replace(" | ", " "))
        .collect();

    assert_eq!(answer, printed);
}

#[tokio::test]
async fn the_exit_codes_are_those_of_the_page() {
    let (database, redis) = (database().await, stack().await.redis_url.clone());
    let run = |words: &str, more: &[(&str, &str)]| {
        let output = Command::new(PROGRAM.as_path())
            .args(words.split(' '))
            .env_clear()
            .envs([("DATABASE_URL", database.url()), ("REDIS_URL", &redis)])
            .envs(more.iter().copied())
            .current_dir(std::env::temp_dir())
            .output()
            .unwrap();
        output.status.code()
    };

    assert_eq!(run("migrate", &[]), Some(0));
    assert_eq!(run("job", &[]), Some(2));
    assert_eq!(run("job show x", &[]), Some(2));
    assert_eq!(run("job show 1", &[]), Some(3));
    assert_eq!(run("throttle show no-such-throttle", &[]), Some(3));
    assert_eq!(run("why no-such-throttle", &[]), Some(3));
    assert_eq!(run("why --job 1", &[]), Some(3));
    assert_eq!(run("enqueue http", &[]), Some(4));
    assert_eq!(run("enqueue no-such-kind", &[]), Some(4));
    assert_eq!(run("throttle set a rps=ten", &[]), Some(4));
    assert_eq!(
        run("throttle list", &[("REDIS_URL", "redis://127.0.0.1:1")]),
        Some(69)
    );
    assert_eq!(
        run(
            "migrate",
            &[("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")]
        ),
        Some(69)
    );
    assert_eq!(run("migrate", &[("FLYBALL_CONCURRENCY", "0")]), Some(78));
    assert_eq!(run("serve", &[("FLYBALL_LISTEN", "0.0.0.0:0")]), Some(78));
}

#[test]
fn commands_that_only_count_without_yes_have_it_on_every_page_or_show_that_they_count() {
    let counting: Vec<String> = commands()
        .iter()
        .filter(|(_, help)| {
            ["--yes", "--dry-run"]
                .iter()
                .all(|option| help.options.contains_key(*option))
        })
        .map(|(words, _)| format!("$ flyball {} ", words.join(" ")))
        .collect();
    assert!(counting.len() > 2, "{counting:?}");
    let (mut seen, mut wrong) = (0, Vec::new());
    for page in pages() {
        for (_, text) in blocks(&read(&page)) {
            let text = text.replace("\\\n", " ");
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                if !counting.iter().any(|command| line.starts_with(command)) {
                    continue;
                }
                seen += 1;
                let applies = ["--yes", "--dry-run"]
                    .iter()
                    .any(|word| line.contains(word));
                let counts = lines
                    .get(at + 1)
                    .is_some_and(|next| next.ends_with("add --yes to do it"));
                if !applies && !counts {
                    wrong.push(format!("{page}: {line}"));
                }
            }
        }
    }
    assert!(seen > 3 && wrong.is_empty(), "{seen}: {wrong:#?}");
}

#[test]
fn commands_on_every_page_exist_with_the_options_that_are_used() {
    let commands: BTreeMap<&[String], &Help> = commands()
        .iter()
        .map(|(words, help)| (words.as_slice(), help))
        .collect();
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        let shell = blocks(&text)
            .into_iter()
            .filter(|(language, _)| language == "console" || language == "sh");
        // The page interleaves console commands with their output.
        let lines = shell.flat_map(|(language, text)| {
            let lines = text
                .replace("\\\n", " ")
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>();
            lines
                .into_iter()
                .filter(move |line| language == "sh" || line.starts_with("$ "))
        });
        for line in lines {
            let line = line.trim_start_matches("$ ");
            // Variables may precede a command, and a comment may follow it.
            let words: Vec<&str> = line
                .split(" # ")
                .next()
                .unwrap()
                .split_whitespace()
                .collect();
            let at = words
                .iter()
                .position(|word| !word.contains('='))
                .unwrap_or(0);
            if words.get(at) != Some(&"flyball") {
                continue;
            }
            let mut command: Vec<String> = Vec::new();
            for word in &words[at + 1..] {
                let mut longer = command.clone();
                longer.push((*word).to_owned());
                if !commands.contains_key(longer.as_slice()) {
                    break;
                }
                command = longer;
            }
            let help = commands[command.as_slice()];
            let unknown = words
                .iter()
                .filter(|word| word.starts_with("--"))
                .map(|word| word.split('=').next().unwrap());
            let unknown: Vec<&str> = unknown
                .filter(|word| !help.options.contains_key(*word))
                .collect();
            if command.is_empty() && !words[at + 1..].iter().all(|word| word.starts_with("--"))
                || !unknown.is_empty()
            {
                wrong.push(format!("{page}: {line}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
