#!/usr/bin/env python3
"""Sweeps the constants of the matrix kernels on a GPU: time a launch, weight bytes a second; no Rust needed.

  python3 kernels/benches/sweep.py [--shape NAME,..] [--rows 1,8,64] [--budget SECONDS] > sweep.tsv

Each shape has several copies of its weights, together beyond four last caches, launched in turn with
programmatic launch in one CUDA graph, so that every launch reads its weights from memory. Weights are random
bytes: no result is checked here (tests/emulated does that). What spills is printed and skipped.
"""
import argparse, ctypes as c, glob, os, random, re, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

HERE = os.path.dirname(os.path.abspath(__file__))
SRC = os.path.join(HERE, "..", "src")
BITS = {"BF16": 16, "F16": 16, "F32": 32, "Q8_0": 8.5, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625,
        "Q2_K": 2.625}


def load(names):
    for n in names:
        for path in [n] + sorted(glob.glob("/usr/local/cuda*/lib64/" + n + "*")):
            try:
                return c.CDLL(path)
            except OSError:
                pass
    sys.exit("cannot load " + names[0])


def ck(rc, what):
    if rc:
        raise RuntimeError(f"{what}: error {rc}")


class Nvrtc:
    def __init__(self):
        self.lib = load(["libnvrtc.so.13", "libnvrtc.so"])

    def cubin(self, file, arch, defines):
        """(cubin, note); cubin is empty where the compile fails or spills."""
        n, prog = self.lib, c.c_void_p()
        text = open(file, "rb").read()
        ck(n.nvrtcCreateProgram(c.byref(prog), text, os.path.basename(file).encode(), 0, None, None),
           "create")
        opts = [f"--gpu-architecture={arch}", "--std=c++17", "--device-as-default-execution-space",
                "--ptxas-options=-v", "-I" + os.path.dirname(file), "-I" + os.path.join(SRC, "cuda")]
        opts += [f"-D{k}={v}" for k, v in defines.items()]
        arr = (c.c_char_p * len(opts))(*[o.encode() for o in opts])
        rc = n.nvrtcCompileProgram(prog, len(opts), arr)
        log = self.blob(prog, "ProgramLog").decode(errors="replace")
        if rc:
            return b"", "FAILED " + log[:300].replace("\n", " ")
        regs = log.split("Used ")[1].split(" ")[0] if "Used " in log else "?"
        if any(int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill)", log)):
            return b"", f"{regs} regs, spills"
        return self.blob(prog, "CUBIN"), regs + " regs"

    def blob(self, prog, what):
        size = c.c_size_t()
        ck(getattr(self.lib, f"nvrtcGet{what}Size")(prog, c.byref(size)), what)
        buf = c.create_string_buffer(size.value)
        ck(getattr(self.lib, f"nvrtcGet{what}")(prog, buf), what)
        return buf.raw


def compiled(file, arch, defines):
    """In a process of the pool: NVRTC compiles one program at a time."""
    global compiler
    compiler = globals().get("compiler") or Nvrtc()
    try:
        return compiler.cubin(file, arch, defines)
    except RuntimeError as e:
        return b"", f"FAILED {e}"


class LaunchAttribute(c.Structure):
    _fields_ = [("id", c.c_int), ("pad", c.c_char * 4), ("value", c.c_char * 64)]


class LaunchConfig(c.Structure):
    _fields_ = [("grid", c.c_uint * 3), ("block", c.c_uint * 3), ("shared", c.c_uint), ("stream", c.c_void_p),
                ("attrs", c.POINTER(LaunchAttribute)), ("count", c.c_uint)]


