"""Drives examples/python/corelane.py against a server; run by the test `socket`."""

import struct
import sys

import corelane

unix, tcp = sys.argv[1:]


def fails(name, call):
    try:
        call()
    except corelane.ServerError as error:
        assert error.name == name, error
        return error
    raise AssertionError("no error %s" % name)


with corelane.connect(unix) as client:
    assert client.version == 2
    assert [name for _, _, name in client.models()] == ["m", "big", "slow", "floats"]
    model = client.open("m")
    assert (model.rows_max, model.batched, model.priority_levels) == (4, True, 2)
    tensor = model.inputs[0]
    assert (tensor.name, tensor.dtype, tensor.row_shape, tensor.row_bytes) == ("x", "uint8", [16], 16)

    answer = client.infer(model, [bytes(range(16))])
    assert answer.outputs == [bytes(range(16))], answer.outputs
    assert answer.values() == [tuple(range(16))]
    assert answer.receipt["batch_size"] == 1
    # "full" where the times measured at load, on a busy machine, say that no larger batch pays.
    assert answer.receipt["close_reason"] in ("idle", "full"), answer.receipt
    assert client.infer(model, [bytes(48)], rows=3).rows == 3

    tickets = [client.submit(model, [bytes([n] * 16)]) for n in range(30)]
    for n, ticket in reversed(list(enumerate(tickets))):
        assert client.wait(ticket).outputs == [bytes([n] * 16)]

    # Far more than the sockets hold, all sent before anything is read.
    big = client.open("big")
    payload = bytes(range(250)) * 1200
    tickets = [client.submit(big, payload) for _ in range(40)]
    for ticket in tickets:
        answer = client.wait(ticket)
        assert answer.outputs == [payload]
        # It has no batch larger than one row.
        assert answer.receipt["close_reason"] == "full", answer.receipt

    slow = client.open("slow")
    first = client.submit(slow, [bytes(8)])
    second = client.submit(slow, [bytes(8)])
    third = client.submit(slow, [bytes(8)])
    client.cancel(third)
    fails("cancelled", lambda: client.wait(third))
    client.wait(first), client.wait(second)

    error = fails("unknown_model", lambda: client.open("nobody"))
    assert error.number == 200 and error.b == 4
    error = fails("wrong_payload_length", lambda: client.infer(model, bytes(15)))
    assert (error.a, error.b) == (15, 16)
    # What can be told here is not sent: a row too many is no second input.
    for inputs, said in ([bytes(15)], "has 15 bytes; 1 rows of it are 16"), ([bytes(16)] * 2, "2 are given"):
        try:
            client.infer(model, inputs)
            raise AssertionError("%r was taken" % inputs)
        except ValueError as refused:
            assert said in str(refused), refused
    fails("wrong_rows", lambda: client.infer(model, [bytes(80)], rows=5))
    fails("bad_priority", lambda: client.infer(model, [bytes(16)], priority=9))
    fails("model_failed", lambda: client.infer(model, [bytes([0xEE] * 16)]))
    fails("deadline_unmeetable", lambda: client.infer(slow, [bytes(8)], deadline_us=1000))

    assert client.ping() > 0 and client.live() and client.ready()
    stats = client.stats()
    assert stats["models"][0]["name"] == "m" and stats["models"][0]["inference_request_success"] >= 32

    row = struct.pack("<4f", 1.5, -0.25, 1e9, float("nan"))
    for encodings, wanted in [
        ({"x": "f16", "y": "f16"}, (1.5, -0.25, float("inf"), None)),
        ({"x": ("i8", 0.25, -128)}, (1.5, 0.0, 63.75, 0.0)),
        ({"y": ("i8", 0.25, 0)}, (1.5, -0.25, 31.75, 0.0)),
    ]:
        floats = client.open("floats", encodings)
        got = client.infer(floats, [row]).values()[0]
        assert all(w == g or (w is None and g != g) for w, g in zip(wanted, got)), (wanted, got)
    assert client.infer(client.open("floats"), [row]).outputs == [row]
    error = fails("bad_encoding", lambda: client.open("m", {"x": "f16"}))
    assert (error.a, error.b) == (0, 1) and "uint8" in error.text, error

    try:
        import numpy
    except ImportError:
        pass
    else:
        row = numpy.arange(32, dtype=numpy.uint8).reshape(2, 16)
        array = client.infer(model, [row], rows=2).numpy()[0]
        assert array.shape == (2, 16) and (array == row).all()

with corelane.connect(tcp, key=b"a key of sufficient length") as client:
    assert client.infer(client.open("m"), [bytes(16)]).outputs == [bytes(16)]
fails("auth_failed", lambda: corelane.connect(tcp, key=b"a wrong key of some length"))
try:
    corelane.connect(tcp)
except ValueError:
    pass
else:
    raise AssertionError("a key was wanted")

print("all is well")
