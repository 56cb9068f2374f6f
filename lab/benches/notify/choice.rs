//! The cost of choosing an account.

use std::hint::black_box;
use std::time::Instant;

use flyball::providers::pool::Ring;

use crate::report::{Report, count, median};

const CHOICES: i64 = 2_000_000;

/// Measures rings of 10, 500 and 5,000 accounts, with all accounts available and with some of them
/// resting.
pub fn measure(report: Report) {
    let table = report.table(
        "choosing an account",
        &["accounts, of them resting", "ns each", "choices/s"],
    );
    for (accounts, resting) in [(10, 0), (500, 0), (500, 50), (500, 250), (5_000, 2_500)] {
        let mut ring = Ring::new(accounts);
        for at in 0..resting {
            ring.rest(at * accounts / resting.max(1), i64::MAX);
        }
        let ns = median((0..5).map(|_| {
            let begun = Instant::now();
            for now_us in 0..CHOICES {
                black_box(ring.next(black_box(now_us), &[]));
            }
            begun.elapsed().as_nanos() as f64 / CHOICES as f64
        }));
        table.row([
            format!("{}, {}", count(accounts as f64), count(resting as f64)),
            format!("{ns:.1}"),
            count(1e9 / ns),
        ]);
    }
    let mut ring = Ring::new(500);
    (0..500).for_each(|at| ring.rest(at, i64::MAX));
    let begun = Instant::now();
    let many = 10_000;
    for now_us in 0..many {
        black_box(ring.next(black_box(now_us), &[]));
    }
    let ns = begun.elapsed().as_nanos() as f64 / many as f64;
    table.row([
        "500, 500: how long to wait".to_owned(),
        format!("{ns:.1}"),
        count(1e9 / ns),
    ]);
}
