#!/usr/bin/env python3
"""Engine `plan` beside ONNX Runtime's CPU provider: one thread each, the same core, in turns.

    pip install onnxruntime numpy
    cargo build --release --locked
    benches/beside_onnxruntime.py MODEL.onnx... --batch 1 --batch 8

ONNX Runtime is at its best: all graph optimisations, inputs and outputs bound beforehand. Both sides get
zeros. Each repeat runs both sides, one after the other; a figure is the median over the repeats of the
median run, and the ratio that of the pairs, with the least and the largest: below 1, corelane is faster.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import time

import numpy
import onnxruntime

TYPES = {
    "tensor(float)": numpy.float32,
    "tensor(float16)": numpy.float16,
    "tensor(int32)": numpy.int32,
    "tensor(int64)": numpy.int64,
    "tensor(uint8)": numpy.uint8,
    "tensor(int8)": numpy.int8,
}


class Session:
    """A model in ONNX Runtime, bound to zeros."""

    def __init__(self, path, batch):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        for value in self.session.get_inputs():
            shape = [batch if i == 0 else d for i, d in enumerate(value.shape)]
            if not all(isinstance(d, int) for d in shape):
                raise SystemExit(f"{path}: input {value.name} leaves {value.shape} open")
            zeros = numpy.zeros(shape, TYPES[value.type])
            self.binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(zeros))
        for value in self.session.get_outputs():
            self.binding.bind_output(value.name, "cpu")
        self.median_ns(5)
        # Outputs where the first runs put them.
        for value, bound in zip(self.session.get_outputs(), self.binding.get_outputs()):
            self.binding.bind_ortvalue_output(value.name, bound)

    def median_ns(self, runs):
        times = []
        for _ in range(runs):
            start = time.perf_counter_ns()
            self.session.run_with_iobinding(self.binding)
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times)


def corelane_ns(args, path, batch, runs):
    command = [args.corelane, "bench", "engine", path, "--engine", "plan", "--json"]
    command += ["--batch", str(batch), "--iterations", str(runs), "--core", str(args.core)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["p50_ns"]


def main():
    parser = argparse.ArgumentParser(description="Engine plan beside ONNX Runtime.")
    parser.add_argument("models", nargs="+", help="ONNX files")
    parser.add_argument("--batch", type=int, action="append", help="rows of a run; may be repeated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each side in each repeat")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--corelane", default="target/release/corelane")
    parser.add_argument("--json", action="store_true", help="one JSON object a model and batch size")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    if not args.json:
        print(f"ONNX Runtime {onnxruntime.__version__}, core {args.core}, {args.repeats} repeats; microseconds a run")
        print(f"{'model':<22} {'batch':>5} {'corelane':>10} {'onnxrt':>10}  ratio (least, largest)")
    for batch in args.batch or [1]:
        medians = []
        for path in args.models:
            name = os.path.splitext(os.path.basename(path))[0]
            session = Session(path, batch)
            runs = max(5, int(args.seconds * 1e9 / session.median_ns(3)))
            ours, theirs = [], []
            for _ in range(args.repeats):
                theirs.append(session.median_ns(runs))
                ours.append(corelane_ns(args, path, batch, runs))
            ratios = [a / b for a, b in zip(ours, theirs)]
            medians.append(statistics.median(ratios))
            if args.json:
                row = {"model": name, "batch": batch, "corelane_ns": ours, "onnxruntime_ns": theirs}
                print(json.dumps(row | {"ratio": medians[-1]}), flush=True)
                continue
            print(
                f"{name:<22} {batch:>5} {statistics.median(ours) / 1e3:>10.1f} "
                f"{statistics.median(theirs) / 1e3:>10.1f}  {medians[-1]:.3f} ({min(ratios):.3f}, {max(ratios):.3f})",
                flush=True,
            )
        if not args.json:
            mean = math.exp(statistics.fmean(math.log(r) for r in medians))
            print(f"{'geometric mean':<22} {batch:>5} {'':>10} {'':>10}  {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
