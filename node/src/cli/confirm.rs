//! Asking before something that can't be taken back.
use std::io::{BufRead, IsTerminal};

use super::{CliError, Context, Exit};

/// Longest answer that is read: "yes" and a little more.
const ANSWER_BYTES: u64 = 64;

/// Goes on after a yes: from `--yes`, or from the person at the terminal.
///
/// # Errors
/// Exit code 3 after anything else, and where nobody can be asked.
pub(super) fn confirm(context: &Context, question: &str) -> Result<(), CliError> {
    if context.yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    let unsure = |message: String| CliError::new(Exit::NeedsConfirmation, "needs_confirmation", message);
    if context.screen.is_json() || !stdin.is_terminal() {
        return Err(unsure(question.to_owned()).hint("give --yes to go on without being asked"));
    }
    context.screen.warn(&format!("{question} [y/N]"));
    let mut answer = String::new();
    let read = std::io::Read::take(stdin.lock(), ANSWER_BYTES).read_line(&mut answer);
    match read {
        Ok(_) if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") => Ok(()),
        _ => Err(unsure("nothing was done".to_owned())),
    }
}
