//! The verdict: a pure function of a receipt's own fields and of the policy.
//!
//! Each clause can only add a reason to fail; `pass` is what is left when none did and nothing was
//! missing. Derived figures (median, residual, fraction, canary) are worked out again from what they
//! derive from, so a receipt cannot state a better figure than its own series.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measured::{
    Canary, Closure, CounterKind, Measured, PPM, bytes_per_second, median, ppm, relative_stdev_ppm,
};
use crate::policy::{DevicePolicy, Policy};
use crate::schema::{Infeasible, Kind, Receipt, SCHEMA_VERSION};

/// What a receipt amounts to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum Verdict {
    /// Every clause holds.
    Pass,
    /// At least one clause does not hold.
    Fail {
        /// The clauses that failed, in the order of [`ClauseName`].
        clauses: Vec<Clause>,
    },
    /// The tuple cannot run on this device.
    RefusedInfeasible {
        /// The sum that does not fit.
        arithmetic: String,
    },
    /// The figure lies within its own noise of the floor: measure again.
    Ambiguous {
        /// Which figure and how far.
        why: String,
    },
}

impl Verdict {
    /// Whether this verdict lets a server start. Only `pass` does.
    pub fn admits(&self) -> bool {
        matches!(self, Self::Pass)
    }

    /// The word for tables and CSV.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail { .. } => "fail",
            Self::RefusedInfeasible { .. } => "refused-infeasible",
            Self::Ambiguous { .. } => "ambiguous",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Self::Pass => Ok(()),
            Self::Fail { clauses } => clauses.iter().enumerate().try_for_each(|(i, c)| {
                let lead = if i == 0 { ": " } else { "; " };
                write!(f, "{lead}{} ({})", c.name, c.detail)
            }),
            Self::RefusedInfeasible { arithmetic: why } | Self::Ambiguous { why } => write!(f, ": {why}"),
        }
    }
}

/// A clause that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Clause {
    /// Which clause.
    pub name: ClauseName,
    /// Value and limit.
    pub detail: String,
}

/// The clauses of `pass`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClauseName {
    /// The numbers were measured, not made up, simulated or estimated.
    KindMeasured,
    /// No field is missing.
    NoFieldMissing,
    /// The oracle agrees within the class's tolerance.
    OracleParity,
    /// The tokens of the timed steps, poisoned before, are those of the reference path.
    TimedTokens,
    /// Launches run equal launches planned.
    Launches,
    /// Bytes counted equal bytes planned within the device's tolerance.
    Bytes,
    /// The closure's residual is within budget.
    Unexplained,
    /// There are enough samples.
    Samples,
    /// Sampling stopped because its condition was met.
    StopCondition,
    /// The canary did not move.
    Canary,
    /// The rate does not exceed its measured ceiling.
    RateAboveCeiling,
    /// The rate reaches the floor of its device class and batch.
    FractionFloor,
}

impl ClauseName {
    /// The spelling used in JSON and in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KindMeasured => "kind_measured",
            Self::NoFieldMissing => "no_field_missing",
            Self::OracleParity => "oracle_parity",
            Self::TimedTokens => "timed_tokens",
            Self::Launches => "launches",
            Self::Bytes => "bytes",
            Self::Unexplained => "unexplained",
            Self::Samples => "samples",
            Self::StopCondition => "stop_condition",
            Self::Canary => "canary",
            Self::RateAboveCeiling => "rate_above_ceiling",
            Self::FractionFloor => "fraction_floor",
        }
    }
}

impl fmt::Display for ClauseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Judges `receipt` by `policy`. The receipt's own `verdict` field is not looked at.
pub fn verdict(receipt: &Receipt, policy: &Policy) -> Verdict {
    if let Some(infeasible) = &receipt.infeasible {
        return judge_infeasible(infeasible);
    }
    let mut found = Findings::default();
    let class = &receipt.admission.device_class;
    if receipt.kind != Kind::Measured {
        found.add(ClauseName::KindMeasured, format!("kind is {}", receipt.kind.as_str()));
    }
    let missing = missing_fields(receipt);
    if !missing.is_empty() {
        found.add(ClauseName::NoFieldMissing, format!("missing: {}", missing.join(", ")));
    }
    oracle(receipt, policy, &mut found);
    timed_tokens(receipt, &mut found);
    launches(receipt, &mut found);
    let Some(device) = policy.device(class) else {
        found.add(ClauseName::FractionFloor, format!("the policy names no device class {class:?}"));
        return found.into_verdict(None);
    };
    bytes(receipt, device, &mut found);
    if let Some(closure) = &receipt.closure {
        unexplained(closure, receipt.measured.as_ref(), device, &mut found);
    }
    if let Some(canary) = &receipt.canary {
        canary_unmoved(canary, device, &mut found);
    }
    let noise = receipt.measured.as_ref().and_then(|m| {
        series(m, policy, &mut found);
        rate(receipt, m, policy, device, &mut found)
    });
    found.into_verdict(noise)
}

