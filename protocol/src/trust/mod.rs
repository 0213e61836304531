//! Who may take part: identities, certificates, tickets.

mod role;

pub use role::{Grants, Role};
