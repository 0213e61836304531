//! What a node says of itself: the advert (gossiped, at most 1 KiB) and the manifest (fetched by hash).
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    card::SandboxLevel,
    codec::{self, CodecError},
    id::{CardHash, NodeId, ToolName, ToolSetHash},
    limits,
};

/// One GPU as advertised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAdvert {
    /// Name, as the driver or the owner gives it.
    pub name: String,
    /// All of its memory, in bytes.
    pub vram_total: u64,
    /// Free memory at the last reading, in bytes; for a declared GPU its total minus all reservations.
    pub vram_free: u64,
    /// Age of the reading when the advert was made, in milliseconds.
    pub age_ms: u32,
    /// Whether the owner wrote it into the configuration instead of a driver reporting it.
    pub declared: bool,
}

/// Why a machine is its owner's alone for now.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::Display,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum YieldReason {
    /// It runs on its battery.
    Battery,
    /// One of its GPUs is busy with something else than a step.
    GpuBusy,
    /// The owner wants quiet at this time of the day.
    QuietHours,
}

impl YieldReason {
    /// Words that follow "is kept by its owner: ".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Battery => "it runs on battery",
            Self::GpuBusy => "a GPU is busy with the owner's own work",
            Self::QuietHours => "quiet hours",
        }
    }
}

/// Hardware address of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MacAddress(pub [u8; 6]);

impl std::fmt::Display for MacAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// What a machine says of its owner's rules and of what it has not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Circumstances {
    /// It takes no steps of other nodes for now, for this reason.
    pub yields: Option<YieldReason>,
    /// Where it listens for a wake-up while it sleeps, at most 2.
    pub macs: Vec<MacAddress>,
    /// Why it has no GPU, as vendor and code (`nvidia: no_driver`); empty when it has one or nobody looked.
    pub no_gpu: String,
}

/// Load and hardware of a node at one moment.
///
/// Ordered by `(incarnation, seq)`: a receiver keeps the newest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advert {
    /// Whose it is.
    pub node: NodeId,
    /// Raised at every start of the node; unix seconds or higher.
    pub incarnation: u64,
    /// Raised with every advert of one incarnation.
    pub seq: u64,
    /// Load at this moment.
    pub load: LoadState,
    /// Main memory, in bytes.
    pub memory_total: u64,
    /// GPUs, at most 8.
    pub gpus: Vec<GpuAdvert>,
    /// Models loaded, at most 16.
    pub models: Vec<String>,
    /// Hash of the manifest.
    pub tool_set: ToolSetHash,
    /// Speed against an ordinary machine, in percent; 100 when unknown.
    pub speed_percent: u16,
    /// Level that process tools run at here.
    pub sandbox: SandboxLevel,
    /// Where the node is, in the owner's words.
    pub region: String,
    /// Labels for placement.
    pub tags: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// Owner's rules, and what is missing.
    pub circumstances: Circumstances,
}

/// What changes from second to second. Rides on adverts and on every reply to a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoadState {
    /// Steps that can run at once.
    pub slots: u16,
    /// Steps running.
    pub running: u16,
    /// Steps waiting.
    pub queued: u16,
    /// Estimated work that is running or waiting, in milliseconds over all slots.
    pub work_ms: u32,
    /// Free main memory, in bytes.
    pub memory_free: u64,
    /// No new leases; running steps finish.
    pub draining: bool,
    /// The executor answered its last self-call.
    pub ready: bool,
    /// How long steps take here lately against what was expected of them, in percent; 0 when nobody knows.
    pub pace_percent: u16,
}

impl LoadState {
    /// Factor on expected durations, from a quarter to 8; 1 when it is not known.
    #[must_use]
    pub fn pace(&self) -> f64 {
        if self.pace_percent == 0 { 1.0 } else { f64::from(self.pace_percent.clamp(25, 800)) / 100.0 }
    }

    /// How long one more step would wait for a slot, in milliseconds, when `steps` steps with `work_ms` of work come on top of this
    /// state, or, below zero, have left it.
    ///
    /// With a free slot nothing stands before the step, however long the others run; with all slots taken the first of them ends
    /// after a share of the work, and that share grows with the number of steps. Router and executor use this one formula, so that
    /// the one does not refuse what the other promised.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "milliseconds; a millionth of a percent does not matter")]
    pub fn wait_ms(&self, steps: i64, work_ms: i64) -> f64 {
        let slots = f64::from(self.slots.max(1));
        let steps = (i64::from(self.running) + i64::from(self.queued)).saturating_add(steps).max(0) as f64;
        if steps < slots {
            return 0.0;
        }
        let work = i64::from(self.work_ms).saturating_add(work_ms).max(0) as f64;
        work / slots * (steps - slots + 1.0) / steps
    }
}

