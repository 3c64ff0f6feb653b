//! Running a plan on the host: launches in order, items of a launch over the pool.
use crate::host::pool::Pool;
use crate::host::simd::Simd;
use crate::launch::{Launch, Op};
use crate::memory::{Memory, Views};
use crate::numeric::StepShape;
use crate::plan::Plan;
use std::time::Instant;
use thiserror::Error;

/// What goes wrong in a step.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// A value that cannot be chosen from: NaN logits of the router or the head.
    #[error("launch {launch} ({op}): {what}")]
    Value {
        /// Launch.
        launch: usize,
        /// Operation.
        op: String,
        /// What was wrong.
        what: String,
    },
    /// More rows, sequences or logits rows than the plan's bucket.
    #[error("{field} is {value}, the plan's bucket holds {limit}")]
    Bucket {
        /// Field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The bucket's limit.
        limit: usize,
    },
    /// A pair of activation and weight formats no kernel multiplies.
    #[error("no kernel multiplies {act} activations with {format} weights")]
    Unsupported {
        /// Activation kind.
        act: &'static str,
        /// Weight format.
        format: &'static str,
    },
}

/// What to do with the products over weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    /// Run everything.
    Full,
    /// Replay: fill products with values derived from launch index and shape, run everything else.
    Replay,
}

/// Start and duration of a launch in nanoseconds since the step began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchTime {
    /// Start.
    pub start: u64,
    /// Duration.
    pub nanos: u64,
}

/// The CPU as a device: a pool of threads and a SIMD level.
pub struct HostDevice {
    pub(crate) pool: Pool,
    pub(crate) simd: Simd,
    launched: u64,
}

/// What an operation gets to run with.
pub struct Ctx<'a> {
    /// Views of the plan's buffers.
    pub views: Views<'a>,
    /// Sizes of this step.
    pub shape: StepShape,
    /// SIMD level.
    pub simd: Simd,
    /// Threads.
    pub pool: &'a mut Pool,
}

impl HostDevice {
    /// A device of `threads` threads whose plans need at most `scratch` floats a thread.
    pub fn new(threads: usize, simd: Simd, scratch: usize) -> Self {
        Self { pool: Pool::new(threads, scratch), simd, launched: 0 }
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// SIMD level.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// Launches that ran on this device since it was made, counted where they run.
    pub fn launched(&self) -> u64 {
        self.launched
    }

    /// The thread pool, for probes that measure with the same threads.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Runs all launches of `plan`. Allocates nothing.
    pub fn run(&mut self, plan: &Plan, memory: &Memory, shape: StepShape) -> Result<(), RunError> {
        self.fits(plan, shape)?;
        for (index, launch) in plan.launches.iter().enumerate() {
            self.launch(plan, memory, shape, index, launch)?;
        }
        Ok(())
    }

    /// As [`Self::run`], and writes each launch's start and duration into `times`.
    pub fn run_timed(
        &mut self,
        plan: &Plan,
        memory: &Memory,
        shape: StepShape,
        times: &mut [LaunchTime],
    ) -> Result<(), RunError> {
        self.fits(plan, shape)?;
        let begin = Instant::now();
        for (index, launch) in plan.launches.iter().enumerate() {
            let start = begin.elapsed().as_nanos() as u64;
            self.launch(plan, memory, shape, index, launch)?;
            times[index] = LaunchTime { start, nanos: begin.elapsed().as_nanos() as u64 - start };
        }
        Ok(())
    }

    /// Runs one launch of `plan`.
    pub fn launch(
        &mut self,
        plan: &Plan,
        memory: &Memory,
        shape: StepShape,
        index: usize,
        launch: &Launch,
    ) -> Result<(), RunError> {
        let views = Views::new(memory, &plan.buffers);
        let mut ctx = Ctx { views, shape, simd: self.simd, pool: &mut self.pool };
        let done = match &launch.op {
            Op::Embed(o) => crate::embed::run::run(o, &mut ctx),
            Op::Norm(o) => crate::norm::run::run(o, &mut ctx),
            Op::Linear(o) => crate::linear::run::run(o, &mut ctx),
            Op::Rope(o) => crate::rope::run::run(o, &mut ctx),
            Op::Attend(o) => crate::attend::run::run(o, &mut ctx),
            Op::Conv(o) => crate::conv::run::run(o, &mut ctx),
            Op::Delta(o) => crate::delta::run::run(o, &mut ctx),
            Op::Route(o) => crate::route::run::run(o, &mut ctx),
            Op::ExpertUp(o) => crate::experts::run::run_up(o, &mut ctx),
            Op::ExpertDown(o) => crate::experts::run::run_down(o, &mut ctx),
            Op::Fold(o) => crate::fold::run::run(o, &mut ctx),
            Op::Argmax(o) => crate::argmax::run::run(o, &mut ctx),
        };
        self.launched += u64::from(done.is_ok());
        done.map_err(|what| RunError::Value { launch: index, op: launch.op.name(), what })
    }

    fn fits(&self, plan: &Plan, shape: StepShape) -> Result<(), RunError> {
        let b = &plan.bucket;
        for (field, value, limit) in [
            ("rows", shape.rows, b.rows),
            ("out_rows", shape.out_rows, b.out_rows),
            ("seqs", shape.seqs, b.seqs),
            ("thread scratch", plan.thread_scratch, self.pool.scratch()),
        ] {
            if value > limit {
                return Err(RunError::Bucket { field, value, limit });
            }
        }
        Ok(())
    }
}
