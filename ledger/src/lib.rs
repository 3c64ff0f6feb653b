//! The ledger room.
