"""A graph that grows node by node, each with what ONNX Runtime makes of it (see fuzz.py)."""

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

onnxruntime.set_default_logger_severity(4)
BATCH = 3
ELEMENTS_MAX = 6000
# What exact numbers are multiples of, and less than: their sums and products by such weights stay exact in floats.
GRAIN, LARGEST = 2.0**-12, 2.0**11


class Skip(Exception):
    """The node would not be valid, or its numbers out of bounds: another is tried."""


class Value:
    """A tensor of the graph: what it is called and holds, and what it holds where every node rounds anew."""

    def __init__(self, name, value, loose, exact):
        self.name, self.value, self.loose, self.exact = name, value, loose, exact
        self.same, self.read = exact, False

    shape = property(lambda self: self.value.shape)
    rank = property(lambda self: self.value.ndim)
    real = property(lambda self: self.value.dtype == np.float32)


def run(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)
    except Exception as refused:  # Its errors have no common base.
        raise Skip(str(refused)) from refused


def info(name, value, batch=None):
    shape = [batch or value.shape[0], *value.shape[1:]] if value.ndim else []
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)


class Graph:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.pick([13, 17, 18, 19]))
        self.nodes, self.constants, self.inputs, self.values = [], [], [], []
        for i in range(1 + self.chance(0.2)):
            shape = self.pick([(8,), (5, 6), (12, 7), (4, 6, 6), (3, 9, 8), (8, 12, 12), (16, 5, 4), (1, 10, 10)])
            value = (self.rng.integers(-24, 25, (BATCH, *shape)) / 8).astype(np.float32)
            self.inputs.append(Value(f"x{i}", value, value, True))
        self.values += self.inputs

    def pick(self, values):
        return values[int(self.rng.integers(len(values)))]

    def chance(self, share):
        return bool(self.rng.random() < share)

    def some(self, low, high, n=None):
        """Whole numbers, both ends included."""
        drawn = self.rng.integers(low, high + 1, n)
        return int(drawn) if n is None else [int(d) for d in drawn]

    def grid(self, *shape, step=0.25, bound=4):
        """Weights that exact numbers stay exact by."""
        return (self.rng.integers(-bound, bound + 1, shape) * step).astype(np.float32)

    def value(self, ranks=(2, 3, 4), dtype=np.float32, exact=False):
        """A tensor to go on from, rather one of the last ones."""
        fit = [v for v in self.values if v.rank in ranks and v.value.dtype == dtype and (v.exact or not exact)]
        if not fit:
            raise Skip("no such tensor")
        return fit[-1] if self.chance(0.6) else self.pick(fit)

    def emit(self, op, inputs, outputs=1, exact=False, jumps=False, **attributes):
        """Adds a node. `exact`: it rounds nothing where its inputs are exact. `jumps`: it must not see rounding."""
        attributes = {k: v for k, v in attributes.items() if v is not None}
        seen = [v for v in inputs if isinstance(v, Value)]
        clean = all(v.exact for v in seen)
        if jumps and not clean:
            raise Skip("what it reads was rounded")
        names, constants = [], []
        for v in inputs:
            if v is None or isinstance(v, Value):
                names.append("" if v is None else v.name)
                continue
            names.append(f"c{len(self.constants) + len(constants)}")
            constants.append(numpy_helper.from_array(np.asarray(v), names[-1]))
        outs = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op, names, outs, name=f"n{len(self.nodes)}_{op}", **attributes)
        unique = {v.name: v for v in seen}.values()
        ends = [onnx.ValueInfoProto(name=o) for o in outs]
        graph = helper.make_graph([node], "one", [info(v.name, v.value) for v in unique], ends, constants)
        alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        values = run(alone, {v.name: v.value for v in unique})
        looses = run(alone, {v.name: v.loose for v in unique})
        made = []
        for name, value, loose in zip(outs, values, looses):
            if value.ndim == 0 or value.shape[0] != BATCH or not 0 < value.size <= ELEMENTS_MAX:
                raise Skip("no rows, or too many elements")
            real = value.dtype == np.float32
            if real and not (np.abs(value) < 1e4).all() or loose.shape != value.shape:
                raise Skip("too large")
            grained = not real or bool((np.mod(value, GRAIN) == 0).all() and (np.abs(value) < LARGEST).all())
            same = clean and (exact or jumps)
            if real and not same:
                loose = (loose * (1 + 1e-6 * self.rng.uniform(-1, 1, loose.shape))).astype(np.float32)
            # One rounding, such as that of DequantizeLinear, is the same on both sides; the next need not be.
            made.append(Value(name, value, loose, same and (grained or jumps)))
            made[-1].same = same
        self.nodes.append(node)
        self.constants += constants
        for v in seen:
            v.read = True
        self.values += made
        return made[0] if outputs == 1 else made

    def model(self):
        """The graph, and its outputs: what nothing reads, and maybe more."""
        ends = [v for v in self.values if not v.read and v not in self.inputs]
        more = [v for v in self.values if v.read and v not in self.inputs]
        if more and self.chance(0.2):
            ends.append(self.pick(more))
        ends = ends[-6:]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [info(v.name, v.value, "N") for v in self.inputs],
            [info(v.name, v.value, "N") for v in ends],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8), ends
