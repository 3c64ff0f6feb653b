//! Model families. A family is one folder and one line in `families!`; everything else is common.
//!
//! The seam is the trait [`Family`], resolved statically: [`Model`] is an enum and every call a `match`.
pub mod blocks;
pub mod config;
pub mod draft;
pub mod qwen3_5;
pub mod qwen3_moe;

use crate::containers::Metadata;
use crate::manifest::{Manifest, ManifestError, TensorSpec};
use crate::recipe::{Recipe, RecipeError};
use config::GeometryError;
use kernels::numeric::NumericClass;
use kernels::plan::{Bucket, Plan};
use ledger::{Bytes, StepFacts, expected_distinct_experts};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use thiserror::Error;

/// The tracked tiny geometries: name, config.json, recipe.
pub const TINY: [(&str, &str, &str); 2] = [
    ("tiny-qwen3_6_27b", include_str!("../../oracles/qwen3_6_27b/config.json"), "bf16"),
    ("tiny-qwen3_30b_a3b", include_str!("../../oracles/qwen3_30b_a3b/config.json"), "q4_k_m"),
];

/// What every common room may know of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Longest context the checkpoint declares.
    pub max_context: usize,
    /// Values cached per token over all layers.
    pub kv_values_per_token: u64,
    /// Bytes of recurrent state per sequence.
    pub state_bytes: u64,
    /// Values that a draft head caches per token beside them; 0 where the model has none.
    pub draft_kv_values_per_token: u64,
    /// MoE layers, experts a layer and experts a token; absent for a dense model.
    pub moe: Option<Moe>,
}

/// Routed-expert geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moe {
    /// MoE layers.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: u64,
    /// Experts of a token.
    pub top_k: u64,
}

impl Summary {
    /// Facts of a decode step at `batch` rows of `context` tokens under uniform routing.
    pub fn expected_facts(&self, batch: u64, context: u64) -> StepFacts {
        match self.moe {
            Some(m) => {
                let distinct = expected_distinct_experts(m.experts, m.top_k, batch);
                StepFacts::decode(batch, context, m.layers, distinct)
            }
            None => StepFacts::decode(batch, context, 0, 0.0),
        }
    }

    /// Facts that fill `bucket`: what admission prices.
    pub fn maximum_facts(&self, bucket: &Bucket) -> StepFacts {
        let mut facts = StepFacts {
            rows: bucket.rows as u64,
            out_rows: bucket.out_rows as u64,
            lengths: vec![bucket.context as u64; bucket.seqs],
            distinct_tokens: (bucket.rows as u64).min(self.vocab as u64),
            next_tokens: (bucket.rows as u64).min(self.vocab as u64),
            experts: Vec::new(),
        };
        if let Some(m) = self.moe {
            facts.experts = vec![m.experts.min(m.top_k * bucket.rows as u64) as f64; m.layers];
        }
        facts
    }

    /// Bytes a sequence of `context` tokens is admitted for: its state slab and its KV pages.
    pub fn sequence_price(&self, class: NumericClass, context: u64) -> Bytes {
        let tokens = context.next_multiple_of(ledger::PAGE_TOKENS);
        // Saturates: what 64 bits cannot hold no node can either.
        Bytes(
            (self.kv_values_per_token * class.kv_bytes())
                .saturating_mul(tokens)
                .saturating_add(self.state_bytes),
        )
    }
}

/// Why a model cannot be planned.
#[derive(Debug, Error)]
pub enum PlanError {
    /// Manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Recipe.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// Geometry.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The model has no draft head.
    #[error("this {family} model declares no draft head")]
    NoDraft {
        /// Family.
        family: &'static str,
    },
    /// A weight format no kernel of the class multiplies.
    #[error("tensor '{tensor}': no {class} kernel multiplies {format} weights of row length {k}")]
    Unsupported {
        /// Tensor.
        tensor: String,
        /// Class.
        class: NumericClass,
        /// Format.
        format: &'static str,
        /// Row length.
        k: usize,
    },
    /// A stage or node that cannot hold its part.
    #[error("{field} is {value}, the limit is {limit}")]
    Limit {
        /// Field.
        field: &'static str,
        /// Value.
        value: u64,
        /// Limit.
        limit: u64,
    },
}

