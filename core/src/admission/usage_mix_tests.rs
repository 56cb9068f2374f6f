//! The times that waiting messages are told, against those at which they would go.

use super::*;
use crate::throttle::rolling_window::WindowGrants;

const SPAN_S: u32 = 60;

/// A tenant with its modules at one second: the grants of each module, as the second and their
/// number, and the messages of each that wait.
struct Mix {
    now: u32,
    /// The limits of the tenant and of a module.
    limits: (usize, usize),
    granted: &'static [(u32, usize)],
    waiting: &'static [usize],
}

impl Mix {
    /// Admits all by turns, second by second; returns the waits of each module's messages.
    fn true_waits(&self) -> Vec<Vec<u32>> {
        let granted = self.granted.iter().map(|(at, n)| vec![*at; *n]);
        let mut granted: Vec<Vec<u32>> = granted.collect();
        let mut left = self.waiting.to_vec();
        let mut waits = vec![Vec::new(); left.len()];
        let (mut at, mut turn) = (self.now, 0);
        while left.iter().any(|n| *n > 0) {
            for of_module in &mut granted {
                of_module.retain(|granted_at| *granted_at + SPAN_S > at);
            }
            let mut refused = 0;
            while refused < left.len() {
                let module = turn % left.len();
                turn += 1;
                let used: usize = granted.iter().map(Vec::len).sum();
                let is_free = used < self.limits.0 && granted[module].len() < self.limits.1;
                if left[module] == 0 || !is_free {
                    refused += 1;
                    continue;
                }
                refused = 0;
                left[module] -= 1;
                granted[module].push(at);
                waits[module].push((at - self.now).max(1));
            }
            at += 1;
        }
        waits
    }

    /// Returns the wait that the message at a place of a module is told.
    fn told(&self, module: usize, place: usize) -> u32 {
        let now_us = f64::from(self.now) * 1e6;
        let open = |limit: usize, granted: &[(u32, usize)]| {
            let limits = WindowLimit::parse_all(&format!("{limit}/{SPAN_S}")).unwrap();
            let granted = granted.iter().filter(|(_, n)| *n > 0);
            let granted = granted.map(|(at, n)| (f64::from(*at) * 1e6, *n as f64));
            let known = [WindowGrants {
                span_s: f64::from(SPAN_S),
                grants: granted.collect(),
            }];
            OpenWindow::open_all(&limits, &known, now_us)
        };
        let usage = WindowUsage {
            at_us: now_us as i64,
            throttle: open(self.limits.0, self.granted),
            key: open(self.limits.1, &self.granted[module..=module]),
        };
        let others = self.waiting.iter().enumerate();
        let beside: Vec<i64> = others
            .filter(|(other, _)| *other != module)
            .map(|(_, n)| *n as i64)
            .collect();
        let tenant_place = |place: f64| place_of_tenant(place, &beside);
        due_in_s(&usage, place as f64, tenant_place).0 as u32
    }

    /// Checks that each is told its true time, or one that is at most this much later.
    fn assert_none_is_told_too_early(&self, too_late_s: u32) {
        for (module, waits) in self.true_waits().iter().enumerate() {
            for (n, wait_s) in waits.iter().enumerate() {
                let told_s = self.told(module, n + 1);
                assert!(
                    (*wait_s..=wait_s + too_late_s).contains(&told_s),
                    "{:?}: module {module}, place {}: told {told_s} s, went after {wait_s} s",
                    self.waiting,
                    n + 1
                );
            }
        }
    }
}

#[test]
fn the_sixtieth_of_a_third_module_waits_a_window_more_than_its_tenant() {
    // Three modules have sent sixty messages each.
    let mix = Mix {
        now: 2,
        limits: (100, 50),
        granted: &[(0, 50), (1, 50), (1, 0)],
        waiting: &[10, 10, 60],
    };
    assert_eq!((mix.told(2, 1), mix.told(2, 50)), (58, 59));
    assert_eq!(mix.told(2, 60), 118);
    mix.assert_none_is_told_too_early(1);
}

#[test]
fn nobody_is_told_a_time_before_the_true_one() {
    let long = Mix {
        now: 2,
        limits: (100, 50),
        granted: &[(0, 50), (1, 50), (1, 0)],
        waiting: &[10, 10, 160],
    };
    long.assert_none_is_told_too_early(1);
    let alone = Mix {
        now: 42,
        limits: (100, 50),
        granted: &[(0, 50)],
        waiting: &[500],
    };
    alone.assert_none_is_told_too_early(0);
    let narrow_tenant = Mix {
        now: 20,
        limits: (60, 50),
        granted: &[(0, 30), (9, 30)],
        waiting: &[120, 120],
    };
    narrow_tenant.assert_none_is_told_too_early(0);
    let two_long = Mix {
        now: 5,
        limits: (100, 50),
        granted: &[(0, 30), (0, 30), (0, 40)],
        waiting: &[200, 200, 60],
    };
    two_long.assert_none_is_told_too_early(SPAN_S);
    let five = Mix {
        now: 2,
        limits: (100, 50),
        granted: &[(0, 50), (1, 50), (1, 0), (1, 0), (1, 0)],
        waiting: &[0, 0, 120, 60, 20],
    };
    five.assert_none_is_told_too_early(1);
}