impl Receipt {
    /// The receipt with its verdict under `policy` written in.
    #[must_use]
    pub fn judged(mut self, policy: &Policy) -> Self {
        self.verdict = Some(verdict(&self, policy));
        self
    }
}

#[derive(Default)]
struct Findings(Vec<Clause>);

impl Findings {
    fn add(&mut self, name: ClauseName, detail: String) {
        self.0.push(Clause { name, detail });
    }

    /// `noise` is the reason the floor cannot be decided; it only speaks when nothing else failed.
    fn into_verdict(mut self, noise: Option<String>) -> Verdict {
        self.0.sort_by_key(|c| c.name);
        let only_floor = self.0.iter().all(|c| c.name == ClauseName::FractionFloor);
        match noise {
            Some(why) if only_floor => Verdict::Ambiguous { why },
            _ if self.0.is_empty() => Verdict::Pass,
            _ => Verdict::Fail { clauses: self.0 },
        }
    }
}

fn judge_infeasible(infeasible: &Infeasible) -> Verdict {
    let need: u128 = infeasible.needs.iter().map(|l| u128::from(l.bytes)).sum();
    let terms: Vec<String> = infeasible.needs.iter().map(|l| format!("{} {}", l.name, l.bytes)).collect();
    let sum = format!("{} = {need} B", terms.join(" + "));
    let have = infeasible.available_bytes;
    if need > u128::from(have) {
        return Verdict::RefusedInfeasible { arithmetic: format!("{sum} > {have} B available") };
    }
    let detail = format!("infeasible: {sum} fits {have} B available, so measurements are missing");
    Verdict::Fail { clauses: vec![Clause { name: ClauseName::NoFieldMissing, detail }] }
}

/// Every absent section and empty field, by dotted path.
fn missing_fields(receipt: &Receipt) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    if receipt.schema_version != SCHEMA_VERSION {
        out.push(format!("schema_version {SCHEMA_VERSION} (found {})", receipt.schema_version));
    }
    if let Err(error) = receipt.tuple.validate() {
        out.push(format!("tuple ({error})"));
    }
    out.extend(receipt.admission.empty_fields().iter().map(|f| format!("admission.{f}")));
    out.extend(receipt.evidence.empty_fields().iter().map(|f| format!("evidence.{f}")));
    let mut need = |present: bool, name: &str| {
        if !present {
            out.push(name.to_owned());
        }
    };
    need(!receipt.device.cpu_model.is_empty(), "device.cpu_model");
    need(receipt.device.threads > 0, "device.threads");
    need(receipt.device.memory_bytes > 0, "device.memory_bytes");
    need(receipt.ceilings.as_ref().is_some_and(|c| !c.points.is_empty()), "ceilings");
    need(receipt.planned.as_ref().is_some_and(|p| p.launches > 0 && !p.bytes.is_empty()), "planned");
    need(receipt.measured.is_some(), "measured");
    need(receipt.closure.as_ref().is_some_and(|c| !c.lines.is_empty() && c.step_ns > 0), "closure");
    need(receipt.canary.is_some_and(|c| c.before_ns > 0 && c.after_ns > 0), "canary");
    need(receipt.counters.is_some(), "counters");
    need(receipt.fill.is_some(), "fill");
    need(receipt.limits.is_some_and(|l| l.batch > 0 && l.context > 0 && l.total_bytes > 0), "limits");
    need(!receipt.created.is_empty(), "created");
    need(receipt.correctness.is_some(), "correctness");
    if let Some(c) = &receipt.correctness {
        need(c.oracle.as_ref().is_some_and(|o| !o.name.is_empty()), "correctness.oracle");
        need(!c.timed_tokens_hash.is_empty(), "correctness.timed_tokens_hash");
        need(!c.reference_tokens_hash.is_empty(), "correctness.reference_tokens_hash");
        need(c.tokens > 0, "correctness.tokens");
        need(c.batch_invariant.is_some(), "correctness.batch_invariant");
    }
    if let Some(m) = &receipt.measured {
        need(!m.series_ns.is_empty(), "measured.series_ns");
        need(m.relative_stdev_ppm.is_some() || m.series_ns.len() < 2, "measured.relative_stdev_ppm");
        need(m.ceiling_bytes_per_second > 0, "measured.ceiling_bytes_per_second");
        need(m.bytes_per_step > 0, "measured.bytes_per_step");
    }
    out
}

