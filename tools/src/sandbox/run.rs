//! The node's side of a program: start the launcher, feed it, read its pipes, stop it in time.
use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal;
use octomesh_protocol::{card::SandboxLevel, step::EventKind};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Launcher, MESSAGE_PREFIX, NOT_STARTED,
    limits::Limits,
    quota::{Quota, Usage},
    supervise::Spec,
};
use crate::tool::{CallContext, EventSink, ToolError};

pub(crate) use super::supervise::describe;

/// Bytes kept of each of stdout and stderr: the head and the tail; what is between is counted and dropped.
pub(crate) const KEPT_BYTES: usize = 4 * 1024 * 1024;
const HEAD_BYTES: usize = KEPT_BYTES / 4 * 3;
const TAIL_BYTES: usize = KEPT_BYTES - HEAD_BYTES;
/// The launcher needs up to 0.2 s of politeness and 4 s of killing.
const STOP_LIMIT: Duration = Duration::from_secs(6);
/// How long a pipe may stay open after the launcher has ended: only something that got away holds it.
const PIPE_GRACE: Duration = Duration::from_secs(1);
/// Bytes of one line that is reported.
const LINE_BYTES: usize = 1024;
/// Between two looks at the workspace: a disk that takes 500 MB a second then takes 1 GB too much.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Bytes of stderr that are looked through for the reason of an end.
const SAID: usize = 2000;
/// Lines of each of stdout and stderr reported by one call; the result has head and tail of all of them.
const LINES: usize = 1000;

/// A program to run.
pub(crate) struct Program {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// The workspace: writable, and where it starts.
    pub(crate) dir: PathBuf,
    /// A folder that it may read: that of the tool it belongs to.
    pub(crate) tool: Option<PathBuf>,
    /// Whether it may use the network.
    pub(crate) network: bool,
    /// Devices besides the usual ones.
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) limits: Limits,
    /// Written to its stdin, which is then closed.
    pub(crate) input: Vec<u8>,
    pub(crate) timeout: Duration,
    /// Whether it is stopped when the workspace is full. The owner's own programs are not: the owner decides about the disk.
    pub(crate) has_quota: bool,
}

/// What a pipe brought.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Captured {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    pub(crate) total: u64,
}

impl Captured {
    fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        bytes = rest.get(rest.len().saturating_sub(TAIL_BYTES)..).unwrap_or_default();
        self.tail.extend(bytes);
        let over = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
    }

    /// Whether something between head and tail was dropped.
    pub(crate) fn truncated(&self) -> bool {
        self.total > (self.head.len() + self.tail.len()) as u64
    }

    /// All that was kept, without a gap unless [`Captured::truncated`].
    pub(crate) fn kept(&self) -> Vec<u8> {
        self.head.iter().chain(&self.tail).copied().collect()
    }

    /// The last `max` bytes that were kept, as text.
    pub(crate) fn last(&self, max: usize) -> String {
        let kept = self.kept();
        String::from_utf8_lossy(kept.get(kept.len().saturating_sub(max)..).unwrap_or_default())
            .trim()
            .to_owned()
    }
}

/// What ended a program before its own end. Its name is what results and metrics say.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::Display, strum::EnumIter, strum::EnumCount,
)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Limit {
    /// Its time was over.
    Timeout,
    /// Its processor time was over.
    Cpu,
    /// It needed more memory than it may have.
    Memory,
    /// It started more processes than it may have.
    Pids,
    /// It wrote a larger file than it may.
    FileSize,
    /// It filled the workspace.
    Quota,
    /// It wrote more than a result holds: it went on, and the middle was dropped.
    Output,
}

impl Limit {
    /// Whether the program itself has ended, with a code that says it.
    pub(crate) const fn is_seen_in_code(self) -> bool {
        !matches!(self, Self::Timeout | Self::Quota)
    }
}

/// A program that has ended, and everything that it started with it.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) level: SandboxLevel,
    pub(crate) limit: Option<Limit>,
}

impl Finished {
    pub(crate) fn succeeded(&self) -> bool {
        self.limit.is_none() && self.status.success()
    }

    /// How it ended, for people.
    pub(crate) fn describe(&self) -> String {
        match self.limit {
            Some(Limit::Timeout) => "stopped at its time limit".into(),
            Some(Limit::Quota) => "stopped because the workspace is full".into(),
            _ => describe(self.status),
        }
    }

    /// The words of a launcher or a stage that could not start the program.
    pub(crate) fn not_started(&self) -> Option<String> {
        let said = self.stderr.last(SAID);
        if self.status.code() == Some(i32::from(NOT_STARTED))
            && let Some(reason) = said.strip_prefix(MESSAGE_PREFIX)
        {
            return Some(reason.to_owned());
        }
        let is_builder =
            self.status.code() == Some(1) && self.stdout.total == 0 && said.starts_with("bwrap: ");
        is_builder.then_some(said)
    }

