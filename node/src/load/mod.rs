//! What this machine is: memory, GPUs and who uses them, power.
//!
//! ```text
//!  driver ─ probe thread ─> Probed ┐
//!  kernel ─ probe thread ─> Probed ┼─ Gpus::board ─> Board ─ executor: reservations ─> CardState ─ Hardware ─> advert
//!  configuration ─────────────────┘
//! ```
//!
//! Nobody waits for a driver: each is asked on a thread of its own, and what it said last has an age.
pub(crate) mod gpu;
pub(crate) mod models;
mod nvml;
mod power;
mod probe;
mod processes;
mod sysfs;
pub(crate) mod wake;
pub(crate) mod yields;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use octomesh_protocol::advert::{Circumstances, GpuAdvert, MacAddress, YieldReason};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use tokio::{sync::watch, time::Instant};

use self::gpu::{Board, Card, GpuProblem, Probed, Vendor};
use crate::config::{DeclaredGpu, HardwareConfig, NodeConfig};

/// Reading `/proc/meminfo` at most this often: adverts and reservations ask many times a second.
const MEMORY_TTL: Duration = Duration::from_millis(500);

pub(crate) struct Memory {
    system: System,
    read_at: Option<Instant>,
}

/// Reads main memory; cheap to clone and to ask often.
#[derive(Clone)]
pub(crate) enum MemoryReader {
    /// This machine's.
    Machine(Arc<Mutex<Memory>>),
    /// So many bytes, all of them free: a simulation must not see the machine that it runs on.
    #[cfg(feature = "testing")]
    Fixed(u64),
}

impl MemoryReader {
    pub(crate) fn new() -> Self {
        let ram = MemoryRefreshKind::nothing().with_ram();
        let system = System::new_with_specifics(RefreshKind::nothing().with_memory(ram));
        Self::Machine(Arc::new(Mutex::new(Memory { system, read_at: None })))
    }

    fn read(&self, read: impl FnOnce(&System) -> u64) -> u64 {
        match self {
            Self::Machine(memory) => {
                let mut memory = memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if memory.read_at.is_none_or(|at| at.elapsed() >= MEMORY_TTL) {
                    memory.system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
                    memory.read_at = Some(Instant::now());
                }
                read(&memory.system)
            }
            #[cfg(feature = "testing")]
            Self::Fixed(bytes) => *bytes,
        }
    }

    /// Bytes.
    pub(crate) fn total(&self) -> u64 {
        self.read(System::total_memory)
    }

    /// Bytes that can be used without swapping.
    pub(crate) fn free(&self) -> u64 {
        self.read(System::available_memory)
    }
}

/// How long a start waits for the first look at the cards. It goes on without them.
const FIRST_LOOK: Duration = Duration::from_millis(300);

/// Where cards are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuSources {
    /// Whether drivers are asked at all.
    pub(crate) probe: bool,
    /// The NVIDIA driver's library; the loader looks for it when absent.
    pub(crate) nvml: Option<PathBuf>,
    /// `/sys`.
    pub(crate) sysfs: PathBuf,
    /// Cards that the owner wrote down.
    pub(crate) declared: Vec<DeclaredGpu>,
}

impl GpuSources {
    pub(crate) fn of(config: &NodeConfig) -> Self {
        let HardwareConfig { probe, nvml, sysfs } = config.hardware.clone();
        Self { probe, nvml, sysfs, declared: config.gpus.clone() }
    }
}

/// The cards of this machine, as they are known; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gpus {
    declared: Arc<[Card]>,
    probes: Vec<watch::Receiver<Arc<Probed>>>,
}

impl Gpus {
    /// Starts to look. Nothing is known yet when it returns.
    pub(crate) fn start(sources: &GpuSources) -> Self {
        let declared = gpu::declared(&sources.declared).into();
        if !sources.probe {
            let off = |vendor| watch::channel(Arc::new(Probed::new(vendor, GpuProblem::Off))).1;
            return Self { declared, probes: [Vendor::Nvidia, Vendor::Amd, Vendor::Intel].map(off).into() };
        }
        let processes = processes::Processes::new("/proc".into(), std::process::id());
        let sysfs = || sources.sysfs.clone();
        let nvidia = nvml::NvmlProbe::new(sources.nvml.clone(), sysfs(), processes);
        let probes = vec![
            probe::start(nvidia),
            probe::start(sysfs::SysfsProbe::amd(sysfs())),
            probe::start(sysfs::SysfsProbe::intel(sysfs())),
        ];
        Self { declared, probes }
    }

    /// Waits a moment for drivers that answer as they should, so that the first advert has their cards.
    pub(crate) async fn first_look(&mut self) {
        let all = self
            .probes
            .iter_mut()
            .map(|probe| probe.wait_for(|p| p.problem != Some(GpuProblem::Starting) || !p.cards.is_empty()));
        // silent-ok: whoever hangs is not waited for, and the board says so
        let _ = tokio::time::timeout(FIRST_LOOK, futures::future::join_all(all)).await;
    }

    /// All cards now.
    pub(crate) fn board(&self, now: Instant) -> Board {
        let probed: Vec<Arc<Probed>> = self.probes.iter().map(|probe| Arc::clone(&probe.borrow())).collect();
        gpu::compose(&self.declared, probed.iter().map(AsRef::as_ref), now)
    }
}

/// A card with what leases hold of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardState {
    /// The card.
    pub card: Card,
    /// Held by leases, in bytes.
    pub reserved: u64,
    /// What one more step could have, in bytes; `None` when nobody knows.
    pub free: Option<u64>,
}

