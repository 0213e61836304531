//! How a command ends: exit codes and errors.
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::{api::types::ErrorBody, app::entry::EntryError, config::ConfigErrors};

/// Exit codes: an interface that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok,
    /// Failed.
    Failed,
    /// The command line or the request is wrong.
    Usage,
    /// The engine would only be guessing.
    NeedsConfirmation,
    /// No node can take it.
    NoCapacity,
    /// Nobody can know whether it ran.
    Uncertain,
    /// The configuration is wrong.
    Config,
    /// No node answers.
    NotRunning,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NeedsConfirmation => 3,
            Self::NoCapacity => 4,
            Self::Uncertain => 5,
            Self::Config => 64,
            Self::NotRunning => 69,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// A command that has nothing to show but why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// What people and programs see.
    pub body: ErrorBody,
}

impl CliError {
    /// Any error.
    pub fn new(exit: Exit, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { exit, body: ErrorBody { code: code.into(), message: message.into(), hint: None } }
    }

    /// The command line is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// Something went wrong on this machine.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, "failed", message)
    }

    /// Ctrl-C.
    #[must_use]
    pub fn interrupted() -> Self {
        Self::new(Exit::Interrupted, "interrupted", "interrupted")
    }

    /// With what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }

    /// An error that the node answered with this HTTP status.
    #[must_use]
    pub fn from_node(status: u16, body: ErrorBody) -> Self {
        let exit = match (body.code.as_str(), status) {
            ("no_capacity" | "pinned", _) => Exit::NoCapacity,
            ("needs_confirmation", _) => Exit::NeedsConfirmation,
            ("uncertain", _) => Exit::Uncertain,
            ("cancelled", _) => Exit::Interrupted,
            (_, 400 | 413 | 422) => Exit::Usage,
            _ => Exit::Failed,
        };
        Self { exit, body }
    }

    /// The object of `--json`.
    #[must_use]
    pub fn document(&self) -> Value {
        json!({ "error": self.body })
    }
}

impl From<EntryError> for CliError {
    fn from(error: EntryError) -> Self {
        let exit = match error.code {
            "invalid_ticket" | "invalid_name" => Exit::Usage,
            "config" => Exit::Config,
            "interrupted" => Exit::Interrupted,
            _ => Exit::Failed,
        };
        Self {
            exit,
            body: ErrorBody { code: error.code.to_owned(), message: error.message, hint: error.hint },
        }
    }
}

impl From<ConfigErrors> for CliError {
    fn from(errors: ConfigErrors) -> Self {
        Self::new(Exit::Config, "config", errors.to_string())
            .hint("`octomesh config check` says when all is well")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_interface() {
        let all = [
            (Exit::Ok, 0),
            (Exit::Failed, 1),
            (Exit::Usage, 2),
            (Exit::NeedsConfirmation, 3),
            (Exit::NoCapacity, 4),
            (Exit::Uncertain, 5),
            (Exit::Config, 64),
            (Exit::NotRunning, 69),
            (Exit::Interrupted, 130),
        ];
        for (exit, code) in all {
            assert_eq!(exit.code(), code);
        }
    }

    #[test]
    fn errors_of_the_node() {
        let of = |status, code: &str| {
            CliError::from_node(status, ErrorBody { code: code.into(), message: "m".into(), hint: None }).exit
        };
        assert_eq!(of(503, "no_capacity"), Exit::NoCapacity);
        assert_eq!(of(409, "pinned"), Exit::NoCapacity);
        assert_eq!(of(400, "invalid_request"), Exit::Usage);
        assert_eq!(of(413, "too_large"), Exit::Usage);
        assert_eq!(of(404, "unknown_tool"), Exit::Failed);
        assert_eq!(of(401, "unauthorized"), Exit::Failed);
    }
}
