//! The fabric file: its types, the built-in ones, and every check a file passes before it is used.

use std::fmt;

use serde::Deserialize;

use crate::error::{Refusal, TopologyError};
use crate::place::{Placement, place_within};
use crate::transport::Transport;

/// Most nodes a fabric may have.
pub const MAX_NODES: u32 = 16;
/// Longest fabric file read, in bytes.
pub const MAX_FILE: usize = 64 << 10;
const SCHEMA: u32 = 1;
const MAX_NAME: usize = 64;
const MAX_LIST: usize = 8;

/// Names of the built-in fabric files.
pub const BUILTIN_NAMES: [&str; 4] =
    ["single", "ring_debug_single_rail", "single_switch_single_rail", "dual_switch_dual_rail"];
const BUILTIN_TEXT: [&str; 4] = [
    include_str!("../fabrics/single.toml"),
    include_str!("../fabrics/ring_debug_single_rail.toml"),
    include_str!("../fabrics/single_switch_single_rail.toml"),
    include_str!("../fabrics/dual_switch_dual_rail.toml"),
];

/// A node, by its data sheet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Device class.
    pub device: String,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Nominal memory bandwidth, in bytes a second.
    pub bandwidth_bytes_per_second: u64,
    /// Network ports.
    pub ports: u32,
    /// Ports in use: one for each rail that is implemented.
    pub ports_used: u32,
    /// Speed of a port, in bits a second.
    pub port_bits_per_second: u64,
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Name rails refer to.
    pub name: String,
    /// Maker.
    pub vendor: String,
    /// Ports nodes can use.
    pub ports: u32,
    /// Speed of a port, in bits a second.
    pub port_bits_per_second: u64,
}

/// One rail: the same port of every node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// Name.
    pub name: String,
    /// Switch it runs through; absent for node-to-node cables or any network.
    pub switch: Option<String>,
    /// Whether this build has code for it.
    pub implemented: bool,
}

/// What a required receipt proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// Tokens equal the one-stage run.
    Correctness,
    /// Steps are measured and their books close.
    Performance,
}

/// A receipt that must exist before the fabric may run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Topology the receipt must be of.
    pub topology: String,
    /// Transport the receipt must be of.
    pub transport: Transport,
    /// What it must prove.
    pub proves: Proof,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proof = match self.proves {
            Proof::Correctness => "correctness",
            Proof::Performance => "performance",
        };
        write!(f, "{proof} of {} on {}", self.transport.as_str(), self.topology)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeRange {
    min: u32,
    max: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    summary: String,
    transport: Transport,
    nodes: NodeRange,
    node: Option<Node>,
    #[serde(default, rename = "switch")]
    switches: Vec<Switch>,
    #[serde(default, rename = "rail")]
    rails: Vec<Rail>,
    #[serde(default)]
    requires: Vec<Requirement>,
}

/// Totals over the nodes of a fabric, computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aggregates {
    /// Nodes summed over.
    pub nodes: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Nominal memory bandwidth, in bytes a second.
    pub bandwidth_bytes_per_second: u64,
    /// Network speed of the ports in use, in bits a second, one direction.
    pub network_bits_per_second: u64,
}

/// A fabric file that passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    name: String,
    hash: String,
    file: File,
}

impl Topology {
    /// Reads and checks a fabric file's text; `name` labels it in errors. Total: any text gives a topology
    /// or an error, never a panic.
    pub fn parse(name: &str, text: &str) -> Result<Self, TopologyError> {
        let label = name.to_owned();
        if text.len() > MAX_FILE {
            return Err(TopologyError::TooLong { file: label, len: text.len(), limit: MAX_FILE });
        }
        let file: File = toml::from_str(text)
            .map_err(|e| TopologyError::Toml { file: label.clone(), message: e.to_string() })?;
        let topology = Self { name: label, hash: blake3::hash(text.as_bytes()).to_hex().to_string(), file };
        topology.check()?;
        Ok(topology)
    }

    /// A built-in fabric.
    pub fn builtin(name: &str) -> Result<Self, TopologyError> {
        let text = Self::builtin_text(name).ok_or_else(|| TopologyError::Unknown {
            name: name.chars().take(MAX_NAME).collect(),
            known: BUILTIN_NAMES.join(", "),
        })?;
        Self::parse(name, text)
    }