    /// What ended it, as far as its end shows: signals are certain, words are what the usual runtimes say.
    fn ended_by(&self) -> Option<Limit> {
        let code = self.status.code()?;
        if code == 128 + Signal::SIGXCPU as i32 {
            return Some(Limit::Cpu);
        }
        if code == 128 + Signal::SIGXFSZ as i32 {
            return Some(Limit::FileSize);
        }
        if code == 0 {
            return None;
        }
        let said = self.stderr.last(SAID);
        let says = |words: &[&str]| words.iter().any(|w| said.contains(w));
        if says(&["MemoryError", "Cannot allocate memory", "out of memory", "bad_alloc"]) {
            return Some(Limit::Memory);
        }
        let pids =
            ["Cannot fork", "cannot fork", "fork: ", "can't start new thread", "BlockingIOError: [Errno 11]"];
        says(&pids).then_some(Limit::Pids)
    }
}

/// What a run ends with.
pub(crate) struct Terms<'a> {
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) deadline: Instant,
    pub(crate) events: &'a EventSink,
    /// Put into the environment of the launcher, where the program must not find it.
    pub(crate) secret: Option<&'a str>,
}

impl<'a> From<&'a CallContext> for Terms<'a> {
    fn from(context: &'a CallContext) -> Self {
        Self { cancel: &context.cancel, deadline: context.deadline, events: &context.events, secret: None }
    }
}

/// Looks from time to time whether the workspace is full.
pub(super) struct Guard<'a, F> {
    pub(super) look: &'a F,
    /// Nothing is looked at without.
    pub(super) quota: Option<&'a Quota>,
}

impl<F, R> Guard<'_, F>
where
    F: Fn() -> R + Sync,
    R: Future<Output = Result<Usage, ToolError>> + Send,
{
    /// Returns when it is. A look takes at most a twentieth of the time.
    async fn full(&self) {
        let Some(quota) = self.quota else { return std::future::pending().await };
        let mut pause = LOOK_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            let begun = Instant::now();
            if (self.look)().await.is_ok_and(|usage| usage.over(quota).is_some()) {
                return;
            }
            pause = LOOK_EVERY.max(begun.elapsed() * 20);
        }
    }
}

/// Runs a program. On cancel and deadline it returns an error when the whole tree is gone; when the future is dropped the
/// launcher ends the tree by itself. A program that meets its own time limit or fills the workspace has a result.
pub(super) async fn run<F, R>(
    launcher: &Launcher,
    spec: Spec,
    input: Vec<u8>,
    timeout: Duration,
    terms: &Terms<'_>,
    guard: &Guard<'_, F>,
) -> Result<Finished, ToolError>
where
    F: Fn() -> R + Sync,
    R: Future<Output = Result<Usage, ToolError>> + Send,
{
    let (mut child, lifeline) = spawn(launcher, terms.secret)?;
    let stop = CancellationToken::new();
    let ended = CancellationToken::new();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let feed = feed(lifeline, spec, input, &stop);
    let watch = async {
        let (status, stdout, stderr) = tokio::join!(
            async {
                let status = child.wait().await;
                ended.cancel();
                status
            },
            capture(stdout, &ended, Lines::new(EventKind::Output, terms.events)),
            capture(stderr, &ended, Lines::new(EventKind::Log, terms.events)),
        );
        let status = status.map_err(|e| ToolError::Failed(format!("wait for the launcher: {e}")))?;
        Ok(Finished { status, stdout, stderr, level: SandboxLevel::None, limit: None })
    };
    let both = async {
        tokio::pin!(feed, watch);
        tokio::select! {
            result = &mut watch => result,
            () = &mut feed => watch.await,
        }
    };
    tokio::pin!(both);
    let why = tokio::select! {
        biased;
        result = &mut both => return result.map(|mut finished: Finished| {
            finished.limit = finished.ended_by();
            finished
        }),
        () = terms.cancel.cancelled() => Err(ToolError::Cancelled),
        () = tokio::time::sleep_until(terms.deadline) => Err(ToolError::Timeout),
        () = tokio::time::sleep(timeout) => Ok(Limit::Timeout),
        () = guard.full() => Ok(Limit::Quota),
    };
    stop.cancel();
    let stopped = tokio::time::timeout(STOP_LIMIT, both).await;
    if stopped.is_err() {
        tracing::warn!("a program did not end within {STOP_LIMIT:?}");
    }
    match (why, stopped) {
        (Err(why), _) => Err(why),
        (Ok(limit), Ok(Ok(mut finished))) => {
            finished.limit = Some(limit);
            Ok(finished)
        }
        (Ok(_), _) => Err(ToolError::Timeout),
    }
}

