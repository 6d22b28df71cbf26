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



# --- a server that refuses, closes and lets nobody in: played here ---

import os
import socket
import tempfile
import threading
import time

REFUSAL = bytes([4, 0]) + bytes([113 & 0x7F]) + bytes([3]) + b"out" + bytes([8, 8])


def played(serve, use, backlog=1):
    """Runs `use(address)` against `serve(listener)` on a thread."""
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "s.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(backlog)
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()
            use("unix:" + path)
            thread.join()


def frame(header, payload=b""):
    return struct.pack("<BBHI", 0xC1, len(header), 0, len(payload)) + header + payload


def hello(sock):
    sock.recv(4096)
    sock.sendall(frame(bytes([0, 2]) + b"\x80\x80\x80\x20" + b"\x80\x02" + b"\1"))


closed = threading.Event()


def turns_away(listener):
    """Refuses whoever comes, and is gone before the hello is sent."""
    sock, _ = listener.accept()
    sock.sendall(frame(REFUSAL))
    sock.close()
    closed.set()


def is_turned_away(address):
    real = corelane.Client._write

    def late(self, *args):
        assert closed.wait(30)
        return real(self, *args)

    corelane.Client._write = late
    try:
        error = fails("too_many_connections", lambda: corelane.connect(address))
    finally:
        corelane.Client._write = real
    assert (error.text, error.a, error.b) == ("out", 8, 8)


def closes_in_mid_request(listener):
    """Answers a ping, refuses in the middle of a long payload, and closes without reading it."""
    sock, _ = listener.accept()
    hello(sock)
    sock.recv(1000)
    sock.sendall(frame(bytes([6, 77])) + frame(REFUSAL))
    sock.close()


def is_told_in_mid_request(address):
    client = corelane.connect(address)
    model = type("Model", (), {"id": 0})
    error = fails("too_many_connections", lambda: client.submit(model, bytes(4_000_000)))
    assert error.text == "out"
    assert 77 in client._done, "what came before is kept"
    client.close()


def lets_one_in(listener):
    """Its backlog is full for a while."""
    assert refused.wait(30)
    held = []
    while len(held) < waiting + 1:
        sock, _ = listener.accept()
        held.append(sock)
    hello(held[-1])
    assert held[-1].recv(1) == b""


refused, waiting = threading.Event(), 0


def waits_to_be_let_in(address):
    global waiting
    path, ahead = address[5:], []
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(path)
        except BlockingIOError:
            break
        ahead.append(sock)
    waiting = len(ahead)
    try:
        corelane.connect(address, timeout=0.02)
        raise AssertionError("nobody was to be let in")
    except TimeoutError:
        pass
    real = time.sleep

    def notices(seconds):
        refused.set()
        real(seconds)

    time.sleep = notices
    try:
        corelane.connect(address).close()
    finally:
        time.sleep = real
    for sock in ahead:
        sock.close()


left = threading.Event()


def shuts_down(listener, at_once):
    """Says goodbye to whom it has let in; hears what is said then, or is gone at once."""
    sock, _ = listener.accept()
    with sock:
        hello(sock)
        sock.sendall(frame(b"\x09"))
        if at_once:
            sock.close()
            return left.set()
        sock.shutdown(socket.SHUT_WR)
        left.set()
        while sock.recv(1000):
            pass


def is_told_goodbye(address):
    with corelane.connect(address) as client:
        assert left.wait(30)
        left.clear()
        for _ in range(2):
            try:
                client.ping()
            except corelane.ShuttingDown as error:
                assert str(error) == "the server is shutting down"
            else:
                raise AssertionError("it had said goodbye")


played(turns_away, is_turned_away)
played(closes_in_mid_request, is_told_in_mid_request)
played(lets_one_in, waits_to_be_let_in, backlog=0)
for at_once in (False, True):
    played(lambda listener: shuts_down(listener, at_once), is_told_goodbye)

print("all is well")
