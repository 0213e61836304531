//! GPUs as this node knows them: what a card is, what was read of it, when, and why there is none.
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::config::DeclaredGpu;

/// Cards are read every two seconds; five that failed in a row are no reading any more.
pub(crate) const STALE: Duration = Duration::from_secs(10);
/// A driver that is asked answers in milliseconds; after this it hangs.
const HUNG: Duration = Duration::from_secs(5);
/// Cards of one machine that are looked at, of each vendor.
pub(super) const CARDS: usize = 32;
/// Bytes of a card's id or name that are kept.
const TEXT_BYTES: usize = 96;

/// Names a card for as long as the machine runs: the driver's UUID, the PCI address, or the place in the configuration. An index would
/// not do, because a card can go and come back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardId(Arc<str>);

impl CardId {
    /// The text, cut to a bound.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(cut(text).into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for CardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CardId({})", self.0)
    }
}

impl fmt::Display for CardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A driver's text is only as good as the driver.
pub(super) fn cut(text: &str) -> String {
    let clean = text.trim().chars().filter(|c| !c.is_control());
    let mut kept = String::new();
    for c in clean {
        if kept.len() + c.len_utf8() > TEXT_BYTES {
            break;
        }
        kept.push(c);
    }
    kept
}

/// Who makes the card, or says that it is there.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::Display,
    strum::IntoStaticStr,
    strum::EnumIter,
)]
#[strum(serialize_all = "snake_case")]
pub enum Vendor {
    /// The owner, in the configuration; nobody reads it.
    Declared,
    /// NVIDIA, read by its driver's library.
    Nvidia,
    /// AMD, read from the kernel.
    Amd,
    /// Intel, read from the kernel.
    Intel,
}

/// A process that uses a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardUser {
    /// Its id.
    pub pid: u32,
    /// Memory of the card that it holds, when the driver tells.
    pub bytes: Option<u64>,
    /// The step that it works for, in the form of `OCTOMESH_CALL`.
    pub call: Option<String>,
    /// Whether this node started it, or one of those that started it.
    pub ours: bool,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Which.
    pub id: CardId,
    /// Whose.
    pub vendor: Vendor,
    /// Its place among the cards of its vendor, in the vendor's order.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// All of its memory, in bytes.
    pub total: u64,
    /// Free memory in bytes and when it was read; `None` for a declared card, which nobody reads, and for one whose driver does not answer.
    pub free: Option<(u64, Instant)>,
    /// How busy it was when it was read.
    pub busy_percent: Option<u8>,
    /// Who uses it; `None` when the driver does not tell.
    pub users: Option<Vec<CardUser>>,
}

impl Card {
    /// Whether the owner wrote it into the configuration.
    #[must_use]
    pub fn is_declared(&self) -> bool {
        self.vendor == Vendor::Declared
    }

    /// Takes away what is too old to be true.
    fn aged(mut self, now: Instant) -> Self {
        if self.free.is_some_and(|(_, read)| now.saturating_duration_since(read) > STALE) {
            (self.free, self.busy_percent, self.users) = (None, None, None);
        }
        self
    }

    /// Variables that tell a program which card is its own, and keep the vendor's libraries from seeing the others.
    #[must_use]
    pub fn environment(&self, place: usize) -> BTreeMap<String, String> {
        let mut env = BTreeMap::from([
            ("OCTOMESH_GPU".to_owned(), place.to_string()),
            ("OCTOMESH_GPU_ID".to_owned(), self.id.to_string()),
            ("OCTOMESH_GPU_NAME".to_owned(), self.name.clone()),
        ]);
        let mut set = |name: &str, value: String| drop(env.insert(name.to_owned(), value));
        match self.vendor {
            Vendor::Declared => {}
            Vendor::Nvidia => {
                set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
                set("CUDA_VISIBLE_DEVICES", self.id.to_string());
            }
            // Its runtime knows cards by the same unique id; a PCI address says nothing to it.
            Vendor::Amd if self.id.as_str().starts_with("GPU-") => {
                set("ROCR_VISIBLE_DEVICES", self.id.to_string());
            }
            Vendor::Amd => {}
            Vendor::Intel => {
                set("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1".to_owned());
                set("ZE_AFFINITY_MASK", self.index.to_string());
            }
        }
        env
    }
}

