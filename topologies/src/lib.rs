//! Topologies: fabric files, their validation, and the placement of layers on their nodes.
//!
//! **Promises.** A file that parses is consistent: every rail has a port and a switch that exist, every
//! value is inside its limit. Totals are computed from node figures, never typed. A placement is contiguous
//! and has the smallest possible largest stage.
//!
//! **Refuses.** Unknown keys; node counts outside the file's range; a stage that does not fit its node,
//! with the sum; to run two rails, which this build can describe but not drive.
//!
//! **Read first**: `fabrics/single_switch_single_rail.toml` (a file), `fabric.rs` (what is checked),
//! `place.rs` (where layers go).

pub mod error;
pub mod fabric;
pub mod place;
pub mod transport;

pub use error::{Refusal, TopologyError};
pub use fabric::{Aggregates, BUILTIN_NAMES, Node, Proof, Rail, Requirement, Switch, Topology};
pub use place::{Placement, Stage, place_within};
pub use transport::Transport;