fn spawn(launcher: &Launcher, secret: Option<&str>) -> Result<(Child, ChildStdin), ToolError> {
    let mut child = Command::new(&launcher.program)
        .args(&launcher.args)
        .arg("run")
        .env_clear()
        .envs(secret.map(|secret| ("OCTOMESH_PROBE", secret)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C in the node's terminal is the node's business.
        .process_group(0)
        .spawn()
        .map_err(|e| ToolError::Unavailable(format!("the launcher {}: {e}", launcher.program.display())))?;
    match child.stdin.take() {
        Some(stdin) => Ok((child, stdin)),
        None => Err(ToolError::Unavailable("the launcher has no stdin".into())),
    }
}

/// Says what to start, then holds the lifeline until `stop`.
async fn feed(mut lifeline: ChildStdin, spec: Spec, input: Vec<u8>, stop: &CancellationToken) {
    let Ok(mut bytes) = serde_json::to_vec(&spec) else {
        // A path that is not UTF-8. The launcher reads an empty line and says so.
        return;
    };
    bytes.push(b'\n');
    bytes.extend_from_slice(&input);
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = async {
            if lifeline.write_all(&bytes).await.is_ok() {
                std::future::pending::<()>().await;
            }
        } => {}
    }
    drop(lifeline);
}

async fn capture(
    pipe: Option<impl AsyncRead + Unpin>,
    ended: &CancellationToken,
    mut lines: Lines<'_>,
) -> Captured {
    let mut captured = Captured::default();
    let Some(mut pipe) = pipe else { return captured };
    let mut buffer = vec![0u8; 64 * 1024];
    let over = async {
        ended.cancelled().await;
        tokio::time::sleep(PIPE_GRACE).await;
    };
    tokio::pin!(over);
    loop {
        let read = tokio::select! {
            read = pipe.read(&mut buffer) => read,
            () = &mut over => break,
        };
        match read {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                let bytes = buffer.get(..n).unwrap_or_default();
                captured.push(bytes);
                lines.push(bytes);
            }
        }
    }
    lines.flush();
    captured
}

/// Reports a stream line by line while the program runs: stdout as output, stderr as log.
struct Lines<'a> {
    kind: EventKind,
    events: &'a EventSink,
    line: Vec<u8>,
    sent: usize,
}

impl<'a> Lines<'a> {
    const fn new(kind: EventKind, events: &'a EventSink) -> Self {
        Self { kind, events, line: Vec::new(), sent: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            if self.sent >= LINES {
                return;
            }
            let room = LINE_BYTES.saturating_sub(self.line.len()).min(piece.len());
            self.line.extend_from_slice(piece.get(..room).unwrap_or_default());
            if piece.ends_with(b"\n") {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        self.line.clear();
        if line.is_empty() || self.sent >= LINES {
            return;
        }
        self.sent += 1;
        self.events.send(self.kind, line);
        if self.sent == LINES {
            self.events.send(self.kind, "(further lines are not reported)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_reported_as_they_come_and_bounded() {
        let (sender, mut events) = tokio::sync::mpsc::channel(LINES + 10);
        let sink = EventSink::new(sender);
        let mut lines = Lines::new(EventKind::Output, &sink);
        lines.push(b"one\ntw");
        assert_eq!(events.try_recv().unwrap(), (EventKind::Output, "one".to_owned()));
        assert!(events.try_recv().is_err(), "half a line waits");
        lines.push(b"o\n\n");
        assert_eq!(events.try_recv().unwrap().1, "two");
        lines.push(&vec![b'x'; 10 * LINE_BYTES]);
        lines.flush();
        assert_eq!(events.try_recv().unwrap().1.len(), LINE_BYTES);
        lines.push("y\n".repeat(3 * LINES).as_bytes());
        let rest: Vec<String> = std::iter::from_fn(|| events.try_recv().ok()).map(|(_, text)| text).collect();
        assert_eq!(rest.len(), LINES - 3 + 1);
        assert!(rest.last().unwrap().contains("not reported"));
    }

    #[test]
    fn head_and_tail_are_kept_and_the_rest_is_counted() {
        let mut captured = Captured::default();
        captured.push(&vec![b'a'; HEAD_BYTES - 1]);
        captured.push(b"bcd");
        assert!(!captured.truncated());
        assert!(captured.kept().ends_with(b"abcd"));
        for _ in 0..200 {
            captured.push(&[b'x'; 10_000]);
        }
        captured.push(b"end");
        assert!(captured.truncated());
        assert_eq!(captured.kept().len(), KEPT_BYTES);
        assert_eq!(captured.total, (HEAD_BYTES + 2 + 2_000_000 + 3) as u64);
        assert_eq!(captured.last(4), "xend");
        let mut large = Captured::default();
        large.push(&vec![b'y'; 8 << 20]);
        assert_eq!((large.kept().len(), large.total), (KEPT_BYTES, 8 << 20));
    }
}