/// Why no card is read, or not all. The variant is the label in metrics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum GpuProblem {
    /// Nobody has looked yet.
    #[error("the driver has not answered yet")]
    Starting,
    /// The owner wants no probe.
    #[error("probing is switched off (hardware.probe)")]
    Off,
    /// There is none.
    #[error("there is no such card")]
    NoDevice,
    /// The driver's library is not installed.
    #[error("the driver's library is not there: {0}")]
    NoLibrary(String),
    /// The library is there, the kernel's part is not.
    #[error("the driver is not loaded; install it or load its kernel module")]
    NoDriver,
    /// The library lacks a function.
    #[error("the driver's library is too old or too new, it lacks a function: {0}")]
    MissingSymbol(String),
    /// The kernel does not let this user ask.
    #[error("this user may not ask the driver")]
    NoPermission,
    /// It was asked and says nothing.
    #[error("the driver has not answered for {0} s")]
    Hung(u64),
    /// The card went away.
    #[error("the card does not answer any more")]
    Lost,
    /// A card that is split up, of which no part can be used.
    #[error("the card is split up (MIG) and no instance can be read: {0}")]
    Mig(String),
    /// Its memory is main memory, which is counted already.
    #[error("the card has no memory of its own")]
    SharedMemory,
    /// Anything else that the driver says.
    #[error("the driver says: {0}")]
    Driver(String),
}

impl GpuProblem {
    /// The code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// Why cards of a vendor are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Absence {
    /// Whose.
    pub(crate) vendor: Vendor,
    /// Why.
    pub(crate) problem: GpuProblem,
    /// Whether the machine has such a card: then the owner should know.
    pub(crate) present: bool,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vendor = match self.vendor {
            Vendor::Declared => "declared",
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
            Vendor::Intel => "Intel",
        };
        let here = if self.present { "a card is in this machine, but " } else { "" };
        write!(f, "{vendor}: {here}{}", self.problem)
    }
}

/// All cards of this machine at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Board {
    /// Declared ones first, then those that drivers report.
    pub(crate) cards: Vec<Card>,
    /// What is missing.
    pub(crate) absent: Vec<Absence>,
}

impl Board {
    /// Why there is no card, as vendor and code for other nodes; `None` when there is one, when the machine has none, and when nobody may
    /// look.
    #[must_use]
    pub(crate) fn why_none(&self) -> Option<String> {
        let plain = |a: &&Absence| {
            matches!(a.problem, GpuProblem::NoDevice | GpuProblem::SharedMemory | GpuProblem::Off)
        };
        let told = self.absent.iter().find(|a| a.present).or_else(|| self.absent.iter().find(|a| !plain(a)));
        let told = told.filter(|_| self.cards.is_empty())?;
        Some(format!("{}: {}", told.vendor, told.problem.code()))
    }
}

/// What one probe found last, and whether it is asking now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probed {
    pub(super) vendor: Vendor,
    pub(super) cards: Vec<Card>,
    pub(super) problem: Option<GpuProblem>,
    /// Whether the bus shows such a card.
    pub(super) present: bool,
    /// Since when it waits for the driver.
    pub(super) asking: Option<Instant>,
}

impl Probed {
    pub(super) fn new(vendor: Vendor, problem: GpuProblem) -> Self {
        Self { vendor, cards: Vec::new(), problem: Some(problem), present: false, asking: None }
    }
}

/// The cards that the owner declared.
pub(super) fn declared(gpus: &[DeclaredGpu]) -> Vec<Card> {
    let card = |(index, gpu): (usize, &DeclaredGpu)| Card {
        id: CardId::new(&format!("declared:{index}")),
        vendor: Vendor::Declared,
        index: u32::try_from(index).unwrap_or(u32::MAX),
        name: gpu.name.clone(),
        total: gpu.vram_bytes,
        free: None,
        busy_percent: None,
        users: None,
    };
    gpus.iter().enumerate().map(card).collect()
}