class Gpu:
    def __init__(self):
        self.d = load(["libcuda.so.1", "libcuda.so"])
        ck(self.d.cuInit(0), "init")
        dev, ctx, v = c.c_int(), c.c_void_p(), c.c_int()
        ck(self.d.cuDeviceGet(c.byref(dev), 0), "device")
        ck(self.d.cuDevicePrimaryCtxRetain(c.byref(ctx), dev), "context")
        ck(self.d.cuCtxSetCurrent(ctx), "current")
        def attr(i):
            ck(self.d.cuDeviceGetAttribute(c.byref(v), i, dev), "attribute")
            return v.value
        self.sms, self.l2, self.cc = attr(16), attr(38), attr(75) * 10 + attr(76)
        self.arch = {90: "sm_90a", 120: "sm_120a", 121: "sm_121a"}[self.cc]
        self.stream = c.c_void_p()
        ck(self.d.cuStreamCreate(c.byref(self.stream), 1), "stream")
        self.events = [c.c_void_p(), c.c_void_p()]
        for e in self.events:
            ck(self.d.cuEventCreate(c.byref(e), 0), "event")

    def alloc(self, n):
        p = c.c_uint64()
        ck(self.d.cuMemAlloc_v2(c.byref(p), c.c_size_t(n)), f"alloc {n}")
        return p.value

    def put(self, p, data):
        ck(self.d.cuMemcpyHtoD_v2(c.c_uint64(p), data, c.c_size_t(len(data))), "copy")

    def function(self, cubin, entry, shared):
        m, f = c.c_void_p(), c.c_void_p()
        ck(self.d.cuModuleLoadData(c.byref(m), cubin), "module")
        ck(self.d.cuModuleGetFunction(c.byref(f), m, entry.encode()), entry)
        if shared > 48 << 10:
            ck(self.d.cuFuncSetAttribute(f, 8, shared), "shared")
        return f

    def launch(self, f, grid, block, shared, args):
        # Programmatic serialization.
        attr = LaunchAttribute(id=6, value=(1).to_bytes(4, "little") + bytes(60))
        cfg = LaunchConfig((c.c_uint * 3)(*grid), (c.c_uint * 3)(block, 1, 1), shared, self.stream,
                           c.pointer(attr), 1)
        ptrs = (c.c_void_p * len(args))(*[c.cast(c.pointer(a), c.c_void_p) for a in args])
        ck(self.d.cuLaunchKernelEx(c.byref(cfg), f, ptrs, None), "launch")

    def graph_us(self, launches, repeats):
        """Median microseconds of one launch in a graph of all `launches`."""
        g, x = c.c_void_p(), c.c_void_p()
        ck(self.d.cuStreamBeginCapture_v2(self.stream, 1), "capture")
        for l in launches:
            self.launch(*l)
        ck(self.d.cuStreamEndCapture(self.stream, c.byref(g)), "end")
        ck(self.d.cuGraphInstantiateWithFlags(c.byref(x), g, c.c_uint64(0)), "instantiate")
        times = []
        for i in range(repeats + 2):
            ck(self.d.cuEventRecord(self.events[0], self.stream), "record")
            ck(self.d.cuGraphLaunch(x, self.stream), "graph")
            ck(self.d.cuEventRecord(self.events[1], self.stream), "record")
            ck(self.d.cuStreamSynchronize(self.stream), "sync")
            ms = c.c_float()
            ck(self.d.cuEventElapsedTime(c.byref(ms), *self.events), "elapsed")
            times.append(ms.value * 1e3 / len(launches))
        self.d.cuGraphExecDestroy(x), self.d.cuGraphDestroy(g)
        return sorted(times[2:])[repeats // 2]


def slices(k):
    return max(1, min(8, k // 256 if k < 2048 else k // 512))


# name: (source, K, parts of (format, N, epilogue)); experts: (source, K, N, format, paired).
SHAPES = {
    "b_gate_up": ("linear", 5120, [("BF16", 17408, 3)]),
    "b_down": ("linear", 17408, [("BF16", 5120, 1)]),
    "b_qkvz": ("linear", 5120, [("BF16", 10240, 0), ("BF16", 6144, 0), ("BF16", 48, 0), ("BF16", 48, 0)]),
    "b_out": ("linear", 6144, [("BF16", 5120, 1)]),
    "b_head": ("linear", 5120, [("BF16", 248320, 0)]),
    "q_qkv": ("linear", 2048, [("Q4_K", 4096, 0), ("Q4_K", 512, 0), ("Q6_K", 512, 0)]),
    "q_o": ("linear", 4096, [("Q4_K", 2048, 1)]),
    "q_head": ("linear", 2048, [("Q6_K", 151936, 0)]),
    "q_big": ("linear", 5120, [("Q4_K", 17408, 3)]),
    "x_up": ("experts", 2048, 768, "Q4_K", True),
    "x_down4": ("experts", 768, 2048, "Q4_K", False),
    "x_down6": ("experts", 768, 2048, "Q6_K", False),
}


def gemv_configs(k, paired, linear, fresh):
    """Constants of the streaming kernels, each once; `fresh`: several slices a warp or cache requests."""
    s, seen = slices(k), set()
    for per in ([n for n in (1, 2, 4) if s % n == 0] if fresh and linear else [1]):
        for pre in ((0, 1) if fresh else (0,)):
            if fresh and per == 1 and not pre:
                continue
            for r in ([2, 4] if paired else [1, 2, 4, 8]):
                threads = 32 * (s // per) * r
                if not 64 <= threads <= 512:
                    continue
                for u in ((2, 4) if fresh else (2, 4, 6, 8)):
                    for regs in ((80, 128) if fresh else (64, 80, 96, 128, 168)):
                        blocks = min(65536 // (threads * regs), 2048 // threads, 16)
                        if blocks < 1 or (per, pre, r, u, blocks) in seen:
                            continue
                        seen.add((per, pre, r, u, blocks))
                        cfg = {"GEMV": 1, "CFG_R": r, "CFG_U": u, "CFG_MIN_BLOCKS": blocks}
                        yield {**cfg, "CFG_PRE": pre, **({"CFG_S": per} if linear else {})}


def tile_configs(rows, paired, plain):
    nb = min(8, max(2, 1 << ((rows + 7) // 8 - 1).bit_length()))
    for n in {nb, max(2, nb // 2)}:
        for mt in ([2] if paired else [1, 2]):
            for warps in (4, 5, 6, 8):
                for kc in ((64, 128) if plain else (128,)):
                    for split in (0, 1):
                        for stages in (2, 3, 4):
                            yield {"TILE": 1, "CFG_WARPS": warps, "CFG_MT": mt, "CFG_NB": n, "CFG_KC": kc,
                                   "CFG_STAGES": stages, "CFG_AHEAD": 1, "CFG_SPLIT_K": split}


def ceil(a, b):
    return -(-a // b)


class Linear:
    def __init__(self, gpu, k, parts, rows):
        self.gpu, self.k, self.parts, self.rows = gpu, k, parts, rows
        self.paired = any(e >= 2 for _, _, e in parts)
        self.bytes = sum(int(BITS[f] * n * k / 8) * (2 if e >= 2 else 1) for f, n, e in parts)
        self.file, self.entry = "linear/linear.cu", "linear_gemv" if rows <= 8 else "linear_tile"

    def configs(self, fresh):
        plain = all(f == "BF16" for f, _, _ in self.parts)
        if self.rows > 8:
            return tile_configs(self.rows, self.paired, plain)
        return gemv_configs(self.k, self.paired, True, fresh)

    def defines(self, cfg):
        out = {"K_DIM": self.k, "OUT_ROWS": 0, "CFG_ONE": int(self.rows == 1), **cfg}
        for i, (f, n, e) in enumerate(self.parts):
            out.update({f"P{i}_FMT": f, f"P{i}_N": n, f"P{i}_EPI": e})
        return out

    def geometry(self, cfg):
        if "GEMV" in cfg:
            r = cfg["CFG_R"]
            blocks = sum(ceil(ceil(n, 16), r // 2 if e >= 2 else r) for _, n, e in self.parts)
            return (blocks, 1, 1), 32 * (slices(self.k) // cfg["CFG_S"]) * r, 0
        each = lambda e: cfg["CFG_WARPS"] * (1 if e >= 2 else cfg["CFG_MT"])
        self.columns = ceil(self.rows, 8 * cfg["CFG_NB"])
        blocks = sum(ceil(ceil(n, 16), each(e)) for _, n, e in self.parts) * self.columns
        shared = cfg["CFG_STAGES"] * 8 * cfg["CFG_NB"] * (2 * cfg["CFG_KC"] + 64)
        return (blocks, slices(self.k) if cfg["CFG_SPLIT_K"] else 1, 1), 32 * cfg["CFG_WARPS"], shared

    def args(self, cfg, w, io):
        u64 = c.c_uint64
        out = [u64(io["shape"]), u64(io["x"])]
        if "TILE" in cfg:
            out += [c.c_uint32(self.columns), u64(io["work"] + (1 << 20)), u64(io["work"])]
        at = w
        for i in range(4):
            if i >= len(self.parts):
                out += [u64(0), u64(0), u64(0)]
                continue
            f, n, e = self.parts[i]
            size = int(BITS[f] * n * self.k / 8)
            out += [u64(at), u64(at + size if e >= 2 else 0), u64(io["out"])]
            at += size * (2 if e >= 2 else 1)
        return out


class Experts:
    EXPERTS, TOP_K = 128, 8

    def __init__(self, gpu, k, n, fmt, paired, rows):
        self.gpu, self.k, self.n, self.fmt, self.paired, self.rows = gpu, k, n, fmt, paired, rows
        pick = random.Random(7)
        ids = [pick.sample(range(self.EXPERTS), self.TOP_K) for _ in range(rows)]
        groups = [[r * 8 + s for r in range(rows) for s in range(8) if ids[r][s] == e]
                  for e in range(self.EXPERTS)]
        offsets, flat = [0], []
        for g in groups:
            flat += g
            offsets.append(len(flat))
        self.active = sum(1 for g in groups if g)
        self.one = int(BITS[fmt] * n * k / 8)
        self.bytes = self.one * self.active * (2 if paired else 1)
        self.copy = self.one * self.EXPERTS * (2 if paired else 1)
        self.file = "experts/experts.cu"
        self.entry = "experts_gemv" if rows * 8 <= 4 * self.EXPERTS else "experts_tile"
        self.offsets, self.list = gpu.alloc(4 * 129), gpu.alloc(4 * len(flat))
        gpu.put(self.offsets, bytes((c.c_uint32 * 129)(*offsets)))
        gpu.put(self.list, bytes((c.c_uint32 * len(flat))(*flat)))

    def configs(self, fresh):
        if self.entry == "experts_gemv":
            yield from gemv_configs(self.k, self.paired, False, fresh)
            return
        for cfg in tile_configs(self.rows // 16 * 8, self.paired, False):
            if not cfg["CFG_SPLIT_K"]:
                yield {**cfg, "CFG_MIN_BLOCKS": 1}

    def defines(self, cfg):
        return {"K_DIM": self.k, "N_DIM": self.n, "FMT": self.fmt, "EXPERTS": 128, "TOP_K": 8,
                "PAIR": int(self.paired), "BY_PAIR": int(not self.paired), "EPI": 3 if self.paired else 0,
                "CFG_ONE": int(self.rows == 1), **cfg}

    def geometry(self, cfg):
        tiles = ceil(self.n, 16)
        if "GEMV" in cfg:
            r = cfg["CFG_R"]
            items = self.active * ceil(tiles, r // 2 if self.paired else r)
            resident = self.gpu.sms * cfg["CFG_MIN_BLOCKS"]
            return (resident if items > 4 * resident else items, 1, 1), 32 * slices(self.k) * r, 0
        shared = cfg["CFG_STAGES"] * 8 * cfg["CFG_NB"] * (2 * cfg["CFG_KC"] + 64)
        return (self.gpu.sms * max(1, 8 // cfg["CFG_WARPS"]), 1, 1), 32 * cfg["CFG_WARPS"], shared

    def args(self, cfg, w, io):
        u64 = c.c_uint64
        up = w + self.one * self.EXPERTS if self.paired else 0
        return [u64(io["x"]), u64(w), u64(up), c.c_uint32(self.one), c.c_uint32(self.one),
                u64(self.offsets), u64(self.list), u64(io["out"])]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--shape", default=",".join(SHAPES))
    ap.add_argument("--rows", default="1,8")
    ap.add_argument("--budget", type=float, default=400)
    ap.add_argument("--only", default="", help="CFG_NAME=VALUE,.. that a configuration must have")
    ap.add_argument("--fresh", action="store_true", help="several slices a warp and cache requests")
    a = ap.parse_args()
    start = time.time()
    pool = ProcessPoolExecutor(os.cpu_count(), get_context("spawn"))
    gpu = Gpu()
    only = dict(p.split("=") for p in a.only.split(",") if p)
    arena = 6 << 30
    base = gpu.alloc(arena)
    noise = random.Random(1).randbytes(64 << 20)
    for at in range(0, arena, len(noise)):
        gpu.put(base + at, noise)
    io = {"x": gpu.alloc(256 << 20), "out": gpu.alloc(1 << 30), "work": gpu.alloc(1 << 30),
          "shape": gpu.alloc(16)}
    ck(gpu.d.cuMemsetD8_v2(c.c_uint64(io["work"]), c.c_ubyte(0), c.c_size_t(1 << 30)), "memset")
    print("shape\trows\tus\tGB/s\tconfig\tregs\tgrid", flush=True)
    jobs = []
    for rows in map(int, a.rows.split(",")):
        for name in a.shape.split(","):
            s = SHAPES[name]
            op = Linear(gpu, s[1], s[2], rows) if s[0] == "linear" else Experts(gpu, *s[1:], rows)
            for cfg in op.configs(a.fresh):
                if all(str(cfg.get(k)) == v for k, v in only.items()):
                    done = pool.submit(compiled, os.path.join(SRC, op.file), gpu.arch, op.defines(cfg))
                    jobs.append((name, rows, op, cfg, done))
    for name, rows, op, cfg, done in jobs:
        if time.time() - start > a.budget:
            print("# out of time", flush=True)
            break
        cubin, note = done.result()
        text = " ".join(f"{k[4:]}={v}" for k, v in cfg.items() if k.startswith("CFG_"))
        if not cubin:
            print(f"# {name}\t{rows}\t{text}\t{note}", flush=True)
            continue
        grid, block, shared = op.geometry(cfg)
        if shared > 220 << 10 or (grid[1] == 1 and cfg.get("CFG_SPLIT_K")):
            continue
        gpu.put(io["shape"], bytes((c.c_uint32 * 4)(rows, rows, rows, 0)))
        f = gpu.function(cubin, op.entry, shared)
        copy = (getattr(op, "copy", op.bytes) + 4095) // 4096 * 4096
        copies = max(1, min(arena // copy, 64))
        launches = [(f, grid, block, shared, op.args(cfg, base + i * copy, io)) for i in range(copies)]
        launches *= max(1, 24 // copies)
        us = gpu.graph_us(launches, 7)
        print(f"{name}\t{rows}\t{us:.2f}\t{op.bytes / us / 1e3:.0f}\t{text}\t{note}\t{grid[0]}x{grid[1]}",
              flush=True)
    pool.shutdown(wait=False, cancel_futures=True)
    os._exit(0)


if __name__ == "__main__":
    main()
