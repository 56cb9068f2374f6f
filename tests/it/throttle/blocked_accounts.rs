//! Accounts as keys of a throttle that a rejection blocks and that come back one job at a time.
//! Each property in memory and in Redis.

use std::sync::Arc;
use std::time::Duration;

use flyball::throttle::{
    AcquireRequest, Holder, KeyOutcomes, KeyState, LaneRequest, Scope, Store, UpstreamRefusal,
};
use futures_util::future::join_all;

use crate::throttle::{START, World, ask, laws, name};

laws! {
    what_is_known_of_keys_can_be_looked_at,
    a_blocked_account_is_closed_to_all_and_comes_back_by_one,
    who_was_under_way_before_a_block_does_not_open_it,
    a_second_refusal_while_blocked_keeps_the_later_end,
    a_probe_without_a_result_is_followed_by_another_after_a_while,
}

/// A request for one unit of an account by a job-running process; pure token clients are exempt
/// from the caution after a block.
pub fn by(who: usize, account: &str) -> AcquireRequest {
    let holder = Holder {
        id: format!("w{who}"),
        ttl: Duration::from_secs(30),
        held: 0,
    };
    AcquireRequest {
        holder: Some(holder),
        lanes: vec![LaneRequest {
            key: account.to_owned(),
            ..LaneRequest::default()
        }],
        ..ask("sms:accounts", &[])
    }
}

/// Returns the grants of ten processes that request one unit each at the same time.
async fn race(world: &World, account: &str) -> u32 {
    let stores: Vec<Arc<dyn Store>> = (0..10).map(|_| world.another()).collect();
    let asks: Vec<AcquireRequest> = (0..10).map(|who| by(who, account)).collect();
    let answers = join_all(
        stores
            .iter()
            .zip(&asks)
            .map(|(store, ask)| store.acquire(ask)),
    )
    .await;
    assert!(
        answers.iter().all(|answer| answer.at_us > 0),
        "the store was lost"
    );
    answers.iter().map(|answer| answer.lanes[0].granted).sum()
}

async fn block(world: &World, account: &str, delay: Duration) -> i64 {
    let refused = UpstreamRefusal {
        key: account,
        scope: Scope::Key,
        is_overload: true,
        is_untrusted: false,
        delay: Some(delay),
        jitter: 0.0,
        why: "429",
    };
    world
        .store
        .refused(&name("sms:accounts"), &refused)
        .await
        .unwrap()
        .until_ms
}

async fn ended(world: &World, account: &str, succeeded: u32, failed: u32) {
    let ended = KeyOutcomes {
        key: account,
        succeeded,
        tokens: f64::from(succeeded),
        failed,
        ..KeyOutcomes::default()
    };
    world
        .store
        .ended(&name("sms:accounts"), &[ended])
        .await
        .unwrap();
}

async fn looked(world: &World, account: &str) -> KeyState {
    world
        .store
        .look(&name("sms:accounts"), &[account.to_owned()])
        .await
        .unwrap()
        .remove(0)
}

fn now_ms(world: &World) -> i64 {
    world.now.load(std::sync::atomic::Ordering::SeqCst) / 1000
}

const BLOCK: Duration = Duration::from_secs(2);

async fn a_blocked_account_is_closed_to_all_and_comes_back_by_one(world: World) {
    world.knobs("sms:accounts", &[("rps", "-1"), ("key_rps", "1000")]);
    assert_eq!(
        (race(&world, "tokyo").await, race(&world, "paris").await),
        (10, 10)
    );

    assert_eq!(
        block(&world, "tokyo", BLOCK).await,
        START / 1000 + 2000,
        "without jitter the pause is the stated one"
    );
    for _ in 0..4 {
        assert_eq!(race(&world, "tokyo").await, 0);
        assert_eq!(race(&world, "paris").await, 10, "the other account flows");
        world.pass(BLOCK / 4 - Duration::from_millis(1));
    }
    assert_eq!(race(&world, "tokyo").await, 0);
    world.pass(Duration::from_millis(4));
    assert_eq!(
        race(&world, "tokyo").await,
        1,
        "one goes first, of all processes together"
    );
    world.pass(Duration::from_secs(20));
    assert_eq!(race(&world, "tokyo").await, 0, "until its end is reported");

    assert_eq!(
        block(&world, "tokyo", BLOCK).await,
        now_ms(&world) + 2000,
        "the probe was refused: the whole pause again"
    );
    world.pass(BLOCK - Duration::from_millis(1));
    assert_eq!(race(&world, "tokyo").await, 0);
    world.pass(Duration::from_millis(1));
    assert_eq!(race(&world, "tokyo").await, 1);

    ended(&world, "tokyo", 1, 0).await;
    let mut flowed = 0;
    for _ in 0..6 {
        let granted = race(&world, "tokyo").await;
        flowed += granted;
        ended(&world, "tokyo", granted, 0).await;
    }
    assert!(flowed > 30, "twice as many each time: {flowed}");
    assert_eq!(race(&world, "tokyo").await, 10, "and then as before");
}