fn oracle(receipt: &Receipt, policy: &Policy, found: &mut Findings) {
    let Some(oracle) = receipt.correctness.as_ref().and_then(|c| c.oracle.as_ref()) else { return };
    let class = &receipt.tuple.numeric_class;
    let Some(limit) = policy.oracle.get(class) else {
        found.add(ClauseName::OracleParity, format!("the policy names no numeric class {class:?}"));
        return;
    };
    let tolerance = limit.max_abs_nano.min(oracle.tolerance_nano);
    if oracle.max_abs_nano > tolerance {
        let detail =
            format!("max abs {} nano against {} > {tolerance} nano", oracle.max_abs_nano, oracle.name);
        found.add(ClauseName::OracleParity, detail);
    } else if limit.greedy_equal && !oracle.greedy_equal {
        found.add(ClauseName::OracleParity, format!("greedy ids differ from {}", oracle.name));
    }
}

fn timed_tokens(receipt: &Receipt, found: &mut Findings) {
    let Some(c) = &receipt.correctness else { return };
    if c.timed_tokens_hash != c.reference_tokens_hash {
        let detail = format!("timed {} but reference {}", c.timed_tokens_hash, c.reference_tokens_hash);
        found.add(ClauseName::TimedTokens, detail);
    } else if !c.poisoned {
        found.add(ClauseName::TimedTokens, "outputs were not poisoned before the timed steps".to_owned());
    }
}

fn launches(receipt: &Receipt, found: &mut Findings) {
    let (Some(planned), Some(measured)) = (&receipt.planned, &receipt.measured) else { return };
    let pairs = [
        ("launches", measured.launches, planned.launches),
        ("graph nodes", measured.graph_nodes, planned.graph_nodes),
    ];
    if let Some((what, run, plan)) = pairs.into_iter().find(|(_, run, plan)| run != plan) {
        found.add(ClauseName::Launches, format!("{run} {what} ran, {plan} planned"));
    }
}

fn bytes(receipt: &Receipt, device: &DevicePolicy, found: &mut Findings) {
    let Some(counters) = &receipt.counters else { return };
    let kind = counters.kind.as_str();
    if !device.counters.iter().any(|k| k == kind) {
        let detail = format!("counters: {kind}, but this device class needs one of {:?}", device.counters);
        found.add(ClauseName::Bytes, detail);
        return;
    }
    let counted = match (counters.kind, counters.counted) {
        (CounterKind::None, None) => return,
        (CounterKind::None, Some(_)) => {
            found.add(ClauseName::Bytes, "counters: none, yet a count is stated".to_owned());
            return;
        }
        (_, None) => {
            found.add(ClauseName::Bytes, format!("counters: {kind}, yet nothing was counted"));
            return;
        }
        (_, Some(counted)) => counted,
    };
    let mut pairs = vec![("read", counted.read_bytes, counters.planned.read_bytes)];
    if device.compare_writes {
        pairs.push(("write", counted.write_bytes, counters.planned.write_bytes));
    }
    for (what, count, plan) in pairs {
        // |count - plan| / plan > limit, multiplied out: exact, and right for a plan of zero bytes.
        let off = u128::from(count.abs_diff(plan)) * u128::from(PPM);
        if off > u128::from(plan) * u128::from(device.bytes_tolerance_ppm) {
            let limit = device.bytes_tolerance_ppm;
            found.add(
                ClauseName::Bytes,
                format!("{what}: {count} B counted, {plan} B planned, limit {limit} ppm"),
            );
            return;
        }
    }
}

fn unexplained(closure: &Closure, measured: Option<&Measured>, device: &DevicePolicy, found: &mut Findings) {
    let stated = (closure.unexplained_ns, closure.unexplained_ppm);
    let detail = match closure.recomputed() {
        None => "the lines cannot be summed against the step".to_owned(),
        Some(real) if real != stated => {
            format!(
                "states {} ns ({} ppm) but its lines leave {} ns ({} ppm)",
                stated.0, stated.1, real.0, real.1
            )
        }
        Some((ns, share)) if share > device.unexplained_ppm => {
            format!("{ns} ns of {} ns is {share} ppm > {} ppm", closure.step_ns, device.unexplained_ppm)
        }
        // Overlap off can only make the step slower; a shorter one belongs to another series.
        Some(_) if measured.is_some_and(|m| closure.overlap_ns == 0 && closure.step_ns != m.step_ns) => {
            format!("closes {} ns, but the series' step is another", closure.step_ns)
        }
        Some(_) => return,
    };
    found.add(ClauseName::Unexplained, detail);
}

