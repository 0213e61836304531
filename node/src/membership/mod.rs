//! Who is in the mesh, how they are and what they can do.

mod catching;
mod exchange;
mod peers;
pub mod reach;
pub(crate) mod renewals;
mod state;
mod swim;
mod task;
pub mod view;

pub(crate) use peers::{AddressBook, write as write_peers};
pub(crate) use swim::SwimPort;
pub(crate) use task::{COMMANDS as MEMBERSHIP_COMMANDS, Membership, MembershipHandle};
pub use view::{Member, MemberState, MeshView, RemoteTool};