/// Why an advert is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum AdvertError {
    /// Not an advert, or over 1 KiB.
    #[error("advert: {0}")]
    Codec(#[from] CodecError),
    /// More GPUs, models or tags than allowed, or a name that is too long.
    #[error("advert: a list or a name in it is too long")]
    TooLong,
    /// A size in it is one that no machine has, or more is free than there is.
    #[error("advert: a number in it can't be")]
    Number,
    /// It speaks for another node than the one that signed it.
    #[error("advert names another node than its sender")]
    Impersonation,
}

impl Advert {
    /// Encodes; the caller has cut its lists to the limits with [`Advert::truncate`].
    ///
    /// # Errors
    /// [`CodecError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode::<_, { limits::ADVERT_BYTES }>(self)
    }

    /// Decodes what `sender` signed.
    ///
    /// # Errors
    /// [`AdvertError`].
    pub fn from_bytes(bytes: &[u8], sender: NodeId) -> Result<Self, AdvertError> {
        let advert: Self = codec::decode::<_, { limits::ADVERT_BYTES }>(bytes)?;
        let short = |s: &String| s.len() <= limits::ADVERT_NAME_BYTES;
        let fits = advert.gpus.len() <= limits::ADVERT_GPUS
            && advert.models.len() <= limits::ADVERT_MODELS
            && advert.tags.len() <= limits::ADVERT_TAGS
            && advert.circumstances.macs.len() <= limits::ADVERT_MACS
            && short(&advert.circumstances.no_gpu)
            && advert.gpus.iter().map(|g| &g.name).all(short)
            && advert.models.iter().chain(&advert.tags).chain([&advert.region, &advert.version]).all(short);
        if !fits {
            return Err(AdvertError::TooLong);
        }
        let sane = |bytes: u64| bytes <= limits::ADVERT_MEMORY_BYTES;
        let possible = sane(advert.memory_total)
            && sane(advert.load.memory_free)
            && advert.gpus.iter().all(|g| sane(g.vram_total) && g.vram_free <= g.vram_total);
        if !possible {
            return Err(AdvertError::Number);
        }
        if advert.node != sender {
            return Err(AdvertError::Impersonation);
        }
        Ok(advert)
    }

    /// Cuts lists and names to the limits, so that a strange machine still has an advert.
    pub fn truncate(&mut self) {
        fn cut(s: &mut String) {
            let mut end = s.len().min(limits::ADVERT_NAME_BYTES);
            while !s.is_char_boundary(end) {
                end -= 1;
            }
            s.truncate(end);
        }
        self.gpus.truncate(limits::ADVERT_GPUS);
        self.models.truncate(limits::ADVERT_MODELS);
        self.tags.truncate(limits::ADVERT_TAGS);
        self.gpus.iter_mut().for_each(|g| cut(&mut g.name));
        self.models.iter_mut().chain(&mut self.tags).for_each(cut);
        cut(&mut self.region);
        cut(&mut self.version);
        cut(&mut self.circumstances.no_gpu);
        self.circumstances.macs.truncate(limits::ADVERT_MACS);
        let most = limits::ADVERT_MEMORY_BYTES;
        self.memory_total = self.memory_total.min(most);
        self.load.memory_free = self.load.memory_free.min(most);
        for gpu in &mut self.gpus {
            gpu.vram_total = gpu.vram_total.min(most);
            gpu.vram_free = gpu.vram_free.min(gpu.vram_total);
        }
        // The longest legal lists together are over 1 KiB: models give way first, they can be asked for.
        while self.to_bytes().is_err() && self.models.pop().is_some() {}
        while self.to_bytes().is_err() && self.gpus.pop().is_some() {}
    }

    /// Whether this advert replaces `other` of the same node.
    #[must_use]
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.incarnation, self.seq) > (other.incarnation, other.seq)
    }
}

/// One tool of a node, without its card.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// The tool's name.
    pub name: ToolName,
    /// Its version.
    pub version: String,
    /// The hash of its card.
    pub card: CardHash,
}

