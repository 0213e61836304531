//! Who is in the mesh, how they are and what they can do.

mod peers;
mod state;
mod task;
pub mod view;

pub(crate) use peers::write as write_peers;
pub(crate) use task::Membership;
pub use view::{Member, MemberState, MeshView, RemoteTool};
