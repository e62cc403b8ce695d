# SPDX-License-Identifier: Apache-2.0
"""make bench-startup: how long a person waits: for --help, for an error, for a cluster, for a job with SmolLM2-135M.

up_and_model_ready ends with the samples of a job's first step (2 of 2 tokens): the trainer has loaded the model and
published version 0, a generator has mapped it and used it. Medians of RUNS runs (default 5), each in a fresh folder.
"""
import json
import os
import shutil
import subprocess
import time

from common import BIN, GGUF, OUT, finish, row

RUNS = int(os.environ.get("RUNS", "5"))
FOLDER = OUT / "startup"
TITANCTL = BIN / "titanctl"


def seconds(command, wanted):
    begin = time.monotonic()
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    took = time.monotonic() - begin
    if result.returncode != wanted:
        raise SystemExit(f"bench: {' '.join(map(str, command))} ended with {result.returncode}, not {wanted}\n"
                         f"{result.stdout[-1000:]}{result.stderr[-1000:]}")
    return took


def write_inputs():
    FOLDER.mkdir(parents=True)
    rows = [{"id": f"r{i}", "prompt": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(16)]
    (FOLDER / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    job = {"model": {"path": str(GGUF)}, "data": {"path": "data.jsonl"},
           "schedule": {"steps": 1, "groups_per_step": 1}, "rollout": {"samples_per_group": 2, "max_new_tokens": 2},
           "reward": {"grader": "numeric_match"}}
    (FOLDER / "job.json").write_text(json.dumps(job))
    (FOLDER / "bad.json").write_text(json.dumps({**job, "modle": {}}))


def cluster_round():
    """Seconds of up, from a submission to RUNNING, to the samples of step 0 and to its end, and of down."""
    data = FOLDER / "cluster"
    shutil.rmtree(data, ignore_errors=True)
    figures = {"up": seconds([TITANCTL, "up", "--data", data], 0)}
    begin_ms = time.time() * 1e3
    try:
        watched = subprocess.run([str(TITANCTL), "submit", str(FOLDER / "job.json"), "-w", "-o", "json", "--data",
                                  str(data)], stdout=subprocess.PIPE, text=True)
        if watched.returncode != 0:
            raise SystemExit(f"bench: the job ended with {watched.returncode}\n{watched.stdout[-2000:]}")
        step = None
        for line in watched.stdout.splitlines():
            event = json.loads(line)
            if event.get("state_changed", {}).get("state") == "JOB_STATE_RUNNING":
                figures["running"] = (event["unix_ms"] - begin_ms) / 1e3
            if "step_done" in event:
                step = event
        phases = step["step_done"]["phases"]
        figures["step"] = (step["unix_ms"] - begin_ms) / 1e3
        # What follows the last sample of the step is taken off.
        after = ("score", "parity_forward", "forward", "backward", "optimizer", "publish")
        figures["samples"] = figures["step"] - sum(phases.get(phase, 0) for phase in after)
    finally:
        figures["down"] = seconds([TITANCTL, "down", "--data", data], 0)
    return figures


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_inputs()
    quick = {
        "help": ([TITANCTL, "--help"], 0),
        "help/command": ([TITANCTL, "submit", "--help"], 0),
        "error/command": ([TITANCTL, "sumbit"], 2),
        "error/option": ([TITANCTL, "submit", "--wacth", "x"], 2),
        "error/job_file": ([TITANCTL, "submit", FOLDER / "bad.json", "--data", FOLDER / "cluster"], 2),
        "error/no_cluster": ([TITANCTL, "status", "--data", FOLDER / "none"], 5),
        "error/daemon": ([BIN / "titan-generator"], 2),
        "error/trainer": ([BIN / "titan-trainer"], 2),
    }
    no_bar = {"error/trainer"}  # its libtorch is loaded first
    rows = []
    for name, (command, code) in quick.items():
        rows.append(row(f"startup/{name}", [1e3 * seconds(command, code) for _ in range(4 * RUNS)], "ms",
                        None if name in no_bar else "ours <= 50"))
    rounds = [cluster_round() for _ in range(RUNS)]
    def of(key):
        return [r[key] for r in rounds]
    rows += [
        row("startup/up", of("up"), "s", "ours <= 3"),
        row("startup/job_running", of("running"), "s"),
        row("startup/up_and_model_ready", [r["up"] + r["samples"] for r in rounds], "s", "ours <= 3"),
        row("startup/first_step", of("step"), "s"),
        row("startup/down", of("down"), "s"),
    ]
    shutil.rmtree(FOLDER, ignore_errors=True)
    finish("startup", rows)


main()
