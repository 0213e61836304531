//! The store on a disk, and both ends of transfers over streams without a network.
use std::{fs, path::Path, sync::Arc, time::Duration};

use octomesh_protocol::{
    blob::{BlobMessage, BlobRef, BlobRefusal, End, Fetch, Offer, Ready, Sending, Source, Stored, Target},
    id::{BlobHash, NodeId, NodeName, ToolName},
    trust::{Grants, Role},
};
use octomesh_tools::{
    builtin,
    registry::Registry,
    sandbox::{Launcher, Sandbox, SandboxConfig},
    tool::{Caller, Workspace},
};
use sha2::{Digest as _, Sha256};

use super::{
    serve::{Places, TRANSFERS, TRANSFERS_PER_NODE, serve_one},
    *,
};
use crate::{
    app::clock::{Clock as _, SystemClock},
    net::BlobStream,
};

const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(20);

fn node(n: u8) -> NodeId {
    NodeId::from_bytes([n; 32])
}

fn store(folder: &Path, limit: u64) -> Store {
    Store::open(&folder.join("blobs"), limit, Arc::new(|| SystemClock.wall())).unwrap()
}

fn blob_of(bytes: &[u8]) -> BlobRef {
    BlobRef { hash: BlobHash::from_bytes(Sha256::digest(bytes).into()), bytes: bytes.len() as u64 }
}

fn bytes(n: u8, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ n).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_blob_is_there_after_a_restart_for_whom_it_was() {
    let home = tempfile::tempdir().unwrap();
    let blob = {
        let store = store(home.path(), 1 << 30);
        store.keep(bytes(1, 300_000), node(1), HOUR).await.unwrap()
    };
    // What can't be a blob goes; a part stays for its sender.
    fs::write(home.path().join("blobs/rubbish"), "x").unwrap();
    fs::write(home.path().join("blobs/partial/part"), "x").unwrap();
    let store = store(home.path(), 1 << 30);
    assert!(store.may_read(blob.hash, node(1)) && !store.may_read(blob.hash, node(2)));
    assert_eq!(store.read(blob.hash).await.unwrap(), bytes(1, 300_000));
    let hash = blob.hash.to_string();
    assert_eq!(names(&home.path().join("blobs")), [hash.clone(), format!("{hash}.held"), "partial".into()]);
    assert_eq!(names(&home.path().join("blobs/partial")), ["part"]);
}

#[tokio::test]
async fn what_is_needed_is_not_thrown_away_for_what_comes() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path(), 1_000_000);
    let kept = store.keep(bytes(1, 400_000), node(1), HOUR).await.unwrap();
    let done = store.keep(bytes(2, 400_000), node(2), HOUR).await.unwrap();
    let full = store.keep(bytes(3, 400_000), node(1), HOUR).await.unwrap_err();
    assert!(matches!(&full, BlobError::Full(why) if why.contains("blobs.limit")), "{full}");
    store.release(done.hash, node(2)).await;
    let new = store.keep(bytes(3, 400_000), node(1), HOUR).await.unwrap();
    assert!(store.may_read(kept.hash, node(1)) && store.may_read(new.hash, node(1)));
    assert!(!store.may_read(done.hash, node(2)) && !store.file_of(done.hash).exists());
    // The same over a restart.
    drop(store);
    let store = self::store(home.path(), 1_000_000);
    assert!(store.keep(bytes(4, 400_000), node(1), HOUR).await.is_err());
}

#[tokio::test]
async fn a_damaged_blob_is_none() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path(), 1 << 30);
    for by_reading in [true, false] {
        let blob = store.keep(bytes(1, 300_000), node(1), HOUR).await.unwrap();
        let mut damaged = bytes(1, 300_000);
        damaged[7] ^= 1;
        fs::write(store.file_of(blob.hash), damaged).unwrap();
        let error = if by_reading {
            store.read(blob.hash).await.unwrap_err()
        } else {
            store.send(blob.hash).await.map(drop).unwrap_err()
        };
        assert!(matches!(error, BlobError::Refused { reason: BlobRefusal::Damaged, .. }), "{error}");
        assert!(!store.file_of(blob.hash).exists() && !store.may_read(blob.hash, node(1)));
    }
}

