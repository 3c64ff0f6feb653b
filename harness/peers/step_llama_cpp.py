"""Times llama.cpp's decode step through the C interface of the package llama-cpp-python.

python step_llama_cpp.py MODEL.gguf THREADS BATCH WARMUP STEPS

`batch` sequences, one token each a step, logits of every row, no sampling: positions 0..WARMUP warm up, STEPS follow.
The token of row r at position p is (7919 p + 104729 r) mod vocabulary, as on our side, so that a mixture of experts
routes alike. Prints one JSON line.
"""

import importlib.metadata
import json
import sys
import time

import llama_cpp as L


def main() -> None:
    path, (threads, batch, warmup, steps) = sys.argv[1], map(int, sys.argv[2:6])
    L.llama_backend_init()
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    if not model:
        sys.exit(f"{path}: llama.cpp cannot load it")
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    params = L.llama_context_default_params()
    params.n_ctx = 256 * batch
    params.n_batch = params.n_ubatch = max(512, batch)
    params.n_seq_max = batch
    params.n_threads = params.n_threads_batch = threads
    context = L.llama_init_from_model(model, params)
    if not context:
        sys.exit("llama.cpp cannot make a context")
    rows = L.llama_batch_init(batch, 0, 1)

    def step(position: int) -> int:
        rows.n_tokens = batch
        for r in range(batch):
            rows.token[r] = (position * 7919 + r * 104729) % vocab
            rows.pos[r] = position
            rows.n_seq_id[r] = 1
            rows.seq_id[r][0] = r
            rows.logits[r] = 1
        start = time.perf_counter_ns()
        if L.llama_decode(context, rows) != 0:
            sys.exit("llama_decode failed")
        L.llama_synchronize(context)
        return time.perf_counter_ns() - start

    for position in range(warmup):
        step(position)
    series = [step(position) for position in range(warmup, warmup + steps)]
    print(
        json.dumps(
            {
                "engine": "llama.cpp",
                "version": "llama-cpp-python " + importlib.metadata.version("llama-cpp-python"),
                "build": L.llama_print_system_info().decode().strip(),
                "series_ns": series,
            }
        )
    )


main()
