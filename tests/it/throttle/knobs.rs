//! Setting, seeding and listing knobs.

use flyball::throttle::{Change, Error, KnobsFile, Status, seed};

use super::world::{START, World, change, laws, name};

laws! {
    setting_writes_the_three_together_and_counts,
    setting_is_refused_when_somebody_was_faster,
    an_edit_in_the_store_has_the_author_that_is_written_with_it,
    setting_refuses_min_above_max_and_unknown_throttles,
    leaving_auto_ends_the_lease,
    a_new_mode_takes_the_end_of_the_last_one_away,
    seeding_writes_what_is_absent_and_never_a_live_edit,
    names_are_known_in_order,
    a_new_throttle_is_not_named_like_the_state_of_a_key,
    where_nothing_runs_no_limit_of_concurrency_is_set,
}

async fn setting_writes_the_three_together_and_counts(world: World) {
    let (before, after) = world
        .store
        .set(&name("new"), &change(&[("rps", "7")]))
        .await
        .unwrap();

    assert_eq!(before, None);
    assert_eq!(
        (
            after.knobs.seq,
            after.knobs.by.as_str(),
            after.knobs.why.as_str()
        ),
        (1, "test", "a test")
    );
    assert_eq!(after.knobs.at_ms, START / 1000);
    for (field, text) in [("rps", "7"), ("burst", "1"), ("window", "1")] {
        assert_eq!(after.raw[field], text);
    }
    let mut removing = change(&[("key_rps", "3")]);
    world.store.set(&name("new"), &removing).await.unwrap();
    removing.fields = [("key_rps".to_owned(), None)].into();
    let (before, after) = world.store.set(&name("new"), &removing).await.unwrap();
    assert_eq!(before.unwrap().raw["key_rps"], "3");
    assert_eq!((after.raw.get("key_rps"), after.knobs.seq), (None, 3));
}

async fn an_edit_in_the_store_has_the_author_that_is_written_with_it(world: World) {
    let author = async || {
        let status = world.store.status(&name("new")).await.unwrap().unwrap();
        (status.knobs.by, status.knobs.why, status.knobs.at_ms)
    };
    let told = ("test".to_owned(), "a test".to_owned(), START / 1000);
    let set = async |fields: &[(&str, &str)]| {
        world
            .store
            .set(&name("new"), &change(fields))
            .await
            .unwrap();
    };
    set(&[("rps", "7")]).await;
    assert_eq!(author().await, told);
    for (field, text) in [("rps", "5"), ("paused", "1"), ("concurrency", "3")] {
        world.write("new", field, text);
        assert_eq!(author().await, (String::new(), String::new(), 0), "{field}");
        set(&[("burst", "2")]).await;
        assert_eq!(author().await, told, "{field}");
    }
    world.write("new", "rps", "5");
    assert_eq!(author().await, told, "the rate is what it was");
    world.write("new", "rps", "9");
    world.write("new", "by", "ann");
    world.write("new", "why", "the move");
    let written = ("ann".to_owned(), "the move".to_owned(), 0);
    assert_eq!(author().await, written);
}

