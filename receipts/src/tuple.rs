//! The tuple key: the exact configuration a receipt speaks of, and nothing else.
//!
//! Two runs with equal keys are comparable; a server is admitted for one key at a time. The id is
//! SHA-256 over canonical JSON, so any program in any language can recompute it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canon;

pub use topologies::Transport;

/// Context buckets, in tokens: 2k, 16k, 64k, 256k, 1M.
pub const CONTEXT_BUCKETS: [u64; 5] = [2048, 16384, 65536, 262_144, 1_048_576];
/// Largest batch bucket, in rows; buckets are the powers of two up to it.
pub const MAX_BATCH: u32 = 1024;
/// Pipeline degrees, in stages.
pub const PIPELINE_DEGREES: [u32; 6] = [1, 2, 4, 8, 13, 16];
/// Largest tensor degree, in devices a stage.
pub const MAX_TENSOR: u32 = 16;
/// Microbatches allowed for each pipeline stage.
pub const MICROBATCHES_PER_STAGE: u32 = 4;
/// Longest model, recipe or class name, in bytes.
pub const MAX_NAME: usize = 96;

/// One exact configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TupleKey {
    /// Model name, as `sparkpipe models` lists it.
    pub model: String,
    /// Precision recipe name.
    pub recipe: String,
    /// Numeric class: the reduction tree and rounding points (`f32`, `bf16`, `int8act`, ...).
    pub numeric_class: String,
    /// Context bucket, in tokens: 2048, 16384, 65536, 262144 or 1048576.
    pub context: u64,
    /// Batch bucket, in rows: a power of two from 1 to 1024.
    pub batch: u32,
    /// Pipeline degree, in stages: 1, 2, 4, 8, 13 or 16.
    pub pipeline: u32,
    /// Tensor degree, in devices a stage: 1 to 16.
    pub tensor: u32,
    /// Microbatches in flight: 1 to four times the pipeline degree.
    pub microbatches: u32,
    /// How stages talk to one another.
    pub transport: Transport,
}

/// A tuple field outside its limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TupleError {
    /// A name is empty, too long or holds a character a command line would have to quote.
    #[error(
        "tuple field `{field}` is {value:?}: must be 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ + - and not start with -"
    )]
    Name {
        /// Field name.
        field: &'static str,
        /// Rejected value.
        value: String,
    },
    /// A number is not one of the buckets.
    #[error("tuple field `{field}` is {value}: must be {limit}")]
    Number {
        /// Field name.
        field: &'static str,
        /// Rejected value.
        value: u64,
        /// What is allowed.
        limit: String,
    },
}

impl TupleKey {
    /// A one-stage local tuple: what one machine qualifies.
    pub fn local(model: &str, recipe: &str, numeric_class: &str, context: u64, batch: u32) -> Self {
        Self {
            model: model.to_owned(),
            recipe: recipe.to_owned(),
            numeric_class: numeric_class.to_owned(),
            context,
            batch,
            pipeline: 1,
            tensor: 1,
            microbatches: 1,
            transport: Transport::Local,
        }
    }

    /// Checks every field against its limit, in declaration order.
    pub fn validate(&self) -> Result<(), TupleError> {
        name("model", &self.model)?;
        name("recipe", &self.recipe)?;
        name("numeric_class", &self.numeric_class)?;
        let number = |ok: bool, field, value, limit: String| {
            if ok { Ok(()) } else { Err(TupleError::Number { field, value, limit }) }
        };
        number(
            CONTEXT_BUCKETS.contains(&self.context),
            "context",
            self.context,
            format!("one of {CONTEXT_BUCKETS:?}"),
        )?;
        number(
            self.batch.is_power_of_two() && self.batch <= MAX_BATCH,
            "batch",
            self.batch.into(),
            format!("a power of two from 1 to {MAX_BATCH}"),
        )?;
        number(
            PIPELINE_DEGREES.contains(&self.pipeline),
            "pipeline",
            self.pipeline.into(),
            format!("one of {PIPELINE_DEGREES:?}"),
        )?;
        number(
            (1..=MAX_TENSOR).contains(&self.tensor),
            "tensor",
            self.tensor.into(),
            format!("1 to {MAX_TENSOR}"),
        )?;
        let most = self.pipeline * MICROBATCHES_PER_STAGE; // pipeline <= 16 was checked above
        number(
            (1..=most).contains(&self.microbatches),
            "microbatches",
            self.microbatches.into(),
            format!("1 to {most} ({MICROBATCHES_PER_STAGE} for each of {} stages)", self.pipeline),
        )
    }

