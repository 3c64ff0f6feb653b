//! The hybrid of gated delta rule and gated attention layers with a dense MLP (Qwen 3.6 and relatives).
mod geometry;
mod plan;
mod tensors;

pub use geometry::{Geometry, LayerKind};

use super::config::GeometryError;
use super::{Family, PlanError, Summary};
use crate::containers::Metadata;
use crate::manifest::{Manifest, TensorSpec};
use kernels::numeric::NumericClass;
use kernels::plan::{Bucket, Plan};

impl Family for Geometry {
    const NAME: &'static str = "qwen3_5";
    const MODEL_TYPES: &'static [&'static str] = &["qwen3_5", "qwen3_5_text"];
    const ARCHITECTURES: &'static [&'static str] = &["qwen35"];
    const KNOWN: &'static [(&'static str, &'static str, &'static str)] =
        &[("qwen3_6_27b", include_str!("qwen3_6_27b.json"), "bf16")];

    fn from_config(config: &serde_json::Value) -> Result<Self, GeometryError> {
        geometry::read(config)
    }

    fn from_gguf(_: &Metadata) -> Result<Self, GeometryError> {
        Err(GeometryError::Container { family: Self::NAME, container: "GGUF" })
    }

    fn validate(&self) -> Result<(), GeometryError> {
        geometry::check(self)
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        tensors::list(self)
    }

    fn summary(&self) -> Summary {
        Summary {
            layers: self.layers.len(),
            hidden: self.hidden,
            vocab: self.vocab,
            max_context: self.max_context,
            kv_values_per_token: (self.attention_layers() * 2 * self.kv_heads * self.head_dim) as u64,
            state_bytes: self.state_bytes(),
            draft_kv_values_per_token: (self.draft_layers * 2 * self.kv_heads * self.head_dim) as u64,
            moe: None,
        }
    }

    fn plan(&self, manifest: &Manifest, class: NumericClass, bucket: Bucket) -> Result<Plan, PlanError> {
        plan::build(self, manifest, class, bucket)?.finish()
    }

    fn draft_tensors(&self) -> Vec<TensorSpec> {
        tensors::draft(self)
    }

    fn draft_plan(
        &self,
        manifest: &Manifest,
        class: NumericClass,
        bucket: Bucket,
    ) -> Result<Plan, PlanError> {
        if self.draft_layers == 0 {
            return Err(PlanError::NoDraft { family: Self::NAME });
        }
        plan::with_draft(self, manifest, class, bucket)
    }
}
