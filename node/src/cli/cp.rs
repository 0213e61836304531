//! `octomesh cp`: a file from a workspace to this machine, or back. A transfer that broke off goes on where it was.
use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::Args;
use futures::StreamExt as _;
use reqwest::{Body, Response, header};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::AsyncReadExt as _,
    time::{Instant, sleep, timeout},
};

use super::{
    CliError, Context, Exit,
    client::{Client, refusal},
    render::Screen,
};
use crate::api::types::FileReply;

/// How long a node that went away in the middle may take to come back.
const COMES_BACK: Duration = Duration::from_secs(90);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(500);
/// No byte for so long, and the connection is as good as gone. A node reads a large file as a whole before it sends the first byte.
const IDLE: Duration = Duration::from_secs(200);
/// How often a line says how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Bytes read at a time.
const PIECE: usize = 256 * 1024;

/// Copies one file.
#[derive(Debug, Args)]
pub(super) struct CpCommand {
    /// NODE:PATH, a path on this machine, or blob:SHA256 for a result of this node
    from: String,
    /// The same; a folder gets the file under its own name
    to: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Here(PathBuf),
    There { node: String, path: String },
    Blob(String),
}

impl Place {
    /// A colon before any slash ends the name of a node; `./a:b` is a file.
    fn of(text: &str) -> Self {
        match text.split_once(':') {
            Some(("blob", hash)) => Self::Blob(hash.to_owned()),
            Some((node, path)) if !node.is_empty() && !node.contains('/') => {
                Self::There { node: node.to_owned(), path: path.to_owned() }
            }
            _ => Self::Here(PathBuf::from(text)),
        }
    }

    fn file_name(&self) -> Option<String> {
        let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        match self {
            Self::Here(path) => name(path),
            Self::There { path, .. } => name(Path::new(path)),
            Self::Blob(hash) => Some(format!("{hash}.json")),
        }
    }
}

/// What was copied.
#[derive(Debug, Serialize)]
struct Copied {
    from: String,
    to: String,
    bytes: u64,
    sha256: String,
    elapsed_ms: u64,
    /// How often the transfer broke off and went on.
    interruptions: u32,
}

impl CpCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        let began = Instant::now();
        let (from, to) = (Place::of(&self.from), Place::of(&self.to));
        let (moved, to) = match (&from, &to) {
            (Place::There { .. } | Place::Blob(_), Place::Here(path)) => {
                let source = Remote::of(&from)?;
                let path = inside(path, &from)?;
                (download(&client, &source, &path, &context.screen).await?, path.display().to_string())
            }
            (Place::Here(file), Place::There { node, path }) => {
                let path = named(path, &from)?;
                (upload(&client, file, (node, &path), &context.screen).await?, format!("{node}:{path}"))
            }
            (Place::Here(_), Place::Here(_)) => {
                return Err(CliError::usage("neither side names a node; one of them is NODE:PATH"));
            }
            (_, Place::Blob(_)) => {
                return Err(CliError::usage("a blob is named by what is in it; give a path"));
            }
            _ => {
                return Err(CliError::usage("both sides name a node")
                    .hint("copy it to this machine first, and from here to the other node"));
            }
        };
        let copied = Copied {
            from: self.from.clone(),
            to,
            bytes: moved.bytes,
            sha256: moved.sha256,
            elapsed_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            interruptions: moved.interruptions,
        };
        context.screen.show(&copied, |c| {
            format!(
                "{} -> {}: {} in {} ms, SHA-256 {}",
                c.from,
                c.to,
                amount(c.bytes),
                c.elapsed_ms,
                c.sha256
            )
        })?;
        Ok(Exit::Ok)
    }
}

/// The path itself, or a file in it when it is a folder.
fn inside(path: &Path, from: &Place) -> Result<PathBuf, CliError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let name = from.file_name().ok_or_else(|| CliError::usage("the source names no file"))?;
    Ok(path.join(name))
}

fn named(path: &str, from: &Place) -> Result<String, CliError> {
    if !path.is_empty() && !path.ends_with('/') {
        return Ok(path.to_owned());
    }
    let name = from.file_name().ok_or_else(|| CliError::usage("the source names no file"))?;
    Ok(format!("{path}{name}"))
}

/// Where the API has something.
#[derive(Debug)]
pub(super) struct Remote {
    parts: Vec<String>,
    query: Vec<(&'static str, String)>,
}

impl Remote {
    fn of(place: &Place) -> Result<Self, CliError> {
        match place {
            Place::There { node, path } => Ok(Self::file(node, path)),
            Place::Blob(hash) => Ok(Self::blob(hash)),
            Place::Here(_) => Err(CliError::usage("it is on this machine")),
        }
    }

    pub(super) fn file(node: &str, path: &str) -> Self {
        Self {
            parts: ["api", "files", node].map(str::to_owned).to_vec(),
            query: vec![("path", path.to_owned())],
        }
    }

    pub(super) fn blob(hash: &str) -> Self {
        Self { parts: ["api", "blobs", hash].map(str::to_owned).to_vec(), query: Vec::new() }
    }
}

#[derive(Debug)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    pub(super) sha256: String,
    interruptions: u32,
}

