"""Client of corelane's protocol v1 and v2: one file, standard library only (numpy is used if asked for).

    import corelane
    with corelane.connect("unix:/run/corelane.sock") as client:
        model = client.open("mlp")
        answer = client.infer(model, [bytes_of_input_0, ...])       # one row
        answer.outputs                                              # list of bytes, one per output
        answer.numpy()                                              # list of arrays (needs numpy)

        tickets = [client.submit(model, [row]) for row in rows]     # many in flight
        answers = [client.wait(t) for t in reversed(tickets)]       # in any order
        client.cancel(ticket); client.stats(); client.ping(); client.ready()

        half = client.open("mlp", {"input": "f16", "output": ("i8", 1 / 255, -128)})
        answer = client.infer(half, [row])                          # the same inputs and outputs, but
                                                                    # float32 travels in fewer bytes

Addresses are "unix:PATH" or "tcp:HOST:PORT". `connect(address, key=b"...")` answers the challenge of
a server with a pre-shared key. Inputs are bytes-like objects of raw little-endian elements, `rows`
rows each, in the model's order; numpy arrays are bytes-like. The server's errors are raised as
`ServerError` with `number`, `name`, `text`, `a` and `b`; its goodbye as `ShuttingDown`.

Run as a program: `python3 corelane.py ADDRESS` lists the models and the statistics.
"""

import hashlib
import hmac
import json
import math
import select
import socket
import struct
import time

VERSIONS = 1, 2
ALIGN = 8  # tensors begin at multiples of this in a payload
DTYPES = [
    ("float32", 4, "f"), ("float16", 2, "e"), ("float64", 8, "d"), ("int8", 1, "b"),
    ("uint8", 1, "B"), ("int16", 2, "h"), ("uint16", 2, "H"), ("int32", 4, "i"),
    ("uint32", 4, "I"), ("int64", 8, "q"), ("uint64", 8, "Q"), ("bool", 1, "?"),
]
CLOSE_REASONS = ["full", "preferred", "delay", "deadline", "idle", "drain"]
ERROR_NAMES = {
    100: "malformed", 101: "frame_too_long", 102: "unexpected_message",
    110: "unsupported_version", 111: "auth_required", 112: "auth_failed",
    113: "too_many_connections", 114: "peer_not_allowed", 115: "timed_out",
    200: "unknown_model", 201: "wrong_payload_length", 202: "wrong_rows", 203: "bad_priority",
    204: "duplicate_request_id", 205: "too_many_in_flight", 206: "bad_deadline",
    207: "bad_encoding", 208: "too_many_encodings",
    300: "queue_full", 301: "deadline_unmeetable", 302: "deadline_expired", 303: "cancelled",
    400: "model_failed", 401: "model_panicked",
    500: "shutting_down", 501: "not_ready", 502: "internal",
}


class ServerError(Exception):
    """An error that the server sent: number, name, text, and the two numbers a and b."""

    def __init__(self, number, text, a, b):
        self.number, self.text, self.a, self.b = number, text, a, b
        self.name = ERROR_NAMES.get(number, "error_%d" % number)
        super().__init__("%s: %s" % (self.name, text))


class ShuttingDown(ConnectionError):
    """The server has said goodbye: it has answered all that it had accepted, and accepts nothing more."""

    def __init__(self):
        super().__init__("the server is shutting down")


class _Closed(ConnectionError):
    """The connection ended between two frames, or within one."""


class ProtocolError(Exception):
    """The server sent something that the protocol does not allow."""


