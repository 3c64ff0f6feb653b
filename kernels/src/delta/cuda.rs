//! CUDA binding of the delta rule: a block a head for one token, 32 columns of a head a block for many.
use super::{Delta, DeltaForm};
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{COUNTERS, bf16_class, define, outputs, refused, stored};

static STEP: Source = Source { name: "step.cu", text: include_str!("step.cu") };
static CHUNKED: Source = Source { name: "chunk.cu", text: include_str!("chunk.cu") };

/// Tokens of a device chunk and columns of a block.
const CHUNK: usize = 32;
const COLUMNS: usize = 32;

/// Rows of the state that a thread of a step holds: 16 where that leaves a block 256 threads, else 8.
fn rows_a_thread(dk: usize, dv: usize) -> usize {
    if dk * dv >= 16 << 10 { 16 } else { 8 }
}

/// Bytes of dynamic shared memory of the chunk kernel (as `Room` in chunk.cu lays them out).
fn chunk_shared(dk: usize) -> usize {
    4 * (2 * CHUNK * (dk + 4) + dk * COLUMNS + 3 * CHUNK * (COLUMNS + 4) + 2 * CHUNK)
}

impl Delta {
    fn check(&self, plan: &PlanView) -> Result<(), BindError> {
        bf16_class("delta", plan)?;
        if self.dk == 0 || !self.dk.is_multiple_of(32) {
            return Err(refused("delta", "dk", self.dk, "multiples of 32"));
        }
        // A step's block has dk/rows x dv/4 threads, at least one a column.
        if self.dv == 0 || !self.dv.is_multiple_of(32) || self.dk * self.dv > 32 << 10 {
            return Err(refused("delta", "dv", self.dv, "multiples of 32 with dk * dv up to 32768"));
        }
        if self.k_heads == 0 || !self.v_heads.is_multiple_of(self.k_heads) {
            return Err(refused("delta", "v_heads", self.v_heads, "multiples of k_heads"));
        }
        Ok(())
    }

    fn defines(&self) -> Result<Vec<(&'static str, String)>, BindError> {
        Ok(vec![
            define("K_HEADS", self.k_heads),
            define("V_HEADS", self.v_heads),
            define("DK", self.dk),
            define("DV", self.dv),
            ("A_FORMAT", stored("delta", "a_log", &self.a_log)?),
            ("DT_FORMAT", stored("delta", "dt_bias", &self.dt_bias)?),
            ("N_FORMAT", stored("delta", "norm", &self.norm)?),
        ])
    }

    /// Chunks a launch may have, as the kernel numbers them: by row, one more for each sequence.
    fn chunks(&self, plan: &PlanView) -> usize {
        plan.bucket.rows / CHUNK + plan.bucket.seqs + 1
    }

    /// The kernel calls of this op.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16, Q8 outputs or head shapes the kernels are not written for.
    pub fn bind(&self, plan: &PlanView, _: &Target) -> Result<Vec<KernelCall>, BindError> {
        self.check(plan)?;
        let (out_f32, out_bf16) = outputs("delta", &[(self.out_kind, self.out)])?;
        let mut args = vec![
            Arg::Buf(self.qkv),
            Arg::Buf(self.z),
            Arg::Buf(self.a),
            Arg::Buf(self.b),
            Arg::Buf(self.a_log.buf),
            Arg::Buf(self.dt_bias.buf),
            Arg::Buf(self.norm.buf),
            Arg::Buf(self.state),
            Arg::Buf(self.seg_start),
            Arg::Buf(self.slot),
            out_f32,
            out_bf16,
        ];
        let mut defines = self.defines()?;
        let (source, entry, blocks, block, shared) = match self.form {
            DeltaForm::Step => {
                let rows = rows_a_thread(self.dk, self.dv);
                defines.push(define("ROWS", rows));
                (&STEP, "delta_step", self.v_heads, self.dk * self.dv / (4 * rows), 0)
            }
            DeltaForm::Chunk => {
                let counters = 4 * (self.chunks(plan) * self.v_heads) as u64;
                if counters > COUNTERS {
                    return Err(refused(
                        "delta",
                        "rows",
                        plan.bucket.rows,
                        "what the counters' megabyte holds",
                    ));
                }
                args.extend([Arg::Work(COUNTERS), Arg::Work(0)]);
                let blocks = self.v_heads * self.dv / COLUMNS;
                (&CHUNKED, "delta_chunk", blocks, 256, chunk_shared(self.dk))
            }
        };
        args.extend([Arg::Shape, Arg::F32(self.eps)]);
        Ok(vec![KernelCall {
            source,
            entry,
            defines,
            grid: [blocks as u32, plan.bucket.seqs as u32, 1],
            block: block as u32,
            shared: shared as u32,
            args,
            pdl: true,
        }])
    }

    /// Counters and the outputs before their norm; a step needs none.
    pub fn workspace(&self, plan: &PlanView, _: &Target) -> u64 {
        match self.form {
            DeltaForm::Step => 0,
            DeltaForm::Chunk => COUNTERS + 4 * (plan.bucket.rows * self.v_heads * self.dv) as u64,
        }
    }
}