    /// The text of a built-in fabric file.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        let at = BUILTIN_NAMES.iter().position(|n| *n == name)?;
        Some(BUILTIN_TEXT[at])
    }

    /// The label the file was read under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// BLAKE3 of the file's bytes, in hex: one byte changed anywhere is another topology.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// One line for people.
    pub fn summary(&self) -> &str {
        &self.file.summary
    }

    /// How stages talk to one another.
    pub fn transport(&self) -> Transport {
        self.file.transport
    }

    /// Fewest and most nodes.
    pub fn node_range(&self) -> (u32, u32) {
        (self.file.nodes.min, self.file.nodes.max)
    }

    /// The node, where the file describes one.
    pub fn node(&self) -> Option<&Node> {
        self.file.node.as_ref()
    }

    /// The switches.
    pub fn switches(&self) -> &[Switch] {
        &self.file.switches
    }

    /// The rails.
    pub fn rails(&self) -> &[Rail] {
        &self.file.rails
    }

    /// Whether `nodes` nodes can make this fabric.
    pub fn validate(&self, nodes: u32) -> Result<(), TopologyError> {
        let (min, max) = self.node_range();
        if (min..=max).contains(&nodes) {
            return Ok(());
        }
        Err(TopologyError::Nodes { file: self.name.clone(), nodes, min, max })
    }

    /// Whether this build can drive the fabric: it has code for the transport. No edit of a file adds that.
    pub fn runnable(&self) -> Result<(), Refusal> {
        let absent = self.file.rails.iter().filter(|rail| !rail.implemented);
        let mut missing: Vec<String> =
            absent.map(|rail| format!("rail {} has no implementation", rail.name)).collect();
        if self.file.transport == Transport::DualRail {
            missing.push("striping over a second rail has no implementation in this build".to_owned());
        } else if !self.file.transport.implemented() {
            missing.push(format!("{} has no implementation in this build", self.file.transport.as_str()));
        }
        if missing.is_empty() && self.file.requires.is_empty() {
            return Ok(());
        }
        let needs = self.file.requires.clone();
        Err(Refusal { file: self.name.clone(), transport: self.file.transport.as_str(), missing, needs })
    }

    /// Totals over `nodes` nodes.
    pub fn aggregates(&self, nodes: u32) -> Result<Aggregates, TopologyError> {
        self.validate(nodes)?;
        let node = self.need_node()?;
        let times = |each: u64, what: &str| {
            let overflow = || TopologyError::Overflow { what: format!("{nodes} x {what}") };
            each.checked_mul(u64::from(nodes)).ok_or_else(overflow)
        };
        Ok(Aggregates {
            nodes,
            memory_bytes: times(node.memory_bytes, "memory_bytes")?,
            bandwidth_bytes_per_second: times(node.bandwidth_bytes_per_second, "bandwidth_bytes_per_second")?,
            network_bits_per_second: times(
                node.port_bits_per_second.saturating_mul(u64::from(node.ports_used)),
                "port_bits_per_second",
            )?,
        })
    }

    /// Places layers, in order, on `nodes` nodes so that the largest stage is as small as it can be.
    /// Fails closed, with the sum, if that stage does not fit a node.
    pub fn place(&self, layer_bytes: &[u64], nodes: u32) -> Result<Placement, TopologyError> {
        self.validate(nodes)?;
        place_within(layer_bytes, nodes, self.need_node()?.memory_bytes)
    }

    fn need_node(&self) -> Result<&Node, TopologyError> {
        self.file.node.as_ref().ok_or_else(|| TopologyError::NoNode { file: self.name.clone() })
    }

    fn bad(&self, field: &str, value: impl ToString, limit: impl ToString) -> TopologyError {
        TopologyError::Value {
            file: self.name.clone(),
            field: field.to_owned(),
            value: value.to_string(),
            limit: limit.to_string(),
        }
    }

    fn range(&self, field: &str, value: u64, min: u64, max: u64) -> Result<(), TopologyError> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(self.bad(field, value, format!("{min} to {max}")))
    }

    fn text(&self, field: &str, value: &str) -> Result<(), TopologyError> {
        if (1..=MAX_NAME).contains(&value.len()) && value.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
            return Ok(());
        }
        let shown: String = value.chars().take(MAX_NAME).collect();
        Err(self.bad(field, format!("{shown:?}"), format!("1 to {MAX_NAME} printable ASCII characters")))
    }

    fn check(&self) -> Result<(), TopologyError> {
        let file = &self.file;
        self.range("schema", file.schema.into(), SCHEMA.into(), SCHEMA.into())?;
        self.text("summary", &file.summary)?;
        self.range("nodes.min", file.nodes.min.into(), 1, MAX_NODES.into())?;
        self.range("nodes.max", file.nodes.max.into(), file.nodes.min.into(), MAX_NODES.into())?;
        let lists =
            [("switch", file.switches.len()), ("rail", file.rails.len()), ("requires", file.requires.len())];
        for (field, len) in lists {
            self.range(&format!("{field} (entries)"), len as u64, 0, MAX_LIST as u64)?;
        }
        self.check_node()?;
        self.check_switches()?;
        self.check_rails()?;
        for (i, need) in file.requires.iter().enumerate() {
            self.text(&format!("requires.{i}.topology"), &need.topology)?;
        }
        if file.transport == Transport::DualRail && file.requires.is_empty() {
            return Err(self.bad("requires", "absent", "the single-rail receipts that two rails rest on"));
        }
        Ok(())
    }

    fn check_node(&self) -> Result<(), TopologyError> {
        let Some(node) = &self.file.node else {
            if self.file.transport == Transport::Local {
                return Ok(());
            }
            return Err(self.bad("node", "absent", "present for every transport but local"));
        };
        self.text("node.device", &node.device)?;
        // 1 GB to 1 PB; 1 GB/s to 1 PB/s; 1 Gb/s to 10 Tb/s: wide, and 16 of them stay far below 2^64.
        self.range("node.memory_bytes", node.memory_bytes, 1_000_000_000, 1_000_000_000_000_000)?;
        let bandwidth = node.bandwidth_bytes_per_second;
        self.range("node.bandwidth_bytes_per_second", bandwidth, 1_000_000_000, 1_000_000_000_000_000)?;
        self.range("node.ports", node.ports.into(), 1, 64)?;
        self.range(
            "node.port_bits_per_second",
            node.port_bits_per_second,
            1_000_000_000,
            10_000_000_000_000,
        )?;
        let implemented = self.file.rails.iter().filter(|r| r.implemented).count();
        if node.ports_used as usize != implemented || node.ports_used > node.ports {
            let limit = format!("{implemented} (one a rail implemented), at most {} ports", node.ports);
            return Err(self.bad("node.ports_used", node.ports_used, limit));
        }
        let rails = self.file.rails.len();
        if rails > node.ports as usize {
            return Err(self.bad("rail (entries)", rails, format!("at most {} ports of a node", node.ports)));
        }
        Ok(())
    }

    fn check_switches(&self) -> Result<(), TopologyError> {
        let switches = &self.file.switches;
        for (i, switch) in switches.iter().enumerate() {
            let field = |name: &str| format!("switch.{i}.{name}");
            self.text(&field("name"), &switch.name)?;
            self.text(&field("vendor"), &switch.vendor)?;
            self.range(&field("ports"), switch.ports.into(), self.file.nodes.max.into(), 1024)?;
            let slowest = self.file.node.as_ref().map_or(1, |n| n.port_bits_per_second);
            self.range(
                &field("port_bits_per_second"),
                switch.port_bits_per_second,
                slowest,
                10_000_000_000_000,
            )?;
            if switches[..i].iter().any(|other| other.name == switch.name) {
                return Err(self.bad(&field("name"), &switch.name, "given to one switch only"));
            }
        }
        Ok(())
    }

    fn check_rails(&self) -> Result<(), TopologyError> {
        let (rails, transport) = (&self.file.rails, self.file.transport);
        if rails.len() != transport.rails() {
            let limit = format!("{} for transport {}", transport.rails(), transport.as_str());
            return Err(self.bad("rail (entries)", rails.len(), limit));
        }
        let switched = matches!(transport, Transport::RdmaSwitch | Transport::DualRail);
        for (i, rail) in rails.iter().enumerate() {
            let field = |name: &str| format!("rail.{i}.{name}");
            self.text(&field("name"), &rail.name)?;
            let others = &rails[..i];
            if others.iter().any(|other| other.name == rail.name) {
                return Err(self.bad(&field("name"), &rail.name, "given to one rail only"));
            }
            match &rail.switch {
                None if switched => {
                    return Err(self.bad(&field("switch"), "absent", "the name of a switch"));
                }
                None => {}
                Some(name) if !self.file.switches.iter().any(|s| s.name == *name) => {
                    let known: Vec<&str> = self.file.switches.iter().map(|s| s.name.as_str()).collect();
                    let shown: String = name.chars().take(MAX_NAME).collect();
                    return Err(self.bad(
                        &field("switch"),
                        format!("{shown:?}"),
                        format!("one of {known:?}"),
                    ));
                }
                Some(name) if others.iter().any(|other| other.switch.as_ref() == Some(name)) => {
                    return Err(self.bad(&field("switch"), name, "a switch of its own for each rail"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "fabric_tests.rs"]
mod tests;
