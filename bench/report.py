# SPDX-License-Identifier: Apache-2.0
"""report.py [AREA ...]: appends build/bench/AREA.json to bench/history/AREA.jsonl, then makes docs/benchmarks.md.

Without an area it only makes the page, from every area's history: for each kind of instruction set the newest whole
run, and what runs of some of its rows (PARTS, MODELS) measured again after it. A line is one run: {date, commit, cpu,
cores, flags, partial, rows}.
BENCH_DATE and BENCH_COMMIT replace what the machine says.
"""
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

from common import OUT, ROOT, cell, judge

HISTORY = ROOT / "bench" / "history"
PAGE = ROOT / "docs" / "benchmarks.md"
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
RUNS_SHOWN = 8


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines.items()}
    flags = fields.get("flags", "").split()
    return {"cpu": fields.get("model name", platform.processor()), "cores": os.cpu_count(),
            "flags": [flag for flag in FLAGS if flag in flags]}


def commit():
    def git(*arguments):
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", ":!bench/history", ":!docs/benchmarks.md")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def rounded(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def append(area):
    rows = json.loads((OUT / f"{area}.json").read_text())
    line = {"date": os.environ.get("BENCH_DATE") or datetime.date.today().isoformat(),
            "commit": os.environ.get("BENCH_COMMIT") or commit(), **machine(),
            **({"partial": True} if os.environ.get("PARTS") or os.environ.get("MODELS") else {}),
            "rows": [{key: rounded(value) for key, value in r.items() if value is not None} for r in rows]}
    HISTORY.mkdir(exist_ok=True)
    with (HISTORY / f"{area}.jsonl").open("a") as history:
        history.write(json.dumps(line) + "\n")


def verdict(r):
    if r.get("bound") is None:
        return ""
    return "kept" if judge(r["bound"], r["ours"], r.get("ratio")) else "**missed**"


def shown_rows(runs):
    """The newest whole run (the newest one, where none is whole), and its rows as they were measured last."""
    whole = max((i for i, run in enumerate(runs) if not run.get("partial")), default=len(runs) - 1)
    rows = {r["id"]: r for r in runs[whole]["rows"]}
    for run in runs[whole + 1:]:
        rows.update({r["id"]: {**r, "again": run["commit"]} for r in run["rows"]})
    return runs[whole], list(rows.values())


def instruction_sets(run):
    """The widest vectors that the machine had, in words: other kernels run on each, beside peers that differ too."""
    flags = run.get("flags", [])
    if "avx512f" not in flags:
        return "AVX2"
    return "AVX-512" + (" with BF16" if "avx512_bf16" in flags else "")


def section(area, runs):
    newest, rows = shown_rows(runs)
    text = [f"## {area} on {instruction_sets(newest)} (`make bench-{area}`)", "",
            f"{newest['date']}, commit {newest['commit']}, {newest['cpu']}, {newest['cores']} cores"
            + (f" ({' '.join(newest['flags'])})" if newest.get("flags") else "")
            + ("; rows that name a commit were measured again at it" if any("again" in r for r in rows) else "") + ".", "",
            "| id | ours | peer | peer name | ours / peer | best, ours and peer's | unit | bar | |",
            "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        cells = [f"`{r['id']}`"] + [cell(r.get(k)) for k in ("ours", "peer", "peer_name", "ratio")]
        cells += [", ".join(cell(r[k]) for k in ("best", "peer_best") if r.get(k) is not None)]
        cells += [cell(r.get(k)) for k in ("unit", "bound")]
        text.append("| " + " | ".join(cells + [" ".join(filter(None, [verdict(r), r.get("again")]))]) + " |")
    notes = {}
    for r in rows:
        if r.get("note"):
            notes.setdefault(r["note"], []).append(f"`{r['id']}`")
    if notes:
        text += ["", "What is compared:", "", *(f"- {', '.join(names)}: {note}" for note, names in notes.items())]
    barred = [r["id"] for r in rows if r.get("bound")]
    if len(runs) > 1 and barred:
        shown = runs[-RUNS_SHOWN:]
        text += ["", "Rows with a bar over the runs (oldest first; a ratio where there is a peer):", "",
                 "| id | " + " | ".join(f"{run['date']} {run['commit']}" for run in shown) + " |",
                 "|---" * (len(shown) + 1) + "|"]
        for name in barred:
            values = [next((r for r in run["rows"] if r["id"] == name), {}) for run in shown]
            text.append(f"| `{name}` | " + " | ".join(cell(r.get("ratio", r.get("ours"))) for r in values) + " |")
    return text + [""]


def main():
    for area in sys.argv[1:]:
        append(area)
    text = [
        "# Benchmarks", "",
        "Made by `bench/report.py` from `bench/history/*.jsonl`, a line a run; do not edit. The machines are noisy: read",
        "the ratios, which come from interleaved rounds of one run; `ours` and `peer` are medians. A kind of CPU that has no",
        "table (Intel's, so far) has not been measured.", "",
    ]
    for file in sorted(HISTORY.glob("*.jsonl")):
        runs = [json.loads(line) for line in file.read_text().splitlines() if line]
        kinds = {}
        for run in runs:
            kinds.setdefault(instruction_sets(run), []).append(run)
        for kind in kinds.values():
            text += section(file.stem, kind)
    PAGE.write_text("\n".join(text))


main()
