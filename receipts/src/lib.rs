//! The receipts room.
