//! A decode step allocates nothing, on one thread and on two.
mod common;

use common::{BUILTIN, engine, fill, pack, simd, tokens};
use harness::engine::EngineSize;
use kernels::numeric::NumericClass;
use kernels::sys::alloc::CountingAlloc;

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

#[test]
fn a_decode_step_allocates_nothing() {
    let (pack, _guard) = pack(BUILTIN);
    for threads in [1, 2] {
        let size = EngineSize { batch: 4, context: 200, threads };
        let mut e = engine(&pack, NumericClass::Bf16, size, simd());
        let vocab = e.summary().vocab;
        let mut rows = Vec::new();
        for i in 0..4u32 {
            let s = e.open(200).unwrap();
            fill(&mut e, s, &tokens(u64::from(i), 120 + i as usize, vocab));
            rows.push((s, i));
        }
        e.decode(&rows).unwrap();
        let before_staging = CountingAlloc::allocations();
        assert!(before_staging > 0, "the counting allocator is installed");
        for _ in 0..12 {
            e.stage_decode(&rows).unwrap();
            let before = CountingAlloc::allocations();
            e.run_staged(None).unwrap();
            assert_eq!(CountingAlloc::allocations() - before, 0, "{threads} threads");
        }
    }
}
