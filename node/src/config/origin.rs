//! Where a value comes from, and what is wrong with it.
use std::fmt;

use serde::Serialize;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// Nobody wrote it.
    Default,
    /// The configuration file.
    File {
        /// Its name without the folder.
        file: String,
        /// Counted from 1.
        line: usize,
    },
    /// `.env` in the home directory.
    DotEnv {
        /// Counted from 1.
        line: usize,
    },
    /// The environment.
    Environment {
        /// Name of the variable.
        name: String,
    },
    /// The command line.
    Flag {
        /// The flag with its dashes.
        name: String,
    },
}

impl Origin {
    /// The same place, some lines further down: an item of a list in the file.
    pub(super) fn at_line(&self, at: usize) -> Self {
        match self {
            Self::File { file, .. } => Self::File { file: file.clone(), line: at },
            other => other.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::DotEnv { line } => write!(f, ".env:{line}"),
            Self::Environment { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct ConfigError {
    /// Where.
    pub origin: Origin,
    /// Which key, dotted; empty when the file can't be read at all.
    pub key: String,
    /// What, with the key in it.
    pub message: String,
}

/// Everything that is wrong, in the order of the sources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn push(&mut self, origin: &Origin, key: &str, message: impl Into<String>) {
        self.0.push(ConfigError { origin: origin.clone(), key: key.to_owned(), message: message.into() });
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
