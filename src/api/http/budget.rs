//! The memory budget of all request bodies together.
//!
//! Each byte that arrives and each value that is parsed from it is taken from one budget, and the
//! bytes of a request are released when it has been answered. If the budget is used up, the request
//! is refused and its client is asked to retry.

use std::cell::RefCell;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The whole budget, in bytes: two of the largest batches, and room for everything else.
const BUDGET_BYTES: usize = 384 * 1024 * 1024;

/// The fewest bytes taken from the semaphore at a time, so that it is not asked for each value.
const PIECE: usize = 64 * 1024;

static LEFT: Semaphore = Semaphore::const_new(BUDGET_BYTES);

tokio::task_local! {
    static HELD: RefCell<BudgetPermit>;
}

/// The bytes taken from the budget; released when dropped.
#[derive(Debug, Default)]
pub struct BudgetPermit {
    permit: Option<SemaphorePermit<'static>>,
    /// The taken bytes that are not in use yet.
    spare: usize,
}

impl BudgetPermit {
    /// Takes bytes from the budget; false if too few are left.
    pub fn take(&mut self, bytes: usize) -> bool {
        self.take_from(&LEFT, bytes)
    }

    fn take_from(&mut self, all: &'static Semaphore, bytes: usize) -> bool {
        if let Some(spare) = self.spare.checked_sub(bytes) {
            self.spare = spare;
            return true;
        }
        let wanted = bytes.max(PIECE);
        let Ok(more) = u32::try_from(wanted)
            .map_err(drop)
            .and_then(|wanted| all.try_acquire_many(wanted).map_err(drop))
        else {
            return false;
        };
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        self.spare += wanted - bytes;
        true
    }

    fn add(&mut self, other: Self) {
        match (&mut self.permit, other.permit) {
            (Some(permit), Some(more)) => permit.merge(more),
            (none @ None, more) => *none = more,
            (Some(_), None) => {}
        }
        self.spare += other.spare;
    }
}

/// Takes bytes for the request that is being answered; false if too few are left.
pub fn take(bytes: usize) -> bool {
    // Outside a request (in tests) nothing is counted.
    HELD.try_with(|held| held.borrow_mut().take(bytes))
        .unwrap_or(true)
}

/// Keeps bytes that were taken elsewhere until the request has been answered.
pub fn hold_until_answered(held: BudgetPermit) {
    let _ = HELD.try_with(|all| all.borrow_mut().add(held));
}

/// Releases the bytes of a request when it has been answered.
pub async fn measure(request: Request, next: Next) -> Response {
    HELD.scope(RefCell::default(), next.run(request)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    static SMALL: Semaphore = Semaphore::const_new(4 * PIECE);

    #[test]
    fn what_was_taken_is_given_back_and_no_more_is_given_than_there_is() {
        let mut first = BudgetPermit::default();
        assert!((0..3 * PIECE / 8).all(|_| first.take_from(&SMALL, 8)));
        assert_eq!(SMALL.available_permits(), PIECE);
        let mut second = BudgetPermit::default();
        assert!(second.take_from(&SMALL, PIECE) && !second.take_from(&SMALL, 1));
        assert!(!BudgetPermit::default().take_from(&SMALL, usize::MAX));
        drop(first);
        assert!(second.take_from(&SMALL, 3 * PIECE));
        let mut both = BudgetPermit::default();
        both.add(second);
        assert_eq!(SMALL.available_permits(), 0);
        drop(both);
        assert_eq!(SMALL.available_permits(), 4 * PIECE);
    }
}
