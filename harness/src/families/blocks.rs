//! Building blocks that families share: inputs, weights by name, attention, dense MLP, experts, head.
use super::PlanError;
use crate::manifest::{Entry, Manifest};
use kernels::buffer::BufId;
use kernels::experts::{ExpertDown, ExpertUp, Groups};
use kernels::io::Io;
use kernels::launch::Op;
use kernels::linear::{Epilogue, Linear, LinearPart, Matrix, supports};
use kernels::norm::Norm;
use kernels::numeric::{ActKind, NumericClass, SmallWeight};
use kernels::plan::{Bucket, Plan, PlanBuilder};
use kernels::{argmax, attend, embed, fold, rope, route};
use ledger::{Feature, PAGE_TOKENS, TrafficClass};
use std::collections::BTreeMap;

/// Largest arena a plan may ask for: the user half of a 48-bit address space.
const MAX_ARENA: u64 = 1 << 47;

/// A plan in the making, with the residual stream and the scratch names it reuses.
pub struct Blocks<'a> {
    /// The builder.
    pub b: PlanBuilder,
    manifest: &'a Manifest,
    /// Inputs and outputs.
    pub io: Io,
    /// Residual stream `[rows, hidden]` f32.
    pub residual: BufId,
    pub(super) hidden: usize,
    fresh: BTreeMap<&'static str, u32>,
    weights: BTreeMap<String, BufId>,
    moe_layers: u16,
}

/// Geometry of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_dim: usize,
    /// Rotated dimensions.
    pub rotary_dims: usize,
    /// Rotary base.
    pub theta: f64,
    /// Norm epsilon.
    pub eps: f32,
    /// Whether norm weights are offsets from one.
    pub plus_one: bool,
    /// Whether each query head is followed by an output gate in the projection.
    pub gated: bool,
}

/// Sizes of the routing outputs of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoeIo {
    /// MoE layers.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
}

/// Routed-expert geometry of a layer.
#[derive(Clone, Copy, Debug)]
pub struct MoeShape {
    /// Experts.
    pub experts: usize,
    /// Experts a token.
    pub top_k: usize,
    /// Width of an expert.
    pub width: usize,
    /// Whether chosen weights are renormalised.
    pub norm_topk: bool,
}

impl<'a> Blocks<'a> {
    /// Starts a plan: inputs, outputs and the embedding.
    pub fn new(
        manifest: &'a Manifest,
        class: NumericClass,
        bucket: Bucket,
        hidden: usize,
        vocab: usize,
        moe: Option<MoeIo>,
    ) -> Self {
        let mut b = PlanBuilder::new(class, bucket);
        let max_pages = bucket.context.div_ceil(PAGE_TOKENS as usize);
        let u32s = |n: usize| 4 * n as u64;
        let (rows, seqs) = (bucket.rows, bucket.seqs);
        let m = moe.unwrap_or_default();
        let io = Io {
            tokens: b.io("tokens", u32s(rows)),
            pos: b.io("pos", u32s(rows)),
            seg: b.io("seg", u32s(rows)),
            kv_slot: b.io("kv_slot", u32s(rows)),
            seg_start: b.io("seg_start", u32s(seqs + 1)),
            slot: b.io("slot", u32s(seqs)),
            table: b.io("table", u32s(seqs * max_pages)),
            out_index: b.io("out_index", u32s(bucket.out_rows)),
            logits: b.io("logits", u32s(bucket.out_rows * vocab)),
            chosen: b.io("chosen", u32s(bucket.out_rows)),
            expert_counts: (0..m.layers).map(|l| b.io(&format!("experts.{l}"), u32s(m.experts))).collect(),
            expert_ids: (0..m.layers)
                .map(|l| b.io(&format!("expert_ids.{l}"), u32s(rows * m.top_k)))
                .collect(),
            max_pages,
            draft: None,
        };
        let residual = b.scratch("residual", u32s(rows * hidden));
        let (fresh, weights) = (BTreeMap::new(), BTreeMap::new());
        Self { b, manifest, io, residual, hidden, fresh, weights, moe_layers: 0 }
    }

    /// A new scratch buffer of `rows x width` values of `kind`.
    pub fn scratch(&mut self, name: &'static str, width: usize, kind: ActKind) -> BufId {
        self.scratch_rows(name, self.b.bucket().rows, width, kind)
    }

    fn scratch_rows(&mut self, name: &'static str, rows: usize, width: usize, kind: ActKind) -> BufId {
        let n = self.fresh.entry(name).or_insert(0);
        *n += 1;
        let name = format!("{name}.{n}");
        self.b.scratch(&name, rows as u64 * kind.bytes(width as u64))
    }