fn local(path: &Path) -> impl FnOnce(io::Error) -> CliError + '_ {
    move |e| CliError::failed(format!("{}: {e}", path.display()))
}

fn hex(hash: Sha256) -> String {
    data_encoding::HEXLOWER.encode(&hash.finalize())
}

/// Where a download is until it is whole; gone when it is not.
struct Part {
    path: PathBuf,
    file: File,
    hash: Sha256,
    have: u64,
}

impl Drop for Part {
    fn drop(&mut self) {
        // silent-ok: after the rename there is nothing to remove
        let _ = fs::remove_file(&self.path);
    }
}

impl Part {
    fn beside(path: &Path) -> Result<Self, CliError> {
        let name = path.file_name().ok_or_else(|| CliError::usage("the destination names no file"))?;
        let hidden = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
        let beside = path.with_file_name(hidden);
        let file = File::create(&beside).map_err(local(&beside))?;
        Ok(Self { path: beside, file, hash: Sha256::new(), have: 0 })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(local(&self.path))?;
        self.hash.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }
}

/// Says how far it is, once in a while.
struct Told<'a> {
    screen: &'a Screen,
    at: Instant,
}

impl Told<'_> {
    fn tell(&mut self, have: u64, all: u64) {
        if self.at.elapsed() >= TOLD_EVERY {
            self.at = Instant::now();
            self.screen.progress(&format!("{} of {}", amount(have), amount(all)));
        }
    }
}

fn amount(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{}.{} MiB", bytes >> 20, (bytes >> 10) % 1024 * 10 / 1024),
    }
}

/// Whether it is worth to try again, and waits a moment.
async fn again(error: &CliError, until: Instant, screen: &Screen) -> bool {
    let passing = error.exit == Exit::NotRunning
        || matches!(
            error.body.code.as_str(),
            "interrupted" | "busy" | "catching_up" | "not_ready" | "unknown_node"
        );
    if !passing || Instant::now() >= until {
        return false;
    }
    screen.progress(&format!("{}; trying again", error.body.message));
    sleep(AGAIN).await;
    true
}

fn broke_off(what: impl std::fmt::Display) -> CliError {
    CliError::new(Exit::Failed, "interrupted", format!("the transfer broke off: {what}"))
}

/// Gets a file or blob. The destination is replaced when all of it is there and has the right hash.
pub(super) async fn download(
    client: &Client,
    source: &Remote,
    path: &Path,
    screen: &Screen,
) -> Result<Moved, CliError> {
    let mut part = Part::beside(path)?;
    let mut known: Option<(String, u64)> = None;
    let (mut interruptions, mut until) = (0, Instant::now() + COMES_BACK);
    let mut told = Told { screen, at: Instant::now() };
    loop {
        let before = part.have;
        match attempt(client, source, &mut part, &mut known, &mut told).await {
            Ok(()) => break,
            // Before anything came there is nothing to go on with.
            Err(error) if known.is_none() => return Err(error),
            Err(error) => {
                if part.have > before {
                    until = Instant::now() + COMES_BACK;
                }
                interruptions += 1;
                if !again(&error, until, screen).await {
                    return Err(error);
                }
            }
        }
    }
    let (sha256, bytes) = known.unwrap_or_default();
    let found = hex(std::mem::take(&mut part.hash));
    if part.have != bytes || found != sha256 {
        return Err(CliError::new(
            Exit::Failed,
            "damaged",
            "what came does not have the SHA-256 of the source",
        ));
    }
    part.file.sync_all().map_err(local(&part.path))?;
    fs::rename(&part.path, path).map_err(local(path))?;
    Ok(Moved { bytes, sha256, interruptions })
}

async fn attempt(
    client: &Client,
    source: &Remote,
    part: &mut Part,
    known: &mut Option<(String, u64)>,
    told: &mut Told<'_>,
) -> Result<(), CliError> {
    let mut headers = Vec::new();
    if let Some((sha256, _)) = known {
        headers.push((header::IF_MATCH, format!("\"{sha256}\"")));
        headers.push((header::RANGE, format!("bytes={}-", part.have)));
    }
    let response = client.download(&source.parts, &source.query, headers).await?;
    let (sha256, bytes) = announced(&response, part.have)?;
    let (_, all) = known.get_or_insert((sha256, bytes));
    let (all, mut stream) = (*all, response.bytes_stream());
    while part.have < all {
        match timeout(IDLE, stream.next()).await {
            Ok(Some(Ok(chunk))) => part.push(&chunk)?,
            Ok(Some(Err(error))) => return Err(broke_off(error)),
            Ok(None) => return Err(broke_off("the node closed the connection")),
            Err(_) => return Err(broke_off("nothing came any more")),
        }
        told.tell(part.have, all);
    }
    Ok(())
}

