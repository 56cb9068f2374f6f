//! Property: whatever happens, memory and Redis give the same answers to the last digit.

use std::sync::atomic::Ordering;

use flyball::throttle::{Change, Grant};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::throttle::{START, World, ask, fields, name};
use crate::throttle_redis::Server;

const THROTTLES: [&str; 3] = ["root", "mid", "leaf"];
const KEYS: [&str; 3] = ["", "k", "l"];
const FIELDS: [&str; 14] = [
    "rps",
    "rps",
    "rps",
    "burst",
    "window",
    "safe_rps",
    "key_rps",
    "key_burst",
    "mode",
    "valid_until",
    "paused",
    "parent",
    "on_store_loss",
    "min",
];

#[derive(Clone, Debug)]
enum Op {
    Pass(i64),
    Write(usize, usize, String),
    Remove(usize, usize),
    Ask { throttle: usize, lanes: Vec<(usize, u32, f64)>, peek: bool },
    Refund { units: u32 },
    Settle(usize, usize, f64),
    Pause(usize, usize, u64),
    Resume(usize, usize),
    Set { throttle: usize, field: usize, text: String, if_seq: Option<u64>, term: Option<u64>, absent_only: bool },
}

fn text() -> impl Strategy<Value = String> {
    let numbers = (-4.0..6.0_f64).prop_map(|exponent| format!("{}", 10.0_f64.powf(exponent)));
    let whole = (0..2000_u32).prop_map(|n| n.to_string());
    let words = prop::sample::select(vec![
        "0",
        "-1",
        "1",
        "ten",
        "",
        "nan",
        "inf",
        "0x10",
        " 5 ",
        "1e3",
        "1e-9",
        "1e12",
        "-0",
        "+2",
        ".5",
        "5.",
        "auto",
        "manual",
        "true",
        "root",
        "mid",
        "leaf",
        "two words",
        "1\n",
        "--1",
        "1e",
        "e5",
    ]);
    prop_oneof![3 => numbers, 2 => whole, 3 => words.prop_map(str::to_owned), 1 => lease()]
}

fn lease() -> impl Strategy<Value = String> {
    (-100_000..100_000_i64).prop_map(|ms| (START / 1000 + ms).to_string())
}

fn op() -> impl Strategy<Value = Op> {
    let throttle = || 0..THROTTLES.len();
    let lane = (0..KEYS.len(), 0..200_u32, prop_oneof![Just(1.0), 0.001..1000.0_f64]);
    let pass = prop_oneof![8 => 0..2_000_000_i64, 3 => 0..100_000_000_i64, 1 => -4_000_000_000..4_000_000_000_i64];
    prop_oneof![
        5 => pass.prop_map(Op::Pass),
        4 => (throttle(), 0..FIELDS.len(), text()).prop_map(|(t, f, text)| Op::Write(t, f, text)),
        1 => (throttle(), 0..FIELDS.len()).prop_map(|(t, f)| Op::Remove(t, f)),
        10 => (throttle(), prop::collection::vec(lane, 1..5), any::<bool>(), any::<bool>())
            .prop_map(|(throttle, lanes, a, b)| Op::Ask { throttle, lanes, peek: a && b }),
        2 => (0..20_u32).prop_map(|units| Op::Refund { units }),
        1 => (throttle(), 0..KEYS.len(), -100.0..300.0_f64).prop_map(|(t, k, tokens)| Op::Settle(t, k, tokens)),
        1 => (throttle(), 0..KEYS.len(), 0..10_000_u64).prop_map(|(t, k, ms)| Op::Pause(t, k, ms)),
        1 => (throttle(), 0..KEYS.len()).prop_map(|(t, k)| Op::Resume(t, k)),
        3 => (throttle(), 0..FIELDS.len(), text(), prop::option::weighted(0.2, 0..5_u64), prop::option::weighted(0.3, 0..4_u64), any::<bool>())
            .prop_map(|(throttle, field, text, if_seq, term, absent_only)| Op::Set { throttle, field, text, if_seq, term, absent_only }),
    ]
}

