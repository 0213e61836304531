//! The end of a process at one write of its journal: the row is there or is not, and nothing after it happens.
use std::{
    fmt,
    panic::resume_unwind,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Backend, JournalError, JournalHandle, schema, unix_ms};

type Kill = Box<dyn FnOnce() + Send>;

struct Chosen {
    writes_left: u32,
    before: bool,
    kill: Kill,
}

/// At which write, if at any.
#[derive(Clone, Default)]
pub(super) struct Cut(Arc<Mutex<Option<Chosen>>>);

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cut")
    }
}

impl Cut {
    fn reached(&self, before: bool) {
        let mut chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(found) = chosen.as_mut().filter(|chosen| chosen.before == before) else { return };
        if found.writes_left > 0 {
            found.writes_left -= 1;
            return;
        }
        let kill = chosen.take().map(|chosen| chosen.kill);
        drop(chosen);
        if let Some(kill) = kill {
            kill();
            // The task that wrote goes no further either. Nobody is told of a panic.
            resume_unwind(Box::new("killed at a write"));
        }
    }

    pub(super) fn before(&self) {
        self.reached(true);
    }

    pub(super) fn after(&self) {
        self.reached(false);
    }
}

impl JournalHandle {
    /// After `writes` more writes `kill` is called, before or after the next one is in the journal, and whoever wrote ends there.
    pub(crate) fn cut_at(&self, writes: u32, before: bool, kill: impl FnOnce() + Send + 'static) {
        let chosen = Chosen { writes_left: writes, before, kill: Box::new(kill) };
        *self.cut.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(chosen);
    }

    /// The journal as the next process finds it.
    pub(crate) fn reopened(&self) -> Result<Self, JournalError> {
        let Backend::Inline(connection) = &*self.backend else { panic!("in memory only") };
        schema::prepare(&connection.lock().unwrap_or_else(PoisonError::into_inner), unix_ms(&self.wall))?;
        Ok(Self { backend: Arc::clone(&self.backend), cut: Cut::default(), ..self.clone() })
    }
}
