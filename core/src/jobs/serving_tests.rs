use super::*;

fn worker(id: i32, kinds: &[&str], capabilities: &[(&str, &str)]) -> WorkerCapabilities {
    let capabilities = capabilities
        .iter()
        .map(|(what, digest)| ((*what).to_owned(), (*digest).to_owned()))
        .collect();
    WorkerCapabilities {
        id,
        name: "w".into(),
        is_fresh: true,
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        capabilities,
        ..WorkerCapabilities::default()
    }
}

#[test]
fn workers_that_can_run_the_same_do_not_differ() {
    let same = |id| worker(id, &["http", "notification"], &[("channel sms", "a1")]);

    assert_eq!(differences(&[same(1), same(2)]), Vec::<String>::new());
    assert_eq!(differences(&[same(1)]), Vec::<String>::new());
}

#[test]
fn a_broker_serves_what_other_programs_ask_for_which_is_no_difference() {
    let broker = WorkerCapabilities {
        is_broker: true,
        ..worker(2, &["render"], &[])
    };

    assert_eq!(
        differences(&[worker(1, &["http"], &[]), broker]),
        Vec::<String>::new()
    );
}

#[test]
fn a_kind_or_a_channel_that_one_lacks_and_settings_that_differ_are_reported_with_who() {
    let workers = [
        worker(1, &["http", "mail"], &[("channel sms", "a1")]),
        WorkerCapabilities {
            throttles: vec!["hooks".into(), "mail:*".into()],
            ..worker(2, &["http"], &[])
        },
        worker(3, &["http", "mail"], &[("channel sms", "b2")]),
    ];

    assert_eq!(
        differences(&workers),
        [
            "2 of 3 workers serve channel sms; not served by w (2)",
            "the settings of channel sms differ between w (1) and w (3)",
            "2 of 3 workers serve the kind mail; not served by w (2)",
            "w (2) serves only the throttles hooks, mail:*",
        ]
    );
}

#[test]
fn a_worker_is_whole_if_no_other_serves_what_it_does_not() {
    let rich = worker(1, &["http", "mail"], &[("channel sms", "a1")]);
    let plain = worker(2, &["http", "mail"], &[]);
    let narrow = WorkerCapabilities {
        throttles: vec!["mail:*".into()],
        ..rich.clone()
    };
    let all = [rich.clone(), plain.clone(), narrow.clone()];

    assert!(rich.is_whole(&all));
    assert!(!plain.is_whole(&all));
    assert!(plain.is_whole(std::slice::from_ref(&plain)));
    assert!(!narrow.is_whole(&all) && narrow.has_all(&all));
}

#[test]
fn workers_that_serve_the_same_know_their_rank_and_silent_ones_do_not_count() {
    let (a, b, c) = (
        worker(3, &["mail"], &[("channel sms", "a1")]),
        worker(5, &["mail"], &[("channel sms", "b2")]),
        worker(9, &["mail"], &[("channel sms", "a1")]),
    );
    let other = worker(4, &["http"], &[]);
    let silent = WorkerCapabilities {
        is_fresh: false,
        ..worker(1, &["mail"], &[("channel sms", "a1")])
    };
    let live = [silent, a.clone(), other.clone(), b.clone(), c.clone()];

    assert_eq!(
        [&a, &b, &c, &other].map(|one| one.rank(&live)),
        [(0, 3), (1, 3), (2, 3), (0, 1)]
    );
}

#[test]
fn a_worker_runs_jobs_of_its_throttles_kinds_and_capabilities() {
    let one = WorkerCapabilities {
        throttles: vec!["notify:*".into()],
        ..worker(1, &["notification"], &[("channel sms", "")])
    };
    let sms = ["channel sms".to_owned()];

    assert!(one.runs("notify:acme", "notification", &sms));
    assert!(!one.runs("sms", "notification", &sms));
    assert!(!one.runs("notify:acme", "http", &[]));
    assert!(!one.runs("notify:acme", "notification", &["channel email".into()]));
}

#[test]
fn settings_that_differ_are_named_by_field_subject_and_worker_without_their_values() {
    let fields = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(field, digest)| ((*field).to_owned(), (*digest).to_owned()))
            .collect()
    };
    let usual = [("headroom", "aa"), ("timeout_s", "bb")];
    let own: SharedSettings = [
        ("pool sms".to_owned(), fields(&usual)),
        ("pool mail".to_owned(), fields(&usual)),
    ]
    .into();
    let of = |worker: &str, subject: &str, pairs: &[(&str, &str)]| {
        (worker.to_owned(), subject.to_owned(), fields(pairs))
    };
    let others = [
        of(
            "w (1)",
            "pool sms",
            &[("headroom", "cc"), ("timeout_s", "bb")],
        ),
        of(
            "w (2)",
            "pool sms",
            &[("headroom", "aa"), ("of_a_later_version", "dd")],
        ),
        of(
            "w (3)",
            "pool sms",
            &[("headroom", "cc"), ("timeout_s", "dd")],
        ),
        of("w (3)", "pool push", &[("headroom", "cc")]),
    ];

    assert_eq!(
        differing_settings(&own, &others),
        [
            "headroom of pool sms differs from worker w (1), w (3)",
            "timeout_s of pool sms differs from worker w (3)",
        ]
    );
    assert_eq!(
        differing_settings(&own, &others[1..2]),
        Vec::<String>::new()
    );
}

#[test]
fn the_remedy_names_the_first_thing_that_is_missing() {
    let live = [worker(1, &["notification"], &[("channel email", "")])];
    let sms = ["channel sms".to_owned()];
    let starts = |text: String, start: &str| assert!(text.starts_with(start), "{text}");

    starts(remedy(&[], "a", Some("b"), &[]), "no worker is live;");
    starts(
        remedy(&live, "a", Some("b"), &[]),
        "no live worker serves the kind b;",
    );
    starts(
        remedy(&live, "a", Some("notification"), &sms),
        "no live worker serves channel sms; add [pools.<name>]",
    );
    let needs_key = |need: &str| remedy(&live, "a", Some("notification"), &[need.to_owned()]);
    starts(
        needs_key("secret-key any"),
        "no live worker serves secret-key any; set FLYBALL_SECRET_KEYS of a worker to what",
    );
    starts(
        needs_key("secret-key 4be1f0a2"),
        "no live worker serves secret-key 4be1f0a2; add that key",
    );
    let told = [WorkerCapabilities {
        throttles: vec!["b".into()],
        ..live[0].clone()
    }];
    starts(
        remedy(&told, "a", Some("notification"), &[]),
        "no live worker serves the throttle a;",
    );
}