async fn setting_is_refused_when_somebody_was_faster(world: World) {
    let a = name("a");
    world
        .store
        .set(
            &a,
            &Change {
                term: Some(5),
                ..change(&[("rps", "7")])
            },
        )
        .await
        .unwrap();
    let attempts = [
        (
            Change {
                if_seq: Some(7),
                ..change(&[("rps", "9")])
            },
            "seq is 1, not 7",
        ),
        (
            Change {
                term: Some(4),
                ..change(&[("rps", "9")])
            },
            "term 5 has written since term 4",
        ),
        (
            Change {
                if_rps: Some("8".to_owned()),
                ..change(&[("rps", "9")])
            },
            "rps is 7, not 8",
        ),
        (
            Change {
                if_concurrency: Some("4".to_owned()),
                ..change(&[("concurrency", "5")])
            },
            "concurrency is missing, not 4",
        ),
        (
            Change {
                if_mode: Some("auto".to_owned()),
                ..change(&[("rps", "9")])
            },
            "mode is no longer auto",
        ),
    ];
    for (attempt, expected) in attempts {
        match world.store.set(&a, &attempt).await {
            Err(Error::Conflict { what, .. }) => assert_eq!(what, expected),
            other => panic!("{other:?}"),
        }
    }
    let right = Change {
        if_seq: Some(1),
        term: Some(5),
        if_rps: Some("7".to_owned()),
        ..change(&[("rps", "9")])
    };
    assert_eq!(
        world
            .store
            .set(&a, &right)
            .await
            .unwrap()
            .1
            .knobs
            .rps
            .number(),
        9.0
    );
    world
        .store
        .set(&a, &change(&[("mode", "auto")]))
        .await
        .unwrap();
    let right = Change {
        if_mode: Some("auto".to_owned()),
        ..change(&[("rps", "10")])
    };
    let (_, after) = world.store.set(&a, &right).await.unwrap();
    assert_eq!(after.knobs.rps.number(), 10.0);
    // An empty text means no limit.
    for (stands, next) in [("", 3), ("3", 4)] {
        let right = Change {
            if_concurrency: Some(stands.to_owned()),
            ..change(&[("concurrency", &next.to_string())])
        };
        assert_eq!(
            world
                .store
                .set(&a, &right)
                .await
                .unwrap()
                .1
                .knobs
                .concurrency,
            Some(next)
        );
    }
}

async fn setting_refuses_min_above_max_and_unknown_throttles(world: World) {
    let refused = world
        .store
        .set(
            &name("a"),
            &Change {
                create: false,
                ..change(&[("rps", "1")])
            },
        )
        .await;
    assert!(matches!(refused, Err(Error::Unknown(_))), "{refused:?}");
    world.knobs("a", &[("rps", "1"), ("max", "50")]);

    let refused = world
        .store
        .set(&name("a"), &change(&[("min", "60")]))
        .await
        .unwrap_err();

    assert_eq!(refused.to_string(), "min: must be at most max 50, not 60");
    assert_eq!(world.status("a").await.raw.get("min"), None);
}

async fn a_new_mode_takes_the_end_of_the_last_one_away(world: World) {
    let until = "1700000000000";
    let of = |status: Status| status.raw.get("manual_until_ms").cloned();
    let set = |given: &[(&str, &str)]| change(given);
    let both = world
        .store
        .set(
            &name("a"),
            &set(&[("mode", "manual"), ("manual_until_ms", until)]),
        )
        .await
        .unwrap()
        .1;
    assert_eq!(
        (both.knobs.manual_until_ms, of(both)),
        (Some(1_700_000_000_000), Some(until.to_owned()))
    );
    let rate = world
        .store
        .set(&name("a"), &set(&[("rps", "5")]))
        .await
        .unwrap()
        .1;
    assert_eq!(of(rate).as_deref(), Some(until), "another knob leaves it");
    let seeded = Change {
        absent_only: true,
        ..set(&[("mode", "auto"), ("max", "9")])
    };
    assert_eq!(
        of(world.store.set(&name("a"), &seeded).await.unwrap().1).as_deref(),
        Some(until),
        "a seed leaves it"
    );
    for mode in ["manual", "auto"] {
        let again = world
            .store
            .set(&name("a"), &set(&[("mode", mode)]))
            .await
            .unwrap()
            .1;
        assert_eq!(of(again), None, "{mode}");
        world
            .store
            .set(&name("a"), &set(&[("manual_until_ms", until)]))
            .await
            .unwrap();
    }
}

async fn leaving_auto_ends_the_lease(world: World) {
    let until = (START / 1000 + 5000).to_string();
    let set = |given: Change| {
        let store = world.store.clone();
        async move { store.set(&name("a"), &given).await.unwrap().1 }
    };
    let leased = set(change(&[
        ("rps", "7"),
        ("mode", "auto"),
        ("valid_until", &until),
    ]))
    .await;
    let kept = set(change(&[("max", "100")])).await;
    let left = set(change(&[("mode", "manual")])).await;

    assert_eq!(leased.knobs.valid_until_ms, Some(START / 1000 + 5000));
    assert_eq!(kept.knobs.valid_until_ms, leased.knobs.valid_until_ms);
    assert_eq!(left.raw.get("valid_until"), None);
}