/// SHA-256 and size of all of it.
fn announced(response: &Response, have: u64) -> Result<(String, u64), CliError> {
    let tag = response.headers().get(header::ETAG).and_then(|v| v.to_str().ok()).map(|v| v.trim_matches('"'));
    match (tag, response.content_length()) {
        (Some(tag), Some(rest)) => Ok((tag.to_owned(), have + rest)),
        _ => Err(CliError::failed("the node did not say what it sends")),
    }
}

/// Brings a file to a workspace.
async fn upload(
    client: &Client,
    file: &Path,
    (node, path): (&str, &str),
    screen: &Screen,
) -> Result<Moved, CliError> {
    let (sha256, bytes) = hashed(file)?;
    let parts = ["api", "files", node].map(str::to_owned);
    let query = [("path", path.to_owned()), ("bytes", bytes.to_string()), ("sha256", sha256.clone())];
    let (mut interruptions, mut until, mut best) = (0, Instant::now() + COMES_BACK, 0);
    loop {
        let sent = Arc::new(AtomicU64::new(0));
        let put = client.upload(&parts, &query, bytes, body(file, Arc::clone(&sent)).await?);
        let watched = async {
            let mut told = Told { screen, at: Instant::now() };
            loop {
                sleep(TOLD_EVERY).await;
                told.tell(sent.load(Ordering::Relaxed), bytes);
            }
        };
        let answer: Result<FileReply, CliError> = tokio::select! {
            answer = put => answer,
            () = watched => Err(broke_off("nothing watched it")),
        };
        match answer {
            Ok(reply) => return Ok(Moved { bytes: reply.bytes, sha256: reply.sha256, interruptions }),
            // A node that never was there is not waited for.
            Err(error) if interruptions == 0 && sent.load(Ordering::Relaxed) == 0 => return Err(error),
            Err(error) => {
                if sent.load(Ordering::Relaxed) > best {
                    best = sent.load(Ordering::Relaxed);
                    until = Instant::now() + COMES_BACK;
                }
                interruptions += 1;
                if !again(&error, until, screen).await {
                    return Err(error);
                }
            }
        }
    }
}

fn hashed(path: &Path) -> Result<(String, u64), CliError> {
    let mut file = octomesh_tools::regular::open(path).map_err(local(path))?;
    let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE]);
    loop {
        let read = file.read(&mut piece).map_err(local(path))?;
        if read == 0 {
            return Ok((hex(hash), bytes));
        }
        hash.update(piece.get(..read).unwrap_or_default());
        bytes += read as u64;
    }
}

async fn body(path: &Path, sent: Arc<AtomicU64>) -> Result<Body, CliError> {
    let file = tokio::fs::File::open(path).await.map_err(local(path))?;
    let pieces = futures::stream::try_unfold((file, sent), |(mut file, sent)| async move {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece).await?;
        piece.truncate(read);
        sent.fetch_add(read as u64, Ordering::Relaxed);
        Ok::<_, io::Error>((read > 0).then_some((piece, (file, sent))))
    });
    Ok(Body::wrap_stream(pieces))
}

impl Client {
    /// The response of a `GET` whose body is read piece by piece.
    async fn download(
        &self,
        parts: &[String],
        query: &[(&str, String)],
        headers: Vec<(header::HeaderName, String)>,
    ) -> Result<Response, CliError> {
        let mut request = self.request(reqwest::Method::GET, parts, query)?;
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = timeout(IDLE, self.send(request)).await.map_err(|_| broke_off("no answer came"))??;
        if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
    }

    async fn upload(
        &self,
        parts: &[String],
        query: &[(&str, String)],
        bytes: u64,
        body: Body,
    ) -> Result<FileReply, CliError> {
        let request = self.request(reqwest::Method::PUT, parts, query)?;
        let response = self.send(request.header(header::CONTENT_LENGTH, bytes).body(body)).await?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        response.json().await.map_err(broke_off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_comes_before_a_colon() {
        let there = |node: &str, path: &str| Place::There { node: node.into(), path: path.into() };
        for (text, place) in [
            ("pi:a/b.txt", there("pi", "a/b.txt")),
            ("pi:", there("pi", "")),
            ("pi:a:b", there("pi", "a:b")),
            ("blob:abc", Place::Blob("abc".into())),
            ("./pi:a", Place::Here("./pi:a".into())),
            ("/tmp/x:y", Place::Here("/tmp/x:y".into())),
            (":x", Place::Here(":x".into())),
            ("plain", Place::Here("plain".into())),
        ] {
            assert_eq!(Place::of(text), place, "{text}");
        }
        assert_eq!(named("", &Place::of("a/b.txt")).unwrap(), "b.txt");
        assert_eq!(named("x/", &Place::of("a/b.txt")).unwrap(), "x/b.txt");
        assert_eq!(named("x/y", &Place::of("a/b.txt")).unwrap(), "x/y");
        assert!(named("", &Place::of("..")).is_err());
    }

    #[test]
    fn amounts() {
        for (bytes, text) in [(7, "7 B"), (2048, "2 KiB"), (64 << 20, "64.0 MiB"), (1_572_864, "1.5 MiB")] {
            assert_eq!(amount(bytes), text);
        }
    }
}