    fn buffer(&mut self, entry: &Entry) -> BufId {
        if let Some(id) = self.weights.get(&entry.name) {
            return *id;
        }
        let id = self.b.weight(&entry.name, entry.offset, entry.bytes);
        self.weights.insert(entry.name.clone(), id);
        id
    }

    /// The matrix called `name`; for stacked experts, one expert's matrix.
    pub fn matrix(&mut self, name: &str) -> Result<Matrix, PlanError> {
        let manifest = self.manifest;
        let entry = manifest.get(name)?;
        let dims = entry.shape.len();
        let (n, k) = (entry.shape[dims.saturating_sub(2)] as usize, entry.shape[dims - 1] as usize);
        Ok(Matrix { buf: self.buffer(entry), format: entry.parsed_format()?, n, k })
    }

    /// The small weight called `name`.
    pub fn small(&mut self, name: &str) -> Result<SmallWeight, PlanError> {
        let manifest = self.manifest;
        let entry = manifest.get(name)?;
        let format = entry.parsed_format()?;
        let len = entry.shape.iter().product();
        Ok(SmallWeight { buf: self.buffer(entry), format, len })
    }

    /// The kind of rows that products with `w` take in this plan's class.
    pub fn kind(&self, name: &str, w: &Matrix, exact: bool) -> Result<ActKind, PlanError> {
        let class = self.b.class();
        let kind = match class {
            _ if exact || class == NumericClass::F32 => ActKind::F32,
            NumericClass::Int8Act if w.k % 256 == 0 && supports(w.format, ActKind::Q8) => ActKind::Q8,
            _ => ActKind::Bf16,
        };
        if supports(w.format, kind) {
            return Ok(kind);
        }
        let (tensor, format, k) = (name.to_owned(), w.format.name(), w.k);
        Err(PlanError::Unsupported { tensor, class, format, k })
    }

    /// Embedding of the tokens into the residual stream.
    pub fn embed(&mut self, name: &str) -> Result<(), PlanError> {
        self.b.layer("embed", None);
        let table = self.matrix(name)?;
        self.b.launch(Op::Embed(embed::Embed {
            tokens: self.io.tokens,
            table: table.buf,
            format: table.format,
            vocab: table.n,
            hidden: self.hidden,
            out: self.residual,
            distinct: Feature::DistinctTokens,
        }));
        Ok(())
    }

    /// RMS norm of the residual stream in the kinds that `consumers` take. Returns a buffer for each.
    pub fn norm(
        &mut self,
        name: &'static str,
        weight: &str,
        eps: f32,
        plus_one: bool,
        kinds: &[ActKind],
    ) -> Result<Vec<BufId>, PlanError> {
        let weight = self.small(weight)?;
        let mut outs: Vec<(ActKind, BufId)> = Vec::new();
        let mut found = Vec::new();
        for kind in kinds {
            let known = outs.iter().find(|(k, _)| k == kind).map(|(_, b)| *b);
            let buf = match known {
                Some(buf) => buf,
                None => {
                    let buf = self.scratch("normed", self.hidden, *kind);
                    outs.push((*kind, buf));
                    buf
                }
            };
            found.push(buf);
        }
        let (x, hidden) = (self.residual, self.hidden);
        let (gather, width, column) = (None, hidden, 0);
        self.b.launch(Op::Norm(Norm { name, x, weight, hidden, eps, plus_one, gather, outs, width, column }));
        Ok(found)
    }

    /// Products that share their input rows. Parts whose formats want another kind get a launch of their own.
    pub fn linear(&mut self, x: &[(ActKind, BufId)], parts: Vec<(ActKind, LinearPart)>) {
        for (kind, buf) in x {
            let mine: Vec<LinearPart> =
                parts.iter().filter(|(k, _)| k == kind).map(|(_, p)| p.clone()).collect();
            if !mine.is_empty() {
                self.b.launch(Op::Linear(Linear { x: *buf, kind: *kind, rows: Feature::Rows, parts: mine }));
            }
        }
    }

