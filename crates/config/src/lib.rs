//! Configuration: YAML files in groups, composed by a list of defaults and overridden from the command line, as
//! users of Hydra know it.
//!
//! [`compose`] turns a primary file, the groups it chooses from and a list of overrides into a [`Tree`], in which
//! every value knows the file and line it came from. [`Tree::read`] turns a tree into a typed struct, and refuses a
//! key that the struct does not have, naming it, its file and the nearest key that there is. Files are read as
//! YAML 1.2; nothing in them is ever run.
//!
//! What is understood: `defaults:` with `group: option`, `group: null`, `group: [a, b]`, `optional group: option`,
//! `override /group: option`, `_self_` (last unless placed) and plain names of files beside; `# @package _global_` or
//! `# @package a.b` at the head of a file; `${a.b}` for another key's value; `???` for a value that must be given.
//! Overrides are `group=option`, `a.b=value`, `+a.b=value`, `++a.b=value`, `~a.b`, and the path of a YAML file whose
//! contents come after the groups'. Keys that exclude one another ([`Groups::exclusive`]) follow what was written last.

mod compose;
mod error;
mod exclusive;
mod groups;
mod interpolate;
mod nearest;
mod overrides;
mod parse;
mod print;
mod read;
mod reference;
mod schema;

mod sweep;
mod tree;

pub use compose::{compose, compose_with};
pub use error::{ConfigError, ReadError};
pub use groups::Groups;
pub use nearest::nearest;
pub use reference::{group_reference, reference};
pub use schema::schema_reference;
pub use sweep::sweep;
pub use tree::{Node, Origin, Tree, Value};
