"""Memory and time of training steps of language models.

    python benchmarks/language_model.py memory       peak memory at 512, 1,024 and 2,048 tokens, fused and plain definition
    python benchmarks/language_model.py paper        one training step of the paper's model, in parts that fit into memory

Peak memory is the growth of the largest resident set of a process that takes one step. The paper's batch of 256 rows
is taken in parts of `--rows` rows whose gradients are added up.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace

import torch

from recombine.attention.dispatch import use_kernel
from recombine.models.language_model import LanguageModel, LanguageModelConfig
from recombine.models.transformer import count_parameters
from recombine.training.config import build_optimizer, default_run
from recombine.training.trainer import use_precision

LENGTHS = (512, 1024, 2048)
ROWS_OF_PAPER, TOKENS_OF_PAPER = 256, 131e9


def peak() -> float:
    """The largest resident set so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def take_step(model: LanguageModel, rows: int, length: int, parts: int, precision: str) -> None:
    optimizer = build_optimizer(model, weight_decay=0.1)
    for _ in range(parts):
        tokens = torch.randint(model.num_tokens, (rows, length + 1))
        with use_precision(precision, torch.device("cpu")):
            logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / parts
        loss.backward()
    optimizer.step()


def measure_once(kernel: str, attention: str, length: int) -> dict[str, float]:
    config = LanguageModelConfig(
        attention=attention, num_layers=1, embedding_dim=512, kqv_dim=512, mlp_dim=2048, num_heads=8, biases=False
    )
    model = LanguageModel(config, num_tokens=259, context_length=length)
    with use_kernel(kernel):
        take_step(model, 1, 64, 1, "float32")  # libraries, moments of the optimizer
        before, started = peak(), time.perf_counter()
        take_step(model, 1, length, 1, "float32")
    return {"megabytes": round(peak() - before, 1), "seconds": round(time.perf_counter() - started, 2)}


def measure_memory() -> None:
    for attention in ("softmax", "hyla"):
        for length in LENGTHS:
            row = {}
            for kernel in ("auto", "reference"):
                command = [sys.executable, __file__, "once", kernel, attention, str(length)]
                row[kernel] = json.loads(subprocess.check_output(command))["megabytes"]
            print(
                f"{attention:8} {length:5} tokens  fused {row['auto']:8.1f} MB  plain {row['reference']:8.1f} MB",
                flush=True,
            )


def measure_paper(attention: str, rows: int, parts: int, precision: str) -> None:
    run = default_run("language", "paper")
    config = replace(run.model, attention=attention)
    model = LanguageModel(config, num_tokens=32_000, context_length=512)
    print(f"{count_parameters(model):,} parameters", flush=True)
    take_step(model, 1, 64, 1, precision)
    started, processor = time.perf_counter(), time.process_time()
    take_step(model, rows, 512, parts, precision)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    rate = rows * parts * 512 / seconds
    print(
        f"{attention}, {precision}, {torch.get_num_threads()} threads: {parts} × {rows} rows of 512 tokens "
        f"in {seconds:.1f} s, {processor:.1f} s of processor time"
    )
    print(
        f"{rate:,.0f} tokens/s, a step of {ROWS_OF_PAPER} rows {ROWS_OF_PAPER * 512 / rate:,.0f} s, peak {peak():,.0f} MB"
    )
    print(f"131 billion tokens at this rate: {TOKENS_OF_PAPER / rate / 86400 / 365:,.1f} years")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "paper", "once"))
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--attention", default="hyla")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--precision", default="bf16", choices=("float32", "bf16"))
    options = parser.parse_args()
    if options.what == "once":
        kernel, attention, length = options.rest
        print(json.dumps(measure_once(kernel, attention, int(length))))
    elif options.what == "memory":
        measure_memory()
    else:
        measure_paper(options.attention, options.rows, options.parts, options.precision)


if __name__ == "__main__":
    main()
