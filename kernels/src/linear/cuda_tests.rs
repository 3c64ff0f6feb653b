//! Geometry of the bindings: every row of every part has a block, shared memory fits, constants are stable.
use super::super::contract::{Epilogue, Linear, LinearPart, Matrix};
use super::{Few, Gemv, Tile, slices};
use crate::buffer::BufId;
use crate::cuda::call::{PlanView, Target};
use crate::cuda::helpers::COUNTERS;
use crate::formats::Format;
use crate::numeric::{ActKind, NumericClass};
use crate::plan::Bucket;
use ledger::Feature;

fn bucket(rows: usize) -> Bucket {
    Bucket { rows, seqs: rows, out_rows: rows, context: 2048, pages: 0, slots: 0, decode: true }
}

fn linear(kind: ActKind, parts: &[(Format, usize, bool)], k: usize) -> Linear {
    let parts = parts
        .iter()
        .map(|&(format, n, silu)| {
            let w = Matrix { buf: BufId(1), format, n, k };
            let up = Matrix { buf: BufId(2), ..w };
            let epilogue =
                if silu { Epilogue::SiluMul { up, kind: ActKind::Bf16 } } else { Epilogue::Accumulate };
            LinearPart { name: "part", w, epilogue, out: BufId(3) }
        })
        .collect();
    Linear { x: BufId(0), kind, rows: Feature::Rows, parts }
}

/// Shapes of the families, and odd ones.
fn cases() -> Vec<Linear> {
    use Format::{Bf16, F32, Q2_K, Q4_K, Q5_K, Q6_K, Q8_0};
    let b = ActKind::Bf16;
    vec![
        linear(b, &[(Bf16, 10240, false), (Bf16, 6144, false), (Bf16, 48, false), (Bf16, 48, false)], 5120),
        linear(b, &[(Bf16, 17408, true)], 5120),
        linear(b, &[(Bf16, 5120, false)], 17408),
        linear(b, &[(Bf16, 248_320, false)], 5120),
        linear(b, &[(Q4_K, 4096, false), (Q4_K, 512, false), (Q6_K, 512, false)], 2048),
        linear(b, &[(Q4_K, 2048, false)], 4096),
        linear(b, &[(Q6_K, 151_936, false)], 2048),
        linear(b, &[(Q2_K, 768, true)], 256),
        linear(b, &[(Q5_K, 40, false)], 768),
        linear(b, &[(Q8_0, 33, true)], 96),
        linear(ActKind::F32, &[(F32, 128, false)], 2048),
    ]
}

#[test]
fn grids_cover_every_row_and_fit_the_target() {
    for target in Target::ALL {
        for rows in [1, 2, 7, 8, 9, 16, 17, 64, 65, 128, 1024, 2048] {
            for op in cases() {
                let (bucket, view_buffers) = (bucket(rows), []);
                let view = PlanView { bucket: &bucket, class: NumericClass::Bf16, buffers: &view_buffers };
                let calls = op.bind(&view, &target).unwrap();
                let value = |c: &crate::cuda::call::KernelCall, name: &str| {
                    c.defines.iter().find(|(n, _)| *n == name).map(|(_, v)| v.parse::<usize>().unwrap())
                };
                for c in &calls {
                    assert!(c.shared <= target.shared_per_block && c.block % 32 == 0 && c.block <= 1024);
                    assert!(c.pdl && c.grid.iter().all(|&g| g > 0) && c.grid[1] <= 65535);
                    let tiles: usize = op.parts.iter().map(|p| p.w.n.div_ceil(16)).sum();
                    let columns = match c.entry {
                        "linear_gemv" => {
                            assert!(c.grid[0] as usize * value(c, "CFG_R").unwrap() >= tiles && rows <= 8);
                            continue;
                        }
                        "linear_tile" => rows.div_ceil(8 * value(c, "CFG_NB").unwrap()),
                        _ => {
                            let n = value(c, "CFG_XN").unwrap() * value(c, "CFG_WARPS").unwrap();
                            assert!(c.grid[0] as usize * n >= op.parts[0].w.n);
                            assert!(c.grid[1] as usize * value(c, "CFG_XM").unwrap() >= rows);
                            continue;
                        }
                    };
                    let each = value(c, "CFG_WARPS").unwrap() * value(c, "CFG_MT").unwrap();
                    assert!(
                        c.grid[0] as usize / columns * each >= tiles && c.grid[0] as usize % columns == 0
                    );
                    let split = value(c, "CFG_SPLIT_K").unwrap() == 1;
                    assert_eq!(c.grid[1] as usize, if split { slices(op.parts[0].w.k) } else { 1 });
                    let work = op.workspace(&view, &target);
                    assert!(if split { work > COUNTERS } else { work == 0 }, "{work}");
                }
            }
        }
    }
}

#[test]
fn slices_are_fixed_by_k() {
    let at = [256, 512, 768, 1024, 1792, 2048, 3072, 4096, 5120, 17408].map(slices);
    assert_eq!(at, [1, 2, 3, 4, 7, 4, 6, 8, 8, 8]);
    assert_eq!((slices(8), slices(255)), (1, 1));
}

#[test]
fn the_standing_constants_are_those_that_were_compiled() {
    use Format::{Bf16, Q4_K, Q6_K};
    let stands = |k, tiles, formats: &[Format], silu, one| {
        let g = Gemv::standing(Few { k, tiles, formats, silu, one, target: &Target::SM_90A });
        assert!(g.slices == 1 && !g.fetch);
        (g.tiles, g.depth, g.blocks)
    };
    assert_eq!(stands(5120, 2176, &[Bf16, Bf16], true, true), (2, 2, 2));
    assert_eq!(stands(17408, 320, &[Bf16], false, false), (1, 2, 4));
    assert_eq!(stands(2048, 320, &[Q4_K, Q4_K, Q6_K], false, true), (1, 8, 3));
    assert_eq!(stands(4096, 128, &[Q4_K], false, false), (1, 8, 1));
    assert_eq!(stands(2048, 9496, &[Q6_K], false, true), (1, 8, 4));
    assert_eq!(stands(5120, 2176, &[Q4_K, Q4_K], true, true), (2, 4, 1));
    assert_eq!(stands(5120, 2176, &[Q4_K, Q4_K], true, false), (2, 2, 1));
    let t = Tile::standing(17408, 64, &[Bf16], false, 320, &Target::SM_90A);
    assert_eq!(t, Tile { warps: 8, mt: 2, nb: 8, chunk: 128, stages: 3, split: true });
}
