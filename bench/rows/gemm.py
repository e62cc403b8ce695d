# SPDX-License-Identifier: Apache-2.0
"""Rows gemm/<mode>/<M>x<N>x<K>: Linear against oneDNN, MKL and OpenBLAS with weights laid out beforehand where they can.

Mode bf16 (x and weights) has oneDNN without AMX beside it, and its bar, where the CPU has AVX512_BF16; with AMX that is
shown too, without a bar. The libraries come from PyPI into build/bench/gemm. The current oneDNN there runs on Intel's
runtime, which finds no device on other CPUs; those get the last release with OpenMP, and the newer one inside PyTorch.
"""
import hashlib
import json
import os
import statistics
import subprocess
import sys

from common import BIN, OUT, ROOT, row, run

FOLDER = OUT / "gemm"
INTEL = "GenuineIntel" in open("/proc/cpuinfo").read()
ONEDNN = ["onednn==2026.1.0", "onednn-devel==2026.1.0"] if INTEL else [
    "onednn-cpu-gomp==2023.2.0", "onednn-devel-cpu-gomp==2023.2.0"]
PACKAGES = ["mkl==2026.2.0", "scipy-openblas32==0.3.34.481.3", *ONEDNN]
SHAPES = {  # N x K of the matrices of a layer, and of the head
    "SmolLM2-135M": ["576x576", "192x576", "1536x576", "576x1536", "49152x576"],
    "Qwen3-0.6B": ["2048x1024", "1024x1024", "1024x2048", "3072x1024", "1024x3072", "151936x1024"],
    "Llama-3.2-1B": ["2048x2048", "512x2048", "8192x2048", "2048x8192", "128256x2048"],
}
ROWS = [1, 2, 4, 8, 16, 64, 256, 1024]


def matrices():
    """Lists of shapes MxNxK, one for each matrix."""
    wanted = os.environ.get("MODELS", ",".join(SHAPES)).split(",")
    return [[f"{m}x{shape}" for m in ROWS] for model in wanted for shape in SHAPES[model]]


def peers():
    """{name: command}; installs and builds what is missing."""
    done = FOLDER / f".complete-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:12]}"
    if not done.exists():
        print("bench: installing oneDNN, MKL and OpenBLAS into build/bench/gemm", file=sys.stderr)
        run([sys.executable, "-m", "venv", "--clear", FOLDER])
        run([FOLDER / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES])
        done.touch()
    lib = FOLDER / "lib"
    program = FOLDER / "gemm_peer"
    source = ROOT / "bench" / "peers" / "gemm_peer.cc"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        run(["g++", "-O2", "-std=c++20", "-DWITH_ONEDNN", f"-I{FOLDER / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}",
             source, "-o", program, "-l:libdnnl.so.3", "-ldl"])
    blas = next(FOLDER.glob("lib/python*/site-packages/scipy_openblas32/lib/libscipy_openblas.so"))
    mkl = next(lib.glob("libmkl_rt.so*"))
    return {"oneDNN": [program, "onednn", "-"], "MKL": [program, "mkl", mkl], "OpenBLAS": [program, "openblas", blas]}


def measure(command, threads, **more):
    # Everybody's matrices lie in huge pages, as weight slots do.
    environment = dict(os.environ, **more, GLIBC_TUNABLES="glibc.malloc.hugetlb=1", OMP_NUM_THREADS=str(threads),
                       OPENBLAS_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), LD_LIBRARY_PATH=str(FOLDER / "lib"))
    lines = run(command, env=environment, stderr=subprocess.DEVNULL).splitlines()
    return {j["id"]: j for j in map(json.loads, (line for line in lines if line.startswith("{")))}


def bounds(threads=2):
    """The machine as it is now: {gflops, read_gbytes}."""
    return measure([BIN / "titan-bench-gemm", "f32", threads, "1x32x32"], threads)["peak"]


class Figures:
    """Of one side: for each shape the medians of its runs and their best."""

    def __init__(self):
        self.median, self.best = {}, {}

    def add(self, figures):
        for shape, figure in figures.items():
            self.median.setdefault(shape, []).append(figure["median"])
            self.best.setdefault(shape, []).append(figure["best"])


def best_of(sides, shape):
    """The fastest's name."""
    return max(sides, key=lambda name: statistics.median(sides[name].median[shape]))


def against(name, ours, peers, shape, bound="ratio >= 0.95"):
    if not peers:
        return row(name, ours.median[shape], "GFLOP/s", bests=(ours.best[shape], None))
    best = best_of(peers, shape)
    return row(name, ours.median[shape], "GFLOP/s", bound, peers[best].median[shape], best,
               bests=(ours.best[shape], peers[best].best[shape]))


def rows(threads=2, rounds=2):
    """Every one has run on every shape of a matrix before the next matrix: who is compared runs within seconds, because
    the machine's memory is faster at one time than at another."""
    flags = open("/proc/cpuinfo").read()
    libraries = peers()
    torch = [sys.executable, ROOT / "bench" / "peers" / "gemm_torch.py"]
    onednn_bf16 = [libraries["oneDNN"][0], "onednn-bf16", "-"]
    bf16_peers, amx_peers = {}, {}
    if "avx512_bf16" in flags:  # elsewhere the library emulates it or has none
        bf16_peers = {"oneDNN bf16": onednn_bf16, "oneDNN bf16 of PyTorch": [*torch, "bf16"]}
    if "amx_bf16" in flags:
        amx_peers = {"oneDNN bf16, AMX": onednn_bf16}
    f32_peers = {**libraries, "oneDNN of PyTorch": [*torch, "f32"]}
    modes = {mode: Figures() for mode in ("f32", "w16", "bf16")}
    sides = {name: Figures() for name in [*f32_peers, *bf16_peers, *amx_peers]}
    peak = []
    for shapes in matrices():
        for _ in range(rounds):
            for mode, figures in modes.items():
                measured = measure([BIN / "titan-bench-gemm", mode, threads, *shapes], threads)
                peak.append(measured.pop("peak"))
                figures.add(measured)
                if mode == "f32":
                    for name, command in f32_peers.items():
                        sides[name].add(measure([*command, *shapes], threads))
            for name, command in bf16_peers.items():
                sides[name].add(measure([*command, *shapes], threads, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16"))
            for name, command in amx_peers.items():
                sides[name].add(measure([*command, *shapes], threads))
    wanted = [shape for shapes in matrices() for shape in shapes]
    result = [row("machine/fma", [p["gflops"] for p in peak], "GFLOP/s"),
              row("machine/read", [p["read_gbytes"] for p in peak], "GB/s")]

    def of(names):
        return {name: sides[name] for name in names}
    result += [against(f"gemm/f32/{shape}", modes["f32"], of(f32_peers), shape) for shape in wanted]
    result += [against(f"gemm/w16/{shape}", modes["w16"], {}, shape) for shape in wanted]
    result += [against(f"gemm/bf16/{shape}", modes["bf16"], of(bf16_peers), shape) for shape in wanted]
    result += [against(f"gemm/bf16/{shape}/amx", modes["bf16"], of(amx_peers), shape, None)
               for shape in wanted if amx_peers]
    return result
