//! What every command is given.
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use super::{
    client::{self, Client},
    exit::CliError,
    render::Screen,
};
use crate::{
    api::token,
    config::{self, Sources},
};

/// Globals and surroundings of one command.
#[derive(Debug)]
pub struct Context {
    /// The home directory.
    pub home: PathBuf,
    /// `--api`.
    pub api: Option<String>,
    /// Yes to all questions.
    pub yes: bool,
    /// How often `-v` was given.
    pub verbose: u8,
    /// Variables of the process that are meant for us.
    pub environment: Vec<(String, String)>,
    /// Steps that this machine can run at once.
    pub parallelism: u16,
    /// Where results go.
    pub screen: Screen,
    /// Cancelled by Ctrl-C.
    pub interrupt: CancellationToken,
}

impl Context {
    /// The sources of the configuration, with a command's own flags.
    #[must_use]
    pub fn sources(&self, mut flags: Vec<(String, String)>) -> Sources<'_> {
        if let Some(api) = &self.api {
            flags.push(("api".to_owned(), api.clone()));
        }
        Sources {
            home: &self.home,
            environment: self.environment.clone(),
            flags,
            parallelism: self.parallelism,
        }
    }

    /// A client of the node that this command speaks to.
    ///
    /// # Errors
    /// When `--api` is no address or the token can't be read.
    pub fn client(&self) -> Result<Client, CliError> {
        let (api, api_token) = config::client_values(&self.sources(Vec::new()));
        let base = client::base_url(api.as_deref().unwrap_or("127.0.0.1:9480"))?;
        let token = match api_token {
            Some(text) => Some(text),
            None => token::read(&self.home).map_err(|e| {
                CliError::failed(format!(
                    "{} can't be read: {e}",
                    self.home.join(config::TOKEN_FILE).display()
                ))
            })?,
        };
        Client::new(base, token)
    }
}