/// All available tools of a node, sorted by name. A quarantined tool is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Manifest {
    entries: Vec<ManifestEntry>,
}

/// Why bytes are not the manifest asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ManifestError {
    /// Not a manifest, or too large.
    #[error("manifest: {0}")]
    Codec(#[from] CodecError),
    /// Over 1,024 tools, unsorted, or a name twice.
    #[error("manifest is not sorted, names a tool twice or has over {} tools", limits::TOOLS_PER_NODE)]
    Invalid,
    /// Another manifest than the one asked for.
    #[error("manifest {got} came for {wanted}")]
    Hash {
        /// The hash asked for.
        wanted: ToolSetHash,
        /// The hash of what came.
        got: ToolSetHash,
    },
}

impl Manifest {
    /// Sorts and takes the entries; the first 1,024 by name.
    #[must_use]
    pub fn new(mut entries: Vec<ManifestEntry>) -> Self {
        entries.sort();
        entries.dedup_by(|a, b| a.name == b.name);
        entries.truncate(limits::TOOLS_PER_NODE);
        Self { entries }
    }

    /// The entries, sorted by name.
    #[must_use]
    pub fn entries(&self) -> &[ManifestEntry] {
        &self.entries
    }

    /// The canonical bytes.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode::<_, { limits::MANIFEST_BYTES }>(&self.entries)
    }

    /// The hash of the canonical bytes.
    ///
    /// # Errors
    /// As [`Manifest::to_bytes`].
    pub fn hash(&self) -> Result<ToolSetHash, CodecError> {
        Ok(hash(&self.to_bytes()?))
    }

    /// Decodes a manifest that was asked for by hash.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn from_bytes(bytes: &[u8], wanted: ToolSetHash) -> Result<Self, ManifestError> {
        let got = hash(bytes);
        if got != wanted {
            return Err(ManifestError::Hash { wanted, got });
        }
        let entries: Vec<ManifestEntry> = codec::decode::<_, { limits::MANIFEST_BYTES }>(bytes)?;
        let sorted = entries.is_sorted_by(|a, b| a.name < b.name);
        if entries.len() > limits::TOOLS_PER_NODE || !sorted {
            return Err(ManifestError::Invalid);
        }
        Ok(Self { entries })
    }
}

fn hash(bytes: &[u8]) -> ToolSetHash {
    ToolSetHash::from_bytes(
        Sha256::new().chain_update(b"octomesh-manifest-v1").chain_update(bytes).finalize().into(),
    )
}

/// `/octomesh/cards/1`: what one node asks of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CardsRequest {
    /// The manifest with this hash.
    Manifest(ToolSetHash),
    /// Cards by hash, at most 64.
    Cards(Vec<CardHash>),
}