    /// SHA-256 of the canonical JSON, in hex.
    pub fn id(&self) -> String {
        canon::digest(self).expect("a tuple holds strings and integers; only a context above 2^53 could fail")
    }

    /// The command that qualifies this tuple. Defaults are left out.
    pub fn qualify_command(&self) -> String {
        let mut command = format!(
            "sparkpipe qualify {} --recipe {} --class {} --context {} --batch {}",
            self.model, self.recipe, self.numeric_class, self.context, self.batch
        );
        for (flag, value) in
            [("pipeline", self.pipeline), ("tensor", self.tensor), ("microbatches", self.microbatches)]
        {
            if value != 1 {
                command.push_str(&format!(" --{flag} {value}"));
            }
        }
        if self.transport != Transport::Local {
            command.push_str(&format!(" --transport {}", self.transport));
        }
        command
    }
}

impl fmt::Display for TupleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}/{} context {} batch {} pp{} tp{} mb{} {}",
            self.model,
            self.recipe,
            self.numeric_class,
            self.context,
            self.batch,
            self.pipeline,
            self.tensor,
            self.microbatches,
            self.transport
        )
    }
}

fn name(field: &'static str, value: &str) -> Result<(), TupleError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'-');
    let ok = (1..=MAX_NAME).contains(&value.len()) && value.bytes().all(plain) && !value.starts_with('-');
    if ok { Ok(()) } else { Err(TupleError::Name { field, value: value.chars().take(MAX_NAME).collect() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn good() -> TupleKey {
        TupleKey::local("whatis-9m", "bf16", "bf16", 2048, 8)
    }

    #[test]
    fn every_bucket_is_accepted() {
        for context in CONTEXT_BUCKETS {
            for batch in (0..=10).map(|p| 1 << p) {
                for pipeline in PIPELINE_DEGREES {
                    let t = TupleKey { context, batch, pipeline, microbatches: pipeline * 4, ..good() };
                    assert_eq!(t.validate(), Ok(()));
                }
            }
        }
    }

    #[test]
    fn each_field_outside_its_limit_is_named() {
        let long = "x".repeat(MAX_NAME + 1);
        let cases: Vec<(TupleKey, &str)> = vec![
            (TupleKey { model: String::new(), ..good() }, "model"),
            (TupleKey { model: long, ..good() }, "model"),
            (TupleKey { recipe: "a b".into(), ..good() }, "recipe"),
            (TupleKey { numeric_class: "-x".into(), ..good() }, "numeric_class"),
            (TupleKey { context: 4096, ..good() }, "context"),
            (TupleKey { batch: 0, ..good() }, "batch"),
            (TupleKey { batch: 3, ..good() }, "batch"),
            (TupleKey { batch: 2048, ..good() }, "batch"),
            (TupleKey { pipeline: 3, ..good() }, "pipeline"),
            (TupleKey { tensor: 0, ..good() }, "tensor"),
            (TupleKey { microbatches: 5, ..good() }, "microbatches"),
            (TupleKey { microbatches: 0, ..good() }, "microbatches"),
        ];
        for (tuple, field) in cases {
            let text = tuple.validate().unwrap_err().to_string();
            assert!(text.contains(&format!("`{field}`")), "{text}");
        }
    }

    #[test]
    fn id_is_sha256_of_the_canonical_text() {
        let text = concat!(
            r#"{"batch":8,"context":2048,"microbatches":1,"model":"whatis-9m","numeric_class":"bf16","#,
            r#""pipeline":1,"recipe":"bf16","tensor":1,"transport":"local"}"#
        );
        assert_eq!(good().id(), canon::sha256_hex(text.as_bytes()));
    }

    #[test]
    fn qualify_command_leaves_defaults_out() {
        assert_eq!(
            good().qualify_command(),
            "sparkpipe qualify whatis-9m --recipe bf16 --class bf16 --context 2048 --batch 8"
        );
        let wide = TupleKey { pipeline: 4, microbatches: 8, transport: Transport::TcpRing, ..good() };
        assert!(wide.qualify_command().ends_with("--pipeline 4 --microbatches 8 --transport tcp_ring"));
    }

    proptest! {
        #[test]
        fn equal_ids_mean_equal_tuples(b1 in 0u32..11, b2 in 0u32..11, c1 in 0usize..5, c2 in 0usize..5) {
            let a = TupleKey { batch: 1 << b1, context: CONTEXT_BUCKETS[c1], ..good() };
            let b = TupleKey { batch: 1 << b2, context: CONTEXT_BUCKETS[c2], ..good() };
            prop_assert_eq!(a.id() == b.id(), a == b);
        }
    }
}
