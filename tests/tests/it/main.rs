//! Several nodes, real processes, real networks. Each module is one promise of the product.
mod bad_input;
mod capture;
mod classical;
mod demo;
mod exits;
mod failover;
mod http;
mod interrupt;
mod namespaces;
mod restart;
mod shell;
mod tool_folder;
