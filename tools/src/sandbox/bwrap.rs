//! bubblewrap as the builder of namespaces. It becomes the process; inside it our own binary goes on.
use std::{
    ffi::OsString,
    io::{Seek, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::MemfdFlags;

use super::{
    SANDBOX_INIT_ARGUMENT,
    plan::{ETC, ETC_NETWORK, ID_INSIDE, INIT_INSIDE, Plan, SYSTEM, TOOL_INSIDE, WORKSPACE_INSIDE},
};

/// Where bubblewrap is looked for.
const PLACES: [&str; 3] = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"];

/// The program, when it is installed.
pub(super) fn find() -> Option<PathBuf> {
    PLACES.iter().map(PathBuf::from).find(|p| p.is_file())
}

/// Becomes bubblewrap; returns only when that fails. The options are passed through memory, because what is on the command
/// line can be read inside.
pub(super) fn become_it(plan: &Plan, args: &[OsString]) -> String {
    let inside = match serde_json::to_string(&plan.inside()) {
        Ok(text) => text,
        Err(e) => return e.to_string(),
    };
    // Open until bubblewrap has read them; std does not close what has no close-on-exec.
    let files = [("passwd", Plan::passwd()), ("group", Plan::group())];
    let files: Result<Vec<(&str, OwnedFd)>, String> =
        files.iter().map(|(name, text)| Ok((*name, in_memory(name, text.as_bytes())?))).collect();
    let options = files.and_then(|files| {
        let mut bytes = Vec::new();
        for option in options(plan, &files) {
            bytes.extend_from_slice(option.as_bytes());
            bytes.push(0);
        }
        Ok((in_memory("options", &bytes)?, files))
    });
    let (options, _files) = match options {
        Ok(all) => all,
        Err(text) => return text,
    };
    let error = Command::new(&plan.bwrap)
        .arg("--args")
        .arg(options.as_raw_fd().to_string())
        .args(["--", INIT_INSIDE, SANDBOX_INIT_ARGUMENT, "confine"])
        .arg(inside)
        .args(args)
        .exec();
    format!("{}: {error}", plan.bwrap.display())
}

fn in_memory(name: &str, bytes: &[u8]) -> Result<OwnedFd, String> {
    let say = |e: std::io::Error| format!("{name}: {e}");
    let fd = rustix::fs::memfd_create(name, MemfdFlags::empty()).map_err(|e| say(e.into()))?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).and_then(|()| file.rewind()).map_err(say)?;
    Ok(file.into())
}

fn options(plan: &Plan, files: &[(&str, OwnedFd)]) -> Vec<OsString> {
    let mut all = Options::default();
    all.words("--unshare-user --unshare-ipc --unshare-uts --unshare-cgroup-try");
    if plan.defends("pidns") {
        all.words("--unshare-pid");
    }
    all.words("--die-with-parent --new-session --hostname sandbox");
    all.words(if plan.defends("rights") { "--cap-drop ALL" } else { "--cap-add ALL" });
    if !plan.network && plan.defends("netns") {
        all.words("--unshare-net");
    }
    all.words(&format!("--uid {ID_INSIDE} --gid {ID_INSIDE}"));
    for folder in SYSTEM.map(Path::new) {
        match folder.read_link() {
            Ok(to) => all.pair("--symlink", &to, folder),
            Err(_) if folder.is_dir() => all.pair("--ro-bind", folder, folder),
            Err(_) => {}
        }
    }
    for path in ETC.iter().chain(ETC_NETWORK.iter().filter(|_| plan.network)).map(Path::new) {
        all.pair("--ro-bind-try", path, path);
    }
    for (name, fd) in files {
        all.words(&format!("--ro-bind-data {} /etc/{name}", fd.as_raw_fd()));
    }
    all.words(if plan.defends("pidns") {
        "--proc /proc --dev /dev"
    } else {
        "--bind /proc /proc --dev /dev"
    });
    all.words(&format!("--size {0} --tmpfs /tmp --size {0} --tmpfs /dev/shm", plan.tmp_bytes));
    for device in &plan.devices {
        all.pair("--dev-bind-try", device, device);
    }
    all.pair("--ro-bind", &plan.init, Path::new(INIT_INSIDE));
    if let Some(tool) = &plan.tool {
        all.pair("--ro-bind", tool, Path::new(TOOL_INSIDE));
    }
    if let Some(program) = plan.lone_program().filter(|p| *p != plan.init) {
        all.pair("--ro-bind", program, program);
    }
    if !plan.defends("files") {
        all.words("--bind / /outside");
    }
    all.pair("--bind", &plan.workspace, Path::new(WORKSPACE_INSIDE));
    all.words("--remount-ro / --chdir");
    all.0.push(WORKSPACE_INSIDE.into());
    all.0
}

#[derive(Default)]
struct Options(Vec<OsString>);

impl Options {
    fn words(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    fn pair(&mut self, option: &str, from: &Path, to: &Path) {
        self.0.extend([option.into(), from.as_os_str().to_owned(), to.as_os_str().to_owned()]);
    }
}
