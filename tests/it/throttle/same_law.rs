//! Property: memory and Redis give the same answers to the last digit.

use std::sync::atomic::Ordering;

use flyball::throttle::{
    Change, Grant, Holder, KeyOutcomes, LaneRequest, Quota, RateLimit, Refund, Scope,
    UpstreamRefusal,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::support::redis_server::Server;
use crate::throttle::{START, World, ask, fields, name};

const THROTTLES: [&str; 3] = ["root", "mid", "leaf"];
const KEYS: [&str; 3] = ["", "k", "l"];
const FIELDS: [&str; 39] = [
    "max_cost",
    "max_cost",
    "max",
    "rps",
    "rps",
    "rps",
    "burst",
    "window",
    "safe_rps",
    "key_rps",
    "key_burst",
    "cost_factor",
    "cost_factor",
    "windows",
    "windows",
    "key_windows",
    "key_windows",
    "mode",
    "valid_until",
    "paused",
    "parent",
    "on_store_loss",
    "min",
    "concurrency",
    "concurrency",
    "key_concurrency",
    "key_concurrency",
    "weight",
    "borrow",
    "borrow",
    "on_429",
    "on_429",
    "trust_scope",
    "trust_scope",
    "max_pause",
    "max_pause",
    "over_limit",
    "capacity",
    "capacity",
];
const HOLDERS: [&str; 3] = ["u", "v", "http:w"];

/// A key, and the wanted units.
#[derive(Clone, Debug)]
struct Lane {
    key: usize,
    want: u32,
    cost: f64,
    held: u32,
}

/// A holder, its time to live in milliseconds and its held units.
#[derive(Clone, Debug)]
struct Held(usize, u64, u32);

impl Held {
    fn holder(&self) -> Holder {
        Holder {
            id: HOLDERS[self.0].to_owned(),
            ttl: std::time::Duration::from_millis(self.1),
            held: self.2,
        }
    }
}

/// A key: successes, their tokens, failures, the reported quota with its milliseconds, the
/// milliseconds since the last of them began, and whether it is untrusted.
type End = (usize, u32, f64, u32, Option<(f64, u64)>, Option<u64>, bool);

/// The verb of an ask.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Acquire,
    Peek,
    /// The last lane is only looked at.
    AcquireAndPeek,
}

#[derive(Clone, Debug)]
enum Op {
    Pass(i64),
    Write(usize, usize, String),
    Remove(usize, usize),
    Ask {
        throttle: usize,
        lanes: Vec<Lane>,
        holder: Option<Held>,
        way: Way,
    },
    Hold {
        throttle: usize,
        holder: Held,
        lanes: Vec<(usize, u32)>,
    },
    Refund {
        units: Vec<u32>,
    },
    Settle(usize, Vec<(usize, f64)>),
    Pause(usize, usize, u64),
    Resume(usize, usize),
    Capacity(usize, Option<f64>, &'static str),
    Look(usize),
    /// A throttle, a key, the scope, milliseconds, the jitter, and whether it is untrusted.
    Refused(usize, usize, Scope, Option<u64>, f64, bool),
    Ended(usize, Vec<End>),
    Set {
        throttle: usize,
        field: usize,
        text: String,
        if_seq: Option<u64>,
        term: Option<u64>,
        if_mode: Option<&'static str>,
        absent_only: bool,
    },
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
        "true",
        "active-naive",
        "active-informed",
        "passive-informed",
        "root",
        "mid",
        "leaf",
        "key",
        "throttle",
        "account",
        "throttle",
        "account",
        "drop",
        "drop",
        "merge",
        "3/5",
        "50/0.2 100/60",
        "20/0.5",
        "9/0.3 12/90",
        " 2.5/1 \t7/3",
        "1/1 2/2 3/3 4/4 5/5",
        "5/0",
        "two words",
        "1\n",
        "--1",
        "1e",
        "e5",
        "0000000000000000000000000000000000000000000000000000000000000000001",
        "bad name\u{0}",
    ]);
    prop_oneof![3 => numbers, 2 => whole, 3 => words.prop_map(str::to_owned), 1 => lease()]
}

fn lease() -> impl Strategy<Value = String> {
    (-100_000..100_000_i64).prop_map(|ms| (START / 1000 + ms).to_string())
}

fn capacity() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![2 => Just(None), 3 => Just(Some(0.0)), 1 => Just(Some(-1.0)), 4 => (-7.0..10.0_f64).prop_map(|e| Some(10.0_f64.powf(e)))]
}