/// What a family provides.
pub trait Family: Sized {
    /// Name used on the command line and in receipts.
    const NAME: &'static str;
    /// Values of `model_type` in config.json that mean this family.
    const MODEL_TYPES: &'static [&'static str];
    /// Values of `general.architecture` in GGUF metadata that mean this family.
    const ARCHITECTURES: &'static [&'static str];
    /// Known full-size configurations: name, config.json text, recipe.
    const KNOWN: &'static [(&'static str, &'static str, &'static str)];

    /// Geometry from config.json.
    fn from_config(config: &serde_json::Value) -> Result<Self, GeometryError>;
    /// Geometry from GGUF metadata.
    fn from_gguf(metadata: &Metadata) -> Result<Self, GeometryError>;
    /// Metadata of a GGUF file of this geometry, without its vocabulary.
    fn to_gguf(&self) -> Result<Metadata, GeometryError> {
        Err(GeometryError::Container { family: Self::NAME, container: "GGUF" })
    }
    /// Whether plans can be built for the geometry: asked of every one, also of one that a pack's header holds.
    fn validate(&self) -> Result<(), GeometryError>;
    /// Tensors in consumption order.
    fn tensors(&self) -> Vec<TensorSpec>;
    /// What common rooms may know.
    fn summary(&self) -> Summary;
    /// Whether a node with `memory` bytes can hold `weights` and one sequence of `context` tokens.
    fn validate_node(&self, weights: Bytes, memory: Bytes, context: u64) -> Result<(), PlanError> {
        let need = weights + self.summary().sequence_price(NumericClass::Bf16, context);
        let (value, limit) = (need.0, memory.0);
        if value <= limit { Ok(()) } else { Err(PlanError::Limit { field: "node memory", value, limit }) }
    }
    /// Whether `layers` is a slice a stage may hold.
    fn validate_slice(&self, layers: Range<usize>) -> Result<(), PlanError> {
        let limit = self.summary().layers as u64;
        if layers.start < layers.end && layers.end as u64 <= limit {
            return Ok(());
        }
        Err(PlanError::Limit { field: "layer slice end", value: layers.end as u64, limit })
    }
    /// The plan of a bucket.
    fn plan(&self, manifest: &Manifest, class: NumericClass, bucket: Bucket) -> Result<Plan, PlanError>;
    /// Tensors of the draft head in consumption order; they lie behind [`Self::tensors`] and no step without the
    /// head reads them. None where the model declares no head.
    fn draft_tensors(&self) -> Vec<TensorSpec> {
        Vec::new()
    }
    /// The plan of a bucket with the draft head behind the step.
    fn draft_plan(&self, _: &Manifest, _: NumericClass, _: Bucket) -> Result<Plan, PlanError> {
        Err(PlanError::NoDraft { family: Self::NAME })
    }
}