fn canary_unmoved(canary: &Canary, device: &DevicePolicy, found: &mut Findings) {
    let Some(real) = Canary::new(canary.before_ns, canary.after_ns) else { return };
    if real != *canary {
        found.add(
            ClauseName::Canary,
            format!("states {} ppm but moved {} ppm", canary.moved_ppm, real.moved_ppm),
        );
    } else if real.moved_ppm > device.canary_ppm {
        let Canary { before_ns, after_ns, moved_ppm } = real;
        let limit = device.canary_ppm;
        found.add(
            ClauseName::Canary,
            format!("{before_ns} -> {after_ns} ns is {moved_ppm} ppm > {limit} ppm"),
        );
    }
}

fn series(m: &Measured, policy: &Policy, found: &mut Findings) {
    let count = m.series_ns.len() as u64;
    let derived = (median(&m.series_ns), relative_stdev_ppm(&m.series_ns));
    if count == 0 {
        return; // named as missing
    }
    if count < policy.min_samples {
        found.add(ClauseName::Samples, format!("{count} samples < {}", policy.min_samples));
    } else if derived.0 != Some(m.step_ns)
        || m.relative_stdev_ppm.is_some() && derived.1 != m.relative_stdev_ppm
    {
        let detail =
            format!("states {} ns, {:?} ppm; the series gives {derived:?}", m.step_ns, m.relative_stdev_ppm);
        found.add(ClauseName::Samples, detail);
    }
    if !m.stop.met {
        found.add(ClauseName::StopCondition, format!("not met: {}", m.stop.reason));
    }
}

/// The two clauses on the rate; returns why the floor cannot be decided, if noise covers it.
fn rate(
    receipt: &Receipt,
    m: &Measured,
    policy: &Policy,
    device: &DevicePolicy,
    found: &mut Findings,
) -> Option<String> {
    let achieved = bytes_per_second(m.bytes_per_step, m.step_ns)?;
    let fraction = ppm(achieved, m.ceiling_bytes_per_second)?;
    let limit = PPM + policy.ceiling_excess_ppm;
    if fraction > limit {
        found.add(ClauseName::RateAboveCeiling, format!("{fraction} ppm of the ceiling > {limit} ppm"));
    }
    let mut fail = |detail: String| found.add(ClauseName::FractionFloor, detail);
    if (achieved, fraction) != (m.achieved_bytes_per_second, m.fraction_ppm) {
        let stated = (m.achieved_bytes_per_second, m.fraction_ppm);
        fail(format!(
            "states {stated:?} B/s and ppm, but bytes, step and ceiling give ({achieved}, {fraction})"
        ));
        return None;
    }
    let points = receipt.ceilings.iter().flat_map(|c| &c.points);
    let rates =
        points.flat_map(|p| [p.read_bytes_per_second, p.copy_bytes_per_second, p.update_bytes_per_second]);
    let (low, high) = rates.fold((u64::MAX, 0), |(low, high), r| (low.min(r), high.max(r)));
    let ceiling = m.ceiling_bytes_per_second;
    if low <= high && !(low..=high).contains(&ceiling) {
        fail(format!("ceiling {ceiling} B/s lies outside the probe's {low} to {high} B/s"));
        return None;
    }
    let batch = receipt.tuple.batch;
    let Some(floor) = device.floor(batch) else {
        fail(format!("the policy states no floor for {} at batch {batch}", receipt.admission.device_class));
        return None;
    };
    if fraction < floor {
        fail(format!("{fraction} ppm of the ceiling < {floor} ppm at batch {batch}"));
    }
    // One standard deviation of a sample either way: u128 because both factors may be near 2^64.
    let noise = u128::from(fraction) * u128::from(m.relative_stdev_ppm.unwrap_or(0)) / u128::from(PPM);
    (u128::from(fraction.abs_diff(floor)) < noise).then(|| {
        format!("{fraction} ppm of the ceiling is within its noise, {noise} ppm, of the floor, {floor} ppm")
    })
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