fn op() -> impl Strategy<Value = Op> {
    let throttle = || 0..THROTTLES.len();
    let want = prop_oneof![0..200_u32, 1..3_u32, Just(1)];
    let cost = prop_oneof![
        Just(1.0),
        Just(0.1),
        0.001..1000.0_f64,
        (3.0..9.0_f64).prop_map(|e| 10.0_f64.powf(e))
    ];
    let lane = (0..KEYS.len(), want, cost, 0..4_u32).prop_map(|(key, want, cost, held)| Lane {
        key,
        want,
        cost,
        held,
    });
    let lanes = (prop::collection::vec(lane, 1..5), 1..11_usize).prop_map(|(lanes, repeat)| {
        // Some repeat in sequence; never more than fit into one call to Redis.
        lanes
            .into_iter()
            .flat_map(|lane| vec![lane; if repeat > 7 { repeat } else { 1 }])
            .collect::<Vec<_>>()
    });
    let held = || {
        (0..HOLDERS.len(), 1..100_000_u64, 0..12_u32)
            .prop_map(|(who, ttl_ms, held)| Held(who, ttl_ms, held))
    };
    let scope =
        prop_oneof![4 => Just(Scope::Key), 1 => Just(Scope::Account), 1 => Just(Scope::Throttle)];
    let left =
        prop_oneof![1 => 0.0..100.0_f64, 2 => (0..60_u32).prop_map(f64::from), 1 => Just(0.0)];
    let reset_ms = prop_oneof![2 => 0..20_000_u64, 4 => (0..4_u64).prop_map(|s| 1000 * s), 1 => (0..90_u64).prop_map(|s| 1000 * s), 1 => any::<u64>()];
    let quota = prop::option::weighted(0.3, (left, reset_ms));
    let ended = (
        0..KEYS.len(),
        0..30_u32,
        0.0..100.0_f64,
        0..4_u32,
        quota,
        prop::option::of(0..3_000_u64),
        any::<bool>(),
    );
    let pass = prop_oneof![8 => 0..2_000_000_i64, 3 => 0..100_000_000_i64, 1 => -4_000_000_000..4_000_000_000_i64];
    prop_oneof![
        5 => pass.prop_map(Op::Pass),
        4 => (throttle(), 0..FIELDS.len(), text()).prop_map(|(t, f, text)| Op::Write(t, f, text)),
        1 => (throttle(), 0..FIELDS.len()).prop_map(|(t, f)| Op::Remove(t, f)),
        10 => (throttle(), lanes, prop::option::of(held()), any::<bool>(), any::<bool>())
            .prop_map(|(throttle, lanes, holder, a, b)| {
                let way = match (a, b) {
                    (true, true) => Way::Peek,
                    (true, false) if holder.is_none() && lanes.len() > 1 => Way::AcquireAndPeek,
                    _ => Way::Acquire,
                };
                Op::Ask { throttle, lanes, holder, way }
            }),
        2 => (throttle(), held(), prop::collection::vec((0..KEYS.len(), 0..9_u32), 0..3))
            .prop_map(|(throttle, holder, lanes)| Op::Hold { throttle, holder, lanes }),
        2 => prop::collection::vec(0..20_u32, 1..6).prop_map(|units| Op::Refund { units }),
        1 => (throttle(), prop::collection::vec((0..KEYS.len(), prop_oneof![4 => -100.0..300.0_f64, 1 => Just(1e9)]), 1..4)).prop_map(|(t, tokens)| Op::Settle(t, tokens)),
        1 => (throttle(), 0..KEYS.len(), 0..10_000_u64).prop_map(|(t, k, ms)| Op::Pause(t, k, ms)),
        1 => (throttle(), 0..KEYS.len()).prop_map(|(t, k)| Op::Resume(t, k)),
        2 => (throttle(), capacity(), prop::sample::select(vec!["", "no account is free", "one | two"]))
            .prop_map(|(t, capacity, why)| Op::Capacity(t, capacity, why)),
        3 => throttle().prop_map(Op::Look),
        4 => (throttle(), 0..KEYS.len(), scope, prop::option::of(prop_oneof![3 => 0..5_000_u64, 1 => any::<u64>()]), 0.0..1.0, any::<bool>())
            .prop_map(|(t, k, scope, ms, jitter, is_untrusted)| Op::Refused(t, k, scope, ms, jitter, is_untrusted)),
        3 => (throttle(), prop::collection::vec(ended, 1..4)).prop_map(|(t, ended)| Op::Ended(t, ended)),
        3 => (throttle(), 0..FIELDS.len(), text(), prop::option::weighted(0.2, 0..5_u64), prop::option::weighted(0.3, 0..4_u64), prop::option::weighted(0.2, prop::sample::select(vec!["auto", "manual"])), any::<bool>())
            .prop_map(|(throttle, field, text, if_seq, term, if_mode, absent_only)| Op::Set { throttle, field, text, if_seq, term, if_mode, absent_only }),
    ]
}

