//! Processes that are watched, ended and looked for.
use std::{
    fs::{self, File},
    io::Write,
    os::unix::{
        fs::MetadataExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::wait::wait_within;

/// No command of a test takes longer.
const COMMAND: Duration = Duration::from_secs(60);

/// A process in a group of its own, with its output in files.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    out: PathBuf,
    err: PathBuf,
    status: Option<ExitStatus>,
}

impl Running {
    /// Starts `command`; `folder` gets the files `NAME.out` and `NAME.err`.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(mut command: Command, folder: &Path, name: &str) -> Self {
        let (out, err) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.err")));
        let child = command
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Self { child, name: name.to_owned(), out, err, status: None }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to stdout so far.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// What it wrote to stderr so far.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    /// Writes `text` to its stdin and closes it.
    pub fn feed(&mut self, text: &[u8]) {
        // A command that does not want it all ends before it has read it all.
        let _ = self.child.stdin.take().unwrap().write_all(text);
    }

    /// Sends a signal to it alone.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            kill_process(pid(self.child.id()), signal).unwrap();
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
        }
        self.status
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within `patience`.
    pub fn wait(&mut self, patience: Duration) -> Done {
        let what = format!("the end of {}", self.name);
        let status = wait_within(patience, &what, || {
            self.ended().ok_or_else(|| format!("{}\n{}", self.out(), self.err()))
        });
        Done {
            code: status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)),
            out: self.out(),
            err: self.err(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (what, text) in [("stdout", self.out()), ("stderr", self.err())] {
                let lines: Vec<&str> = text.lines().collect();
                let tail = &lines[lines.len().saturating_sub(25)..];
                println!("--- {} {what}\n{}", self.name, tail.join("\n"));
            }
        }
        if self.ended().is_none() {
            let _ = kill_process_group(pid(self.child.id()), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    /// Its exit code; minus the signal that ended it.
    pub code: i32,
    /// Its stdout.
    pub out: String,
    /// Its stderr.
    pub err: String,
}

impl Done {
    /// Runs `command` to its end, with `input` on its stdin.
    pub fn of(mut command: Command, folder: &Path, name: &str, input: Option<&[u8]>) -> Self {
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut running = Running::start(command, folder, name);
        if let Some(input) = input {
            running.feed(input);
        }
        running.wait(COMMAND)
    }

    /// Itself, when it ended with `code`.
    ///
    /// # Panics
    /// When it did not.
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// The one JSON object on stdout.
    ///
    /// # Panics
    /// When there is anything else.
    pub fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.out).unwrap_or_else(|e| {
            panic!("not one JSON object: {e}\nstdout: {}\nstderr: {}", self.out, self.err)
        });
        assert!(value.is_object(), "not an object: {}", self.out);
        value
    }

    /// `/error/message` of the object, checked for its form.
    ///
    /// # Panics
    /// When it is no error object.
    pub fn error(&self) -> String {
        let value = self.json();
        let error = value["error"].as_object().unwrap_or_else(|| panic!("no error: {value}"));
        assert!(error["code"].as_str().is_some_and(|c| !c.is_empty()), "{value}");
        assert!(error.contains_key("hint"), "{value}");
        error["message"].as_str().unwrap_or_else(|| panic!("no message: {value}")).to_owned()
    }
}

fn place(path: &std::path::Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// Processes that have `text` in their command line, or `text` as their working directory or its beginning: `pid command`.
/// In a sandbox the directory has another path, but it is the same directory.
pub fn processes_with(text: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|b| b.is_ascii_digit()) || name == own {
            continue;
        }
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let cwd = entry.path().join("cwd");
        let same = place(&cwd).is_some_and(|there| Some(there) == place(text.as_ref()));
        let inside = same || fs::read_link(cwd).is_ok_and(|dir| dir.starts_with(text));
        // A zombie has neither.
        if line.contains(text) || inside {
            found.push(format!("{name} {line}"));
        }
    }
    found
}
