//! The kernel tells when something comes into a folder or leaves it. Only a hint to look sooner: where it can't be had, nothing is lost.
use std::path::Path;

#[cfg(target_os = "linux")]
pub(super) use linux::Bell;

#[cfg(target_os = "linux")]
mod linux {
    use std::{io, os::fd::AsFd};

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use tokio::net::unix::pipe::Receiver;

    use super::Path;

    /// Changes that are read at once; what does not fit is read with the next ones.
    const BUFFER: usize = 4096;

    /// To be read from like a pipe.
    pub(in super::super) struct Bell(Option<Receiver>);

    impl Bell {
        /// Needs the runtime.
        pub(in super::super) fn new() -> Self {
            let made = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
            let bell = made.map_err(io::Error::from).and_then(Receiver::from_owned_fd_unchecked);
            if let Err(error) = &bell {
                tracing::debug!(%error, "the kernel does not tell of changes in the tools folder");
            }
            Self(bell.ok())
        }

        /// Watches the folder that has this path now; again and again, since another one may.
        pub(in super::super) async fn watch(&self, folder: &Path) {
            let Some(fd) = self.0.as_ref().and_then(|bell| bell.as_fd().try_clone_to_owned().ok()) else {
                return;
            };
            let folder = folder.to_owned();
            // A network file system may take its time. silent-ok: no folder, or no room for a watch; then the next look is in time
            let _ = tokio::task::spawn_blocking(move || {
                let what = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
                inotify::add_watch(fd, folder, what)
            })
            .await;
        }

        /// Waits until something happened.
        pub(in super::super) async fn rings(&mut self) {
            let Some(bell) = &self.0 else { return std::future::pending().await };
            loop {
                let mut changes = [0; BUFFER];
                let read = match bell.readable().await {
                    Ok(()) => bell.try_read(&mut changes),
                    Err(error) => Err(error),
                };
                match read {
                    Ok(bytes) if bytes > 0 => return,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    _ => return std::future::pending().await,
                }
            }
        }
    }
}

/// Nobody tells.
#[cfg(not(target_os = "linux"))]
pub(super) struct Bell;

#[cfg(not(target_os = "linux"))]
impl Bell {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) async fn watch(&self, _folder: &Path) {}

    pub(super) async fn rings(&mut self) {
        std::future::pending().await
    }
}