#[tokio::test]
async fn parts_go_on_and_wrong_ones_do_not_spoil_another_senders() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path(), 1 << 30);
    let all = bytes(1, 3_000_000);
    let blob = blob_of(&all);
    let mut first = store.receive(node(1), blob, true).await.unwrap();
    first.push(&all[..2_000_000]).await.unwrap();
    // One at a time.
    assert!(matches!(
        store.receive(node(1), blob, true).await.unwrap_err(),
        BlobError::Refused { reason: BlobRefusal::Busy, .. }
    ));
    first.pause().await;
    let mut wrong = store.receive(node(2), blob, true).await.unwrap();
    wrong.push(&vec![0; 3_000_000]).await.unwrap();
    assert!(matches!(wrong.finish().await.unwrap_err(), BlobError::Damaged));
    assert_eq!(store.receive(node(2), blob, true).await.unwrap().have(), 0, "all of it may be wrong");
    // A restart in between.
    let store = self::store(home.path(), 1 << 30);
    let mut second = store.receive(node(1), blob, true).await.unwrap();
    assert_eq!(second.have(), 2_000_000);
    second.push(&all[2_000_000..]).await.unwrap();
    store.take(second.finish().await.unwrap(), node(1), HOUR).await.unwrap();
    assert_eq!(store.read(blob.hash).await.unwrap(), all);
    // More than was announced.
    let mut long = store.receive(node(3), blob, true).await.unwrap();
    assert!(matches!(long.push(&vec![0; 3_000_001]).await.unwrap_err(), BlobError::Damaged));
}

#[tokio::test]
async fn what_does_not_fit_on_the_disk_is_refused_before_it_comes() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path(), 1 << 30);
    let about = rustix::fs::statvfs(home.path()).unwrap();
    let free = about.f_bavail * about.f_frsize;
    let huge = BlobRef { hash: BlobHash::from_bytes([9; 32]), bytes: free + 1 };
    let error = store.receive(node(1), huge, false).await.unwrap_err();
    assert!(matches!(&error, BlobError::Full(why) if why.contains("do not fit on the disk")), "{error}");
    assert!(names(&home.path().join("blobs/partial")).is_empty());
}

#[test]
fn places_are_so_many_in_all_and_so_many_of_one_node() {
    let places = Places::new();
    let mut taken: Vec<_> = (0..TRANSFERS_PER_NODE).map(|_| places.take(node(1)).unwrap()).collect();
    assert!(places.take(node(1)).is_none());
    taken.pop();
    taken.push(places.take(node(1)).unwrap());
    let others = (2u8..).flat_map(|n| std::iter::repeat_n(n, TRANSFERS_PER_NODE));
    taken.extend(others.take(TRANSFERS - TRANSFERS_PER_NODE).map(|n| places.take(node(n)).unwrap()));
    assert!(places.take(node(200)).is_none());
}

/// A node that serves, without a network.
struct Served {
    store: Store,
    files: Files,
    home: tempfile::TempDir,
}

