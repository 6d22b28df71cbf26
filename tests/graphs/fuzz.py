#!/usr/bin/env python3
"""Random small graphs: what corelane's engines make of them beside ONNX Runtime.

    pip install onnx onnxruntime numpy
    cargo build --release --locked
    tests/graphs/fuzz.py --graphs 200 --seed 1

Graph `i` of a run comes from the seed and `i` alone, so that `--only i` makes it again, and `--keep DIR` leaves the
model and its inputs of those that differ. A graph grows node by node. Each node is run in ONNX Runtime as it is
made, without optimisations, which says whether it is valid and what the answer is; and once more on numbers that are
off by some 1e-6, which says how far rounding carries. That, and not a fixed number, is what an answer may differ by;
one that was computed without any rounding must be the same, so that what jumps (QuantizeLinear, Floor, a comparison)
is only put where both sides are exact, or last.

Exit status: 0 if all agree or are refused with a typed error, 1 if one differs, crashes, or fails inside.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx

from graph import BATCH
from nodes import make


def answers(corelane, folder, engine, model, inputs):
    """What an engine answers: arrays by name, or why it does not."""
    onnx.save(model, os.path.join(folder, "model.onnx"))
    with open(os.path.join(folder, "manifest.toml"), "w") as manifest:
        manifest.write(f'name = "random"\nengine = "{engine}"\nbatch_sizes = [1, {BATCH}]\nrows_independent = true\n')
    command = [corelane, "infer", folder, "--json", "--log", "error"]
    for v in inputs:
        path = os.path.join(folder, f"{v.name}.npy")
        np.save(path, v.value)
        command += ["--input", f"{v.name}={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        return done.returncode, done.stderr.strip()
    outputs = json.loads(done.stdout.splitlines()[-1])["outputs"]
    read = lambda o: np.array([np.nan if d is None else d for d in o["data"]]).astype(o["dtype"]).reshape(o["shape"])
    return 0, {o["name"]: read(o) for o in outputs}


def differs(got, end):
    """What is wrong with an answer, if anything is."""
    want, got = end.value.astype(float), got.astype(float)
    if got.shape != want.shape:
        return f"{end.name} has the shape {got.shape}, not {want.shape}"
    if end.same or not end.real:
        wrong = got != want
    else:
        carried = np.abs(end.loose.astype(float) - want).max()
        largest = max(np.abs(want).max(), 1e-3)
        wrong = ~(np.abs(got - want) <= 30 * carried + 1e-5 * np.maximum(np.abs(want), 0.1 * largest))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    how = "which is exact" if end.same else f"where rounding carries {np.abs(end.loose - end.value).max():.1e}"
    return f"{end.name}{list(at)} of {wrong.sum()} is {got[at]:.9g}, not {want[at]:.9g}, {how}"


def main():
    parser = argparse.ArgumentParser(description="Random graphs: corelane's engines beside ONNX Runtime.")
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this graph of the run alone")
    parser.add_argument("--engine", action="append", help="plan and tract, unless given")
    parser.add_argument("--keep", metavar="DIR", help="where the files of those that differ are left")
    parser.add_argument("--corelane", default="target/release/corelane")
    args = parser.parse_args()
    refused, wrong, agreed, operators = collections.Counter(), 0, 0, collections.Counter()
    for i in range(args.graphs) if args.only is None else [args.only]:
        graph, model, ends = make([args.seed, i])
        if not ends:
            continue
        for engine in args.engine or ["plan", "tract"]:
            with tempfile.TemporaryDirectory() as folder:
                status, answer = answers(args.corelane, folder, engine, model, graph.inputs)
                if status == 0:
                    texts = [differs(answer[e.name], e) for e in ends]
                    text = next((t for t in texts if t), None)
                elif status == 5 and "wrong_rows" in answer:
                    refused[f"{engine}: served without batches"] += 1
                    continue
                elif status == 3 and "panic" not in answer and "the graph library failed" not in answer:
                    refused[f"{engine}: {answer.splitlines()[-1].split('model.onnx: ')[-1][:110]}"] += 1
                    continue
                else:
                    text = f"exit status {status}: {answer[-300:]}"
                if text is None:
                    agreed += 1
                    operators.update(n.op_type for n in model.graph.node)
                    continue
                wrong += 1
                path = " ".join(n.op_type for n in model.graph.node)
                print(f"graph {i}, engine {engine}: {text}\n    {path}", flush=True)
                if args.keep:
                    os.makedirs(args.keep, exist_ok=True)
                    os.rename(folder, os.path.join(args.keep, f"{i}-{engine}"))
                    os.makedirs(folder)
    print(f"{agreed} answers agree, {wrong} differ, {refused.total()} were refused, {len(operators)} operators:")
    print("   ", ", ".join(f"{name} {n}" for name, n in sorted(operators.items())))
    for text, n in refused.most_common(40):
        print(f"{n:5} {text}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
