use std::collections::BTreeSet;

use super::*;
use crate::recipient::caps::CapWindow;
use crate::recipient::digest::{BelowMinimum, DigestOverflow, DigestWindow};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;

fn problems(text: &str) -> Vec<String> {
    let error = RecipientRules::parse("r.toml", text).unwrap_err();
    error.0.iter().map(ToString::to_string).collect()
}

fn caps(category: &str, channel: Channel) -> Vec<(u32, i64)> {
    let span = |rule: &CapRule| match rule.window {
        CapWindow::Rolling(span_s) => (rule.most, span_s),
        CapWindow::LocalDay => (rule.most, 0),
    };
    let caps = defaults().caps(category, channel);
    let mut spans: Vec<_> = caps.0.iter().map(span).collect();
    spans.sort_by_key(|(_, span)| *span);
    spans
}

/// The table of seed 002.
#[test]
fn the_default_caps_are_those_of_the_table() {
    use Channel::{Chat, Email, Push, Sms};
    for (category, channel, expected) in [
        ("security", Email, vec![(10, HOUR), (50, DAY)]),
        ("security", Sms, vec![(5, HOUR), (20, DAY)]),
        ("security", Push, vec![(20, HOUR), (100, DAY)]),
        ("billing", Email, vec![(3, DAY), (10, WEEK)]),
        ("billing", Sms, vec![(2, DAY), (5, WEEK)]),
        (
            "marketing",
            Email,
            vec![(2, DAY), (5, WEEK), (10, 2_592_000)],
        ),
        ("marketing", Sms, vec![(1, DAY), (3, WEEK), (8, 2_592_000)]),
        ("marketing", Push, vec![(3, DAY), (10, WEEK)]),
        ("product", Email, vec![(5, DAY), (15, WEEK)]),
        ("product", Push, vec![(5, HOUR), (20, DAY)]),
        // Any other pair.
        ("billing", Push, vec![(5, DAY)]),
        ("unheard-of", Chat, vec![(5, DAY)]),
        ("transactional", Email, vec![]),
    ] {
        assert_eq!(caps(category, channel), expected, "{category} {channel:?}");
    }
}

#[test]
fn the_default_policies_are_those_that_were_decided() {
    let rules = defaults();
    let policy = |name| {
        let rules = rules.category(name);
        (
            rules.mandatory,
            rules.over_cap.clone(),
            rules.valid_for.as_hours(),
            rules.dedup_window.as_secs(),
        )
    };
    assert_eq!(policy("security"), (true, OverCap::Refuse, 24, 3600));
    assert_eq!(policy("billing"), (true, OverCap::Hold, 72, 3600));
    assert_eq!(policy("marketing"), (false, OverCap::Drop, 24, 3600));
    assert_eq!(policy("product"), (false, OverCap::Digest(None), 24, 3600));
    assert_eq!(policy("unheard-of"), (false, OverCap::Hold, 24, 3600));
    assert_eq!(rules.release, Release::default());
}

#[test]
fn the_default_digests_are_those_of_the_seed() {
    let rules = defaults();
    let comments = rules.digest("new-comment").unwrap();
    assert_eq!(
        (
            comments.template.as_str(),
            comments.category.as_str(),
            comments.min_items,
            comments.max_items
        ),
        ("activity-digest", "product", 3, 50)
    );
    assert_eq!(
        (&comments.window, comments.overflow, comments.below),
        (
            &DigestWindow::Fixed(SignedDuration::from_mins(60)),
            DigestOverflow::Count,
            BelowMinimum::Individual
        )
    );
    let followers = rules.digest("new-follower").unwrap();
    assert_eq!(
        (
            followers.template.as_str(),
            followers.min_items,
            followers.max_items
        ),
        ("follower-digest", 5, 100)
    );
    assert_eq!(
        followers.window,
        DigestWindow::Fixed(SignedDuration::from_mins(1440))
    );
    let posts = rules.digest("creator-activity").unwrap();
    assert!(posts.per_actor && posts.window == DigestWindow::Fixed(SignedDuration::from_mins(240)));
    assert_eq!(rules.digests().count(), 4);
}

#[test]
fn a_file_changes_what_it_names_and_leaves_the_rest() {
    let rules = RecipientRules::parse(
        "r.toml",
        r#"
        [fallback]
        caps = { per_hour = "1 per 1h" }
        [categories.marketing]
        quiet = "digest_on_wake"
        quiet_on = { push = "always" }
        quiet_presets = ["us-tcpa"]
        caps.email = { per_local_day = "1 per local_day" }
        [categories.news]
        over_cap = "digest:new-comment"
        [digests.new-comment]
        template = "comments"
        category = "news"
        at = "0 9 * * *"
        templates = ["comment"]
        "#,
    )
    .unwrap();
    let of = |category, channel| rules.caps(category, channel).0;
    assert_eq!(
        of("marketing", Channel::Email),
        [CapRule::parse("per_local_day", "1 per local_day").unwrap()]
    );
    assert_eq!(of("marketing", Channel::Sms).len(), 3);
    assert_eq!(
        of("news", Channel::Push),
        [CapRule::parse("per_hour", "1 per 1h").unwrap()]
    );
    assert_eq!(of("news", Channel::InApp), [], "an inbox interrupts nobody");
    let marketing = rules.category("marketing");
    assert_eq!(
        (
            marketing.quiet_mode(Channel::Push),
            marketing.quiet_mode(Channel::Sms)
        ),
        (QuietMode::Always, QuietMode::DigestOnWake)
    );
    assert_eq!(marketing.presets, [QuietPreset::UsTcpa]);
    assert_eq!(marketing.over_cap, OverCap::Drop);
    assert_eq!(
        rules.digest_of_template("comment").unwrap().name,
        "new-comment"
    );
    assert_eq!(rules.digest_of_template("post"), None);
}

