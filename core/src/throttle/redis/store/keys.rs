//! Refusals and pauses of keys.

use std::time::Duration;

use super::RedisStore;
use crate::throttle::redis::call::Call;
use crate::throttle::redis::layout::KNOBS;
use crate::throttle::redis::reply::ReplyReader;
use crate::throttle::{Error, Name, RefusalEffect, Scope, UpstreamRefusal};

impl RedisStore {
    pub(super) fn pause_call(
        &self,
        verb: &str,
        throttle: &Name,
        key: &str,
    ) -> Result<Call<'_>, Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let mut call = self.law.call(3);
        call.key(&self.layout.key(throttle, "pause:", key));
        call.key(&self.layout.key(throttle, "pauses", ""));
        call.key(&self.layout.key(throttle, "learned:", key));
        self.begin(&mut call, verb);
        Ok(call)
    }

    /// Reports a refusal, again with a narrower scope if the claimed one is not trusted.
    pub(super) async fn refuse(
        &self,
        throttle: &Name,
        refused: &UpstreamRefusal<'_>,
    ) -> Result<RefusalEffect, Error> {
        let mut refused = refused.clone();
        loop {
            match self.refuse_as(throttle, &refused).await? {
                Ok(paused) => return Ok(paused),
                Err(trusted) => refused.scope = refused.scope.narrower(trusted),
            }
        }
    }

    /// Reports a refusal, or returns the widest trusted scope if its own is wider.
    pub(super) async fn refuse_as(
        &self,
        throttle: &Name,
        refused: &UpstreamRefusal<'_>,
    ) -> Result<Result<RefusalEffect, Scope>, Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let begin = |call: &mut Call<'_>, verb| {
            self.begin(call, verb);
            match refused.requested_us() {
                Some(said_us) => call.number(said_us),
                None => call.text(""),
            }
            call.number(refused.jitter);
            call.text(refused.why);
        };
        let call = if refused.scope == Scope::Key {
            let mut call = self.law.call(4);
            call.key(&self.layout.key(throttle, KNOBS, ""));
            for part in ["pause:", "learned:"] {
                call.key(&self.layout.key(throttle, part, refused.key));
            }
            call.key(&self.layout.key(throttle, "pauses", ""));
            begin(&mut call, "refused");
            call.number(u8::from(!refused.key.is_empty()));
            call.number(u8::from(refused.is_overload));
            call.number(u8::from(refused.is_untrusted));
            call
        } else {
            let chain = self
                .resolve_chain(throttle)
                .await?
                .map_err(Error::Unknown)?
                .chain;
            let names: Vec<Name> = chain.iter().map(|(name, _)| name.clone()).collect();
            let level = refused.level(&names).unwrap_or(throttle);
            let mut call = self.law.call(2 + usize::from(refused.is_untrusted));
            call.key(&self.layout.key(level, KNOBS, ""));
            call.key(&self.layout.key(level, "bucket", ""));
            if refused.is_untrusted {
                call.key(&self.layout.key(throttle, KNOBS, ""));
            }
            begin(&mut call, "refused_all");
            call.text(refused.scope.as_str());
            call
        };
        let mut parts = ReplyReader::new(self.invoke(throttle, &call, self.operator_bound).await?);
        let is_untrusted = parts.text() == "untrusted";
        let mut number = || {
            parts
                .whole()
                .map_err(|error| Error::Lost(error.to_string()))
        };
        if is_untrusted {
            return Ok(Err(if number()? == 0 {
                Scope::Key
            } else {
                Scope::Throttle
            }));
        }
        let (until_ms, alone, delay_us) = (number()?, number()? == 1, number()?);
        Ok(Ok(RefusalEffect {
            until_ms,
            alone: alone.then(|| Duration::from_micros(delay_us.max(0) as u64)),
        }))
    }

    /// Returns the number that follows `ok` in a reply.
    pub(super) async fn second(&self, throttle: &Name, call: &Call<'_>) -> Result<i64, Error> {
        let mut parts = ReplyReader::new(self.invoke(throttle, call, self.operator_bound).await?);
        parts.text();
        parts
            .whole()
            .map_err(|error| Error::Lost(error.to_string()))
    }
}
