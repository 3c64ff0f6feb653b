//! CUDA binding of the query/key norm, rotation and cache append: one warp a head.
use super::Rope;
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{bf16_class, define, quads, refused, stored};

static SOURCE: Source = Source { name: "rope.cu", text: include_str!("rope.cu") };
/// Heads of a block, one a warp.
const HEADS: usize = 4;

/// The frequencies as an initialiser: the host's own f64 values, printed so that they read back the same.
fn frequencies(theta: f64, rotary: usize) -> String {
    let of = |m: usize| theta.powf(-2.0 * m as f64 / rotary as f64);
    let all: Vec<String> = (0..rotary / 2).map(|m| format!("{:e}", of(m))).collect();
    if all.is_empty() { "{0}".into() } else { format!("{{{}}}", all.join(",")) }
}

impl Rope {
    /// The kernel calls of this op.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16 or head widths that are not multiples of 4.
    pub fn bind(&self, plan: &PlanView, _: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class("rope", plan)?;
        quads("rope", "head_dim", self.head_dim)?;
        quads("rope", "q_stride", self.q_stride)?;
        if self.kv_bytes != 2 {
            return Err(refused("rope", "kv_bytes", self.kv_bytes, "2"));
        }
        if self.rotary_dims > self.head_dim || !self.rotary_dims.is_multiple_of(2) {
            return Err(refused("rope", "rotary_dims", self.rotary_dims, "even numbers up to head_dim"));
        }
        Ok(vec![KernelCall {
            source: &SOURCE,
            entry: "rope_append",
            defines: vec![
                define("HEAD_DIM", self.head_dim),
                define("ROTARY", self.rotary_dims),
                ("FREQUENCIES", frequencies(self.theta, self.rotary_dims)),
                define("HEADS", self.heads),
                define("KV_HEADS", self.kv_heads),
                define("Q_STRIDE", self.q_stride),
                ("Q_FORMAT", stored("rope", "q_norm", &self.q_norm)?),
                ("K_FORMAT", stored("rope", "k_norm", &self.k_norm)?),
                define("PLUS_ONE", u32::from(self.plus_one)),
                define("PAGE", ledger::PAGE_TOKENS),
            ],
            grid: [(self.heads + self.kv_heads).div_ceil(HEADS) as u32, plan.bucket.rows as u32, 1],
            block: 32 * HEADS as u32,
            shared: 0,
            args: vec![
                Arg::Buf(self.q),
                Arg::Buf(self.k),
                Arg::Buf(self.v),
                Arg::Buf(self.q_norm.buf),
                Arg::Buf(self.k_norm.buf),
                Arg::Buf(self.pos),
                Arg::Buf(self.kv_slot),
                Arg::Buf(self.k_cache),
                Arg::Buf(self.v_cache),
                Arg::Buf(self.q_out),
                Arg::Shape,
                Arg::F32(self.eps),
            ],
            pdl: true,
        }])
    }
}
