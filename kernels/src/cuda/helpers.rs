//! What bindings share: the class they take, codes of stored types, output kinds.
use super::call::{Arg, BindError, PlanView};
use crate::buffer::BufId;
use crate::formats::Format;
use crate::numeric::{ActKind, NumericClass, SmallWeight};

/// Bytes at the start of the shared workspace for counters and other cells that every kernel leaves zero. What
/// stays dirty between launches lies behind them.
pub const COUNTERS: u64 = 1 << 20;

/// A null pointer argument.
pub const NULL: Arg = Arg::U64(0);

/// Refuses every class but bf16.
///
/// # Errors
/// [`BindError::Class`] for another class.
pub fn bf16_class(op: &'static str, plan: &PlanView) -> Result<(), BindError> {
    if plan.class == NumericClass::Bf16 { Ok(()) } else { Err(BindError::Class { op, class: plan.class }) }
}

/// The error of a shape no kernel is written for.
pub fn refused(
    op: &'static str,
    field: &'static str,
    value: impl ToString,
    limit: &'static str,
) -> BindError {
    BindError::Shape { op, field, value: value.to_string(), limit }
}

/// Refuses a width that is not a positive multiple of four: rows are read 16 bytes at a time.
///
/// # Errors
/// [`BindError::Shape`] naming the field.
pub fn quads(op: &'static str, field: &'static str, value: usize) -> Result<(), BindError> {
    if value > 0 && value.is_multiple_of(4) {
        Ok(())
    } else {
        Err(refused(op, field, value, "positive multiples of 4"))
    }
}

/// The code by which `rowops.cuh` knows a small weight's stored type.
///
/// # Errors
/// [`BindError::Shape`] for a block format.
pub fn stored(op: &'static str, field: &'static str, w: &SmallWeight) -> Result<String, BindError> {
    match w.format {
        Format::F32 => Ok("0".into()),
        Format::Bf16 => Ok("1".into()),
        Format::F16 => Ok("2".into()),
        format => Err(refused(op, field, format.name(), "F32, BF16 and F16")),
    }
}

/// The f32 and the BF16 output among `outs`, null where there is none.
///
/// # Errors
/// [`BindError::Shape`] for rows of another kind.
pub fn outputs(op: &'static str, outs: &[(ActKind, BufId)]) -> Result<(Arg, Arg), BindError> {
    let find = |kind| outs.iter().find(|(k, _)| *k == kind).map_or(NULL, |(_, buf)| Arg::Buf(*buf));
    match outs.iter().find(|(k, _)| *k == ActKind::Q8) {
        Some((kind, _)) => Err(refused(op, "output kind", kind.name(), "f32 and bf16")),
        None => Ok((find(ActKind::F32), find(ActKind::Bf16))),
    }
}

/// A define.
pub fn define(name: &'static str, value: impl ToString) -> (&'static str, String) {
    (name, value.to_string())
}