async fn seeding_writes_what_is_absent_and_never_a_live_edit(world: World) {
    let text = "[knobs]\nrps = 20\nmin = 2\nmax = 200\n".to_owned();
    let file = KnobsFile::parse(std::path::Path::new("knobs/a.toml"), text).unwrap();
    world.write("a", "rps", "3");
    let files = [
        file,
        KnobsFile::parse(
            std::path::Path::new("knobs/b.toml"),
            "[knobs]\nrps = 1\n".to_owned(),
        )
        .unwrap(),
    ];

    let created = seed(&*world.store, &files).await.unwrap();
    let seq = world.status("a").await.knobs.seq;
    let again = seed(&*world.store, &files).await.unwrap();

    assert_eq!((created, again), (vec![name("b")], vec![]));
    let raw = world.status("a").await.raw;
    assert_eq!([&raw["rps"], &raw["min"], &raw["max"]], ["3", "2", "200"]);
    assert_eq!(
        world.status("a").await.knobs.seq,
        seq,
        "nothing to write is no write"
    );
}

async fn names_are_known_in_order(world: World) {
    world.write("written-by-hand", "rps", "1");
    world
        .store
        .set(&name("set"), &change(&[("rps", "1")]))
        .await
        .unwrap();

    assert_eq!(
        world.store.names().await.unwrap(),
        [name("set"), name("written-by-hand")]
    );
}

async fn a_new_throttle_is_not_named_like_the_state_of_a_key(world: World) {
    let (taken, knobs) = (name("mail:lane"), change(&[("rps", "1")]));
    let refused = world.store.set(&taken, &knobs).await;

    let Err(Error::Invalid(problems)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(problems[0].field, "name");
    assert!(
        problems[0].message.contains("mail:lane has the part lane"),
        "{problems:?}"
    );
    assert!(world.store.status(&taken).await.unwrap().is_none());
    // One that exists is turned, and one that was recorded is restored.
    world.write("old:lane", "rps", "5");
    world.store.set(&name("old:lane"), &knobs).await.unwrap();
    let restored = Change {
        restores: true,
        ..knobs
    };
    world.store.set(&taken, &restored).await.unwrap();
}

async fn where_nothing_runs_no_limit_of_concurrency_is_set(world: World) {
    let limits = [("concurrency", "0"), ("key_concurrency", "3")];
    for throttle in ["notify:acme", "notify-critical:acme", "ws:acme"] {
        let knobs = change(&[("windows", "5/60")]);
        world.store.set(&name(throttle), &knobs).await.unwrap();

        let refused = world.store.set(&name(throttle), &change(&limits)).await;

        let Err(Error::Invalid(problems)) = refused else {
            panic!("{refused:?}")
        };
        let fields: Vec<&str> = problems.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(fields, ["concurrency", "key_concurrency"]);
        assert!(problems[0].message.contains("windows"), "{problems:?}");
        assert_eq!(world.status(throttle).await.knobs.concurrency, None);
        let none = change(&[("concurrency", "-1")]);
        world.store.set(&name(throttle), &none).await.unwrap();
        // What was recorded is restored as it was.
        let restored = Change {
            restores: true,
            ..change(&limits)
        };
        world.store.set(&name(throttle), &restored).await.unwrap();
    }
    let connections = change(&limits[..1]);
    let open = name("ws-connections:acme");
    world.store.set(&open, &connections).await.unwrap();
}

#[tokio::test]
async fn knobs_that_redis_lost_while_they_were_recorded_do_not_look_deleted() {
    let world = World::redis();
    let lost = name("lost");
    let knobs = change(&[("rps", "7")]);
    world.store.set(&lost, &knobs).await.unwrap();
    world.redis_command(&["DEL", &world.knobs_key("lost")]);
    // The record was read before Redis was emptied, and is kept after it.
    world.store.persist(&lost).await.unwrap();
    assert!(!world.store.is_kept(&lost).await.unwrap());

    world.store.set(&lost, &knobs).await.unwrap();
    world.store.persist(&lost).await.unwrap();
    world.redis_command(&["DEL", &world.knobs_key("lost")]);
    assert!(world.store.is_kept(&lost).await.unwrap());
}
