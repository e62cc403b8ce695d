# SPDX-License-Identifier: Apache-2.0
"""Makes docs/benchmarks.md from build/bench/*.json, and keeps a line a run in docs/benchmarks_history.jsonl."""
import datetime
import json
import pathlib
import platform

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def cell(value):
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else f"{value:.0f}" if isinstance(
        value, float) else str(value)


def main():
    today = datetime.date.today().isoformat()
    text = [
        "# Benchmarks", "",
        "Made by `make bench` from `build/bench/*.json`; do not edit. The machines are noisy: read the ratios, which",
        "come from interleaved rounds of one run; `ours` and `peer` are medians.", "",
        f"Last run: {today}, {cpu()}, {__import__('os').cpu_count()} cores.", "",
    ]
    for file in sorted((ROOT / "build" / "bench").glob("*.json")):
        rows = json.loads(file.read_text())
        text += [f"## {file.stem} (`make bench-{file.stem}`)", "",
                 "| id | ours | peer | peer name | ours / peer | unit | bound |", "|---|---|---|---|---|---|---|"]
        for r in rows:
            text.append("| " + " | ".join([f"`{r['id']}`"] + [cell(r[k]) for k in
                                          ("ours", "peer", "peer_name", "ratio", "unit", "bound")]) + " |")
        text.append("")
        with (ROOT / "docs" / "benchmarks_history.jsonl").open("a") as history:
            history.write(json.dumps({"date": today, "area": file.stem, "cpu": cpu(),
                                      "rows": {r["id"]: r["ours"] for r in rows}}) + "\n")
    (ROOT / "docs" / "benchmarks.md").write_text("\n".join(text))


main()
