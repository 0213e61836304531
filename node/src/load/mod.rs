//! What this machine is: memory, GPUs.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use octomesh_protocol::advert::GpuAdvert;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use tokio::time::Instant;

use crate::config::DeclaredGpu;

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

/// Hardware of this machine as it is advertised; cheap to clone.
#[derive(Clone)]
pub(crate) struct Hardware {
    memory: MemoryReader,
    gpus: Arc<[DeclaredGpu]>,
    /// GPU memory reserved by leases per GPU, in bytes, kept by the executor.
    vram_reserved: tokio::sync::watch::Receiver<Vec<u64>>,
}

impl Hardware {
    pub(crate) fn new(
        memory: MemoryReader,
        gpus: Vec<DeclaredGpu>,
        vram_reserved: tokio::sync::watch::Receiver<Vec<u64>>,
    ) -> Self {
        Self { memory, gpus: gpus.into(), vram_reserved }
    }

    /// Bytes.
    pub(crate) fn memory_total(&self) -> u64 {
        self.memory.total()
    }

    /// Bytes that can be used without swapping.
    pub(crate) fn memory_free(&self) -> u64 {
        self.memory.free()
    }

    /// Declared GPUs. Such a GPU has no reading; its free memory is its total minus all reservations.
    pub(crate) fn gpus(&self) -> Vec<GpuAdvert> {
        let reserved = self.vram_reserved.borrow();
        let reserved = reserved.iter().copied().chain(std::iter::repeat(0));
        self.gpus
            .iter()
            .zip(reserved)
            .map(|(gpu, reserved)| GpuAdvert {
                name: gpu.name.clone(),
                vram_total: gpu.vram_bytes,
                vram_free: gpu.vram_bytes.saturating_sub(reserved),
                age_ms: 0,
                declared: true,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_gpus_lose_what_is_reserved() {
        let (reserve, reserved) = tokio::sync::watch::channel(vec![0, 0]);
        let gpus = vec![
            DeclaredGpu { name: "a".into(), vram_bytes: 24 },
            DeclaredGpu { name: "b".into(), vram_bytes: 8 },
        ];
        let hardware = Hardware::new(MemoryReader::new(), gpus, reserved);
        reserve.send_replace(vec![20, 0]);
        let free: Vec<u64> = hardware.gpus().iter().map(|g| g.vram_free).collect();
        assert_eq!(free, [4, 8]);
        assert!(hardware.memory_total() > 0);
    }
}
