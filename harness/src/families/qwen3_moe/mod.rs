//! Grouped-query attention with query/key norms and routed experts in every layer (Qwen3-30B-A3B).
mod geometry;
mod plan;
mod tensors;

pub use geometry::Geometry;

use super::config::GeometryError;
use super::{Family, Moe, PlanError, Summary};
use crate::containers::Metadata;
use crate::manifest::{Manifest, TensorSpec};
use kernels::numeric::NumericClass;
use kernels::plan::{Bucket, Plan};

impl Family for Geometry {
    const NAME: &'static str = "qwen3_moe";
    const MODEL_TYPES: &'static [&'static str] = &["qwen3_moe"];
    const ARCHITECTURES: &'static [&'static str] = &["qwen3moe"];
    const KNOWN: &'static [(&'static str, &'static str, &'static str)] =
        &[("qwen3_30b_a3b", include_str!("qwen3_30b_a3b.json"), "q4_k_m")];

    fn from_config(config: &serde_json::Value) -> Result<Self, GeometryError> {
        geometry::from_config(config)
    }

    fn from_gguf(metadata: &Metadata) -> Result<Self, GeometryError> {
        geometry::from_gguf(metadata)
    }

    fn to_gguf(&self) -> Result<Metadata, GeometryError> {
        Ok(geometry::to_gguf(self))
    }

    fn validate(&self) -> Result<(), GeometryError> {
        geometry::check(self)
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        tensors::list(self)
    }

    fn summary(&self) -> Summary {
        Summary {
            layers: self.layers,
            hidden: self.hidden,
            vocab: self.vocab,
            max_context: self.max_context,
            kv_values_per_token: (self.layers * 2 * self.kv_heads * self.head_dim) as u64,
            state_bytes: 0,
            draft_kv_values_per_token: 0,
            moe: Some(Moe { layers: self.layers, experts: self.experts as u64, top_k: self.top_k as u64 }),
        }
    }

    fn plan(&self, manifest: &Manifest, class: NumericClass, bucket: Bucket) -> Result<Plan, PlanError> {
        plan::build(self, manifest, class, bucket)
    }
}
