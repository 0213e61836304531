//! Which level this machine has: the best one whose self-test holds. One [`Sandbox`] per node runs all programs.
use std::{path::PathBuf, sync::Arc, time::Duration};

use octomesh_protocol::card::SandboxLevel;
use tokio::sync::watch;

use super::{
    Launcher, bwrap,
    kills::Kills,
    plan::Plan,
    quota::{self, Quota, Usage},
    run::{self, Finished, Program, Terms},
    selftest::{self, SelfTest},
    supervise::Spec,
};
use crate::tool::ToolError;

/// User that programs run as when the node is root and nothing else is configured. It has no name and owns nothing.
pub const UID_BASE: u32 = 64_000;
/// How often a node should prove its level again: kernels' settings change while a node runs for months.
pub const RENEW_EVERY: Duration = Duration::from_secs(6 * 3600);
/// Bytes of a program's private `/tmp`; memory, so not much.
const TMP_BYTES: u64 = 256 << 20;
/// Files whose owner is set before a call: seconds of looking.
const MOST_ENTRIES: u64 = 2_000_000;
/// Levels from the best.
const LADDER: [SandboxLevel; 4] = [
    SandboxLevel::BwrapLandlockSeccomp,
    SandboxLevel::UsernsLandlockSeccomp,
    SandboxLevel::LandlockSeccomp,
    SandboxLevel::Rlimits,
];

/// What the owner decides.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// How our own binary is started.
    pub launcher: Launcher,
    /// A folder that the self-test may make, fill and remove; beside the workspace, so that it meets the same rights.
    pub scratch: PathBuf,
    /// User and group of programs when the node runs as root.
    pub uid_base: u32,
    /// Tools that run anybody's code do not run below this; nothing else is stopped.
    pub min_level: Option<SandboxLevel>,
    /// Levels above this are not tried.
    pub highest: SandboxLevel,
    /// How much the workspace may hold.
    pub quota: Quota,
    /// Defences that a test switches off; has no effect in other builds.
    pub without: Vec<String>,
}

impl SandboxConfig {
    /// The defaults.
    #[must_use]
    pub fn new(launcher: Launcher, scratch: PathBuf) -> Self {
        Self {
            launcher,
            scratch,
            uid_base: UID_BASE,
            min_level: None,
            highest: SandboxLevel::BwrapLandlockSeccomp,
            quota: Quota::default(),
            without: Vec::new(),
        }
    }

    /// Whether a defence is on; only a build for tests can switch one off.
    fn defends(&self, what: &str) -> bool {
        !cfg!(feature = "sandbox-mutations") || !self.without.iter().any(|w| w == what)
    }
}

/// What this machine can do to confine programs, and the runner of all of them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: SandboxConfig,
    /// The file that the launcher is.
    own: PathBuf,
    state: watch::Sender<Arc<SelfTest>>,
    kills: Kills,
}

impl Sandbox {
    /// Finds the level by trying. Takes a tenth of a second where the best level works.
    pub async fn probe(config: SandboxConfig) -> Self {
        let own = own_file(&config.launcher);
        let nothing = SelfTest { level: SandboxLevel::None, proved: Vec::new(), missing: Vec::new() };
        let sandbox = Self::with(config, own, nothing);
        sandbox.renew().await;
        sandbox
    }

    /// A level that was not proven, for tests that switch defences off.
    #[cfg(feature = "sandbox-mutations")]
    #[must_use]
    pub fn unproven(config: SandboxConfig, level: SandboxLevel) -> Self {
        let own = own_file(&config.launcher);
        let test = SelfTest { level, proved: Vec::new(), missing: Vec::new() };
        Self::with(config, own, test)
    }

    fn with(config: SandboxConfig, own: PathBuf, test: SelfTest) -> Self {
        let state = watch::channel(Arc::new(test)).0;
        Self(Arc::new(Inner { config, own, state, kills: Kills::default() }))
    }

    /// Tries again; for every [`RENEW_EVERY`]. Calls that begin afterwards run at the new level.
    pub async fn renew(&self) -> SandboxLevel {
        let mut missing = Vec::new();
        let mut found = None;
        for level in LADDER.into_iter().filter(|level| *level <= self.0.config.highest) {
            match self.prove(level).await {
                Ok(proved) => {
                    found = Some((level, proved));
                    break;
                }
                Err(why) => missing.push(selftest::advice(level, &why)),
            }
        }
        let (level, proved) = found.unwrap_or_default();
        self.0.state.send_replace(Arc::new(SelfTest { level, proved, missing }));
        level
    }

    async fn prove(&self, level: SandboxLevel) -> Result<Vec<selftest::Proof>, String> {
        if level == SandboxLevel::BwrapLandlockSeccomp && bwrap::find().is_none() {
            return Err("bubblewrap is not installed".into());
        }
        if level == SandboxLevel::Rlimits {
            return selftest::starts(self, &self.0.config.scratch).await;
        }
        selftest::prove(self, level, &self.0.config.scratch).await
    }

    /// The level that programs run at.
    #[must_use]
    pub fn level(&self) -> SandboxLevel {
        self.0.state.borrow().level
    }

    /// What the last self-test found.
    #[must_use]
    pub fn self_test(&self) -> Arc<SelfTest> {
        Arc::clone(&self.0.state.borrow())
    }

