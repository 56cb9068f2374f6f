//! The throttles of providers' quotas that ship: no window of any grants more than it says.

use std::path::Path;
use std::time::Duration;

use flyball::throttle::KnobsFile;

use super::world::World;

/// The time between two requests, short enough for the rates of a second.
const STEP: Duration = Duration::from_millis(20);

/// The number of steps in a second.
const PER_SECOND: usize = 50;

/// Returns a store with the knobs of the folder that ships.
fn shipped() -> World {
    let world = World::memory();
    let folder = Path::new(crate::support::ROOT).join("knobs");
    for file in KnobsFile::read_dir(&folder).unwrap() {
        for (field, text) in &file.fields {
            world.write(file.name.as_str(), field, text);
        }
    }
    world
}

/// Asks a throttle for all that it has for so many seconds, and returns the grants of each step.
async fn granted(world: &World, throttle: &str, seconds: usize) -> Vec<u64> {
    let mut steps = Vec::with_capacity(seconds * PER_SECOND);
    for _ in 0..seconds * PER_SECOND {
        steps.push(u64::from(world.granted(throttle, 1000).await));
        world.pass(STEP);
    }
    steps
}

/// Returns the most that was granted within any span of so many steps.
fn most_within(steps: &[u64], span: usize) -> u64 {
    let mut sum: u64 = steps.iter().take(span).sum();
    let mut most = sum;
    for (gone, come) in steps.iter().zip(steps.iter().skip(span)) {
        sum = sum + come - gone;
        most = most.max(sum);
    }
    most
}

#[tokio::test]
async fn no_second_has_more_than_100_mails_and_no_hour_more_than_50_000() {
    let world = shipped();
    // A night without mail: both buckets are full, which is when most can go.
    world.granted("emailPerSecond", 1).await;
    world.pass(Duration::from_secs(8 * 3600));

    let steps = granted(&world, "emailPerSecond", 2 * 3600).await;

    let (second, hour) = (
        most_within(&steps, PER_SECOND),
        most_within(&steps, 3600 * PER_SECOND),
    );
    assert!((95..=100).contains(&second), "{second} in a second");
    assert!((49_000..=50_000).contains(&hour), "{hour} in an hour");
    let minute: u64 = steps[..60 * PER_SECOND].iter().sum();
    assert!(
        minute > 5700,
        "the first minute goes at full rate: {minute}"
    );
    let last: u64 = steps[3600 * PER_SECOND..].iter().sum();
    assert!(
        (43_800..=43_900).contains(&last),
        "then 12.19 a second: {last}"
    );
}

#[tokio::test]
async fn texts_and_pushes_keep_to_their_second() {
    for (throttle, most, lasting) in [("smsPerSecond", 10, 580), ("pushPerSecond", 500, 29_000)] {
        let world = shipped();
        world.granted(throttle, 1).await;
        world.pass(Duration::from_secs(3600));
        let steps = granted(&world, throttle, 60).await;
        let second = most_within(&steps, PER_SECOND);
        assert!(second <= most, "{throttle}: {second} in a second");
        let minute: u64 = steps.iter().sum();
        assert!(minute > lasting, "{throttle}: {minute} in a minute");
    }
}
