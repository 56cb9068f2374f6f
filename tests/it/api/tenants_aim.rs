//! Requests at the things of another tenant, and the answers that they must get.

use serde_json::Value;

/// The answer to a caller that is bound to acme and has the scope of the route.
#[derive(Clone, Debug)]
pub enum Expect {
    /// The route needs no token.
    Open,
    /// It is for operators.
    Operators,
    /// Exactly the answer that something unknown gets, here by the twin of the aimed path.
    Missing(String),
    /// An answer within acme.
    Within,
    /// This status and code.
    Refused(u16, &'static str),
}

/// A request at something of zeta's.
#[derive(Clone, Debug)]
pub struct Aim {
    pub path: String,
    pub body: Option<Value>,
    pub expect: Expect,
}

pub fn aim(path: impl Into<String>, body: Option<Value>, expect: Expect) -> Aim {
    Aim {
        path: path.into(),
        body,
        expect,
    }
}
