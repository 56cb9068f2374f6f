//! Tokens for a program in Rust, from throttles that need not exist yet.
//!
//! ```no_run
//! # use flyball_core as flyball;
//! # async fn sync(calendar: u64) -> Result<(), Box<dyn std::error::Error>> {
//! use flyball::throttle::{CallKnobs, Name, RedisStore, TokenClient};
//!
//! let store = RedisStore::connect("redis://127.0.0.1:6379", "")?;
//! let tokens = TokenClient::new(std::sync::Arc::new(store));
//! let throttle = Name::new(format!("gcal:{calendar}"))?;
//! let grant = tokens.throttle(&throttle, CallKnobs::rps(0.5), 1.0).await?;
//! if grant.granted == 0 {
//!     println!("come back in {:?}", grant.wait);
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::caller_knobs::CallerKnobs;
use super::on_demand::{KnobTexts, MADE_MAX};
use super::{
    AcquireRequest, Error, Grant, KnobProblem, Knobs, LaneRequest, MAX_COST, Name, PatternStore,
    Store, check_cost,
};

/// The name of the tokens in messages.
const TOKENS_FIELD: &str = "requested_tokens";

/// The knobs with which a caller makes a throttle that does not exist; those in the store win.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallKnobs {
    /// The rate, in tokens per second; -1 is unlimited.
    pub rps: f64,
    /// The burst, in windows' worth of tokens.
    pub burst: f64,
    /// The window, in seconds.
    pub window: f64,
}

impl CallKnobs {
    /// Returns knobs of this rate, with a burst of one window of a second.
    pub fn rps(rps: f64) -> Self {
        Self {
            rps,
            burst: 1.0,
            window: 1.0,
        }
    }

    /// Returns the knobs as texts of the hash, or those that cannot be.
    fn texts(self) -> Result<KnobTexts, Error> {
        let fields: BTreeMap<String, Value> = [
            ("rps", self.rps),
            ("burst", self.burst),
            ("window", self.window),
        ]
        .map(|(knob, number)| (knob.to_owned(), json!(number)))
        .into();
        let texts = Knobs::check(&fields).map_err(Error::Invalid)?;
        Ok(texts
            .into_iter()
            .filter_map(|(knob, text)| Some((knob, text?)))
            .collect())
    }
}

/// A client that takes tokens.
pub struct TokenClient {
    store: Arc<dyn Store>,
    callers: CallerKnobs,
}

impl TokenClient {
    /// Returns a client of this store, which makes throttles from patterns too.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store: Arc::new(PatternStore::new(store, MADE_MAX)),
            callers: CallerKnobs::default(),
        }
    }

    /// Takes `requested_tokens` of a throttle, all or none, and makes the throttle of these knobs
    /// if there is none.
    ///
    /// The grant has one unit or none; if none, `wait` is the time until the tokens are there.
    ///
    /// # Errors
    ///
    /// Fails for knobs that cannot be, for tokens that no single request may have (not above 0, or
    /// above the knob `max_cost`), and if the throttle cannot be made.
    pub async fn throttle(
        &self,
        name: &Name,
        knobs: CallKnobs,
        requested_tokens: f64,
    ) -> Result<Grant, Error> {
        let texts = knobs.texts()?;
        check_tokens(requested_tokens)?;
        let lane = LaneRequest {
            cost: requested_tokens,
            ..LaneRequest::default()
        };
        let ask = AcquireRequest {
            throttle: name.clone(),
            lanes: vec![lane],
            holder: None,
        };
        let store = &*self.store;
        match self.callers.declare(store, name, &texts, MADE_MAX).await {
            // The throttle's knob for the loss of the store decides on the grant.
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => return Err(error),
        }
        // Most requests ask for one token: a throttle that limits a job to less charges less.
        if requested_tokens > 1.0 {
            match check_cost(store, name, TOKENS_FIELD, requested_tokens).await {
                Ok(()) | Err(Error::Lost(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let mut grant = first(store.acquire(&ask).await.lanes);
        if grant.says_unknown(name) {
            // It was deleted since it was made.
            self.callers.forget(name);
            self.callers.declare(store, name, &texts, MADE_MAX).await?;
            grant = first(store.acquire(&ask).await.lanes);
        }
        Ok(grant)
    }
}

/// Refuses a number of tokens that no request can have.
fn check_tokens(requested_tokens: f64) -> Result<(), Error> {
    if requested_tokens > 0.0 && requested_tokens <= MAX_COST {
        return Ok(());
    }
    Err(Error::Invalid(vec![KnobProblem {
        field: TOKENS_FIELD.to_owned(),
        message: format!(
            "must be a number above 0 and at most {MAX_COST} tokens, not {requested_tokens}"
        ),
    }]))
}

/// Returns the grant of the only lane; without an answer nothing is granted.
fn first(mut lanes: Vec<Grant>) -> Grant {
    if lanes.is_empty() {
        return Grant::default();
    }
    lanes.swap_remove(0)
}