impl Served {
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("workspace")).unwrap();
        let registry = Registry::new();
        builtin::register_all(&registry, registry.catalogue()).unwrap();
        let launcher = Launcher { program: "/bin/false".into(), args: Vec::new() };
        let files = Files {
            workspace: Arc::new(Workspace::open(&home.path().join("workspace")).unwrap()),
            sandbox: Sandbox::probe(SandboxConfig::new(launcher, home.path().join("probe"))).await,
            registry,
            offers_tools: true,
        };
        Self { store: store(home.path(), 1 << 30), files, home }
    }

    fn caller(n: u8, tools: Option<&[&str]>) -> Caller {
        let tools = tools.map(|t| t.iter().map(|name| ToolName::parse(name).unwrap()).collect());
        Caller {
            node: node(n),
            name: NodeName::parse("guest").unwrap(),
            role: Role::Worker,
            grants: Grants { tools, ..Grants::default() },
            local: false,
        }
    }

    /// One exchange: the guest's side is `play`. Gives what the host made of it.
    async fn with<F: Future<Output = ()>>(
        &self,
        caller: &Caller,
        play: impl FnOnce(BlobStream) -> F,
    ) -> Result<(), BlobError> {
        let (mut host, guest) = BlobStream::pair();
        let serve = async {
            let served = serve_one(&self.store, &self.files, caller, &mut host).await;
            if let Err(error) = &served {
                host.send(error.refusal(), PATIENCE).await.ok();
            }
            host.close().await;
            served
        };
        tokio::join!(serve, play(guest)).0
    }

    async fn asked(&self, caller: &Caller, first: impl Into<BlobMessage>) -> BlobMessage {
        let mut answer = None;
        let first = first.into();
        // silent-ok: the answer is what is looked at
        let _ = self
            .with(caller, async |mut guest: BlobStream| {
                guest.send(first, PATIENCE).await.unwrap();
                answer = Some(guest.receive(PATIENCE).await.unwrap());
            })
            .await;
        answer.unwrap()
    }
}

fn refusal(message: BlobMessage) -> BlobRefusal {
    match message {
        BlobMessage::Refused(refused) => refused.reason,
        other => panic!("{}", other.name()),
    }
}

#[tokio::test]
async fn only_what_is_granted_is_given() {
    let served = Served::new().await;
    fs::write(served.home.path().join("workspace/a.txt"), "hello").unwrap();
    let blob = served.store.keep(bytes(1, 300_000), node(1), HOUR).await.unwrap();
    let result = || Fetch { source: Source::Result(blob.hash), offset: 0, expect: None };
    let file = |path: &str| Fetch { source: Source::File(path.into()), offset: 0, expect: None };
    let (owner, other) = (Served::caller(1, None), Served::caller(2, None));
    let echo_only = Served::caller(3, Some(&["echo"]));
    assert!(matches!(served.asked(&owner, result()).await, BlobMessage::Sending(s) if s.blob == blob));
    assert_eq!(refusal(served.asked(&other, result()).await), BlobRefusal::NotFound);
    assert!(matches!(served.asked(&other, file("a.txt")).await, BlobMessage::Sending(_)));
    assert_eq!(refusal(served.asked(&echo_only, file("a.txt")).await), BlobRefusal::Policy);
    assert_eq!(refusal(served.asked(&other, file("../blobs/x")).await), BlobRefusal::Policy);
    assert_eq!(refusal(served.asked(&other, file("none")).await), BlobRefusal::NotFound);
    let offer = |path: &str| Offer { target: Target::File(path.into()), blob: blob_of(b"x") };
    assert!(matches!(served.asked(&other, offer("new")).await, BlobMessage::Ready(Ready { offset: 0 })));
    assert_eq!(refusal(served.asked(&echo_only, offer("new")).await), BlobRefusal::Policy);
    assert_eq!(refusal(served.asked(&other, offer("../new")).await), BlobRefusal::Policy);
    // Whoever does not have the bytes is not told that somebody else brought them.
    let input = || Offer { target: Target::Input, blob };
    assert!(matches!(served.asked(&other, input()).await, BlobMessage::Ready(Ready { offset: 0 })));
    assert!(matches!(served.asked(&owner, input()).await, BlobMessage::Ready(r) if r.offset == blob.bytes));
    let mut client = Served::new().await;
    client.files.offers_tools = false;
    assert_eq!(refusal(client.asked(&owner, input()).await), BlobRefusal::Policy);
    assert_eq!(refusal(client.asked(&owner, file("a.txt")).await), BlobRefusal::Policy);
}

