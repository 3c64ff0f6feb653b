//! The topologies room.
