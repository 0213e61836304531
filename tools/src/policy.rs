//! Who may call what here. Pure, and asked by the executor before a step gets a place.
//!
//! The default: members may call what their role and their grants allow; tools that run anybody's code need a role that is
//! trusted with it and one of the first two sandbox levels; the owner's own calls on this node are the owner's business.
use octomesh_protocol::{
    card::{SandboxLevel, Source, ToolCard},
    trust::Role,
};

use crate::tool::Caller;

/// Tools that run code which the caller brings.
const CODE_TOOLS: [&str; 2] = ["shell", "run_python_code"];
/// The least level at which members may bring code.
pub const CODE_LEVEL: SandboxLevel = SandboxLevel::UsernsLandlockSeccomp;
/// The least level at which a member may bring code whose certificate says that it accepts this level: without namespaces.
const GRANTED_LEVEL: SandboxLevel = SandboxLevel::LandlockSeccomp;

/// Why a call is refused, in words for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Denied {
    /// One sentence.
    pub reason: String,
}

/// Whether the tool runs code that its caller brings.
#[must_use]
pub fn runs_code(card: &ToolCard) -> bool {
    card.source == Source::Builtin && CODE_TOOLS.contains(&card.name.as_str())
}

/// The least level that the tool itself needs for this kind of caller.
#[must_use]
pub fn least_level(card: &ToolCard, local: bool) -> Option<SandboxLevel> {
    card.needs.min_sandbox.filter(|_| !(local && runs_code(card)))
}

/// Whether `caller` may call the tool on a node whose programs run at `level`.
///
/// # Errors
/// [`Denied`].
pub fn decide(caller: &Caller, card: &ToolCard, level: SandboxLevel) -> Result<(), Denied> {
    let deny = |reason: String| Err(Denied { reason });
    if caller.local {
        return match least_level(card, true) {
            Some(least) if level < least => deny(format!("tools run at {level} here, below {least}")),
            _ => Ok(()),
        };
    }
    let named = caller.grants.tools.as_ref().map(|tools| tools.contains(&card.name));
    if named == Some(false) {
        return deny(format!("{} is not granted {}", caller.name, card.name));
    }
    if let Some(least) = caller.grants.min_sandbox
        && level < least
    {
        return deny(format!("tools run at {level} here, below {least}, which {} demands", caller.name));
    }
    if !runs_code(card) {
        return match card.needs.min_sandbox {
            Some(least) if level < least => deny(format!("tools run at {level} here, below {least}")),
            _ => Ok(()),
        };
    }
    if caller.role == Role::Client && named != Some(true) {
        return deny(format!("{} is a client; {} has to be granted to it by name", caller.name, card.name));
    }
    let accepts_less = named == Some(true) && caller.grants.min_sandbox == Some(GRANTED_LEVEL);
    let least = if accepts_less { GRANTED_LEVEL } else { CODE_LEVEL };
    if level < least {
        return deny(format!(
            "{} needs {least} for calls of other nodes; programs run at {level} here",
            card.name
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use octomesh_protocol::{
        id::{NodeId, NodeName, ToolName},
        trust::Grants,
    };

    fn caller(role: Role) -> Caller {
        Caller {
            node: NodeId::from_bytes([1; 32]),
            name: NodeName::parse("laptop").unwrap(),
            role,
            grants: Grants::default(),
            local: false,
        }
    }

    fn card(name: &str, source: Source) -> ToolCard {
        let text = format!("name = \"{name}\"\ndescription = \"x\"");
        let mut card = crate::manifest::builtin_card(&text, "x.toml").unwrap();
        card.source = source;
        card
    }

    const LEVELS: [SandboxLevel; 5] = [
        SandboxLevel::None,
        SandboxLevel::Rlimits,
        SandboxLevel::LandlockSeccomp,
        SandboxLevel::UsernsLandlockSeccomp,
        SandboxLevel::BwrapLandlockSeccomp,
    ];

    fn least(caller: &Caller, card: &ToolCard) -> Option<SandboxLevel> {
        LEVELS.into_iter().find(|level| decide(caller, card, *level).is_ok())
    }

    #[test]
    fn code_of_members_needs_namespaces() {
        let shell = card("shell", Source::Builtin);
        for role in [Role::Admin, Role::Worker] {
            assert_eq!(least(&caller(role), &shell), Some(SandboxLevel::UsernsLandlockSeccomp));
        }
        assert_eq!(least(&caller(Role::Client), &shell), None);
        let reason = decide(&caller(Role::Client), &shell, SandboxLevel::BwrapLandlockSeccomp).unwrap_err();
        assert_eq!(reason.to_string(), "laptop is a client; shell has to be granted to it by name");
        let reason = decide(&caller(Role::Admin), &shell, SandboxLevel::LandlockSeccomp).unwrap_err();
        assert!(reason.to_string().contains("programs run at landlock+seccomp here"), "{reason}");
    }

    #[test]
    fn grants_allow_and_restrict() {
        let (shell, python) = (card("shell", Source::Builtin), card("run_python_code", Source::Builtin));
        let mut client = caller(Role::Client);
        client.grants.tools = Some(vec![ToolName::parse("shell").unwrap()]);
        assert_eq!(least(&client, &shell), Some(SandboxLevel::UsernsLandlockSeccomp));
        assert_eq!(least(&client, &python), None);
        client.grants.min_sandbox = Some(SandboxLevel::LandlockSeccomp);
        assert_eq!(least(&client, &shell), Some(SandboxLevel::LandlockSeccomp), "granted by name and level");
        client.grants.min_sandbox = Some(SandboxLevel::BwrapLandlockSeccomp);
        assert_eq!(least(&client, &shell), Some(SandboxLevel::BwrapLandlockSeccomp));
        let mut worker = caller(Role::Worker);
        worker.grants.min_sandbox = Some(SandboxLevel::LandlockSeccomp);
        assert_eq!(least(&worker, &shell), Some(SandboxLevel::UsernsLandlockSeccomp), "not granted by name");
    }

    #[test]
    fn the_owner_and_other_tools() {
        let mut owner = caller(Role::Worker);
        owner.local = true;
        let mut shell = card("shell", Source::Builtin);
        shell.needs.min_sandbox = Some(CODE_LEVEL);
        assert_eq!(least(&owner, &shell), Some(SandboxLevel::None));
        let mut own = card("render", Source::Process);
        assert_eq!(least(&caller(Role::Client), &own), Some(SandboxLevel::None));
        own.needs.min_sandbox = Some(SandboxLevel::Rlimits);
        assert_eq!(least(&owner, &own), Some(SandboxLevel::Rlimits));
        assert_eq!(least(&caller(Role::Client), &own), Some(SandboxLevel::Rlimits));
        // A process tool can't have a built-in's name where the built-in is; elsewhere it is the owner's program.
        assert_eq!(least(&caller(Role::Client), &card("shell", Source::Process)), Some(SandboxLevel::None));
    }
}