#[tokio::test]
async fn a_hostile_sender_gets_nothing_into_its_place() {
    let served = Served::new().await;
    let target = served.home.path().join("workspace/target");
    fs::write(&target, "old").unwrap();
    let blob = blob_of(&[7; 100_000]);
    let offer = || Offer { target: Target::File("target".into()), blob };
    let worker = Served::caller(1, None);
    for case in ["wrong bytes", "too few", "too many", "wrong end", "other message", "junk", "gone"] {
        let ended = served
            .with(&worker, async |mut guest: BlobStream| {
                guest.send(offer(), PATIENCE).await.unwrap();
                let BlobMessage::Ready(ready) = guest.receive(PATIENCE).await.unwrap() else {
                    panic!("{case}")
                };
                let left = 100_000 - usize::try_from(ready.offset).unwrap();
                let (fill, count) = match case {
                    "wrong bytes" => (8, left),
                    "too many" => (7, left + 1),
                    _ => (7, left / 2),
                };
                for chunk in vec![fill; count].chunks(50_000) {
                    guest.send(BlobMessage::Chunk(chunk.to_vec()), PATIENCE).await.unwrap();
                }
                let hash = if case == "wrong end" { BlobHash::from_bytes([1; 32]) } else { blob.hash };
                match case {
                    "other message" => guest.send(Stored { hash }, PATIENCE).await.unwrap(),
                    "junk" => guest.send_raw(b"\xff\xff\xff\xff").await,
                    "gone" => return,
                    _ => guest.send(End { hash }, PATIENCE).await.unwrap(),
                }
                // Until the host has said what it thinks of it.
                while let Ok(BlobMessage::Ready(_)) = guest.receive(PATIENCE).await {}
            })
            .await;
        assert!(ended.is_err(), "{case}");
        assert_eq!(fs::read(&target).unwrap(), b"old", "{case}");
    }
    // An honest one may go on after all of that.
    let sent = served.with(&worker, async |mut guest: BlobStream| {
        guest.send(offer(), PATIENCE).await.unwrap();
        let BlobMessage::Ready(ready) = guest.receive(PATIENCE).await.unwrap() else { panic!() };
        let left = vec![7; 100_000 - usize::try_from(ready.offset).unwrap()];
        window::Sent::from(ready.offset).push(&mut guest, &left).await.unwrap();
        guest.send(End { hash: blob.hash }, PATIENCE).await.unwrap();
        assert_eq!(window::last_word(&mut guest).await.unwrap(), Stored { hash: blob.hash }.into());
    });
    sent.await.unwrap();
    assert_eq!(fs::read(&target).unwrap(), [7; 100_000]);
}

#[tokio::test]
async fn a_transfer_goes_on_at_its_offset_unless_the_file_changed() {
    let served = Served::new().await;
    let all = bytes(5, 2_000_000);
    fs::write(served.home.path().join("workspace/f"), &all).unwrap();
    let (worker, blob) = (Served::caller(1, None), blob_of(&all));
    let from = |offset, expect| Fetch { source: Source::File("f".into()), offset, expect };
    let mut got = Vec::new();
    let sent = served.with(&worker, async |mut guest: BlobStream| {
        guest.send(from(500_000, Some(blob.hash)), PATIENCE).await.unwrap();
        let first = guest.receive(PATIENCE).await.unwrap();
        assert_eq!(first, Sending { blob, offset: 500_000 }.into());
        let mut taken = window::Taken::from(500_000);
        loop {
            match guest.receive(PATIENCE).await.unwrap() {
                BlobMessage::Chunk(bytes) => got.extend(bytes),
                BlobMessage::End(end) => break assert_eq!(end.hash, blob.hash),
                other => panic!("{}", other.name()),
            }
            taken.tell(&mut guest, 500_000 + got.len() as u64).await.unwrap();
        }
        guest.send(Stored { hash: blob.hash }, PATIENCE).await.unwrap();
    });
    sent.await.unwrap();
    assert!(got == all[500_000..]);
    fs::write(served.home.path().join("workspace/f"), "another").unwrap();
    assert_eq!(refusal(served.asked(&worker, from(5, Some(blob.hash))).await), BlobRefusal::Changed);
}
