//! The family's plan: attention and routed experts for every layer.
use super::geometry::Geometry;
use crate::families::PlanError;
use crate::families::blocks::{AttentionShape, Blocks, MoeIo, MoeShape};
use crate::manifest::Manifest;
use kernels::numeric::NumericClass;
use kernels::plan::{Bucket, Plan};

/// Builds the plan of `bucket`.
pub fn build(
    g: &Geometry,
    manifest: &Manifest,
    class: NumericClass,
    bucket: Bucket,
) -> Result<Plan, PlanError> {
    let mut p = Blocks::new(
        manifest,
        class,
        bucket,
        g.hidden,
        g.vocab,
        Some(MoeIo { layers: g.layers, experts: g.experts, top_k: g.top_k }),
    );
    let attention = AttentionShape {
        heads: g.heads,
        kv_heads: g.kv_heads,
        head_dim: g.head_dim,
        rotary_dims: g.head_dim,
        theta: g.theta,
        eps: g.eps,
        plus_one: false,
        gated: false,
    };
    let moe = MoeShape { experts: g.experts, top_k: g.top_k, width: g.width, norm_topk: g.norm_topk };
    p.embed("token_embd")?;
    for layer in 0..g.layers {
        p.b.layer("attention", Some(layer as u16));
        p.attention(&attention, &|part| match part {
            "norm" => format!("blk.{layer}.attn_norm"),
            "o" => format!("blk.{layer}.attn_output"),
            part => format!("blk.{layer}.attn_{part}"),
        })?;
        p.b.layer("moe", Some(layer as u16));
        p.moe(&moe, g.eps, &|part| match part {
            "norm" => format!("blk.{layer}.ffn_norm"),
            "router" => format!("blk.{layer}.ffn_gate_inp"),
            part => format!("blk.{layer}.ffn_{part}_exps"),
        })?;
    }
    p.head("output_norm", "output", g.eps, false)?;
    p.finish()
}
