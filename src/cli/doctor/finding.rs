//! The findings of the doctor. Pure.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Health {
    Ok,
    Warn,
    Fail,
}

impl Health {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One check: what was seen and, unless all is well, what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    #[serde(rename = "status")]
    pub(super) health: Health,
    pub(super) seen: String,
    pub(super) todo: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self {
            check,
            health: Health::Ok,
            seen: seen.into(),
            todo: None,
        }
    }

    pub(super) fn warn(
        check: &'static str,
        seen: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self {
            check,
            health: Health::Warn,
            seen: seen.into(),
            todo: Some(todo.into()),
        }
    }

    pub(super) fn fail(
        check: &'static str,
        seen: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self {
            check,
            health: Health::Fail,
            seen: seen.into(),
            todo: Some(todo.into()),
        }
    }
}

/// All findings, in the order of the checks.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    pub(super) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.0.extend(findings);
    }

    pub(super) fn findings(&self) -> &[Finding] {
        &self.0
    }

    pub(super) fn failed(&self) -> usize {
        self.count(Health::Fail)
    }

    pub(super) fn warned(&self) -> usize {
        self.count(Health::Warn)
    }

    fn count(&self, health: Health) -> usize {
        self.0.iter().filter(|one| one.health == health).count()
    }
}
