//! A draft head: one more layer that guesses the token after the next.
//!
//! A row's final hidden value and the embedding of the token that follows it, each normed, lie side by side; one
//! product makes them the residual of a further layer, whose logits come through the model's own head. The head is
//! appended to a step only where the caller asks for it, so the ledger of a step without it does not change.
use super::PlanError;
use super::blocks::Blocks;
use kernels::embed::Embed;
use kernels::io::DraftIo;
use kernels::launch::Op;
use kernels::linear::{Epilogue, LinearPart};
use kernels::norm::Norm;
use kernels::numeric::ActKind;
use ledger::Feature;

/// Names of the tensors that make a draft head's rows.
#[derive(Clone, Copy, Debug)]
pub struct DraftTensors {
    /// The model's embedding table.
    pub embedding: &'static str,
    /// The model's final norm.
    pub norm: &'static str,
    /// Norm of the embedded next token.
    pub embedding_norm: &'static str,
    /// Norm of the hidden value.
    pub hidden_norm: &'static str,
    /// The product `[hidden, 2 hidden]` over both, embedding first.
    pub join: &'static str,
}

impl Blocks<'_> {
    /// Rows of the draft layer from the step's residual; they are the residual from here on.
    pub fn draft_rows(&mut self, t: &DraftTensors, eps: f32, plus_one: bool) -> Result<(), PlanError> {
        let io = self.draft_io(t)?;
        let hidden = self.hidden;
        let (table, join) = (self.matrix(t.embedding)?, self.matrix(t.join)?);
        let kind = match self.kind(t.join, &join, false)? {
            ActKind::Q8 if hidden % 256 != 0 => ActKind::Bf16, // each half holds whole Q8 groups or none
            kind => kind,
        };
        let embedded = self.scratch("draft_embedded", hidden, ActKind::F32);
        self.b.launch(Op::Embed(Embed {
            tokens: io.next,
            table: table.buf,
            format: table.format,
            vocab: table.n,
            hidden,
            out: embedded,
            distinct: Feature::NextTokens,
        }));
        let joined = self.scratch("draft_joined", 2 * hidden, kind);
        let last = self.scratch("draft_hidden", hidden, ActKind::F32);
        let residual = self.residual;
        for (name, weight, x, out, width, column) in [
            ("draft.norm_embedding", t.embedding_norm, embedded, (kind, joined), 2 * hidden, 0),
            ("draft.final", t.norm, residual, (ActKind::F32, last), hidden, 0),
            ("draft.norm_hidden", t.hidden_norm, last, (kind, joined), 2 * hidden, hidden),
        ] {
            let (weight, outs, gather) = (self.small(weight)?, vec![out], None);
            let norm = Norm { name, x, weight, hidden, eps, plus_one, gather, outs, width, column };
            self.b.launch(Op::Norm(norm));
        }
        self.residual = self.scratch("draft_residual", hidden, ActKind::F32);
        let part = LinearPart { name: "draft.join", w: join, epilogue: Epilogue::Store, out: self.residual };
        self.linear(&[(kind, joined)], vec![(kind, part)]);
        Ok(())
    }

    /// The inputs and outputs of the head. A decode step drafts behind its own greedy choice, which never leaves
    /// the device; the rows of a prompt are told what follows them.
    fn draft_io(&mut self, t: &DraftTensors) -> Result<DraftIo, PlanError> {
        let vocab = self.matrix(t.embedding)?.n as u64;
        let bucket = *self.b.bucket();
        let out_rows = bucket.out_rows as u64;
        let next = match bucket.decode {
            true => self.io.chosen,
            false => self.b.io("draft_next", 4 * bucket.rows as u64),
        };
        let logits = self.b.io("draft_logits", 4 * out_rows * vocab);
        let io = DraftIo { next, logits, chosen: self.b.io("draft_chosen", 4 * out_rows) };
        self.io.draft = Some(io);
        Ok(io)
    }

    /// Norm, head product and greedy choice of the draft layer.
    pub fn draft_head(&mut self, norm: &str, head: &str, eps: f32, plus_one: bool) -> Result<(), PlanError> {
        let Some(DraftIo { logits, chosen, .. }) = self.io.draft else { return Ok(()) };
        self.logits(("draft.head_norm", norm), ("draft.logits", head), eps, plus_one, (logits, chosen))
    }
}
