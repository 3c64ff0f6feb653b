//! The harness room.