    /// Norm, then products `(ledger name, tensor, exact)` stored in f32. Returns their outputs.
    pub fn normed_products(
        &mut self,
        norm: (&'static str, &str),
        eps: f32,
        plus_one: bool,
        products: &[(&'static str, String)],
    ) -> Result<Vec<BufId>, PlanError> {
        let mut parts = Vec::new();
        let mut outs = Vec::new();
        for (name, tensor) in products {
            let w = self.matrix(tensor)?;
            let kind = self.kind(tensor, &w, false)?;
            let out = self.scratch("product", w.n, ActKind::F32);
            outs.push(out);
            parts.push((kind, LinearPart { name, w, epilogue: Epilogue::Store, out }));
        }
        let mut kinds: Vec<ActKind> = Vec::new();
        for (kind, _) in &parts {
            if !kinds.contains(kind) {
                kinds.push(*kind);
            }
        }
        let bufs = self.norm(norm.0, norm.1, eps, plus_one, &kinds)?;
        let x: Vec<_> = kinds.into_iter().zip(bufs).collect();
        self.linear(&x, parts);
        Ok(outs)
    }

    /// `residual += x . w^T`.
    pub fn add_product(
        &mut self,
        name: &'static str,
        tensor: &str,
        kind: ActKind,
        x: BufId,
    ) -> Result<(), PlanError> {
        let w = self.matrix(tensor)?;
        let part = LinearPart { name, w, epilogue: Epilogue::Accumulate, out: self.residual };
        self.linear(&[(kind, x)], vec![(kind, part)]);
        Ok(())
    }

    /// Attention layer: norm, q/k/v products, rope and cache append, attention, output product.
    /// `tensor` maps a part (`q`, `k`, `v`, `o`, `q_norm`, `k_norm`, `norm`) to a tensor name.
    pub fn attention(
        &mut self,
        shape: &AttentionShape,
        tensor: &dyn Fn(&str) -> String,
    ) -> Result<(), PlanError> {
        let s = *shape;
        let layer = self.cache_index();
        let products =
            [("attention.q", tensor("q")), ("attention.k", tensor("k")), ("attention.v", tensor("v"))];
        let outs = self.normed_products(("attention.norm", &tensor("norm")), s.eps, s.plus_one, &products)?;
        let class = self.b.class();
        let pages = self.b.bucket().pages as u64;
        let cached = pages * PAGE_TOKENS * (s.kv_heads * s.head_dim) as u64 * class.kv_bytes();
        let k_cache = self.b.cache(format!("k.{layer}"), TrafficClass::Kv, cached);
        let v_cache = self.b.cache(format!("v.{layer}"), TrafficClass::Kv, cached);
        let q_out = self.scratch("query", s.heads * s.head_dim, ActKind::F32);
        let (q_norm, k_norm) = (self.small(&tensor("q_norm"))?, self.small(&tensor("k_norm"))?);
        self.b.launch(Op::Rope(rope::Rope {
            q: outs[0],
            q_stride: if s.gated { 2 * s.head_dim } else { s.head_dim },
            k: outs[1],
            v: outs[2],
            q_norm,
            k_norm,
            eps: s.eps,
            plus_one: s.plus_one,
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            rotary_dims: s.rotary_dims,
            theta: s.theta,
            pos: self.io.pos,
            kv_slot: self.io.kv_slot,
            k_cache,
            v_cache,
            kv_bytes: class.kv_bytes(),
            q_out,
        }));
        let o = self.matrix(&tensor("o"))?;
        let mut out_kind = self.kind(&tensor("o"), &o, false)?;
        if out_kind == ActKind::Q8 && (s.heads / s.kv_heads * s.head_dim) % 256 != 0 {
            out_kind = ActKind::Bf16; // an item writes whole Q8 groups of 256 values or none
        }
        let out = self.scratch("attended", s.heads * s.head_dim, out_kind);
        self.b.launch(Op::Attend(attend::Attend {
            q: q_out,
            gate: s.gated.then_some(outs[0]),
            k_cache,
            v_cache,
            kv_bytes: class.kv_bytes(),
            pos: self.io.pos,
            seg: self.io.seg,
            table: self.io.table,
            max_pages: self.io.max_pages,
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            scale: (s.head_dim as f32).sqrt().recip(),
            out,
            out_kind,
        }));
        self.add_product("attention.o", &tensor("o"), out_kind, out)
    }

    fn cache_index(&mut self) -> u32 {
        let n = self.fresh.entry("cache").or_insert(0);
        *n += 1;
        *n - 1
    }

    /// Dense MLP: norm, gate and up with SiLU-mul, down added to the residual.
    pub fn mlp(
        &mut self,
        eps: f32,
        plus_one: bool,
        tensor: &dyn Fn(&str) -> String,
    ) -> Result<(), PlanError> {
        let (gate, up) = (self.matrix(&tensor("gate"))?, self.matrix(&tensor("up"))?);
        let down = self.matrix(&tensor("down"))?;
        let kind = self.kind(&tensor("gate"), &gate, false)?;
        let down_kind = self.kind(&tensor("down"), &down, false)?;
        let x = self.norm("mlp.norm", &tensor("norm"), eps, plus_one, &[kind])?;
        let h = self.scratch("mlp", gate.n, down_kind);
        let epilogue = Epilogue::SiluMul { up, kind: down_kind };
        let part = LinearPart { name: "mlp.gate_up", w: gate, epilogue, out: h };
        self.linear(&[(kind, x[0])], vec![(kind, part)]);
        self.add_product("mlp.down", &tensor("down"), down_kind, h)
    }

    /// MoE layer: norm, router from the un-rounded norm, grouping, expert products, fold.
    pub fn moe(&mut self, s: &MoeShape, eps: f32, tensor: &dyn Fn(&str) -> String) -> Result<(), PlanError> {
        let rows = self.b.bucket().rows;
        let router = self.matrix(&tensor("router"))?;
        let router_kind = self.kind(&tensor("router"), &router, true)?;
        let (gate, up) = (self.matrix(&tensor("gate"))?, self.matrix(&tensor("up"))?);
        let down = self.matrix(&tensor("down"))?;
        let kind = self.kind(&tensor("gate"), &gate, false)?;
        let down_kind = self.kind(&tensor("down"), &down, false)?;
        let x = self.norm("moe.norm", &tensor("norm"), eps, false, &[router_kind, kind])?;
        let logits = self.scratch("router", s.experts, ActKind::F32);
        let part = LinearPart { name: "moe.router", w: router, epilogue: Epilogue::Store, out: logits };
        self.linear(&[(router_kind, x[0])], vec![(router_kind, part)]);
        let ids = self.io.expert_ids[usize::from(self.moe_layers)];
        let weights = self.scratch("expert_weights", s.top_k, ActKind::F32);
        let offsets = self.scratch_rows("expert_offsets", 1, s.experts + 1, ActKind::F32);
        let list = self.scratch("expert_list", s.top_k, ActKind::F32);
        let counts = self.io.expert_counts[usize::from(self.moe_layers)];
        self.b.launch(Op::Route(route::Route {
            logits,
            experts: s.experts,
            top_k: s.top_k,
            norm_topk: s.norm_topk,
            ids,
            weights,
            counts,
            offsets,
            list,
        }));
        let groups = Groups { offsets, list, experts: s.experts, top_k: s.top_k, moe_layer: self.moe_layers };
        self.moe_layers += 1;
        let h = self.scratch_rows("expert_h", rows * s.top_k, s.width, down_kind);
        let out_kind = down_kind;
        self.b.launch(Op::ExpertUp(ExpertUp { x: x[1], kind, groups, gate, up, out: h, out_kind }));
        let y = self.scratch_rows("expert_y", rows * s.top_k, self.hidden, ActKind::F32);
        self.b.launch(Op::ExpertDown(ExpertDown { h, kind: down_kind, groups, down, out: y }));
        let (top_k, hidden, residual) = (s.top_k, self.hidden, self.residual);
        self.b.launch(Op::Fold(fold::Fold { y, weights, top_k, hidden, residual }));
        Ok(())
    }

    /// Final norm of the wanted rows, head product and greedy choice.
    pub fn head(&mut self, norm: &str, head: &str, eps: f32, plus_one: bool) -> Result<(), PlanError> {
        self.b.layer("head", None);
        let (norm, logits, chosen) = (("head.norm", norm), self.io.logits, self.io.chosen);
        self.logits(norm, ("head.logits", head), eps, plus_one, (logits, chosen))
    }

    /// As [`Self::head`], with ledger names and outputs of the caller.
    pub(super) fn logits(
        &mut self,
        norm: (&'static str, &str),
        head: (&'static str, &str),
        eps: f32,
        plus_one: bool,
        (logits, chosen): (BufId, BufId),
    ) -> Result<(), PlanError> {
        let w = self.matrix(head.1)?;
        let kind = self.kind(head.1, &w, false)?;
        let weight = self.small(norm.1)?;
        let x = self.scratch_rows("final", self.b.bucket().out_rows, self.hidden, kind);
        self.b.launch(Op::Norm(Norm {
            name: norm.0,
            x: self.residual,
            weight,
            hidden: self.hidden,
            eps,
            plus_one,
            gather: Some(self.io.out_index),
            outs: vec![(kind, x)],
            width: self.hidden,
            column: 0,
        }));
        let part = LinearPart { name: head.0, w, epilogue: Epilogue::Store, out: logits };
        self.b.launch(Op::Linear(Linear { x, kind, rows: Feature::OutRows, parts: vec![part] }));
        self.b.launch(Op::Argmax(argmax::Argmax { logits, vocab: w.n, chosen }));
        Ok(())
    }

    /// Closes the plan.
    pub fn finish(self) -> Result<Plan, PlanError> {
        let plan = self.b.finish(self.io);
        match plan.arena_bytes.into_iter().max() {
            Some(value) if value > MAX_ARENA => {
                Err(PlanError::Limit { field: "arena bytes", value, limit: MAX_ARENA })
            }
            _ => Ok(plan),
        }
    }
}
