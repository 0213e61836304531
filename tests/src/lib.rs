//! What the tests share: real `octomesh` processes with homes of their own, and ways to wait for them, end them and look for what
//! they left behind. Everything that is started here is ended when its owner is dropped, also by a panic.
pub mod api;
pub mod attacker;
pub mod machine;
pub mod member;
pub mod mesh;
pub mod namespace;
pub mod network;
pub mod picture;
pub mod process;
pub mod processors;
pub mod program;
pub mod proxy;
pub mod wait;

pub use machine::Machine;
pub use mesh::Mesh;
pub use process::{Done, Running};

/// The one suite.
pub const SUITE: &str = "X25519MLKEM768_ChaChaPoly_SHA256";
