//! Questions to the person at the terminal. Without a terminal nobody is asked: a command then needs `--yes`, and a passphrase
//! comes from a variable or from stdin.
use std::io::{self, IsTerminal, Write};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr},
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{CliError, Context, Exit};
use crate::app::root::Passphrase;

/// Holds the passphrase of the root key for a script. Not a key of the configuration: it must not lie in a file.
pub(super) const PASSPHRASE_VARIABLE: &str = "OCTOMESH_ROOT_PASSPHRASE";
/// How soon Ctrl-C ends a question.
const LOOK_EVERY_MS: u8 = 100;
/// Longer lines are cut: no answer is.
const LONGEST_LINE: usize = 2048;

/// Lets `what` happen only when a person, or `--yes`, says so.
///
/// # Errors
/// Exit code 3 for anything but a yes, 130 when Ctrl-C comes instead of an answer.
pub(super) async fn confirm(context: &Context, what: &str) -> Result<(), CliError> {
    if context.yes {
        return Ok(());
    }
    if context.screen.is_json() || !io::stdin().is_terminal() {
        return Err(CliError::new(
            Exit::NeedsConfirmation,
            "needs_confirmation",
            format!("{what}: this needs a confirmation"),
        )
        .hint("repeat the command with --yes"));
    }
    let answer = ask(context, format!("{what}. Go on? [y/N] "), true).await?;
    if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        Ok(())
    } else {
        Err(CliError::new(Exit::NeedsConfirmation, "needs_confirmation", "nothing was changed"))
    }
}

/// The passphrase of a root key that exists.
///
/// # Errors
/// When there is none.
pub(super) async fn passphrase(context: &Context) -> Result<Passphrase, CliError> {
    phrase(context, "Passphrase of the root key: ").await
}

/// A passphrase for a root key; asked for twice on a terminal.
///
/// # Errors
/// When there is none, or the two differ.
pub(super) async fn new_passphrase(context: &Context) -> Result<Passphrase, CliError> {
    let first = phrase(context, "New passphrase for the root key: ").await?;
    let typed = std::env::var_os(PASSPHRASE_VARIABLE).is_none() && io::stdin().is_terminal();
    if typed && !first.is_same(&phrase(context, "The same again: ").await?) {
        return Err(CliError::usage("the two passphrases differ"));
    }
    Ok(first)
}

async fn phrase(context: &Context, prompt: &str) -> Result<Passphrase, CliError> {
    let text = match std::env::var_os(PASSPHRASE_VARIABLE) {
        Some(given) => Zeroizing::new(
            given
                .into_string()
                .map(without_line_end)
                .map_err(|_| CliError::usage(format!("{PASSPHRASE_VARIABLE} is not UTF-8")))?,
        ),
        None => ask(context, prompt.to_owned(), false).await?,
    };
    if text.is_empty() {
        return Err(CliError::usage("there is no passphrase")
            .hint(format!("type it on a terminal, or give one line on stdin or {PASSPHRASE_VARIABLE}")));
    }
    Ok(Passphrase::new(text))
}

/// A file read into a variable often ends with a newline; what is typed never does, so that it would open nothing.
fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// One line of stdin; `prompt` is shown on a terminal only, and what is typed only with `echo`.
async fn ask(context: &Context, prompt: String, echo: bool) -> Result<Zeroizing<String>, CliError> {
    let interrupt = context.interrupt.clone();
    // On a thread of its own: Ctrl-C must be heard meanwhile.
    let asked = tokio::task::spawn_blocking(move || {
        let _silent = if io::stdin().is_terminal() {
            let mut screen = io::stderr();
            screen.write_all(prompt.as_bytes())?;
            screen.flush()?;
            if echo { None } else { Some(Silent::new()?) }
        } else {
            None
        };
        line(&interrupt)
    });
    match asked.await {
        Ok(Ok(Some(line))) => Ok(line),
        Ok(Ok(None)) => Err(CliError::interrupted()),
        Ok(Err(error)) => Err(CliError::failed(format!("stdin can't be read: {error}"))),
        Err(error) => Err(CliError::failed(error.to_string())),
    }
}

/// `None` when Ctrl-C came first.
fn line(interrupt: &CancellationToken) -> io::Result<Option<Zeroizing<String>>> {
    let stdin = io::stdin();
    // All of it at once: a vector that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_LINE));
    let mut one = Zeroizing::new([0u8; 1]);
    loop {
        if interrupt.is_cancelled() {
            return Ok(None);
        }
        let mut wait = [PollFd::new(std::os::fd::AsFd::as_fd(&stdin), PollFlags::POLLIN)];
        match poll(&mut wait, PollTimeout::from(LOOK_EVERY_MS)) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        if rustix::io::read(&stdin, &mut one[..])? == 0 || *one == *b"\n" {
            break;
        }
        if bytes.len() < LONGEST_LINE {
            bytes.extend_from_slice(&*one);
        }
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
        Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "not UTF-8")),
    }
}

/// The terminal does not show what is typed while this lives.
struct Silent(Termios);

impl Silent {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // silent-ok: a terminal that has gone shows nothing
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
        let _ = io::stderr().write_all(b"\n");
    }
}

#[cfg(test)]
mod tests {
    use super::without_line_end;

    #[test]
    fn one_line_end_is_no_part_of_a_passphrase() {
        for (given, kept) in
            [("a b", "a b"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a\r", "a\r"), ("\n", "")]
        {
            assert_eq!(without_line_end(given.into()), kept, "{given:?}");
        }
    }
}