/// Looks whether the machine runs on its battery.
pub(crate) fn watch_battery(sources: &GpuSources) -> watch::Receiver<Option<bool>> {
    power::watch(sources.sysfs.clone())
}

/// What others are told of the machine besides its numbers; whoever measures writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Why there is no GPU; absent when there is one.
    pub(crate) no_gpu: Option<String>,
    /// What is missing, in sentences.
    pub(crate) absent: Vec<gpu::Absence>,
    pub(crate) yields: Option<YieldReason>,
    pub(crate) macs: Vec<MacAddress>,
    /// Models that servers of this machine have loaded.
    pub(crate) models: Vec<models::Model>,
}

/// What is told at once when it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    cards: usize,
    yields: Option<YieldReason>,
    models: Vec<String>,
}

/// Hardware of this machine as it is advertised; cheap to clone.
#[derive(Clone)]
pub(crate) struct Hardware {
    memory: MemoryReader,
    /// Kept by the executor.
    cards: watch::Receiver<Vec<CardState>>,
    condition: watch::Receiver<Condition>,
}

impl Hardware {
    pub(crate) fn new(
        memory: MemoryReader,
        cards: watch::Receiver<Vec<CardState>>,
        condition: watch::Receiver<Condition>,
    ) -> Self {
        Self { memory, cards, condition }
    }

    /// Cards with what leases hold of them.
    pub(crate) fn cards(&self) -> Vec<CardState> {
        self.cards.borrow().clone()
    }

    pub(crate) fn condition(&self) -> Condition {
        self.condition.borrow().clone()
    }

    /// The same as others are told.
    pub(crate) fn circumstances(&self) -> Circumstances {
        let Condition { no_gpu, yields, macs, .. } = self.condition();
        Circumstances { yields, macs, no_gpu: no_gpu.unwrap_or_default() }
    }

    /// Names of models that can answer now.
    pub(crate) fn models(&self) -> Vec<String> {
        let mut names: Vec<String> = self.condition.borrow().models.iter().map(|m| m.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    pub(crate) fn outline(&self) -> Outline {
        Outline {
            cards: self.cards.borrow().len(),
            yields: self.condition.borrow().yields,
            models: self.models(),
        }
    }

    /// Bytes.
    pub(crate) fn memory_total(&self) -> u64 {
        self.memory.total()
    }

    /// Bytes that can be used without swapping.
    pub(crate) fn memory_free(&self) -> u64 {
        self.memory.free()
    }

    /// GPUs with what one more step could have of each. A declared one has no reading: its free memory is its total minus all
    /// reservations. One that nobody could read has the greatest age there is.
    pub(crate) fn gpus(&self) -> Vec<GpuAdvert> {
        let now = Instant::now();
        let age = |card: &Card| match card.free {
            _ if card.is_declared() => 0,
            Some((_, read)) => age_ms(now.saturating_duration_since(read)),
            None => u32::MAX,
        };
        let cards = self.cards.borrow();
        let advert = |state: &CardState| GpuAdvert {
            name: state.card.name.clone(),
            vram_total: state.card.total,
            vram_free: state.free.unwrap_or(0).min(state.card.total),
            age_ms: age(&state.card),
            declared: state.card.is_declared(),
        };
        cards.iter().map(advert).collect()
    }
}

/// The greatest value is kept for what was never read.
fn age_ms(age: Duration) -> u32 {
    u32::try_from(age.as_millis()).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(card: Card, reserved: u64, free: Option<u64>) -> CardState {
        CardState { card, reserved, free }
    }

    #[test]
    fn an_advert_says_what_is_left_and_what_nobody_knows() {
        let declared = gpu::declared(&[DeclaredGpu { name: "a".into(), vram_bytes: 24 }]);
        let unknown = Card { vendor: Vendor::Nvidia, total: 8, ..declared[0].clone() };
        let cards = vec![state(declared[0].clone(), 20, Some(4)), state(unknown, 0, None)];
        let (_cards, reader) = watch::channel(cards);
        let hardware = Hardware::new(MemoryReader::new(), reader, watch::channel(Condition::default()).1);
        let told: Vec<_> =
            hardware.gpus().iter().map(|g| (g.vram_total, g.vram_free, g.age_ms, g.declared)).collect();
        assert_eq!(told, [(24, 4, 0, true), (8, 0, u32::MAX, false)]);
        assert!(hardware.memory_total() > 0);
    }

    #[tokio::test]
    async fn without_a_driver_there_are_reasons_and_what_was_declared() {
        let nowhere = tempfile::tempdir().unwrap();
        let sources = GpuSources {
            probe: true,
            nvml: Some(nowhere.path().join("libnvidia-ml.so.1")),
            sysfs: nowhere.path().to_owned(),
            declared: vec![DeclaredGpu { name: "mine".into(), vram_bytes: 8 }],
        };
        let mut gpus = Gpus::start(&sources);
        tokio::time::timeout(Duration::from_secs(30), async {
            while gpus.board(Instant::now()).absent.iter().any(|a| a.problem == GpuProblem::Starting) {
                gpus.first_look().await;
            }
        })
        .await
        .unwrap();
        let board = gpus.board(Instant::now());
        assert_eq!(board.cards.len(), 1);
        let problems: Vec<_> = board.absent.iter().map(|a| (a.vendor, a.problem.code())).collect();
        assert_eq!(
            problems,
            [(Vendor::Nvidia, "no_library"), (Vendor::Amd, "no_device"), (Vendor::Intel, "no_device")]
        );
        let off = Gpus::start(&GpuSources { probe: false, ..sources });
        assert!(off.board(Instant::now()).absent.iter().all(|a| a.problem == GpuProblem::Off));
    }
}