#[test]
fn everything_wrong_is_reported_at_once_with_its_line() {
    assert_eq!(
        problems(
            r#"release_share = 2
[fallback]
over_cap = "hald"
[categories.security]
mandatry = true
caps.emial = { per_day = "1 per 1d" }
caps.sms = { per_day = "many" }
caps.push = 3
over_cap = "digest:new-coment"
dedup_window_s = -1
quiet = "holt"
quiet_on = { fax = "hold", sms = "holds" }
quiet_presets = ["us"]
[digests.a]
category = "product"
window_s = 60
max_open_s = 30
min_items = 9
max_items = 5
quiet_for_s = 5
overflow = "cut"
templates = ["x"]
[digests.b]
template = "b"
category = "product"
at = "61 * * * *"
templates = ["x"]
"#
        ),
        [
            "r.toml:1: release_share: must be a number above 0 and at most 1, not 2",
            "r.toml:3: fallback.over_cap: must be hold, drop, refuse, digest, or digest: and the name of a type of digest, not \"hald\"",
            "r.toml:5: categories.security.mandatry: is not a known field; did you mean \"mandatory\"? allowed: mandatory, caps, fallback_caps, over_cap, valid_for_s, actor_caps, over_actor_cap, quiet, quiet_on, quiet_presets, dedup_window_s",
            "r.toml:6: categories.security.caps.emial: is not a known channel; did you mean \"email\"? allowed: sms, email, push, chat, webhook, inapp",
            "r.toml:7: categories.security.caps.sms.per_day: must be a number of messages from 1 to 1000 and a time of at most 366 days, such as \"2 per 24h\" or \"3 per local_day\"; units: s, m, h, d, w, not \"many\"",
            "r.toml:8: categories.security.caps.push: must be a table with a cap for each name, not 3",
            "r.toml:9: categories.security.over_cap: \"new-coment\" is not a known type of digest; did you mean \"new-comment\"? allowed: a, b, creator-activity, new-comment, new-follower, while-you-were-away",
            "r.toml:10: categories.security.dedup_window_s: must be a number from 0 to 2592000 seconds, not -1",
            "r.toml:11: categories.security.quiet: must be hold, digest_on_wake, drop or always, not \"holt\"; did you mean \"hold\"?",
            "r.toml:12: categories.security.quiet_on.fax: is not a known channel; allowed: sms, email, push, chat, webhook, inapp",
            "r.toml:12: categories.security.quiet_on.sms: must be hold, digest_on_wake, drop or always, not \"holds\"; did you mean \"hold\"?",
            "r.toml:13: categories.security.quiet_presets: must be a list of us-tcpa, not \"us\"",
            "r.toml:14: digests.a.template: is missing: it must be the template of the digest",
            "r.toml:17: digests.a.max_open_s: must be at least window_s",
            "r.toml:18: digests.a.min_items: must be at most max_items, 5, not 9",
            "r.toml:20: digests.a.quiet_for_s: must be left out unless leading is true",
            "r.toml:21: digests.a.overflow: must be count or split, not \"cut\"; did you mean \"count\"?",
            "r.toml:26: digests.b.at: must be a cron expression: minute: 61 is out of range; allowed: 0 to 59, * for all, lists (1,3), ranges (1-5), steps (*/2)",
        ]
    );
    assert_eq!(
        problems(
            "[digests.a]\ntemplate = \"a\"\ncategory = \"b\"\nwindow_s = 1\ntemplates = [\"x\"]\n[digests.b]\ntemplate = \"a\"\ncategory = \"b\"\nwindow_s = 1\ntemplates = [\"x\"]"
        ),
        ["r.toml:10: digests.b.templates: must not list \"x\", which the type a lists"]
    );
    assert_eq!(problems("a = \n").len(), 1);
}

#[test]
fn every_key_is_in_the_default_file_or_on_the_page() {
    let page = std::include_str!("../../../docs/gates.md");
    let keys: BTreeSet<&str> = TOP_KEYS
        .into_iter()
        .chain(FALLBACK_KEYS)
        .chain(CATEGORY_KEYS)
        .chain(DIGEST_KEYS)
        .collect();
    let documented: BTreeSet<&str> = page
        .split("\n## The rules\n")
        .nth(1)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(key, _)| key)
        .collect();
    assert_eq!(documented, keys);
}

#[test]
fn a_digest_that_never_closes_is_refused() {
    assert_eq!(
        problems("[digests.a]\ntemplate = \"a\"\ncategory = \"b\"\nat = \"0 0 30 2 *\""),
        ["r.toml:4: digests.a.at: never comes: no day matches all fields"]
    );
}
