//! Configuration: flags, then the environment, then `.env`, then `octomesh.toml`, then defaults. All that is wrong is reported
//! at once, each with its place.
mod origin;
mod owner;
mod raw;
mod show;
mod validate;

#[cfg(test)]
mod tests;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use octomesh_protocol::card::SandboxLevel;
pub use origin::{ConfigError, ConfigErrors, Origin};
pub use owner::{HardwareConfig, Hours, WakeConfig, YieldConfig};
pub use show::ShownValue;
pub(crate) use validate::parse_time;

/// Name of the file with the API's token, in the home directory.
pub const TOKEN_FILE: &str = "api.token";

/// What the configuration is made from. All of it is passed in, so that tests need no process environment.
#[derive(Debug, Clone)]
pub struct Sources<'a> {
    /// `OCTOMESH_HOME`.
    pub home: &'a Path,
    /// The process environment.
    pub environment: Vec<(String, String)>,
    /// Flags as key and value; lists are joined by commas.
    pub flags: Vec<(String, String)>,
    /// Steps that this machine can run at once when nobody says otherwise.
    pub parallelism: u16,
}

impl Sources<'_> {
    fn has_token_file(&self) -> bool {
        std::fs::metadata(self.home.join(TOKEN_FILE)).is_ok_and(|meta| meta.len() > 0)
    }
}

/// When schemas stay out of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum LazyTools {
    /// Always.
    On,
    /// Never.
    Off,
    /// Above 15 tools.
    #[default]
    Auto,
}

/// A GPU that the owner wrote down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredGpu {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub vram_bytes: u64,
}

/// How programs are confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfinementConfig {
    /// User and group of programs when the node runs as root; never 0.
    pub uid_base: u32,
    /// Tools that run anybody's code do not run below this.
    pub min_level: SandboxLevel,
}

/// What a node is started with.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Where the mesh reaches it; never empty.
    pub listen: Vec<SocketAddr>,
    /// Whether the owner wrote `listen`: then also a loopback address is advertised.
    pub listen_is_explicit: bool,
    /// Where the API is bound.
    pub api: SocketAddr,
    /// The API's token; the token file has one when absent.
    pub api_token: Option<String>,
    /// Members to dial, `HOST:PORT`.
    pub peers: Vec<String>,
    /// Steps that can run at once.
    pub slots: u16,
    /// Where the node is, in the owner's words.
    pub region: String,
    /// Labels for placement, sorted.
    pub tags: Vec<String>,
    /// What plans runs.
    pub engine: String,
    /// When schemas stay out of a prompt.
    pub lazy_tools: LazyTools,
    /// Whether nodes of one network find each other by multicast DNS.
    pub mdns: bool,
    /// Whether sessions between other members may go over this node.
    pub relay: bool,
    /// Addresses that others are told instead of those found.
    pub advertise: Vec<SocketAddr>,
    /// Log filter.
    pub log: String,
    /// Declared GPUs.
    pub gpus: Vec<DeclaredGpu>,
    /// How hardware is read.
    pub hardware: HardwareConfig,
    /// When the machine is its owner's alone.
    pub yields: YieldConfig,
    /// Servers of models on this machine that are asked what they have loaded.
    pub model_servers: Vec<SocketAddr>,
    /// Machines that sleep.
    pub wake: WakeConfig,
    /// How programs are confined.
    pub sandbox: ConfinementConfig,
    /// Bytes that the blob store may take on the disk.
    pub blob_limit_bytes: u64,
    /// How long certificates hold that this node issues, in seconds.
    pub certificate_lifetime_s: u64,
}

impl std::fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Only what names the node: the token must not come into a log by accident.
        f.debug_struct("NodeConfig")
            .field("listen", &self.listen)
            .field("api", &self.api)
            .field("peers", &self.peers)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

/// A configuration without errors.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The values.
    pub config: NodeConfig,
    /// Each value as text with its place.
    pub values: Vec<ShownValue>,
    /// Variables that look like ours and are not.
    pub warnings: Vec<String>,
}

/// Reads and checks everything.
///
/// # Errors
/// All that is wrong, at once.
pub fn load(sources: &Sources<'_>) -> Result<Loaded, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let mut warnings = Vec::new();
    let found = raw::read(sources, &mut errors, &mut warnings);
    let config = validate::validate(&found, sources, &mut errors);
    if !errors.0.is_empty() {
        return Err(errors);
    }
    let values = show::values(&config, &found);
    Ok(Loaded { config, values, warnings })
}

/// What a client needs: text of `api` and `api_token` as they are written. Other keys may be wrong; a client has no use for them.
#[must_use]
pub fn client_values(sources: &Sources<'_>) -> (Option<String>, Option<String>) {
    let found = raw::read(sources, &mut ConfigErrors::default(), &mut Vec::new());
    let text = |key| match found.get(key) {
        Some((raw::Given::Text(text) | raw::Given::Str(text), _)) => Some(text.trim().to_owned()),
        _ => None,
    };
    (text("api"), text("api_token"))
}

/// Where the configuration file is.
#[must_use]
pub fn path(home: &Path) -> PathBuf {
    home.join(raw::FILE)
}