/// Runs `op` and formats everything observable about it.
async fn seen(world: &World, op: &Op, last: &mut Option<(usize, Vec<(Lane, Grant)>)>) -> String {
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
        Op::Ask {
            throttle,
            lanes,
            holder,
            way,
        } => {
            let mut request = ask(THROTTLES[*throttle], &[]);
            let lane = |lane: &Lane| LaneRequest {
                key: KEYS[lane.key].to_owned(),
                want: lane.want,
                cost: lane.cost,
                held: lane.held,
            };
            request.lanes = lanes.iter().map(lane).collect();
            request.holder = holder.as_ref().map(Held::holder);
            let mut answer = match way {
                Way::Acquire => world.store.acquire(&request).await,
                Way::Peek => world.store.peek(&request).await,
                Way::AcquireAndPeek => world.store.acquire_and_peek(&request).await,
            };
            // Redis does not check without flow, and remembers longer that there were pauses, so it
            // may wrongly report one.
            answer.levels_decide = false;
            if *way != Way::Peek {
                let taken = lanes.len() - usize::from(*way == Way::AcquireAndPeek);
                let grants = answer.lanes.iter().take(taken).cloned();
                *last = Some((*throttle, lanes.iter().cloned().zip(grants).collect()));
            }
            format!("{answer:?}")
        }
        Op::Refund { units } => match last {
            None => String::new(),
            Some((throttle, grants)) => {
                let one = |((lane, grant), units): (&'_ (Lane, Grant), &u32)| {
                    (KEYS[lane.key], grant.clone(), *units, lane.cost)
                };
                let grants: Vec<_> = grants.iter().zip(units).map(one).collect();
                let refunds: Vec<Refund<'_>> = grants
                    .iter()
                    .map(|(key, grant, units, cost)| Refund {
                        key,
                        grant,
                        units: *units,
                        cost: *cost,
                    })
                    .collect();
                format!(
                    "{:?}",
                    world
                        .store
                        .refund_many(&name(THROTTLES[*throttle]), &refunds)
                        .await
                )
            }
        },
        Op::Settle(t, tokens) => {
            let tokens: Vec<(&str, f64)> = tokens
                .iter()
                .map(|(key, tokens)| (KEYS[*key], *tokens))
                .collect();
            format!(
                "{:?}",
                world.store.settle_many(&name(THROTTLES[*t]), &tokens).await
            )
        }
        Op::Hold {
            throttle,
            holder,
            lanes,
        } => {
            let lanes: Vec<(String, u32)> = lanes
                .iter()
                .map(|(key, held)| (KEYS[*key].to_owned(), *held))
                .collect();
            format!(
                "{:?}",
                world
                    .store
                    .hold(&name(THROTTLES[*throttle]), &holder.holder(), &lanes)
                    .await
            )
        }
        Op::Pause(t, k, ms) => {
            let delay = std::time::Duration::from_millis(*ms);
            format!(
                "{:?}",
                world
                    .store
                    .pause_key(&name(THROTTLES[*t]), KEYS[*k], delay, "why | not")
                    .await
            )
        }
        Op::Refused(t, k, scope, ms, jitter, is_untrusted) => {
            let delay = ms.map(std::time::Duration::from_millis);
            let refused = UpstreamRefusal {
                key: KEYS[*k],
                scope: *scope,
                is_overload: *jitter > 0.7,
                is_untrusted: *is_untrusted,
                delay,
                jitter: *jitter,
                why: "429 | slow\ndown",
            };
            format!(
                "{:?}",
                world.store.refused(&name(THROTTLES[*t]), &refused).await
            )
        }
        Op::Ended(t, ended) => {
            let quota = |(remaining, ms): (f64, u64)| Quota {
                remaining,
                reset: std::time::Duration::from_millis(ms),
            };
            let one = |(key, succeeded, tokens, failed, message, ago_ms, is_untrusted): &End| {
                KeyOutcomes {
                    key: KEYS[*key],
                    succeeded: *succeeded,
                    tokens: *tokens,
                    failed: *failed,
                    begun_ago: ago_ms.map(std::time::Duration::from_millis),
                    quota: message.map(quota),
                    is_untrusted: *is_untrusted,
                }
            };
            let ended: Vec<KeyOutcomes<'_>> = ended.iter().map(one).collect();
            format!(
                "{:?}",
                world.store.ended(&name(THROTTLES[*t]), &ended).await
            )
        }
        Op::Resume(t, k) => format!(
            "{:?}",
            world.store.resume_key(&name(THROTTLES[*t]), KEYS[*k]).await
        ),
        Op::Capacity(t, capacity, why) => {
            format!(
                "{:?}",
                world
                    .store
                    .set_capacity(
                        &name(THROTTLES[*t]),
                        capacity.map_or(RateLimit::Unlimited, RateLimit::new),
                        why
                    )
                    .await
            )
        }
        Op::Look(t) => {
            let keys = KEYS.map(str::to_owned);
            format!("{:?}", world.store.look(&name(THROTTLES[*t]), &keys).await)
        }
        Op::Set {
            throttle,
            field,
            text,
            if_seq,
            term,
            if_mode,
            absent_only,
        } => {
            let change = Change {
                fields: fields(&[(FIELDS[*field], text)]),
                if_seq: *if_seq,
                term: *term,
                if_mode: if_mode.map(str::to_owned),
                create: true,
                absent_only: *absent_only,
                ..Change::default()
            };
            format!(
                "{:?}",
                world.store.set(&name(THROTTLES[*throttle]), &change).await
            )
        }
    }
}