/// Does `op` and tells in words everything that can be seen of it.
async fn seen(world: &World, op: &Op, last: &mut Option<(usize, usize, Grant, f64)>) -> String {
    match op {
        Op::Pass(us) => {
            world.now.fetch_add(*us, Ordering::SeqCst);
            String::new()
        }
        Op::Write(t, f, text) => {
            world.write(THROTTLES[*t], FIELDS[*f], text);
            String::new()
        }
        Op::Remove(t, f) => {
            world.remove(THROTTLES[*t], FIELDS[*f]);
            String::new()
        }
        Op::Ask { throttle, lanes, peek } => {
            let named: Vec<_> = lanes.iter().map(|(key, want, cost)| (KEYS[*key], *want, *cost)).collect();
            let request = ask(THROTTLES[*throttle], &named);
            let answer = if *peek { world.store.peek(&request).await } else { world.store.acquire(&request).await };
            if !*peek {
                *last = Some((*throttle, lanes[0].0, answer.lanes[0].clone(), lanes[0].2));
            }
            format!("{answer:?}")
        }
        Op::Refund { units } => match last {
            None => String::new(),
            Some((throttle, key, grant, cost)) => {
                let units = (*units).min(grant.granted);
                format!("{:?}", world.store.refund(&name(THROTTLES[*throttle]), KEYS[*key], grant, units, *cost).await)
            }
        },
        Op::Settle(t, k, tokens) => format!("{:?}", world.store.settle(&name(THROTTLES[*t]), KEYS[*k], *tokens).await),
        Op::Pause(t, k, ms) => {
            let delay = std::time::Duration::from_millis(*ms);
            format!("{:?}", world.store.pause_key(&name(THROTTLES[*t]), KEYS[*k], delay, "why | not").await)
        }
        Op::Resume(t, k) => format!("{:?}", world.store.resume_key(&name(THROTTLES[*t]), KEYS[*k]).await),
        Op::Set { throttle, field, text, if_seq, term, absent_only } => {
            let change = Change {
                fields: fields(&[(FIELDS[*field], text)]),
                if_seq: *if_seq,
                term: *term,
                create: true,
                absent_only: *absent_only,
                ..Change::default()
            };
            format!("{:?}", world.store.set(&name(THROTTLES[*throttle]), &change).await)
        }
    }
}

#[test]
fn memory_and_redis_obey_the_same_law() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::start();
    let (url, mut number) = (server.url(), 0);
    let mut runner =
        TestRunner::new(Config { cases: 192, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() });

    let case = prop::collection::vec(op(), 1..60);
    let number = std::cell::RefCell::new(&mut number);
    let result = runner.run(&case, |ops| {
        runtime.block_on(async {
            **number.borrow_mut() += 1;
            let (memory, redis) = (World::memory(), World::redis_at(&url, &format!("{}:", number.borrow())));
            for world in [&memory, &redis] {
                world.knobs("root", &[("rps", "20")]);
                world.knobs("mid", &[("rps", "10"), ("parent", "root")]);
                world.knobs("leaf", &[("rps", "30"), ("key_rps", "5"), ("parent", "mid")]);
            }
            let (mut last_memory, mut last_redis) = (None, None);
            for (step, op) in ops.iter().enumerate() {
                let expected = seen(&memory, op, &mut last_memory).await;
                let found = seen(&redis, op, &mut last_redis).await;
                prop_assert_eq!(&found, &expected, "redis against memory at step {}: {:?}", step, op);
                for throttle in THROTTLES {
                    let expected = memory.store.status(&name(throttle)).await;
                    let found = redis.store.status(&name(throttle)).await;
                    prop_assert_eq!(format!("{found:?}"), format!("{expected:?}"), "status of {} after step {}", throttle, step);
                }
            }
            Ok(())
        })
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