    /// To be told of new self-tests.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<SelfTest>> {
        self.0.state.subscribe()
    }

    /// Whether the owner's least level is reached.
    ///
    /// # Errors
    /// In words when it is not.
    pub fn meets_minimum(&self) -> Result<(), String> {
        let level = self.level();
        match self.0.config.min_level {
            Some(least) if level < least => Err(format!(
                "the configured least sandbox level {least} is not reached: programs run at {level} here"
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn own_program(&self) -> PathBuf {
        self.0.own.clone()
    }

    /// The user that programs get, when the node is root.
    fn spare(&self, level: SandboxLevel) -> Option<u32> {
        (level > SandboxLevel::Rlimits && self.0.config.defends("user") && nix::unistd::geteuid().is_root())
            .then_some(self.0.config.uid_base)
    }

    /// Runs a program at the level of this machine.
    pub(crate) async fn run(&self, program: Program, terms: &Terms<'_>) -> Result<Finished, ToolError> {
        let level = self.level();
        if level == SandboxLevel::None {
            let why = self.self_test().missing.join("; ");
            return Err(ToolError::Unavailable(format!("programs can't be started here: {why}")));
        }
        let result = self.run_at(level, program, terms).await;
        let limit = match &result {
            Ok(finished) => finished.limit,
            Err(ToolError::Timeout) => Some(run::Limit::Timeout),
            Err(_) => None,
        };
        if let Some(limit) = limit {
            self.count(limit);
        }
        result
    }

    /// A limit has ended a program, or cut what it wrote.
    pub(crate) fn count(&self, limit: run::Limit) {
        self.0.kills.count(limit);
    }

    /// How often each limit has ended a program since the start, by the name that results and metrics use.
    #[must_use]
    pub fn kills(&self) -> Vec<(&'static str, u64)> {
        self.0.kills.all()
    }

    pub(super) async fn run_at(
        &self,
        level: SandboxLevel,
        program: Program,
        terms: &Terms<'_>,
    ) -> Result<Finished, ToolError> {
        let config = &self.0.config;
        let workspace = program.dir.clone();
        let spare = self.spare(level);
        let strip = config.defends("suid");
        let quota = (program.has_quota && config.defends("quota")).then_some(&config.quota);
        let look = |owner| look(workspace.clone(), quota.copied(), owner, strip);
        // What the node itself has made there since is given to the program's user.
        if (quota.is_some() || spare.is_some())
            && let before = look(spare).await?
            && let Some(over) = quota.and_then(|quota| before.over(quota))
        {
            return Err(ToolError::Quota(over));
        }
        let timeout = program.timeout;
        let (spec, input) = self.spec(level, spare, program);
        let guard = run::Guard { look: &|| look(None), quota };
        let finished = run::run(&config.launcher, spec, input, timeout, terms, &guard).await;
        // Also after a call without a result: what it made stays.
        let after = if quota.is_some() { Some(look(None).await?) } else { None };
        let mut finished = finished?;
        finished.level = level;
        if let Some(over) = quota.zip(after).and_then(|(quota, after)| after.over(quota)) {
            finished.limit = Some(run::Limit::Quota);
            tracing::warn!(over, "a program has filled the workspace");
        }
        Ok(finished)
    }

    fn spec(&self, level: SandboxLevel, spare: Option<u32>, program: Program) -> (Spec, Vec<u8>) {
        let Program {
            program,
            args,
            mut env,
            dir,
            tool,
            network,
            devices,
            mut limits,
            input,
            timeout: _,
            has_quota: _,
        } = program;
        let plan = (level > SandboxLevel::Rlimits).then(|| Plan {
            level,
            spare,
            bwrap: bwrap::find().unwrap_or_default(),
            init: self.0.own.clone(),
            workspace: dir.clone(),
            tool,
            program: program.clone(),
            network,
            devices,
            limits: limits_for(limits, level, spare),
            tmp_bytes: if self.0.config.defends("sizes") { TMP_BYTES } else { TMP_BYTES << 6 },
            without: self.0.config.without.clone(),
        });
        if plan.is_none() {
            limits.processes = None;
            env.insert("HOME".to_owned(), dir.display().to_string());
            env.insert("TMPDIR".to_owned(), "/tmp".to_owned());
        }
        (Spec { program, args, env, dir, limits, input_bytes: input.len(), plan }, input)
    }
}

/// The number of processes only counts for one program where it has a user or a user namespace of its own.
fn limits_for(mut limits: super::Limits, level: SandboxLevel, spare: Option<u32>) -> super::Limits {
    if level < SandboxLevel::UsernsLandlockSeccomp && spare.is_none() {
        limits.processes = None;
    }
    limits
}

async fn look(
    workspace: PathBuf,
    quota: Option<Quota>,
    owner: Option<u32>,
    strip: bool,
) -> Result<Usage, ToolError> {
    let quota = quota.unwrap_or(Quota { bytes: u64::MAX, entries: MOST_ENTRIES });
    let looked = tokio::task::spawn_blocking(move || quota::walk(&workspace, &quota, owner, strip)).await;
    match looked {
        Ok(Ok(usage)) => Ok(usage),
        Ok(Err(e)) => Err(ToolError::Unavailable(format!("the workspace: {e}"))),
        Err(_) => Err(ToolError::Failed("looking through the workspace failed".into())),
    }
}

/// The file behind the launcher, under a path that other processes can use.
fn own_file(launcher: &Launcher) -> PathBuf {
    let path = std::fs::canonicalize(&launcher.program).unwrap_or_else(|_| {
        // The file was replaced by an update: the new one is at the old path.
        let link = std::fs::read_link(&launcher.program).unwrap_or_else(|_| launcher.program.clone());
        let text = link.to_string_lossy();
        PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(&text))
    });
    if path.is_absolute() { path } else { std::path::absolute(&path).unwrap_or(path) }
}