class Tensor:
    """One input or output: name, dtype (as numpy names it), row_shape, row_bytes, and how it travels:
    encoding is None, "f16" or ("i8", scale, zero_point)."""

    def __init__(self, name, dtype, row_shape):
        self.name, self.row_shape, self.encoding = name, row_shape, None
        self.dtype, size, self.format = DTYPES[dtype]
        self.row_bytes = size
        for axis in row_shape:
            self.row_bytes *= axis

    def __repr__(self):
        return "%s %s%s" % (self.name, self.dtype, self.row_shape)

    def encode(self, data):
        """float32 bytes as they travel."""
        if self.encoding is None:
            return data
        values = struct.unpack("<%df" % (len(data) // 4), data)
        if self.encoding == "f16":
            return b"".join(map(_half, values))
        _, scale, zero = self.encoding
        return bytes(_quantized(value, scale, zero) & 0xFF for value in values)

    def decode(self, data):
        """What travelled as float32 bytes."""
        if self.encoding is None:
            return data
        if self.encoding == "f16":
            values = struct.unpack("<%de" % (len(data) // 2), data)
        else:
            _, scale, zero = self.encoding
            values = [(q - zero) * scale for q in struct.unpack("<%db" % len(data), data)]
        return struct.pack("<%df" % len(values), *values)

    @property
    def element_ratio(self):
        """Bytes of an element over those that travel."""
        return {None: 1, "f16": 2}.get(self.encoding, 4)


class Model:
    """A model of the server: name, id, rows_max, batched, inputs, outputs."""

    def __init__(self, name, id, rows_max, priority_levels, timeout_us, payload):
        self.name, self.id, self.rows_max = name, id, rows_max
        self.priority_levels, self.timeout_us = priority_levels, timeout_us
        reader = _Reader(payload)
        self.batched = reader.byte() == 1
        self.inputs = [self._tensor(reader) for _ in range(reader.varint())]
        self.outputs = [self._tensor(reader) for _ in range(reader.varint())]

    @staticmethod
    def _tensor(reader):
        name, dtype = reader.text(), reader.varint()
        return Tensor(name, dtype, [reader.varint() for _ in range(reader.varint())])


class Answer:
    """An answer: rows, outputs (bytes of each output), receipt (a dict)."""

    def __init__(self, model, rows, receipt, payload):
        self.rows, self.receipt, self._model, self.outputs = rows, receipt, model, []
        end = 0
        for tensor in model.outputs:
            start = -(-end // ALIGN) * ALIGN
            end = start + tensor.row_bytes // tensor.element_ratio * rows
            self.outputs.append(tensor.decode(payload[start:end]))
        if end != len(payload):
            raise ProtocolError("an answer of %d bytes, not %d" % (len(payload), end))

    def values(self):
        """The outputs as flat tuples of numbers."""
        pairs = zip(self._model.outputs, self.outputs)
        return [struct.unpack("<%d%s" % (len(o) // struct.calcsize("<" + t.format), t.format), o)
                for t, o in pairs]

    def numpy(self):
        """The outputs as numpy arrays of shape [rows, ...]."""
        import numpy
        pairs = zip(self._model.outputs, self.outputs)
        return [numpy.frombuffer(o, numpy.dtype(t.dtype).newbyteorder("<"))
                .reshape([self.rows] + t.row_shape) for t, o in pairs]


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _half(value):
    """The nearest half, as bytes; beyond its range infinity."""
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, value))


def _quantized(value, scale, zero):
    if value != value:
        return zero
    steps = min(max(value / scale, -256.0), 256.0)
    return min(max(round(steps) + zero, -128), 127)


def _text(value):
    value = value.encode()
    return _varint(len(value)) + value


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def byte(self):
        if self.at >= len(self.data):
            raise ProtocolError("a message is cut short")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ProtocolError("a number is too long")

    def take(self, n):
        if self.at + n > len(self.data):
            raise ProtocolError("a message is cut short")
        self.at += n
        return bytes(self.data[self.at - n:self.at])

    def text(self):
        return self.take(self.varint()).decode()


def connect(address, key=None, name="python", timeout=30.0):
    """Connects to "unix:PATH" or "tcp:HOST:PORT" and returns a Client."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        sock = _connect_unix(rest, timeout)
    elif kind == "tcp":
        host, _, port = rest.rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        raise ValueError("%r is no address; write unix:PATH or tcp:HOST:PORT" % address)
    try:
        return Client(sock, key, name)
    except BaseException:
        sock.close()
        raise


def _connect_unix(path, timeout):
    """Where others wait to be let in, a Unix socket says so at once: it is asked again."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError("the server lets nobody in") from None
                time.sleep(0.005)
    except BaseException:
        sock.close()
        raise


class Client:
    """A connection. Not for several threads at once."""

    def __init__(self, sock, key=None, name="python"):
        self._sock, self._buffer, self._next_id = sock, bytearray(), 1
        self._models, self._done = {}, {}  # by id: model of a request in flight; finished replies
        self._told_goodbye = False
        self._write(b"\0" + bytes(VERSIONS) + _text(name))
        number, reader, _ = self._frame()
        if number == 1:
            if key is None:
                raise ValueError("the server wants a pre-shared key")
            proof = hmac.new(key, b"corelane v1 client" + reader.take(32), hashlib.sha256).digest()
            self._write(b"\1" + proof)
            number, reader, _ = self._frame()
        if number != 0:
            raise ProtocolError("message %d where the hello was due" % number)
        self.version = reader.byte()
        self.payload_bytes_max, self.in_flight_max = reader.varint(), reader.varint()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the connection at once; requests in flight are given up."""
        self._sock.close()

    # --- requests ---

    def open(self, name, encodings=None):
        """Returns the Model of this name. `encodings` says by name how float32 inputs and outputs
        travel: "f16" or ("i8", scale, zero_point); inputs and outputs stay float32 for the caller."""
        model = self._open(2, name, b"")
        if not encodings:
            return model
        if self.version < 2:
            raise ProtocolError("the server speaks version 1, which has no encodings")
        fields, places, known = bytearray(), [], set()
        for side, tensors in ((0, model.inputs), (0x80, model.outputs)):
            for at, tensor in enumerate(tensors):
                if tensor.name in encodings:
                    known.add(tensor.name)
                    encoding = encodings[tensor.name]
                    places.append((side, at, encoding))
                    fields += bytes([side | at])
                    if encoding == "f16":
                        fields += b"\1"
                    elif len(encoding) == 3 and encoding[0] == "i8":
                        fields += b"\2" + struct.pack("<fb", *encoding[1:])
                    else:
                        raise ValueError("%r is no encoding; there are \"f16\" and "
                                         "(\"i8\", scale, zero_point)" % (encoding,))
        unknown = set(encodings) - known
        if unknown:
            raise ValueError("the model has no tensor %r" % unknown.pop())
        model = self._open(10, name, _varint(len(fields)) + fields)
        for side, at, encoding in places:
            if encoding != "f16":
                # The scale as the server has it.
                scale = struct.unpack("<f", struct.pack("<f", encoding[1]))[0]
                encoding = ("i8", scale, encoding[2])
            (model.outputs if side else model.inputs)[at].encoding = encoding
        return model

    def _open(self, number, name, fields):
        reader, payload = self._ask(number, _text(name) + bytes(fields), 2)
        id, rows_max = reader.varint(), reader.varint()
        return Model(name, id, rows_max, reader.byte(), reader.varint(), payload)

    def submit(self, model, inputs, rows=1, deadline_us=0, priority=0):
        """Sends an inference and returns its ticket; `inputs` is a list of bytes-like objects, one
        per input of the model, `rows` rows each (or the whole payload as it travels, as one bytes
        object)."""
        if isinstance(inputs, (bytes, bytearray)):
            payload = inputs
        else:
            inputs = list(inputs)
            if len(inputs) != len(model.inputs):
                raise ValueError(
                    "the model takes %d inputs (%s), %d are given; rows lie one after another within one"
                    % (len(model.inputs), ", ".join(t.name for t in model.inputs), len(inputs)))
            payload = bytearray()
            for tensor, data in zip(model.inputs, inputs):
                data = memoryview(data).cast("B")
                if len(data) != rows * tensor.row_bytes:
                    raise ValueError("%s has %d bytes; %d rows of it are %d"
                                     % (tensor.name, len(data), rows, rows * tensor.row_bytes))
                payload += bytes(-len(payload) % ALIGN)
                payload += tensor.encode(data)
        id = self._id()
        head = (_varint(id) + _varint(model.id) + _varint(rows) + _varint(deadline_us)
                + bytes([priority]))
        self._models[id] = model
        self._write(b"\3" + head, payload)
        return id

    def wait(self, ticket):
        """Returns the Answer of a ticket, or raises its ServerError."""
        if ticket not in self._models:
            raise KeyError("no request with ticket %d is in flight" % ticket)
        number, reader, payload = self._reply(ticket)
        model = self._models.pop(ticket)
        if number == 4:
            raise self._error(reader)
        if number != 3:
            raise ProtocolError("message %d where an answer was due" % number)
        rows = reader.varint()
        names = ["queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns"]
        receipt = {name: reader.varint() for name in names}
        receipt["batch_size"] = reader.varint()
        receipt["close_reason"] = CLOSE_REASONS[reader.varint()]
        receipt["worker"] = reader.byte()
        return Answer(model, rows, receipt, payload)

    def infer(self, model, inputs, rows=1, deadline_us=0, priority=0):
        """Sends an inference and returns its Answer."""
        return self.wait(self.submit(model, inputs, rows, deadline_us, priority))

    def cancel(self, ticket):
        """Withdraws a request; wait() for it still: it ends with `cancelled` or its answer."""
        self._write(b"\4" + _varint(ticket))

    def stats(self):
        """The server's statistics, as Python objects."""
        return json.loads(self._ask(5, b"", 5)[1])

    def ping(self):
        """Round-trip time in seconds."""
        start = time.perf_counter()
        self._ask(6, b"", 6)
        return time.perf_counter() - start

    def live(self):
        """Whether the server is live."""
        return self._health(0)

    def ready(self):
        """Whether the server takes requests."""
        return self._health(1)

    def models(self):
        """The server's models: a list of (id, rows_max, name)."""
        reader, payload = self._ask(8, b"", 8)
        body = _Reader(payload)
        return [(body.varint(), body.varint(), body.text()) for _ in range(reader.varint())]

    # --- frames ---

    def _health(self, kind):
        reader, _ = self._ask(7, bytes([kind]), 7)
        reader.byte()
        return reader.byte() == 1

    def _id(self):
        self._next_id = self._next_id % 0xFFFFFFFF + 1
        return self._next_id

    def _ask(self, number, fields, answer):
        id = self._id()
        self._write(bytes([number]) + _varint(id) + fields)
        got, reader, payload = self._reply(id)
        if got == 4:
            raise self._error(reader)
        if got != answer:
            raise ProtocolError("message %d where %d was due" % (got, answer))
        return reader, payload

    def _reply(self, id):
        while id not in self._done:
            number, reader, payload = self._frame()
            self._done[reader.varint()] = (number, reader, payload)
        return self._done.pop(id)

    @staticmethod
    def _error(reader):
        return ServerError(reader.varint(), reader.text(), reader.varint(), reader.varint())

    def _write(self, header, payload=b""):
        head = struct.pack("<BBHI", 0xC1, len(header), 0, len(payload)) + header
        if len(payload) < 16384:
            self._send(head + payload)
        else:
            self._send(head)
            self._send(payload)

    def _send(self, data):
        """Sends all of it; while the socket takes no more, answers are read, so that a server
        which waits for its answers to be read can't wait for ever."""
        data = memoryview(data)
        while data:
            try:
                data = data[self._sock.send(data, socket.MSG_DONTWAIT):]
            except (BrokenPipeError, ConnectionResetError):
                self._last_words()
                raise
            except BlockingIOError:
                ready = select.select([self._sock], [self._sock], [], self._sock.gettimeout())
                if not (ready[0] or ready[1]):
                    raise TimeoutError("the server takes nothing")
                if ready[0]:
                    more = self._sock.recv(65536)
                    if not more:
                        self._last_words()
                        raise ConnectionError("the server closed the connection")
                    self._buffer += more

    def _last_words(self):
        """The connection is of no more use for sending; the server may have said why before it closed.
        Raises that. Answers that came before are kept, for wait()."""
        try:
            while True:
                more = self._sock.recv(65536)
                if not more:
                    break
                self._buffer += more
        except OSError:
            pass
        try:
            while True:
                number, reader, payload = self._frame()
                self._done[reader.varint()] = (number, reader, payload)
        except _Closed:
            pass

    def _need(self, n):
        while len(self._buffer) < n:
            try:
                data = self._sock.recv(max(n - len(self._buffer), 65536))
            except ConnectionResetError:
                data = b""
            if not data:
                if self._told_goodbye:
                    raise ShuttingDown
                raise _Closed("the server closed the connection")
            self._buffer += data

    def _frame(self):
        self._need(8)
        magic, header_len, reserved, payload_len = struct.unpack_from("<BBHI", self._buffer)
        if magic != 0xC1 or reserved or not header_len:
            raise ProtocolError("the server sent no frame")
        head = 8 + header_len
        self._need(head + payload_len)
        header = bytes(self._buffer[8:head])
        payload = bytes(self._buffer[head:head + payload_len])
        del self._buffer[:head + payload_len]
        reader = _Reader(header)
        number = reader.byte()
        if number == 4 and not reader.byte():  # an error of the connection
            raise self._error(reader)
        if number == 9:
            self._told_goodbye = True
            raise ShuttingDown
        return number, reader, payload


if __name__ == "__main__":
    import sys
    if len(sys.argv) != 2:
        sys.exit("usage: corelane.py unix:PATH|tcp:HOST:PORT")
    with connect(sys.argv[1]) as client:
        for id, rows_max, name in client.models():
            model = client.open(name)
            print("%s: %s -> %s, %d rows at most" % (name, model.inputs, model.outputs, rows_max))
        print(json.dumps(client.stats(), indent=2))
