//! AMD and Intel cards as the kernel shows them under `/sys`, and which cards are on the bus at all.
use std::{
    fs,
    path::{Path, PathBuf},
};

use octomesh_tools::regular;
use tokio::time::Instant;

use super::{
    gpu::{CARDS, Card, CardId, GpuProblem, Vendor, cut},
    probe::{Probe, Reading},
};

/// PCI vendors.
pub(super) const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;
const INTEL: u32 = 0x8086;
/// PCI classes 0x03.. are displays, which all GPUs are.
const DISPLAY: u32 = 0x03;
/// A file of `/sys` is a page at most.
const FILE_BYTES: u64 = 4096;
/// Devices on a bus, and entries in `class/drm`: a machine has a few dozen.
const ENTRIES: usize = 1024;
/// Less than this behind a window of an Intel device is no memory for computing.
const LEAST_MEMORY: u64 = 1 << 30;

pub(super) fn text(path: &Path) -> Option<String> {
    regular::read_text(path, FILE_BYTES).ok().map(|text| text.trim().to_owned())
}

/// Decimal, or hexadecimal with `0x`.
fn number(path: &Path) -> Option<u64> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Names in a folder, sorted, at most so many.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES);
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether the bus shows a display of that vendor, with or without a driver.
pub(super) fn has_display(root: &Path, vendor: u32) -> bool {
    let devices = root.join("bus/pci/devices");
    names(&devices).iter().any(|name| {
        let device = devices.join(name);
        number(&device.join("vendor")) == Some(u64::from(vendor))
            && number(&device.join("class")).is_some_and(|class| class >> 16 == u64::from(DISPLAY))
    })
}

/// Whether the kernel shows what is on its buses: then what is not there does not exist.
pub(super) fn shows_buses(root: &Path) -> bool {
    root.join("bus").is_dir()
}

/// `card0`, not `card0-DP-1` and not `renderD128`.
fn is_card(name: &str) -> bool {
    name.strip_prefix("card").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// Where a card is on the bus, from the file that says what it is.
fn slot(device: &Path) -> Option<String> {
    let about = text(&device.join("uevent"))?;
    about.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")).map(cut)
}

/// Reads the cards of one vendor.
pub(super) struct SysfsProbe {
    root: PathBuf,
    vendor: Vendor,
}

impl SysfsProbe {
    pub(super) fn amd(root: PathBuf) -> Self {
        Self { root, vendor: Vendor::Amd }
    }

    pub(super) fn intel(root: PathBuf) -> Self {
        Self { root, vendor: Vendor::Intel }
    }

    fn id(&self) -> u32 {
        if self.vendor == Vendor::Intel { INTEL } else { AMD }
    }
}

impl Probe for SysfsProbe {
    fn vendor(&self) -> Vendor {
        self.vendor
    }

    fn read(&mut self) -> Reading {
        let drm = self.root.join("class/drm");
        let mut devices: Vec<(String, PathBuf, PathBuf)> = names(&drm)
            .into_iter()
            .filter(|name| is_card(name))
            .map(|name| drm.join(name))
            .filter(|card| number(&card.join("device/vendor")) == Some(u64::from(self.id())))
            .filter_map(|card| Some((slot(&card.join("device"))?, card.clone(), card.join("device"))))
            .collect();
        // In the order of the bus, which is the order in which the vendors' libraries count.
        devices.sort();
        let (mut cards, mut first) = (Vec::new(), None);
        for (index, (slot, card, device)) in devices.iter().take(CARDS).enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let found = if self.vendor == Vendor::Amd {
                amd(device, slot, index)
            } else {
                intel(card, device, slot, index)
            };
            match found {
                Ok(card) => cards.push(card),
                Err(problem) => first = first.or(Some(problem)),
            }
        }
        let present = has_display(&self.root, self.id());
        let none = || match (present, devices.is_empty()) {
            (true, true) => GpuProblem::NoDriver,
            _ => GpuProblem::NoDevice,
        };
        let problem = first.or_else(|| cards.is_empty().then(none));
        // A processor's own graphics is no card that somebody misses.
        let present = present && problem != Some(GpuProblem::SharedMemory);
        Reading { cards, problem, present }
    }
}