/// Puts together what the probes found. What is too old is unknown, and a probe that waits for its driver says so.
pub(super) fn compose<'a>(
    declared: &[Card],
    probed: impl IntoIterator<Item = &'a Probed>,
    now: Instant,
) -> Board {
    let mut board = Board { cards: declared.to_vec(), absent: Vec::new() };
    for found in probed {
        board.cards.extend(found.cards.iter().cloned().map(|card| card.aged(now)));
        let waits =
            found.asking.map(|since| now.saturating_duration_since(since)).filter(|waits| *waits > HUNG);
        let problem = waits.map(|waits| GpuProblem::Hung(waits.as_secs())).or_else(|| found.problem.clone());
        let present = found.present || !found.cards.is_empty();
        board.absent.extend(problem.map(|problem| Absence { vendor: found.vendor, problem, present }));
    }
    board
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(vendor: Vendor, id: &str, read: Instant) -> Card {
        Card {
            id: CardId::new(id),
            vendor,
            index: 1,
            name: "card".into(),
            total: 24,
            free: Some((20, read)),
            busy_percent: Some(5),
            users: Some(vec![]),
        }
    }

    #[test]
    fn what_is_old_is_unknown_and_a_hanging_driver_says_so() {
        let read = Instant::now();
        let mut nvidia = Probed::new(Vendor::Nvidia, GpuProblem::Starting);
        (nvidia.problem, nvidia.asking) = (None, Some(read));
        nvidia.cards = vec![card(Vendor::Nvidia, "GPU-1", read)];
        let own = declared(&[DeclaredGpu { name: "mine".into(), vram_bytes: 8 }]);
        let board = compose(&own, [&nvidia], read + Duration::from_secs(4));
        assert_eq!(
            board.cards.iter().map(|c| c.vendor).collect::<Vec<_>>(),
            [Vendor::Declared, Vendor::Nvidia]
        );
        assert!(board.absent.is_empty() && board.cards[1].free.is_some());
        let board = compose(&own, [&nvidia], read + Duration::from_secs(60));
        assert_eq!((board.cards[1].free, board.cards[1].users.clone()), (None, None));
        assert_eq!(board.cards[1].total, 24, "the card itself is still there");
        assert_eq!(board.absent[0].problem, GpuProblem::Hung(60));
        assert!(board.absent[0].to_string().contains("has not answered for 60 s"), "{}", board.absent[0]);
    }

    #[test]
    fn why_there_is_none() {
        let none = Probed::new(Vendor::Amd, GpuProblem::NoDevice);
        let mut nvidia = Probed::new(Vendor::Nvidia, GpuProblem::NoDriver);
        let why = |list: &[&Probed]| compose(&[], list.iter().copied(), Instant::now()).why_none().unwrap();
        assert_eq!(compose(&[], [&none], Instant::now()).why_none(), None);
        assert_eq!(why(&[&none, &nvidia]), "nvidia: no_driver");
        nvidia.present = true;
        let told = compose(&[], [&nvidia], Instant::now()).absent[0].to_string();
        assert!(
            told.starts_with("NVIDIA: a card is in this machine, but the driver is not loaded"),
            "{told}"
        );
        let off = Probed::new(Vendor::Nvidia, GpuProblem::Off);
        assert_eq!(compose(&[], [&off], Instant::now()).why_none(), None);
        assert_eq!(
            compose(&declared(&[DeclaredGpu { name: "a".into(), vram_bytes: 1 }]), [], Instant::now())
                .why_none(),
            None
        );
    }

    #[test]
    fn a_program_is_told_its_card() {
        let env = card(Vendor::Nvidia, "GPU-1", Instant::now()).environment(2);
        assert_eq!((env["OCTOMESH_GPU"].as_str(), env["CUDA_VISIBLE_DEVICES"].as_str()), ("2", "GPU-1"));
        let amd = |id| card(Vendor::Amd, id, Instant::now()).environment(0);
        assert_eq!(amd("GPU-00aa")["ROCR_VISIBLE_DEVICES"], "GPU-00aa");
        assert!(!amd("pci:0000:03:00.0").contains_key("ROCR_VISIBLE_DEVICES"));
        assert_eq!(card(Vendor::Intel, "pci", Instant::now()).environment(0)["ZE_AFFINITY_MASK"], "1");
        assert_eq!(card(Vendor::Declared, "declared:0", Instant::now()).environment(0).len(), 3);
    }

    #[test]
    fn a_driver_s_text_is_bounded() {
        let id = CardId::new(&format!("\u{7}{}", "é".repeat(500)));
        assert!(id.as_str().len() <= TEXT_BYTES && !id.as_str().contains('\u{7}'));
    }
}
