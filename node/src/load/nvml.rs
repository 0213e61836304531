//! NVIDIA cards, through the library that comes with the driver. It is loaded at run time, on a thread of its own: any call may hang.
use std::{collections::BTreeSet, ffi::OsStr, path::PathBuf};

use nvml_wrapper::{Device, Nvml, enums::device::UsedGpuMemory, error::NvmlError};
use tokio::time::Instant;

use super::{
    gpu::{CARDS, Card, CardId, CardUser, GpuProblem, Vendor, cut},
    probe::{Probe, Reading},
    processes::Processes,
    sysfs,
};

/// Where the driver's installer puts it; the loader looks in its usual folders.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Processes of one card that are looked at.
const USERS: usize = 256;
/// MIG mode is on.
const MIG_ON: u32 = 1;

/// Reads NVIDIA cards.
pub(super) struct NvmlProbe {
    library: Option<PathBuf>,
    sysfs: PathBuf,
    processes: Processes,
    nvml: Option<Nvml>,
}

impl NvmlProbe {
    pub(super) fn new(library: Option<PathBuf>, sysfs: PathBuf, processes: Processes) -> Self {
        Self { library, sysfs, processes, nvml: None }
    }

    fn library(&self) -> &OsStr {
        self.library.as_ref().map_or_else(|| OsStr::new(LIBRARY), |path| path.as_os_str())
    }

    fn cards(&mut self) -> Result<(Vec<Card>, Option<GpuProblem>), GpuProblem> {
        let nvml = match self.nvml.take() {
            Some(nvml) => nvml,
            None => Nvml::builder().lib_path(self.library()).init().map_err(problem)?,
        };
        let found = read_all(&nvml, &self.processes);
        // After an error of the whole library it is loaded anew: the driver may have been replaced meanwhile.
        if found.is_ok() {
            self.nvml = Some(nvml);
        }
        found
    }
}

impl Probe for NvmlProbe {
    fn vendor(&self) -> Vendor {
        Vendor::Nvidia
    }

    fn read(&mut self) -> Reading {
        let present = sysfs::has_display(&self.sysfs, sysfs::NVIDIA);
        match self.cards() {
            Ok((cards, problem)) => {
                let none = cards.is_empty() && problem.is_none();
                Reading { cards, problem: problem.or(none.then_some(GpuProblem::NoDevice)), present }
            }
            // Where there is no card nobody misses its driver.
            Err(GpuProblem::NoLibrary(_)) if !present && sysfs::shows_buses(&self.sysfs) => {
                Reading { cards: Vec::new(), problem: Some(GpuProblem::NoDevice), present }
            }
            Err(problem) => Reading { cards: Vec::new(), problem: Some(problem), present },
        }
    }
}

/// Every card that can be read; the first problem of the others.
fn read_all(nvml: &Nvml, processes: &Processes) -> Result<(Vec<Card>, Option<GpuProblem>), GpuProblem> {
    let count = nvml.device_count().map_err(problem)?;
    let (mut cards, mut first) = (Vec::new(), None);
    for index in 0..count.min(u32::try_from(CARDS).unwrap_or(u32::MAX)) {
        let found =
            nvml.device_by_index(index).map_err(problem).and_then(|d| read_device(&d, index, processes));
        match found {
            Ok(found) => cards.extend(found),
            // Without a function no other card can be read either, and a library that has gone wrong is loaded anew.
            Err(GpuProblem::MissingSymbol(name)) => return Err(GpuProblem::MissingSymbol(name)),
            Err(problem) => first = first.or(Some(problem)),
        }
    }
    cards.truncate(CARDS);
    Ok((cards, first))
}

fn read_device(device: &Device<'_>, index: u32, processes: &Processes) -> Result<Vec<Card>, GpuProblem> {
    // A driver that does not know the question has no such cards.
    if !device.mig_mode().is_ok_and(|mode| mode.current == MIG_ON) {
        return Ok(vec![read_card(device, index, processes)?]);
    }
    let instances = device.mig_device_count().map_err(|e| GpuProblem::Mig(e.to_string()))?;
    let mut cards = Vec::new();
    for instance in 0..instances.min(u32::try_from(CARDS).unwrap_or(u32::MAX)) {
        match device.mig_device_by_index(instance) {
            Ok(part) => cards.push(read_card(&part, index, processes)?),
            // Places for instances that were not made.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => return Err(problem(error)),
        }
    }
    if cards.is_empty() { Err(GpuProblem::Mig("none was made".into())) } else { Ok(cards) }
}

fn read_card(device: &Device<'_>, index: u32, processes: &Processes) -> Result<Card, GpuProblem> {
    let id = CardId::new(&device.uuid().map_err(problem)?);
    let memory = device.memory_info().map_err(problem)?;
    let read = Instant::now();
    Ok(Card {
        id,
        vendor: Vendor::Nvidia,
        index,
        name: device.name().map_or_else(|_| "NVIDIA".to_owned(), |name| cut(&name)),
        total: memory.total,
        free: Some((memory.free.min(memory.total), read)),
        // An instance of a card has no such number.
        busy_percent: device.utilization_rates().ok().and_then(|u| u8::try_from(u.gpu.min(100)).ok()),
        users: users(device, processes),
    })
}

/// Who uses the card; `None` when the driver does not tell, which it need not.
fn users(device: &Device<'_>, processes: &Processes) -> Option<Vec<CardUser>> {
    let computing = device.running_compute_processes().ok()?;
    // A process that computes and draws stands in both lists with all that it has.
    let drawing = device.running_graphics_processes().unwrap_or_default();
    let mut seen = BTreeSet::new();
    let once = computing.into_iter().chain(drawing).filter(|p| seen.insert(p.pid));
    let user = |p: nvml_wrapper::struct_wrappers::device::ProcessInfo| {
        let (call, ours) = processes.owner(p.pid);
        let bytes = match p.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        CardUser { pid: p.pid, bytes, call, ours }
    };
    Some(once.take(USERS).map(user).collect())
}

fn problem(error: NvmlError) -> GpuProblem {
    match error {
        NvmlError::LibloadingError(error) => GpuProblem::NoLibrary(cut(&error.to_string())),
        NvmlError::LibraryNotFound => GpuProblem::NoLibrary("a part of it is missing".into()),
        NvmlError::FailedToLoadSymbol(name) => GpuProblem::MissingSymbol(cut(&name)),
        NvmlError::FunctionNotFound => GpuProblem::MissingSymbol("of another library".into()),
        NvmlError::DriverNotLoaded => GpuProblem::NoDriver,
        NvmlError::NoPermission | NvmlError::OperatingSystem => GpuProblem::NoPermission,
        NvmlError::GpuLost | NvmlError::ResetRequired => GpuProblem::Lost,
        other => GpuProblem::Driver(cut(&other.to_string())),
    }
}

#[cfg(test)]
mod tests;
