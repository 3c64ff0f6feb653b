//! Receipts: what was measured, for which exact configuration, by which build, and whether it may serve.
//!
//! **Promises.** A verdict is a pure function of a receipt and of `policy.toml` ([`verdict()`]). A change of
//! one byte anywhere in a store is found and named by receipt and field ([`Store::verify`]). A receipt
//! admits only the build, device, pack, recipe, topology, policy, switches and tuple it was made with
//! ([`admit`]), and dies by identity, never by age.
//!
//! **Refuses.** To pass on missing data; to admit anything but a measured, passing, identical tuple; to
//! sign a float; to read an unknown field. There is no override of any of these.
//!
//! **Read first**: `schema.rs` (what a receipt holds), `verdict.rs` (what it must show), `gate.rs` (what
//! it grants).

pub mod canon;
pub mod diff;
pub mod export;
pub mod gate;
pub mod identity;
pub mod keys;
mod locate;
pub mod measured;
pub mod policy;
pub mod rests;
pub mod schema;
pub mod seal;
pub mod store;
#[cfg(test)]
mod testkit;
pub mod tuple;
pub mod verdict;
pub mod verify;

pub use diff::{Difference, diff};
pub use export::{CSV_COLUMNS, write_csv};
pub use gate::{Admission, Refusal, admit, admit_signed_by};
pub use identity::{AdmissionIdentity, EvidenceIdentity, FieldDiff, hash_file, hash_running_executable};
pub use keys::{KeyError, Signer};
pub use measured::{
    Canary, CeilingPoint, Ceilings, Closure, ClosureLine, Correctness, CounterKind, Counters, Measured,
    Oracle, OracleScope, ReadWrite, Residency, Run, Stop,
};
pub use policy::{Policy, PolicyError};
pub use rests::KernelNeed;
pub use schema::{
    ClassBytes, DeviceFacts, Entry, Fill, Infeasible, KernelReceipt, Kind, Limits, MemoryLine, Planned,
    Receipt, SCHEMA_VERSION, json_schema,
};
pub use seal::{Fault, GENESIS, Line, LineError, Seal, Sealed};
pub use store::{Record, Store, StoreError, parse_line};
pub use tuple::{CONTEXT_BUCKETS, PIPELINE_DEGREES, Transport, TupleError, TupleKey};
pub use verdict::{Clause, ClauseName, Verdict, verdict};
pub use verify::{Finding, Report};