macro_rules! families {
    ($($variant:ident => $geometry:ty),+ $(,)?) => {
        /// A model of a known family.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "family", rename_all = "snake_case")]
        #[allow(missing_docs)]
        pub enum Model { $($variant($geometry)),+ }

        impl Model {
            /// Reads the geometry from a config.json.
            pub fn from_config(config: &serde_json::Value) -> Result<Self, GeometryError> {
                let model_type = config.get("model_type").and_then(|v| v.as_str()).ok_or(
                    GeometryError::Missing { field: "model_type".into() })?;
                $(if <$geometry>::MODEL_TYPES.contains(&model_type) {
                    return <$geometry>::from_config(config).map(Self::$variant);
                })+
                Err(GeometryError::UnknownFamily { field: "model_type", value: model_type.into() })
            }

            /// Reads the geometry from GGUF metadata.
            pub fn from_gguf(metadata: &Metadata) -> Result<Self, GeometryError> {
                let name = config::gguf_string(metadata, "general.architecture")?;
                $(if <$geometry>::ARCHITECTURES.contains(&name.as_str()) {
                    return <$geometry>::from_gguf(metadata).map(Self::$variant);
                })+
                Err(GeometryError::UnknownFamily { field: "general.architecture", value: name })
            }

            /// Known models: name, config.json, recipe.
            pub fn known() -> Vec<(&'static str, &'static str, &'static str)> {
                let mut out = Vec::new();
                $(out.extend_from_slice(<$geometry>::KNOWN);)+
                out
            }

            /// Name of the family.
            pub fn family(&self) -> &'static str {
                match self { $(Self::$variant(_) => <$geometry>::NAME),+ }
            }

            /// Metadata of a GGUF file of this geometry, without its vocabulary.
            pub fn to_gguf(&self) -> Result<Metadata, GeometryError> {
                match self { $(Self::$variant(g) => g.to_gguf()),+ }
            }

            /// Whether plans can be built for the geometry.
            pub fn validate(&self) -> Result<(), GeometryError> {
                match self { $(Self::$variant(g) => g.validate()),+ }
            }

            /// Tensors in consumption order.
            pub fn tensors(&self) -> Vec<TensorSpec> {
                match self { $(Self::$variant(g) => g.tensors()),+ }
            }

            /// What common rooms may know.
            pub fn summary(&self) -> Summary {
                match self { $(Self::$variant(g) => g.summary()),+ }
            }

            /// The plan of a bucket.
            pub fn plan(&self, manifest: &Manifest, class: NumericClass, bucket: Bucket)
                -> Result<Plan, PlanError> {
                match self { $(Self::$variant(g) => g.plan(manifest, class, bucket)),+ }
            }

            /// Tensors of the draft head; none where the model declares no head.
            pub fn draft_tensors(&self) -> Vec<TensorSpec> {
                match self { $(Self::$variant(g) => g.draft_tensors()),+ }
            }

            /// The plan of a bucket with the draft head behind the step.
            pub fn draft_plan(&self, manifest: &Manifest, class: NumericClass, bucket: Bucket)
                -> Result<Plan, PlanError> {
                match self { $(Self::$variant(g) => g.draft_plan(manifest, class, bucket)),+ }
            }

            /// Checks that a node can hold the model.
            pub fn validate_node(&self, weights: Bytes, memory: Bytes, context: u64) -> Result<(), PlanError> {
                match self { $(Self::$variant(g) => g.validate_node(weights, memory, context)),+ }
            }

            /// Checks a layer slice.
            pub fn validate_slice(&self, layers: Range<usize>) -> Result<(), PlanError> {
                match self { $(Self::$variant(g) => g.validate_slice(layers)),+ }
            }
        }
    };
}

families! {
    Qwen35 => qwen3_5::Geometry,
    Qwen3Moe => qwen3_moe::Geometry,
}

impl Model {
    /// A manifest laid out from geometry and recipe, without weights: what a step without a draft head reads.
    pub fn manifest(&self, recipe: &Recipe) -> Result<Manifest, PlanError> {
        self.lay_out(self.tensors(), recipe)
    }

    /// As [`Self::manifest`], with the tensors of the draft head behind.
    pub fn manifest_with_draft(&self, recipe: &Recipe) -> Result<Manifest, PlanError> {
        self.lay_out(self.tensors().into_iter().chain(self.draft_tensors()).collect(), recipe)
    }

    fn lay_out(&self, specs: Vec<TensorSpec>, recipe: &Recipe) -> Result<Manifest, PlanError> {
        let layers = self.summary().layers;
        let mut tensors = Vec::new();
        for spec in specs {
            let format = recipe.format(spec.class, spec.layer, layers)?;
            tensors.push((spec, format));
        }
        Ok(Manifest::lay_out(&tensors)?)
    }
}
