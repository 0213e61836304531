//! Octomesh.
