//! Against a library of our own making, compiled here.
use std::{fs, path::Path, process::Command, time::Duration};

use super::*;
use crate::{
    config::DeclaredGpu,
    load::{GpuSources, Gpus, gpu::STALE},
};

const GIB: u64 = 1 << 30;

struct Stub(tempfile::TempDir);

impl Stub {
    fn new(flags: &[&str]) -> Self {
        let stub = Self(tempfile::tempdir().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/load/nvml_stub.c");
        let control = format!("-DCONTROL=\"{}\"", stub.0.path().join("control").display());
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Werror", &control])
            .args(flags)
            .arg("-o")
            .arg(stub.library())
            .arg(source)
            .status()
            .unwrap();
        assert!(built.success());
        stub
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("libnvidia-ml.so.1")
    }

    /// What it says from now on.
    fn say(&self, lines: &str) {
        let new = self.0.path().join("control.new");
        fs::write(&new, lines).unwrap();
        fs::rename(new, self.0.path().join("control")).unwrap();
    }

    fn probe(&self) -> NvmlProbe {
        let processes = Processes::new("/proc".into(), std::process::id());
        NvmlProbe::new(Some(self.library()), self.0.path().to_owned(), processes)
    }

    fn sources(&self) -> GpuSources {
        GpuSources {
            probe: true,
            nvml: Some(self.library()),
            sysfs: self.0.path().to_owned(),
            declared: vec![DeclaredGpu { name: "mine".into(), vram_bytes: GIB }],
        }
    }
}

fn free(reading: &Reading) -> Vec<u64> {
    reading.cards.iter().map(|c| c.free.unwrap().0 / GIB).collect()
}

#[test]
fn two_cards_of_different_size_and_memory_that_changes() {
    let stub = Stub::new(&[]);
    stub.say("used0 4\nbusy0 90\npid0 1\npid_used0 3\n");
    let mut probe = stub.probe();
    let first = probe.read();
    assert_eq!((first.problem.clone(), free(&first)), (None, vec![20, 8]));
    let [large, small] = &first.cards[..] else { panic!("{:?}", first.cards) };
    assert_eq!((large.id.as_str(), large.name.as_str(), large.total), ("GPU-0", "Stub 24", 24 * GIB));
    assert_eq!((small.id.as_str(), small.index, small.busy_percent), ("GPU-1", 1, Some(0)));
    assert_eq!(large.busy_percent, Some(90));
    let user = CardUser { pid: 1, bytes: Some(3 * GIB), call: None, ours: false };
    assert_eq!((large.users.clone(), small.users.clone()), (Some(vec![user]), Some(vec![])));
    stub.say("used0 23\nused1 1\nno_processes 1\n");
    let second = probe.read();
    assert_eq!(free(&second), [1, 7]);
    assert_eq!(second.cards[0].users, None, "this driver does not tell");
}

#[test]
fn what_a_step_uses_is_known_as_its_own() {
    let stub = Stub::new(&[]);
    let mut child = Command::new("sleep").arg("60").env("OCTOMESH_CALL", "call-9/s001").spawn().unwrap();
    stub.say(&format!("used0 5\npid0 {}\npid_used0 5\n", child.id()));
    let begin = Instant::now();
    let user = loop {
        let user = stub.probe().read().cards[0].users.clone().unwrap()[0].clone();
        // Between fork and exec the environment is still the parent's.
        if user.call.is_some() || begin.elapsed() > Duration::from_secs(10) {
            break user;
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((user.ours, user.call.as_deref(), user.bytes), (true, Some("call-9/s001"), Some(5 * GIB)));
}

#[test]
fn each_error_has_its_reason() {
    let stub = Stub::new(&[]);
    let problem = |lines: &str| {
        stub.say(lines);
        stub.probe().read().problem.map(|p| p.code())
    };
    assert_eq!(problem("init 9\n"), Some("no_driver"));
    assert_eq!(problem("init 4\n"), Some("no_permission"));
    assert_eq!(problem("init 999\n"), Some("driver"));
    assert_eq!(problem("init 18\n"), Some("driver"), "library and kernel module of two versions");
    assert_eq!(problem("count 0\n"), Some("no_device"));
    assert_eq!(problem("count_code 999\n"), Some("driver"));
    assert_eq!(problem("memory0 15\nmemory1 15\n"), Some("lost"));
    assert_eq!(problem(""), None);
    stub.say("handle0 15\nused1 2\n");
    let one = stub.probe().read();
    assert_eq!((free(&one), one.problem), (vec![6], Some(GpuProblem::Lost)), "the other card is still there");
    stub.say("count 4000000000\nmemory0 999\nmemory1 999\n");
    assert!(stub.probe().read().cards.len() <= CARDS);
}

#[test]
fn a_library_that_lacks_a_function_and_one_that_is_none() {
    let stub = Stub::new(&["-DNO_MEMORY"]);
    let found = stub.probe().read();
    let Some(GpuProblem::MissingSymbol(name)) = &found.problem else { panic!("{:?}", found.problem) };
    assert!(name.contains("nvmlDeviceGetMemoryInfo_v2") && found.cards.is_empty(), "{name}");
    fs::write(stub.library(), "no library").unwrap();
    assert_eq!(stub.probe().read().problem.unwrap().code(), "no_library");
    fs::remove_file(stub.library()).unwrap();
    assert_eq!(stub.probe().read().problem.unwrap().code(), "no_library");
    let bus = stub.0.path().join("bus/pci/devices");
    fs::create_dir_all(&bus).unwrap();
    assert_eq!(stub.probe().read().problem, Some(GpuProblem::NoDevice), "there is no such card either");
    fs::create_dir(bus.join("0000:01:00.0")).unwrap();
    fs::write(bus.join("0000:01:00.0/vendor"), "0x10de\n").unwrap();
    fs::write(bus.join("0000:01:00.0/class"), "0x030000\n").unwrap();
    let found = stub.probe().read();
    assert_eq!((found.problem.unwrap().code(), found.present), ("no_library", true));
}

#[test]
fn instances_of_a_card_that_is_split_up_are_cards() {
    let stub = Stub::new(&[]);
    stub.say("mig0 1\nmig_parts0 2\ntotal100 10\ntotal101 5\nused101 1\n");
    let found = stub.probe().read();
    let ids: Vec<_> = found.cards.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(
        (ids, free(&found), found.problem),
        (vec!["MIG-100", "MIG-101", "GPU-1"], vec![10, 4, 8], None)
    );
    stub.say("mig0 1\n");
    let found = stub.probe().read();
    assert_eq!((found.cards.len(), found.problem.unwrap().code()), (1, "mig"));
}

async fn until(gpus: &Gpus, what: impl Fn(&crate::load::gpu::Board) -> bool) -> crate::load::gpu::Board {
    let begin = Instant::now();
    loop {
        let board = gpus.board(Instant::now());
        if what(&board) {
            return board;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{board:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_driver_that_hangs_keeps_nobody_waiting() {
    for hang in ["hang_init", "hang_memory"] {
        let stub = Stub::new(&[]);
        stub.say(&format!("{hang} 1\n"));
        let begin = Instant::now();
        let mut gpus = Gpus::start(&stub.sources());
        gpus.first_look().await;
        let board = gpus.board(Instant::now());
        assert!(begin.elapsed() < Duration::from_secs(2), "{hang}: {:?}", begin.elapsed());
        assert_eq!(board.cards.len(), 1, "{hang}: what is declared needs no driver");
        let later = gpus.board(Instant::now() + Duration::from_secs(60));
        assert!(matches!(later.absent[0].problem, GpuProblem::Hung(60..)), "{hang}: {:?}", later.absent);
        stub.say("");
        let board = until(&gpus, |b| b.cards.len() == 3).await;
        assert!(board.cards.iter().skip(1).all(|c| c.free.is_some()), "{hang}: {board:?}");
        // It hangs again: what was read grows old, and is then unknown. The cards stay.
        stub.say(&format!("{hang} 1\n"));
        let old = gpus.board(Instant::now() + STALE + Duration::from_secs(3));
        assert_eq!(old.cards.len(), 3);
        assert!(old.cards.iter().all(|c| c.free.is_none()), "{hang}");
        stub.say("");
    }
}

#[tokio::test]
async fn a_card_that_is_lost_and_comes_back() {
    let stub = Stub::new(&[]);
    stub.say("used0 1\n");
    let gpus = Gpus::start(&stub.sources());
    until(&gpus, |b| b.cards.len() == 3).await;
    stub.say("memory0 15\n");
    let lost = until(&gpus, |b| b.absent.iter().any(|a| a.problem == GpuProblem::Lost)).await;
    assert!(lost.cards.iter().any(|c| c.id.as_str() == "GPU-0"), "leases may hold it");
    let aged = gpus.board(Instant::now() + STALE);
    let lost =
        |b: &crate::load::gpu::Board| b.cards.iter().find(|c| c.id.as_str() == "GPU-0").unwrap().clone();
    assert_eq!(lost(&aged).free.map(|(free, _)| free), None);
    stub.say("used0 2\n");
    until(&gpus, |b| lost(b).free.is_some_and(|(free, _)| free == 22 * GIB)).await;
}
