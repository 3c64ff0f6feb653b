//! What can be wrong with a fabric file, a node count or a placement.

use crate::fabric::Requirement;

/// A file, node count or placement that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No built-in file has this name.
    #[error("no built-in topology {name:?}: there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// More text than any fabric file has.
    #[error("topology {file}: {len} bytes, at most {limit}")]
    TooLong {
        /// File label.
        file: String,
        /// Bytes found.
        len: usize,
        /// Bytes read.
        limit: usize,
    },
    /// Not TOML, an unknown key, a missing key or a wrong type.
    #[error("topology {file}: {message}")]
    Toml {
        /// File label.
        file: String,
        /// What the parser said, with line and column.
        message: String,
    },
    /// A value outside its limit.
    #[error("topology {file}: field `{field}` is {value}: must be {limit}")]
    Value {
        /// File label.
        file: String,
        /// Dotted field.
        field: String,
        /// Rejected value.
        value: String,
        /// What is allowed.
        limit: String,
    },
    /// A node count outside the file's range.
    #[error("topology {file}: {nodes} nodes asked for: must be {min} to {max}")]
    Nodes {
        /// File label.
        file: String,
        /// Nodes asked for.
        nodes: u32,
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
    },
    /// The file describes no node; its figures must be probed.
    #[error("topology {file}: field `node` is absent: its figures are probed, not read")]
    NoNode {
        /// File label.
        file: String,
    },
    /// Fewer layers than stages, or no stage at all.
    #[error("cannot place {layers} layers on {stages} stages: every stage needs at least one layer")]
    TooFewLayers {
        /// Layers there are.
        layers: usize,
        /// Stages asked for.
        stages: u32,
    },
    /// A sum left 64 bits.
    #[error("{what} exceeds 2^64 - 1")]
    Overflow {
        /// What was summed.
        what: String,
    },
    /// A stage that does not fit its node in the best placement there is.
    #[error(
        "stage {stage} (layers {first}..={last}) does not fit: {sum} = {needed} B > {available} B of the node"
    )]
    StageTooLarge {
        /// Stage, from 0.
        stage: usize,
        /// Its first layer.
        first: usize,
        /// Its last layer.
        last: usize,
        /// The sum, layer by layer.
        sum: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes a node has.
        available: u64,
    },
}

/// Why a fabric that can be read cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topology {file} (transport {transport}) cannot run: {}; receipts needed first: {}", missing.join("; "), listed(needs))]
pub struct Refusal {
    /// File label.
    pub file: String,
    /// Its transport.
    pub transport: &'static str,
    /// What has no implementation.
    pub missing: Vec<String>,
    /// Receipts that must exist first.
    pub needs: Vec<Requirement>,
}

fn listed(needs: &[Requirement]) -> String {
    if needs.is_empty() {
        return "none".to_owned();
    }
    needs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
