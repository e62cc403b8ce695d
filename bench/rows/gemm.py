# SPDX-License-Identifier: Apache-2.0
"""Rows gemm/<mode>/<M>x<N>x<K>: Linear against oneDNN, MKL and OpenBLAS with weights laid out beforehand where they can.

Mode bf16 (x and weights) has oneDNN without AMX beside it, and its bar, where the CPU has AVX512_BF16. The libraries
come from PyPI into build/bench/gemm. The current oneDNN there runs on Intel's runtime, which finds no device on other
CPUs; those get the last release with OpenMP.
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
    "SmolLM2-135M": ["576x576", "1536x576", "576x1536", "49152x576"],
    "Qwen3-0.6B": ["2048x1024", "3072x1024", "1024x3072"],
    "Llama-3.2-1B": ["2048x2048", "512x2048", "8192x2048", "2048x8192", "128256x2048"],
}
ROWS = [1, 2, 4, 8, 16, 64, 256, 1024]
FEWER_ROWS = {"Llama-3.2-1B": [1, 4, 16, 64, 256]}  # its calls and their set-up are the longest
HEAD_ROWS = {"49152x576": [1, 2, 4, 8, 16, 64], "128256x2048": [1, 8, 64]}  # heads see few rows at once


def matrices():
    """Lists of shapes MxNxK, one for each matrix."""
    wanted = os.environ.get("MODELS", ",".join(SHAPES)).split(",")
    return [[f"{m}x{shape}" for m in HEAD_ROWS.get(shape, FEWER_ROWS.get(model, ROWS))]
            for model in wanted for shape in SHAPES[model]]


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


def rows(threads=2, rounds=2):
    libraries = peers()
    ours, w16, bf16, bf16_peer, others, peak = {}, {}, {}, {}, {name: {} for name in libraries}, []
    onednn_bf16 = [libraries["oneDNN"][0], "onednn-bf16", "-"]
    has_bf16 = "avx512_bf16" in open("/proc/cpuinfo").read()

    def keep(into, figures):
        for name, figure in figures.items():
            if name == "peak":
                peak.append(figure)
            else:
                into.setdefault(name, []).append(figure["median"])
    # A matrix at a time: who is compared runs within seconds, because the machine's memory is faster at one time than
    # at another.
    for shapes in matrices():
        for _ in range(rounds):
            keep(ours, measure([BIN / "titan-bench-gemm", "f32", threads, *shapes], threads))
            for name, command in libraries.items():
                keep(others[name], measure([*command, *shapes], threads))
            keep(w16, measure([BIN / "titan-bench-gemm", "w16", threads, *shapes], threads))
            keep(bf16, measure([BIN / "titan-bench-gemm", "bf16", threads, *shapes], threads))
            if has_bf16:  # elsewhere the library emulates it or has none
                keep(bf16_peer, measure([*onednn_bf16, *shapes], threads, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16"))
    wanted = [shape for shapes in matrices() for shape in shapes]
    result = [row("machine/fma", [p["gflops"] for p in peak], "GFLOP/s"),
              row("machine/read", [p["read_gbytes"] for p in peak], "GB/s")]
    for shape in wanted:
        best = max(libraries, key=lambda name: statistics.median(others[name][shape]))
        result.append(row(f"gemm/f32/{shape}", ours[shape], "GFLOP/s", "ratio >= 0.95", others[best][shape], best))
    for shape in wanted:
        result.append(row(f"gemm/w16/{shape}", w16[shape], "GFLOP/s"))
    for shape in wanted:
        peer = ("ratio >= 0.95", bf16_peer[shape], "oneDNN bf16") if has_bf16 else ()
        result.append(row(f"gemm/bf16/{shape}", bf16[shape], "GFLOP/s", *peer))
    return result
