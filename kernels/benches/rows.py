#!/usr/bin/env python3
"""Times the row kernels (attention, delta rule, norms, ...) on a GPU and sweeps their constants; no Rust needed.

  python3 kernels/benches/rows.py [--only attend,delta,..] [--budget SECONDS] > rows.tsv

As sweep.py: launches with programmatic launch in one graph, over copies of what must come from memory. No result is
checked here (tests/emulated does that). Columns: what, constants, microseconds a launch, bytes a second that must move.
"""
import argparse, ctypes as c, os, random, struct, sys, time
from sweep import Gpu, Nvrtc, SRC

KV = 128  # tokens of a page


def u32s(values):
    return struct.pack(f"<{len(values)}I", *values)


class Bench:
    def __init__(self, budget):
        self.gpu, self.nvrtc, self.end = Gpu(), Nvrtc(), time.time() + budget
        self.free, self.cubins = [], {}
        self.work = self.zeros(1 << 28)

    def zeros(self, n):
        p = self.gpu.alloc(n)
        self.gpu.d.cuMemsetD8_v2(c.c_uint64(p), 0, c.c_size_t(n))
        self.free.append(p)
        return p

    def data(self, data):
        p = self.zeros(max(len(data), 16))
        self.gpu.put(p, data)
        return p

    def floats(self, n, width=1.0):
        """Random f32 values, a block of them repeated."""
        block = struct.pack("<4096f", *[(random.random() - 0.5) * width for _ in range(4096)])
        return self.data((block * (n // 4096 + 1))[:4 * n])

    def drop(self):
        for p in self.free[1:]:
            self.gpu.d.cuMemFree_v2(c.c_uint64(p))
        del self.free[1:]

    def shape(self, rows, seqs=None):
        return self.data(u32s([rows, rows, seqs or rows, 0]))

    def time(self, what, file, entry, defines, grid, block, shared, args, moved, repeats=12):
        """`args` is a list of argument lists, one a copy."""
        if time.time() > self.end:
            return
        key = (file, tuple(sorted(defines.items())))
        if key not in self.cubins:
            self.cubins[key] = self.nvrtc.cubin(os.path.join(SRC, file), self.gpu.arch, defines)
        cubin, note = self.cubins[key]
        text = " ".join(f"{k}={v}" for k, v in defines.items() if len(str(v)) < 12)
        if not cubin:
            print(what, text, note, sep="\t", flush=True)
            return
        f = self.gpu.function(cubin, entry, shared)
        n = max(1, 48 // len(args))
        us = self.gpu.graph_us([(f, grid, block, shared, a) for _ in range(n) for a in args], repeats)
        print(what, text + " " + note, f"{us:.2f}", f"{moved / us / 1e6:.3f} TB/s", sep="\t", flush=True)


def p(x):
    return c.c_uint64(x)


def attend(b, d, group, kv_heads, gated, rows, length, variants, prefill=0):
    """`prefill`: that many rows of one sequence; else `rows` sequences of `length` tokens."""
    pages = (length + KV - 1) // KV
    seqs = 1 if prefill else rows
    n = prefill or rows
    heads, token = group * kv_heads, 4 * kv_heads * d
    cache = seqs * pages * KV * token // 2
    copies = max(1, min(24, (600 << 20) // (2 * cache)))
    order = list(range(seqs * pages))
    random.shuffle(order)
    pos = [length - n + i for i in range(n)] if prefill else [length - 1] * n
    q, gate, out = b.floats(n * heads * d), b.floats(n * heads * 2 * d), b.zeros(4 * n * heads * d)
    fixed = [b.data(u32s(pos)), b.data(u32s([0] * n if prefill else list(range(n)))), b.data(u32s(order)), out]
    kv = [(b.zeros(cache), b.zeros(cache)) for _ in range(copies)]
    shape, sms = b.shape(n, seqs), b.gpu.sms
    scale = c.c_float(d ** -0.5 * 1.4427)
    for v in variants:
        warps, mt, stage, stages, resident, share = v
        m = 16 * mt
        beside = 2 * m * (d + 8) + 4 * m * (KV + 8) + 4 * (warps // mt) * m
        shared = 2 * stages * stage * d + beside + (0 if prefill else 4 * (n + 1))
        defines = dict(HEAD_DIM=d, GROUP=group, KV_HEADS=kv_heads, WARPS=warps, MT=mt, STAGE=stage, STAGES=stages,
                       GATED=int(gated), OUT_BF16=1)
        if prefill:
            grid = (-(-n // (m // group)) * kv_heads, 1, 1)
            args = [[p(q), p(gate), p(k), p(w)] + [p(x) for x in fixed] + [p(shape), scale, c.c_uint(pages)] for k, w in kv]
            moved, what = 4 * heads * d * sum(x + 1 for x in pos), f"attend prefill d{d} rows {n} at {length} (flop)"
            b.time(what, "attend/prefill.cu", "attend_prefill", defines, grid, 32 * warps, shared, args, moved)
            continue
        defines |= dict(EARLY=1, RESIDENT=resident)
        runs, coarse = -(-length // 1024), int(share * sms)
        part = -(-group * (d + 2) // 4) * 4
        data = b.work + (1 << 20)
        units = data + 4 * (n * kv_heads * runs + 16) * part
        grid = (min(n * kv_heads * pages, resident * sms), 1, 1)
        args = [[p(q), p(gate), p(k), p(w)] + [p(x) for x in fixed] +
                [p(units), p(data), p(b.work), p(b.work + 4 * n * kv_heads), p(shape), scale, c.c_uint(pages),
                 c.c_uint(runs), c.c_uint(coarse)] for k, w in kv]
        b.time(f"attend d{d} B{n} at {length} coarse {share}", "attend/decode.cu", "attend_decode", defines, grid,
               32 * warps, shared, args, n * length * token)
    b.drop()


def attends(b):
    moe = [(8, 1, 64, 6, 2, 0.75), (4, 1, 64, 6, 2, 0.75), (8, 1, 64, 3, 2, 0.75), (8, 1, 64, 6, 2, 0.4), (8, 1, 64, 6, 2, 1.5)]
    dense = [(8, 1, 64, 6, 1, 0.75), (8, 1, 32, 6, 1, 0.75), (8, 1, 64, 6, 1, 0.4), (8, 1, 64, 6, 1, 1.5)]
    for rows, length in [(1, 128), (1, 1024), (1, 2048), (1, 4096), (1, 16384), (1, 32768), (8, 2048), (16, 2048), (64, 2048)]:
        attend(b, 128, 8, 4, False, rows, length, moe)
    for rows, length in [(1, 2048), (1, 16384), (8, 2048), (64, 2048)]:
        attend(b, 256, 6, 4, True, rows, length, dense)
    for n, length in [(512, 512), (2048, 2048), (512, 16384)]:
        attend(b, 128, 8, 4, False, 1, length, [(8, 4, 32, 5, 1, 0), (8, 4, 32, 8, 1, 0), (8, 2, 64, 4, 1, 0)], prefill=n)
        attend(b, 256, 6, 4, True, 1, length, [(8, 2, 32, 5, 1, 0)], prefill=n)


def delta(b):
    kh, vh, d = 16, 48, 128
    width, values = 2 * kh * d + vh * d, vh * d
    formats = dict(K_HEADS=kh, V_HEADS=vh, DK=d, DV=d, A_FORMAT=0, DT_FORMAT=0, N_FORMAT=0)
    for rows, chunk in [(1, 0), (8, 0), (64, 0), (512, 1), (2048, 1)]:
        seqs = 1 if chunk else rows
        state = 4 * vh * d * d * seqs
        copies = 1 if chunk else max(1, min(24, (600 << 20) // state))
        row = [p(b.floats(rows * n)) for n in (width, values, vh, vh)] + [p(b.floats(256)) for _ in range(3)]
        start = [0, rows] if chunk else list(range(rows + 1))
        tail = [p(b.data(u32s(start))), p(b.data(u32s(list(range(seqs))))), p(0), p(b.zeros(2 * rows * values))]
        states, shape, eps = [b.zeros(state) for _ in range(copies)], p(b.shape(rows, seqs)), c.c_float(1e-6)
        if chunk:
            shared = 4 * (2 * 32 * (d + 4) + d * 32 + 3 * 32 * 36 + 64)
            args = [row + [p(s)] + tail + [p(b.work + (1 << 20)), p(b.work), shape, eps] for s in states]
            b.time(f"delta chunk {rows}", "delta/chunk.cu", "delta_chunk", formats, (vh * d // 32, 1, 1), 256, shared, args, 0)
        else:
            for n in (16, 8):
                args = [row + [p(s)] + tail + [shape, eps] for s in states]
                b.time(f"delta step B{rows}", "delta/step.cu", "delta_step", formats | dict(ROWS=n), (vh, seqs, 1),
                       d * d // 4 // n, 0, args, 2 * state)
        b.drop()


def small(b):
    eps = c.c_float(1e-6)
    for rows in (1, 8, 64, 512):
        shape = p(b.shape(rows))
        for hidden, threads in ((2048, 512), (5120, 640), (5120, 1280 // 4)):
            x, w, out, both = p(b.floats(rows * hidden)), p(b.floats(hidden)), p(b.zeros(2 * rows * hidden)), p(b.zeros(4 * rows * hidden))
            b.time(f"norm {hidden} B{rows}", "norm/norm.cu", "norm_rows",
                   dict(HIDDEN=hidden, THREADS=threads, W_FORMAT=0, PLUS_ONE=0), (rows, 1, 1), threads, 0,
                   [[x, w, p(0), both, out, shape, eps, c.c_uint(hidden), c.c_uint(0)]], 10 * rows * hidden)
        y, w, r = p(b.floats(rows * 8 * 2048)), p(b.floats(rows * 8)), p(b.floats(rows * 2048))
        b.time(f"fold B{rows}", "fold/fold.cu", "fold_rows", dict(TOP_K=8, HIDDEN=2048), (4, rows, 1), 128, 0,
               [[y, w, r, shape]], 40 * rows * 2048)
        ids, lists = [p(b.zeros(4 * rows * 8 + 4096)) for _ in range(2)], [p(b.zeros(4 * rows * 8 + 4096)) for _ in range(3)]
        warps = min(16, max(4, rows))
        b.time(f"route B{rows}", "route/route.cu", "route_rows", dict(EXPERTS=128, TOP_K=8, WARPS=warps, NORM_TOPK=1),
               (-(-rows // warps), 1, 1), 32 * warps, 0, [[p(b.floats(rows * 128))] + ids + lists + [p(b.work), shape]], 0)
        for d, heads, kv, stride, rot, theta in ((128, 32, 4, 128, 128, 1e6), (256, 24, 4, 512, 64, 1e7)):
            f = "{" + ",".join(f"{theta ** (-2 * m / rot):e}" for m in range(rot // 2)) + "}"
            io = [p(b.floats(rows * heads * stride)), p(b.floats(rows * kv * d)), p(b.floats(rows * kv * d))] + [p(b.floats(d))] * 2
            slots = [p(b.data(u32s([2047] * rows))), p(b.data(u32s([r * 128 for r in range(rows)])))]
            cache = [p(b.zeros(2 * (rows + 1) * 128 * kv * d)) for _ in range(2)] + [p(b.zeros(4 * rows * heads * d))]
            b.time(f"rope d{d} B{rows}", "rope/rope.cu", "rope_append",
                   dict(HEAD_DIM=d, ROTARY=rot, FREQUENCIES=f, HEADS=heads, KV_HEADS=kv, Q_STRIDE=stride, Q_FORMAT=0, K_FORMAT=0,
                        PLUS_ONE=0, PAGE=128), (-(-(heads + kv) // 4), rows, 1), 128, 0, [io + slots + cache + [shape, eps]], 0)
        u, w, s = p(b.floats(rows * 10240)), p(b.floats(40960)), p(b.zeros(4 * rows * 3 * 10240))
        seq = [p(b.data(u32s(list(range(rows + 1))))), p(b.data(u32s(list(range(rows))))), p(b.zeros(4 * rows * 10240))]
        b.time(f"conv B{rows}", "conv/conv.cu", "conv_rows", dict(DIM=10240, TAPS=4, W_FORMAT=0, TIME=32), (20, rows, 1), 128, 0,
               [[u, w, s] + seq + [shape]], 4 * rows * 10240 * 8)
        for vocab in (151936, 248320):
            piece = max(2048, (-(-vocab // -(-2 * b.gpu.sms // rows)) + 1023) // 1024 * 1024)
            b.time(f"argmax {vocab} B{rows}", "argmax/argmax.cu", "argmax_rows", {}, (-(-vocab // piece), rows, 1), 256, 0,
                   [[p(b.floats(rows * vocab)), p(b.zeros(4 * rows)), p(b.work), p(b.work + 8 * rows), shape, c.c_uint(vocab),
                     c.c_uint(piece)]], 4 * rows * vocab)
        b.drop()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--only", default="small,delta,attends")
    a.add_argument("--budget", type=float, default=120)
    a = a.parse_args()
    b = Bench(a.budget)
    for name in a.only.split(","):
        globals()[name](b)


if __name__ == "__main__":
    main()