fn amd(device: &Path, slot: &str, index: u32) -> Result<Card, GpuProblem> {
    let total = number(&device.join("mem_info_vram_total"));
    let total = total.ok_or_else(|| GpuProblem::Driver("amdgpu shows no mem_info_vram_total".into()))?;
    let used = number(&device.join("mem_info_vram_used"));
    let read = Instant::now();
    let unique = text(&device.join("unique_id")).filter(|id| {
        (1..=16).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_hexdigit())
            && id.bytes().any(|b| b != b'0')
    });
    let id = unique.map_or_else(|| format!("pci:{slot}"), |id| format!("GPU-{id}"));
    Ok(Card {
        id: CardId::new(&id),
        vendor: Vendor::Amd,
        index,
        name: name(device, "AMD"),
        total,
        free: used.map(|used| (total.saturating_sub(used), read)),
        busy_percent: percent(&device.join("gpu_busy_percent")),
        users: None,
    })
}

/// Upstream kernels tell the size of the memory only, and that as the window through which the processor sees it; how much is free is told
/// by Intel's own builds of i915. Where nobody tells, it is unknown.
fn intel(card: &Path, device: &Path, slot: &str, index: u32) -> Result<Card, GpuProblem> {
    let told = number(&card.join("lmem_total_bytes"));
    let total = told.or_else(|| window(device)).filter(|total| *total >= LEAST_MEMORY);
    let total = total.filter(|_| !is_integrated(slot)).ok_or(GpuProblem::SharedMemory)?;
    let free = number(&card.join("lmem_avail_bytes"));
    let read = Instant::now();
    Ok(Card {
        id: CardId::new(&format!("pci:{slot}")),
        vendor: Vendor::Intel,
        index,
        name: name(device, "Intel"),
        total,
        free: free.map(|free| (free.min(total), read)),
        busy_percent: None,
        users: None,
    })
}

/// Graphics of Intel's processors have had this place ever since.
fn is_integrated(slot: &str) -> bool {
    slot.ends_with("00:02.0") && slot.starts_with("0000:00")
}

/// Size of the second memory window: lines of `resource` are first address, last address and flags.
fn window(device: &Path) -> Option<u64> {
    let resource = text(&device.join("resource"))?;
    let mut words = resource.lines().nth(2)?.split_whitespace();
    let mut address = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (first, last) = (address()?, address()?);
    (first != 0).then(|| last.checked_sub(first)?.checked_add(1)).flatten()
}

fn percent(path: &Path) -> Option<u8> {
    number(path).and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= 100)
}