/// `/octomesh/cards/1`: the answer. Bytes are canonical forms, checked by hash by whoever asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CardsReply {
    /// The manifest.
    Manifest(Vec<u8>),
    /// The cards that are here, as many as fit into a reply, in the order asked for; the rest is asked for again.
    Cards(Vec<Vec<u8>>),
    /// Not here (any more).
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advert() -> Advert {
        Advert {
            node: NodeId::from_bytes([1; 32]),
            incarnation: 1_700_000_000,
            seq: 2,
            load: LoadState {
                slots: 4,
                running: 1,
                queued: 0,
                work_ms: 120,
                memory_free: 1 << 30,
                draining: false,
                ready: true,
                pace_percent: 100,
            },
            memory_total: 2 << 30,
            gpus: vec![GpuAdvert {
                name: "RTX".into(),
                vram_total: 24 << 30,
                vram_free: 20 << 30,
                age_ms: 10,
                declared: true,
            }],
            models: vec![],
            tool_set: ToolSetHash::from_bytes([2; 32]),
            speed_percent: 100,
            sandbox: SandboxLevel::Rlimits,
            region: String::new(),
            tags: vec!["gpu".into()],
            version: "0.1.0".into(),
            circumstances: Circumstances::default(),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = advert().to_bytes().unwrap();
        assert_eq!(
            data_encoding::HEXLOWER.encode(&bytes),
            "0101010101010101010101010101010101010101010101010101010101010101fc00f153650204010078fc00000040000164fc000000800103525458fd0000000006000000fd00000000050000000a01000202020202020202020202020202020202020202020202020202020202020202640100010367707505302e312e30000000"
        );
        let mut full = advert();
        full.circumstances = Circumstances {
            yields: Some(YieldReason::GpuBusy),
            macs: vec![MacAddress([2, 0, 0, 0, 0, 1])],
            no_gpu: "nvidia: off".into(),
        };
        let tail = data_encoding::HEXLOWER.encode(&full.to_bytes().unwrap());
        assert_eq!(tail.split_at(tail.len() - 42).1, "0101010200000000010b6e76696469613a206f6666");
        assert_eq!(Advert::from_bytes(&bytes, NodeId::from_bytes([1; 32])).unwrap(), advert());
    }

    #[test]
    fn waiting() {
        let load = |slots, running, queued, work_ms| LoadState {
            slots,
            running,
            queued,
            work_ms,
            ..LoadState::default()
        };
        let wait = |load: LoadState| load.wait_ms(0, 0);
        assert_eq!(wait(load(4, 3, 0, 9000)), 0.0, "a slot is free");
        assert_eq!(wait(load(1, 1, 0, 1000)), 1000.0);
        assert_eq!(wait(load(2, 2, 0, 2000)), 500.0);
        assert_eq!(wait(load(1, 1, 1, 2000)), 2000.0);
        assert_eq!(load(1, 0, 0, 0).wait_ms(1, 500), 500.0, "what came since is load too");
        assert_eq!(load(1, 1, 0, 500).wait_ms(-1, -500), 0.0, "what has left since is none");
        assert_eq!(load(1, 0, 0, 0).wait_ms(i64::MIN, i64::MIN), 0.0);
        assert!(load(u16::MAX, u16::MAX, u16::MAX, u32::MAX).wait_ms(i64::MAX, i64::MAX).is_finite());
    }

    #[test]
    fn an_advert_in_anothers_name_is_refused() {
        let bytes = advert().to_bytes().unwrap();
        assert_eq!(Advert::from_bytes(&bytes, NodeId::from_bytes([9; 32])), Err(AdvertError::Impersonation));
    }

    #[test]
    fn a_strange_machine_still_has_an_advert() {
        let mut a = advert();
        a.gpus = vec![GpuAdvert { name: "é".repeat(200), ..a.gpus[0].clone() }; 20];
        a.models = vec!["m".repeat(500); 40];
        a.tags = vec!["t".repeat(100); 40];
        a.circumstances.macs = vec![MacAddress([255; 6]); 9];
        a.circumstances.no_gpu = "n".repeat(400);
        (a.memory_total, a.load.memory_free) = (u64::MAX, u64::MAX);
        a.truncate();
        let bytes = a.to_bytes().unwrap();
        assert!(Advert::from_bytes(&bytes, a.node).is_ok());
    }

    #[test]
    fn numbers_that_can_not_be_are_refused() {
        let refused = |change: fn(&mut Advert)| {
            let mut advert = advert();
            change(&mut advert);
            let bytes = advert.to_bytes().unwrap();
            assert_eq!(Advert::from_bytes(&bytes, advert.node), Err(AdvertError::Number));
            advert.truncate();
            assert!(Advert::from_bytes(&advert.to_bytes().unwrap(), advert.node).is_ok());
        };
        refused(|a| a.memory_total = u64::MAX);
        refused(|a| a.load.memory_free = 1 << 51);
        refused(|a| a.gpus[0].vram_free = a.gpus[0].vram_total + 1);
        refused(|a| (a.gpus[0].vram_total, a.gpus[0].vram_free) = (u64::MAX, u64::MAX));
    }

    #[test]
    fn manifest_is_checked() {
        let entry = |n: &str| ManifestEntry {
            name: ToolName::parse(n).unwrap(),
            version: "1".into(),
            card: CardHash::from_bytes([3; 32]),
        };
        let manifest = Manifest::new(vec![entry("b"), entry("a"), entry("b")]);
        assert_eq!(manifest.entries().len(), 2);
        let bytes = manifest.to_bytes().unwrap();
        assert_eq!(Manifest::from_bytes(&bytes, manifest.hash().unwrap()).unwrap(), manifest);
        let unsorted = codec::encode::<_, 1024>(&vec![entry("b"), entry("a")]).unwrap();
        assert_eq!(Manifest::from_bytes(&unsorted, hash(&unsorted)), Err(ManifestError::Invalid));
    }
}
