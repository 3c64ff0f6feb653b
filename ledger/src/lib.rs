//! The bandwidth ledger: what a decode step must move, generated from the launches that run.
//!
//! This crate promises that a byte figure is a sum over accounts evaluated at the facts of a step, that
//! classes and directions are never mixed, and that a measured step closes: lines + gaps + unexplained.
//! It refuses rates above a measured ceiling and counts that nobody derived from a shape.
//!
//! Read first: [`account`] (what a launch owes), [`step`] (a whole step), [`facts`] (what it depends on).
//! Then what measurements meet: [`roofline`] (ceilings), [`closure`] (measured parts against the step).
//! [`coverage`] prices experts from recorded routes; [`reports`] prints, [`diff`] compares;
//! [`golden`] keeps derived figures from changing unnoticed.
pub mod account;
pub mod closure;
pub mod coverage;
pub mod device;
pub mod diff;
pub mod facts;
pub mod golden;
pub mod groups;
pub mod reports;
pub mod roofline;
pub mod step;
pub mod units;

pub use account::{Account, Amount, Direction, Traffic, TrafficClass};
pub use closure::{Closure, ClosureError, ClosureLine};
pub use coverage::{Coverage, RouteLimits, RouteRecord, Routes};
pub use device::DeviceProfile;
pub use diff::LedgerDiff;
pub use facts::{Feature, PAGE_TOKENS, StepFacts, expected_distinct_experts};
pub use golden::{GoldenError, check_golden};
pub use groups::{Group, KindSum, LineKey};
pub use reports::{Format, Report, ReportError, render};
pub use roofline::{CacheLevel, Ceiling, CeilingCurve, CeilingPoint, Mix, RateCheck, RateError, Residency};
pub use step::{EvaluatedLine, Line, ReadFrom, StepLedger};
pub use units::{Bytes, BytesPerSecond, Nanos, grouped};
