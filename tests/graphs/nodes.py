"""What a random graph may consist of: one function for each kind of node (see fuzz.py)."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from graph import Graph, Skip, Value


def window(g, axes, dilations=True):
    """Attributes of a window, with padding by numbers or by rule."""
    kernel = g.some(1, 3, axes) if g.chance(0.8) else g.some(1, 5, axes)
    attributes = {"kernel_shape": kernel, "strides": g.some(1, 3, axes) if g.chance(0.5) else None}
    if dilations and g.chance(0.25):
        attributes["dilations"] = g.some(1, 2, axes)
    rule = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID", None, None, None])
    if rule:
        attributes["auto_pad"] = rule
    elif g.chance(0.6):
        attributes["pads"] = [g.some(0, k - 1) for k in kernel * 2]
    return attributes


def weight(g, shape, axis):
    """A constant, or 8-bit numbers that are dequantised, along an axis or not."""
    if g.chance(0.6):
        return g.grid(*shape)
    dtype = g.pick([np.int8, np.uint8])
    low = -8 if dtype == np.int8 else 0
    stored = np.asarray(g.some(low, low + 15, int(np.prod(shape))), dtype).reshape(shape)
    n = shape[axis] if g.chance(0.5) else ()
    scale = (2.0 ** -g.rng.integers(2, 5, n)).astype(np.float32)
    zero = np.asarray(g.rng.integers(0, 4, n), dtype)
    names = [f"c{len(g.constants) + i}" for i in range(3)]
    g.constants += [numpy_helper.from_array(np.asarray(v), k) for v, k in zip([stored, scale, zero], names)]
    out = f"t{len(g.nodes)}_w"
    g.nodes.append(helper.make_node("DequantizeLinear", names, [out], name=f"n{len(g.nodes)}_w", axis=axis))
    shift = [1] * len(shape)
    if n:
        shift[axis] = -1
    value = (stored.astype(np.float32) - zero.astype(np.float32).reshape(shift if n else ())) * scale.reshape(
        shift if n else ()
    )
    value = value.astype(np.float32)
    return Value(out, value, value, True)


def conv(g):
    x = g.value((3, 4))
    channels, axes = x.shape[1], x.rank - 2
    groups = g.pick([1, 1, channels, g.pick([d for d in range(1, channels + 1) if channels % d == 0])])
    out = groups * g.pick([1, 1, 2, 3, 8, 9])
    attributes = window(g, axes)
    w = weight(g, (out, channels // groups, *attributes["kernel_shape"]), 0)
    bias = [g.grid(out)] if g.chance(0.6) else []
    # Three by three may be computed by way of fractions.
    exact = attributes["kernel_shape"] != [3, 3]
    return g.emit("Conv", [x, w, *bias], exact=exact, group=groups, **attributes)


def conv_transpose(g):
    x = g.value((3, 4))
    channels, axes = x.shape[1], x.rank - 2
    groups = g.pick([1, 1, channels])
    kernel, strides = g.some(1, 3, axes), g.some(1, 2, axes)
    w = weight(g, (channels, g.some(1, 4), *kernel), 1)
    more = {"pads": [g.some(0, (k - 1) // 2) for k in kernel * 2]} if g.chance(0.4) else {}
    if g.chance(0.3):
        more["output_padding"] = [g.some(0, s - 1) for s in strides]
    more |= {"kernel_shape": kernel, "strides": strides, "group": groups}
    bias = [g.grid(w.shape[1] * groups)] if g.chance(0.5) else []
    return g.emit("ConvTranspose", [x, w, *bias], exact=True, **more)


def pool(g):
    x = g.value((3, 4))
    kind = g.pick(["MaxPool", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if kind.startswith("Global"):
        return g.emit(kind, [x], exact=kind == "GlobalMaxPool")
    attributes = window(g, x.rank - 2, dilations=kind == "MaxPool")
    if any(k > length for k, length in zip(attributes["kernel_shape"], x.shape[2:])):
        raise Skip("ONNX Runtime takes a window that is wider than the image")
    if "auto_pad" in attributes:
        # By ONNX's formula the padding counts them; ONNX Runtime's does not.
        attributes.pop("dilations", None)
    if g.chance(0.3):
        attributes["ceil_mode"] = 1
    if kind == "AveragePool" and g.chance(0.5):
        attributes["count_include_pad"] = 1
    return g.emit(kind, [x], exact=kind == "MaxPool", **attributes)


def gemm(g):
    x = g.value((2,))
    k, n, transposed = x.shape[1], g.pick([1, 3, 8, 10, 17]), g.some(0, 1)
    w = weight(g, (n, k) if transposed else (k, n), g.some(0, 1))
    c = [g.grid(*g.pick([(n,), (1, n), (1,)]))] if g.chance(0.7) else []
    scales = {"alpha": g.pick([0.5, 2.0, -1.0]), "beta": g.pick([0.5, 2.0])} if g.chance(0.3) else {}
    return g.emit("Gemm", [x, w, *c], exact=True, transB=transposed, **scales)


def matmul(g):
    x = g.value()
    if g.chance(0.3) and x.rank > 2:
        perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        return g.emit("MatMul", [x, g.emit("Transpose", [x], exact=True, perm=perm)], exact=True)
    lead = [1] * g.some(0, x.rank - 2) if g.chance(0.3) else []
    w = weight(g, (*lead, x.shape[-1], g.pick([1, 4, 8, 11])), len(lead) + 1)
    swap = g.chance(0.15) and x.rank > 2
    if swap:
        return g.emit("MatMul", [g.grid(g.some(1, 5), x.shape[-2]), x], exact=True)
    return g.emit("MatMul", [x, w], exact=True)


def binary(g):
    x = g.value()
    op = g.pick(["Add", "Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu", "Pow", "Mod"])
    if g.chance(0.35) and op not in ("Pow", "PRelu", "Mod", "Div"):
        y = g.value()
    else:
        shape = [1 if g.chance(0.4) else d for d in x.shape[g.some(0, x.rank - 1) :]]
        if len(shape) == x.rank:
            shape[0] = 1
        y = g.grid(*shape) if g.chance(0.8) else g.grid()
    if op in ("Div", "Mod"):
        y = g.pick([0.5, 2.0, 3.0, 10.0, -7.0]) * np.ones_like(y)
        if op == "Mod":
            return g.emit("Mod", [x, y], jumps=True, fmod=1)
    if op == "Pow":
        x, y = g.emit("Abs", [x], exact=True), np.float32(g.pick([0.5, 1.0, 2.0, 3.0, -1.0]))
    pair = [x, y] if g.chance(0.7) or op in ("Div", "Pow", "PRelu") else [y, x]
    return g.emit(op, pair, exact=op not in ("Div", "Pow"))


ROUGH = ["Sigmoid", "Tanh", "Erf", "Exp", "Softplus", "Elu", "Selu", "HardSigmoid", "HardSwish", "Mish", "Softsign"]
ROUGH += ["Sin", "Cos", "Celu", "ThresholdedRelu", "Gelu", "Atan", "Sinh", "Asinh"]
EXACT = ["Relu", "Abs", "Neg", "LeakyRelu", "Clip", "Identity"]


def unary(g):
    x, op = g.value(), g.pick(EXACT + ROUGH)
    if op == "Clip":
        bounds = [np.float32(-1.5), np.float32(2.25)]
        bounds = g.pick([bounds, bounds[:1], [None, bounds[1]], [np.float32(0), np.float32(6)]])
        return g.emit("Clip", [x, *bounds], exact=True)
    alpha = {"LeakyRelu": 0.25, "Elu": 0.7, "Celu": 1.3, "HardSigmoid": 0.3, "ThresholdedRelu": 0.7}.get(op)
    return g.emit(op, [x], exact=op in EXACT, jumps=op == "ThresholdedRelu", alpha=alpha)


def spelled(g):
    """Functions that are spelled out, and what is nearly one."""
    x, kind = g.value(), g.pick(["silu", "gelu", "tanh gelu", "hardswish", "softmax", "log", "sqrt", "relu6"])
    f = lambda v: np.float32(v)
    if kind == "silu":
        return g.emit("Mul", [x, g.emit("Sigmoid", [g.emit("Mul", [x, f(1.702)]) if g.chance(0.3) else x])])
    if kind == "gelu":
        erf = g.emit("Erf", [g.emit("Div", [x, f(1.4142135)])])
        return g.emit("Mul", [g.emit("Mul", [x, g.emit("Add", [erf, f(1)])]), f(0.5)])
    if kind == "tanh gelu":
        cube = g.emit("Mul", [g.emit("Pow", [x, f(3)]), f(0.044715)])
        tanh = g.emit("Tanh", [g.emit("Mul", [g.emit("Add", [x, cube]), f(0.7978846)])])
        return g.emit("Mul", [g.emit("Mul", [x, f(0.5)]), g.emit("Add", [tanh, f(1)])])
    if kind in ("hardswish", "relu6"):
        bound = g.emit("Clip", [g.emit("Add", [x, f(3)], exact=True), f(0), f(6)], exact=True)
        return bound if kind == "relu6" else g.emit("Div", [g.emit("Mul", [x, bound], exact=True), f(6)])
    if kind == "softmax":
        top = g.emit("ReduceMax", [x], axes=[-1]) if g.opset < 18 else g.emit("ReduceMax", [x, np.array([-1])])
        power = g.emit("Exp", [g.emit("Sub", [x, top])])
        return g.emit("Div", [power, g.emit("ReduceSum", [power, np.array([-1])])])
    if kind == "log":
        return g.emit("Log", [g.emit("Add", [g.emit("Abs", [x], exact=True), f(g.pick([1e-3, 1, 0.5]))])])
    return g.emit(g.pick(["Reciprocal", "Sqrt"]), [g.emit("Add", [g.emit("Mul", [x, x]), f(0.25)])])


def jump(g):
    x = g.value(exact=True)
    op = g.pick(["Floor", "Ceil", "Round", "Sign", "Greater", "Less", "Equal", "ArgMax", "TopK", "Magic", "DivFloor"])
    if op in ("Greater", "Less", "Equal"):
        test = g.emit(op, [x, g.grid()], jumps=True)
        return g.emit("Where", [test, x, np.float32(-0.5)], exact=True)
    if op == "ArgMax":
        return g.emit("ArgMax", [x], jumps=True, axis=g.some(1, x.rank - 1), keepdims=g.some(0, 1))
    if op == "TopK":
        axis = g.some(1, x.rank - 1)
        k = np.array([g.some(1, x.shape[axis])])
        return g.emit("TopK", [x, k], outputs=2, jumps=True, axis=axis, largest=g.some(0, 1))[0]
    if op in ("Magic", "DivFloor"):
        if op == "Magic":
            far = np.float32(g.pick([12582912.0, 1e6]))
            between = g.emit("Add", [x, far], jumps=True)
            y = g.emit("Sub", [between, far], jumps=True)
        else:
            between = g.emit("Div", [x, np.float32(g.pick([3.0, 7.0, 0.1, 49.0]))], jumps=True)
            y = g.emit(g.pick(["Floor", "Ceil"]), [between], jumps=True)
        # It was rounded once, as on the other side; what else reads it may round another way.
        between.exact = False
        return y
    return g.emit(op, [x], jumps=True)


def normalise(g):
    x = g.value((3, 4))
    kind = g.pick(["BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN", "LpNormalization"])
    per = lambda n: g.grid(n, step=0.125) + 1
    if kind == "BatchNormalization":
        c = x.shape[1]
        return g.emit(kind, [x, per(c), g.grid(c), g.grid(c), np.abs(g.grid(c)) + np.float32(0.5)])
    if kind == "InstanceNormalization":
        return g.emit(kind, [x, per(x.shape[1]), g.grid(x.shape[1])])
    if kind == "LayerNormalization":
        axis = g.some(1, x.rank - 1)
        shape = x.shape[axis:]
        scale = g.grid(*shape, step=0.125) + 1
        bias = [g.grid(*shape)] if g.chance(0.6) else []
        return g.emit(kind, [x, scale, *bias], axis=g.pick([axis, axis - x.rank]))
    if kind == "LRN":
        return g.emit(kind, [x], size=g.pick([1, 3, 5]), alpha=0.01, beta=0.6)
    return g.emit(kind, [x], axis=g.some(1, x.rank - 1), p=g.some(1, 2))


def softmax(g):
    x = g.value()
    return g.emit(g.pick(["Softmax", "Softmax", "LogSoftmax"]), [x], axis=g.some(1, x.rank - 1) - g.pick([0, x.rank]))


def reduce(g):
    x = g.value((3, 4))
    kind = g.pick(["Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp", "Prod", "LogSum"])
    if kind == "LogSum":
        x = g.emit("Add", [g.emit("Abs", [x], exact=True), np.float32(0.5)])
    axes = sorted({g.some(1, x.rank - 1) for _ in range(g.some(1, 3))})
    axes = [a - x.rank if g.chance(0.3) else a for a in axes]
    exact = kind in ("Sum", "Max", "Min", "L1", "SumSquare")
    if g.opset >= 18 or kind == "Sum":
        return g.emit("Reduce" + kind, [x, np.array(axes)], exact=exact, keepdims=g.some(0, 1))
    return g.emit("Reduce" + kind, [x], exact=exact, axes=axes, keepdims=g.some(0, 1))


def move(g, x=None):
    x = x or g.value()
    rank, axis = x.rank, g.some(1, x.rank - 1)
    length = x.shape[axis]
    kind = g.pick(["Transpose", "Reshape", "Flatten", "Unsqueeze", "Slice", "Slice", "Split", "Concat", "Pad", "Gather"]
                  + ["Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Resize", "CumSum", "Squeeze"])
    if kind == "Transpose":
        return g.emit(kind, [x], exact=True, perm=[0, *(1 + g.rng.permutation(rank - 1))])
    if kind == "Reshape":
        shape = g.pick([[0, -1], [0, 1, -1], [0, -1, x.shape[-1]], [0, x.shape[1], -1], [0, 2, -1]])
        return g.emit(kind, [x, np.array(shape)], exact=True)
    if kind == "Flatten":
        return g.emit(kind, [x], exact=True)
    if kind == "Unsqueeze":
        return g.emit(kind, [x, np.array([axis])], exact=True)
    if kind == "Squeeze":
        return g.emit(kind, [x, np.array([axis])], exact=True)
    if kind == "Slice":
        step = g.pick([1, 1, 2, -1, -2])
        start, end = sorted(g.some(0, length, 2))
        ends = [start, end] if step > 0 else [end, start - 1 if start else -length - 1]
        ends = [v - length if g.chance(0.2) and 0 < v < length else v for v in ends]
        return g.emit(kind, [x, *(np.array([v]) for v in [*ends, axis, step])], exact=True)
    if kind == "Split":
        if length < 2:
            raise Skip("one can't be split")
        cut = g.some(1, length - 1)
        return g.emit(kind, [x, np.array([cut, length - cut])], outputs=2, exact=True, axis=axis)[0]
    if kind == "Concat":
        others = [v for v in g.values if v.rank == rank and v.value.dtype == x.value.dtype]
        fit = [v for v in others if all(a == axis or v.shape[a] == x.shape[a] for a in range(rank))]
        parts = [x, *(g.pick(fit) for _ in range(g.some(0, 2)))]
        return g.emit(kind, parts, exact=True, axis=g.pick([axis, axis - rank]))
    if kind == "Pad":
        mode = g.pick(["constant", "constant", "reflect", "edge"])
        pads = [0 if a == 0 or g.chance(0.4) else g.some(0, 2) for a in [*range(rank)] * 2]
        fill = [x.value.dtype.type(1)] if mode == "constant" and g.chance(0.4) else []
        return g.emit(kind, [x, np.array(pads), *fill], exact=True, mode=mode)
    if kind == "Gather":
        index = np.array(g.some(-length, length - 1, g.pick([1, 3])))
        return g.emit(kind, [x, index if g.chance(0.7) else index[0]], exact=True, axis=axis)
    if kind == "Expand":
        thin = g.emit("Unsqueeze", [x, np.array([axis])], exact=True)
        return g.emit(kind, [thin, np.array([1] * axis + [g.some(1, 3)] + [1] * (rank - axis))], exact=True)
    if kind == "Tile":
        return g.emit(kind, [x, np.array([1, *g.some(1, 2, rank - 1)])], exact=True)
    if kind in ("DepthToSpace", "SpaceToDepth"):
        return g.emit(kind, [x], exact=True, blocksize=2, mode=g.pick(["DCR", "CRD"]) if kind[0] == "D" else None)
    if kind == "CumSum":
        return g.emit(kind, [x, np.array(axis)], exact=True, exclusive=g.some(0, 1), reverse=g.some(0, 1))
    if rank < 3:
        raise Skip("no image")
    # How integers are rounded between two is not defined.
    mode = g.pick(["nearest", "linear"]) if x.real else "nearest"
    scale = [1.0, 1.0] + [g.pick([1.0, 2.0, 3.0, 1.5, 0.5])] * (rank - 2)
    place = g.pick(["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"])
    if place == "align_corners" and any(length * scale[-1] % 1 for length in x.shape[2:]):
        raise Skip("ONNX's reference puts the corner at the length times the scale, ONNX Runtime at its whole part")
    how = {"nearest_mode": g.pick(["floor", "round_prefer_floor", "ceil"])} if mode == "nearest" else {}
    scales = np.array(scale, np.float32)
    exact = mode == "nearest"
    return g.emit("Resize", [x, None, scales], exact=exact, mode=mode, coordinate_transformation_mode=place, **how)


def quantised(g):
    """To 8 bits, maybe through what moves them, and back."""
    x = g.value()
    dtype = g.pick([np.int8, np.uint8])
    scale = np.float32(g.pick([0.25, 0.5, 0.0625, 0.1, 1 / 3, 0.0235, float(np.exp(g.rng.uniform(-5, 0)))]))
    zero = dtype(g.pick([0, 3, 127, g.some(0, 127)]))
    parameters = [scale, zero] if dtype == np.int8 or g.chance(0.8) else [scale]
    if g.chance(0.1) and x.rank > 1:
        n = x.shape[1]
        parameters = [np.full(n, scale) * (1 + np.arange(n, dtype=np.float32) % 3), np.full(n, zero)]
    q = g.emit("QuantizeLinear", [x, *parameters], jumps=True)
    if g.chance(0.3):
        q = move(g, q)
    if g.chance(0.15):
        return q
    if np.ndim(parameters[0]) and (q.rank != x.rank or q.shape[1] != x.shape[1]):
        return q
    y = g.emit("DequantizeLinear", [q, *parameters], exact=True)
    if g.chance(0.2):
        return g.emit("QuantizeLinear", [y, np.float32(scale * 2), np.uint8(9)], jumps=True)
    return y


def cast(g):
    x = g.value(exact=True)
    to = g.pick([TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL])
    whole = g.emit("Cast", [x], jumps=True, to=to)
    if to != TensorProto.BOOL and g.chance(0.5):
        whole = g.emit(g.pick(["Add", "Mul", "Sub", "Max"]), [whole, np.asarray(3, whole.value.dtype)], exact=True)
    return g.emit("Cast", [whole], exact=True, to=TensorProto.FLOAT)


MAKERS = [conv] * 5 + [conv_transpose, pool, pool, gemm, gemm, matmul, matmul] + [binary] * 4 + [unary] * 4
MAKERS += [spelled, spelled, jump, jump, normalise, softmax, reduce, reduce, cast] + [move] * 5 + [quantised] * 5


def make(seed):
    """A graph of a few nodes, its outputs, and how many nodes were tried in vain."""
    g = Graph(seed)
    wanted, tries = g.some(1, 9), 0
    while wanted > 0 and tries < 60:
        tries += 1
        before = len(g.nodes), len(g.constants), len(g.values)
        try:
            g.pick(MAKERS)(g)
            wanted -= 1
        except Skip:
            if len(g.values) == before[2]:
                # Nothing was made: weights alone are taken back.
                del g.nodes[before[0] :], g.constants[before[1] :]
    return (g, *g.model())