/// Reads a number from the environment: more cases, or another seed.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a whole number"))
    })
}

#[test]
fn memory_and_redis_obey_the_same_law() {
    let (cases, seed) = (
        setting("FLYBALL_LAW_CASES", 192),
        setting("FLYBALL_LAW_SEED", 1788),
    );
    println!("{cases} traces from seed {seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = Server::start();
    // One user may call functions and another only scripts, as in a Redis before 7.
    let whole = server.url();
    redis::cmd("ACL")
        .arg(&["SETUSER", "scripts", "on", ">pw", "~*", "&*", "+@all"])
        .arg(&["-fcall", "-function"])
        .exec(
            &mut redis::Client::open(&*whole)
                .unwrap()
                .get_connection()
                .unwrap(),
        )
        .unwrap();
    let urls = [format!("{whole}?user=scripts&pass=pw"), whole];
    let mut number = 0;
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));

    let case = prop::collection::vec(op(), 1..60);
    let number = std::cell::RefCell::new(&mut number);
    let result = runner.run(&case, |ops| {
        runtime.block_on(async {
            **number.borrow_mut() += 1;
            let url = &urls[**number.borrow() % 2];
            let (memory, redis) = (
                World::memory(),
                World::redis_at(url, &format!("{}:", number.borrow())),
            );
            for world in [&memory, &redis] {
                world.knobs("root", &[("rps", "20")]);
                world.knobs("mid", &[("rps", "10"), ("parent", "root")]);
                world.knobs(
                    "leaf",
                    &[
                        ("rps", "30"),
                        ("key_rps", if ops.len() % 2 == 0 { "5" } else { "-1" }),
                        ("parent", "mid"),
                    ],
                );
                if ops.len() % 3 == 0 {
                    world.knobs("mid", &[("concurrency", "20")]);
                    world.knobs(
                        "leaf",
                        &[
                            ("concurrency", "15"),
                            ("key_concurrency", "6"),
                            ("rps", "-1"),
                        ],
                    );
                }
            }
            let (mut last_memory, mut last_redis) = (None, None);
            for (step, op) in ops.iter().enumerate() {
                let expected = seen(&memory, op, &mut last_memory).await;
                let found = seen(&redis, op, &mut last_redis).await;
                prop_assert_eq!(
                    &found,
                    &expected,
                    "redis against memory at step {}: {:?}",
                    step,
                    op
                );
                for throttle in THROTTLES {
                    let expected = memory.store.status(&name(throttle)).await;
                    let found = redis.store.status(&name(throttle)).await;
                    prop_assert_eq!(
                        format!("{found:?}"),
                        format!("{expected:?}"),
                        "status of {} after step {}",
                        throttle,
                        step
                    );
                }
            }
            Ok(())
        })
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    let mut connection = redis::Client::open(&*urls[1])
        .unwrap()
        .get_connection()
        .unwrap();
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .unwrap();
    for way in ["cmdstat_fcall:", "cmdstat_evalsha:"] {
        assert!(stats.contains(way), "{stats}");
    }
}