async fn who_was_under_way_before_a_block_does_not_open_it(world: World) {
    world.knobs("sms:accounts", &[("rps", "-1")]);
    race(&world, "tokyo").await;
    block(&world, "tokyo", BLOCK).await;

    ended(&world, "tokyo", 9, 0).await;

    assert_eq!(race(&world, "tokyo").await, 0, "the pause stays");
    world.pass(BLOCK);
    assert_eq!(
        race(&world, "tokyo").await,
        1,
        "and so does the care after it"
    );
}

async fn a_second_refusal_while_blocked_keeps_the_later_end(world: World) {
    world.knobs("sms:accounts", &[("rps", "-1")]);
    let first = block(&world, "tokyo", BLOCK).await;
    world.pass(Duration::from_millis(500));
    assert_eq!(
        block(&world, "tokyo", Duration::from_millis(100)).await,
        first,
        "an earlier end changes nothing"
    );
    assert_eq!(
        block(&world, "tokyo", BLOCK).await,
        first + 500,
        "a later one counts from now on"
    );
    world.pass(BLOCK);
    assert_eq!(race(&world, "tokyo").await, 1);
}

async fn a_probe_without_a_result_is_followed_by_another_after_a_while(world: World) {
    world.knobs("sms:accounts", &[("rps", "-1")]);
    block(&world, "tokyo", BLOCK).await;
    world.pass(BLOCK);
    assert_eq!(race(&world, "tokyo").await, 1);
    world.pass(Duration::from_secs(29));
    assert_eq!(race(&world, "tokyo").await, 0);
    world.pass(Duration::from_secs(1));
    assert_eq!(
        race(&world, "tokyo").await,
        1,
        "its worker is taken to be dead"
    );
    ended(&world, "tokyo", 0, 1).await;
    assert_eq!(
        race(&world, "tokyo").await,
        1,
        "a failure that is no refusal lets one more go"
    );
    let tokens_alone = AcquireRequest {
        holder: None,
        ..by(0, "tokyo")
    };
    assert_eq!(
        world.store.acquire(&tokens_alone).await.lanes[0].granted,
        1,
        "the care concerns those who run jobs"
    );
}

async fn what_is_known_of_keys_can_be_looked_at(world: World) {
    world.knobs("sms:accounts", &[("rps", "-1"), ("key_rps", "10")]);
    assert_eq!(looked(&world, "tokyo").await, KeyState::default());
    let until_ms = block(&world, "tokyo", BLOCK).await;
    let blocked = KeyState {
        paused_until_ms: Some(until_ms),
        why: "429".into(),
        refused: 1.0,
        ..KeyState::default()
    };
    assert_eq!(looked(&world, "tokyo").await, blocked);
    world.pass(BLOCK);
    assert_eq!(
        looked(&world, "tokyo").await,
        KeyState {
            probing: true,
            refused: 1.0,
            ..KeyState::default()
        }
    );
    race(&world, "tokyo").await;
    assert!(
        looked(&world, "tokyo").await.probing,
        "while its answer is awaited"
    );
    ended(&world, "tokyo", 1, 0).await;
    assert_eq!(
        looked(&world, "tokyo").await,
        KeyState {
            refused: 1.0,
            ..KeyState::default()
        }
    );

    let learns = UpstreamRefusal {
        key: "paris",
        scope: Scope::Key,
        is_overload: false,
        is_untrusted: false,
        delay: Some(BLOCK),
        jitter: 0.0,
        why: "429",
    };
    world
        .store
        .refused(&name("sms:accounts"), &learns)
        .await
        .unwrap();
    world.pass(BLOCK);
    let paris = looked(&world, "paris").await;
    assert_eq!((paris.settled_rps, paris.probing), (Some(10.0), true));
    assert!(
        paris
            .learned_rps
            .is_some_and(|rps| (6.9..=7.1).contains(&rps)),
        "{paris:?}"
    );

    // More than fit into one call, in their order.
    let keys: Vec<String> = (0..600)
        .map(|i| {
            if i == 400 {
                "paris".to_owned()
            } else {
                format!("k{i}")
            }
        })
        .collect();
    let states = world
        .store
        .look(&name("sms:accounts"), &keys)
        .await
        .unwrap();
    assert_eq!((states.len(), &states[400]), (600, &paris));
    assert!(
        states
            .iter()
            .enumerate()
            .all(|(i, state)| i == 400 || *state == KeyState::default())
    );
    assert_eq!(
        world.store.look(&name("nobody"), &keys[..1]).await.unwrap(),
        [KeyState::default()]
    );
    world.write("sms:accounts", "on_429", "active-naive");
    assert_eq!(
        looked(&world, "paris").await,
        KeyState {
            refused: 1.0,
            ..KeyState::default()
        },
        "only what is heeded"
    );
}