fn name(device: &Path, vendor: &str) -> String {
    if let Some(name) = text(&device.join("product_name")).map(|n| cut(&n)).filter(|n| !n.is_empty()) {
        return name;
    }
    let number = text(&device.join("device")).map(|n| cut(&n)).unwrap_or_default();
    format!("{vendor} {number}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A tree as the kernel shows it, with the facts that a test wants.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn device(&self, slot: &str, vendor: &str, class: &str, files: &[(&str, &str)]) -> PathBuf {
            let device = self.0.path().join("bus/pci/devices").join(slot);
            fs::create_dir_all(&device).unwrap();
            let uevent = format!("DRIVER=x\nPCI_CLASS=30000\nPCI_SLOT_NAME={slot}\n");
            let always =
                [("vendor", vendor), ("class", class), ("uevent", uevent.as_str()), ("device", "0x744c")];
            for (file, content) in always.iter().chain(files) {
                fs::write(device.join(file), format!("{content}\n")).unwrap();
            }
            device
        }

        fn card(&self, number: u32, device: &Path, files: &[(&str, &str)]) {
            let card = self.0.path().join(format!("class/drm/card{number}"));
            fs::create_dir_all(&card).unwrap();
            std::os::unix::fs::symlink(device, card.join("device")).unwrap();
            for (file, content) in files {
                fs::write(card.join(file), content).unwrap();
            }
            // Connectors and render nodes stand beside the cards.
            fs::create_dir_all(self.0.path().join(format!("class/drm/card{number}-DP-1"))).unwrap();
            fs::create_dir_all(self.0.path().join("class/drm/renderD128")).unwrap();
        }

        fn amd(&self) -> Reading {
            SysfsProbe::amd(self.0.path().to_owned()).read()
        }

        fn intel(&self) -> Reading {
            SysfsProbe::intel(self.0.path().to_owned()).read()
        }
    }

    #[test]
    fn two_amd_cards_of_different_size() {
        let tree = Tree::new();
        let big = [
            ("mem_info_vram_total", "25753026560"),
            ("mem_info_vram_used", "1073741824"),
            ("gpu_busy_percent", "37"),
            ("unique_id", "a1b2c3d4e5f60718"),
            ("product_name", "Radeon RX 7900 XTX"),
        ];
        let big = tree.device("0000:03:00.0", "0x1002", "0x030000", &big);
        let small = [("mem_info_vram_total", "8589934592"), ("mem_info_vram_used", "0"), ("unique_id", "0")];
        let small = tree.device("0000:0a:00.0", "0x1002", "0x038000", &small);
        // The kernel's numbers do not follow the bus.
        tree.card(0, &small, &[]);
        tree.card(1, &big, &[]);
        let found = tree.amd();
        assert_eq!((found.problem, found.present), (None, true));
        let [first, second] = &found.cards[..] else { panic!("{:?}", found.cards) };
        assert_eq!(
            (first.id.as_str(), first.index, first.total),
            ("GPU-a1b2c3d4e5f60718", 0, 25_753_026_560)
        );
        assert_eq!(first.free.unwrap().0, 25_753_026_560 - GIB);
        assert_eq!((first.busy_percent, first.name.as_str()), (Some(37), "Radeon RX 7900 XTX"));
        assert_eq!((second.id.as_str(), second.name.as_str()), ("pci:0000:0a:00.0", "AMD 0x744c"));
        assert_eq!((second.free.unwrap().0, second.busy_percent), (8 * GIB, None));
        assert!(tree.intel().cards.is_empty());
    }

    #[test]
    fn what_amdgpu_does_not_tell_is_unknown() {
        let tree = Tree::new();
        let old = tree.device("0000:03:00.0", "0x1002", "0x030000", &[("mem_info_vram_total", "8589934592")]);
        tree.card(0, &old, &[]);
        assert_eq!(tree.amd().cards[0].free, None);
        fs::write(old.join("mem_info_vram_used"), "rubbish").unwrap();
        fs::write(old.join("gpu_busy_percent"), "101").unwrap();
        assert_eq!((tree.amd().cards[0].free, tree.amd().cards[0].busy_percent), (None, None));
        fs::write(old.join("mem_info_vram_used"), (20 * GIB).to_string()).unwrap();
        assert_eq!(tree.amd().cards[0].free.unwrap().0, 0, "more used than there is");
        fs::write(old.join("mem_info_vram_total"), "99999999999999999999999").unwrap();
        let found = tree.amd();
        assert!(found.cards.is_empty() && matches!(found.problem, Some(GpuProblem::Driver(_))));
    }

    #[test]
    fn a_card_without_a_driver_is_seen_on_the_bus() {
        let tree = Tree::new();
        assert!(!has_display(tree.0.path(), NVIDIA) && !shows_buses(tree.0.path()));
        assert_eq!(tree.amd().problem, Some(GpuProblem::NoDevice));
        tree.device("0000:03:00.0", "0x1002", "0x030000", &[]);
        tree.device("0000:04:00.0", "0x10de", "0x040300", &[]);
        let found = tree.amd();
        assert_eq!((found.problem, found.present), (Some(GpuProblem::NoDriver), true));
        assert!(!has_display(tree.0.path(), NVIDIA), "its sound is no display");
        tree.device("0000:04:00.1", "0x10de", "0x030200", &[]);
        assert!(has_display(tree.0.path(), NVIDIA));
    }

    #[test]
    fn intel_cards() {
        let tree = Tree::new();
        let integrated = tree.device("0000:00:02.0", "0x8086", "0x030000", &[]);
        tree.card(0, &integrated, &[]);
        let found = tree.intel();
        assert_eq!(
            (found.cards.len(), found.problem, found.present),
            (0, Some(GpuProblem::SharedMemory), false)
        );
        let window = "0x00000000d0000000 0x00000000d0ffffff 0x0000000000140204\n\
                      0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                      0x0000004000000000 0x00000043ffffffff 0x000000000014220c";
        let xe = tree.device("0000:03:00.0", "0x8086", "0x038000", &[("resource", window)]);
        tree.card(1, &xe, &[]);
        let found = tree.intel();
        assert_eq!((found.cards[0].total, found.cards[0].free), (16 * GIB, None), "its size, and no more");
        let i915 = tree.device("0000:04:00.0", "0x8086", "0x038000", &[]);
        tree.card(2, &i915, &[("lmem_total_bytes", "8589934592\n"), ("lmem_avail_bytes", "4294967296\n")]);
        let found = tree.intel();
        assert_eq!((found.cards[1].total, found.cards[1].free.unwrap().0), (8 * GIB, 4 * GIB));
        assert_eq!(found.cards[1].id.as_str(), "pci:0000:04:00.0");
    }

    #[test]
    fn this_machine_is_read_without_harm() {
        for mut probe in [SysfsProbe::amd("/sys".into()), SysfsProbe::intel("/sys".into())] {
            let found = probe.read();
            assert!(!found.cards.is_empty() || found.problem.is_some());
        }
    }
}
