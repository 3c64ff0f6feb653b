//! Transports: the names that fabric files, tuple keys and command lines share.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How stages talk to one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Everything in one process; no network.
    Local,
    /// TCP between neighbours: the debug transport that works everywhere.
    TcpRing,
    /// NCCL collectives.
    Nccl,
    /// RDMA between neighbours over one rail.
    RdmaRing,
    /// RDMA through one switch over one rail.
    RdmaSwitch,
    /// Two rails through two switches: can be named, cannot be run yet.
    DualRail,
}

impl Transport {
    /// The spelling used in JSON, TOML and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::TcpRing => "tcp_ring",
            Self::Nccl => "nccl",
            Self::RdmaRing => "rdma_ring",
            Self::RdmaSwitch => "rdma_switch",
            Self::DualRail => "dual_rail",
        }
    }

    /// Whether this build has code that moves bytes over it.
    pub fn implemented(self) -> bool {
        matches!(self, Self::Local)
    }

    /// Rails this transport stripes over; `local` has none.
    pub(crate) fn rails(self) -> usize {
        match self {
            Self::Local => 0,
            Self::TcpRing | Self::Nccl | Self::RdmaRing | Self::RdmaSwitch => 1,
            Self::DualRail => 2,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
