"""A line between two pseudo-terminals, with faults by a seed, and a server at one of its ends."""

import json
import os
import random
import select
import subprocess
import threading
import time
import tty

BAUD = 921600
# Bytes on their way before an end is not read any more; a UART's own FIFO is not longer.
WAITING_MAX = 64
# How often the line looks at the clock while bytes are on their way.
TURN_S = 0.0005


class Direction:
    """What happens to the bytes that go one way."""

    def __init__(self, seed, flip, lose):
        self.random = random.Random(seed)
        self.flip = flip
        self.lose = lose
        # Bytes that are on their way, and when the next may arrive.
        self.waiting = bytearray()
        self.free_at = 0.0
        self.frames = 0
        self.damaged = 0
        self.inside = False
        self.hurt = False

    def take(self, data):
        """Takes bytes of one end; once in so many, one bit is flipped or the byte is lost."""
        for byte in data:
            hurt = True
            if self.lose and self.random.randrange(self.lose) == 0:
                sent = None
            elif self.flip and self.random.randrange(self.flip) == 0:
                sent = byte ^ 1 << self.random.randrange(8)
            else:
                sent = byte
                hurt = False
            if sent is not None:
                self.waiting.append(sent)
            self.hurt |= hurt
            # Frames are what is between zeros.
            if byte != 0:
                self.inside = True
            elif self.inside:
                self.frames += 1
                self.damaged += self.hurt
                self.inside = self.hurt = False


    def arrived(self, now):
        """How many bytes have arrived, at the line's speed."""
        return min(len(self.waiting), max(0, int((now - self.free_at) * BAUD / 10)))

    def deliver(self, sink, now):
        """Gives the other end what has arrived, as far as it takes it."""
        arrived = self.arrived(now)
        if arrived == 0:
            return
        try:
            sent = os.write(sink, self.waiting[:arrived])
        except BlockingIOError:
            sent = 0
        del self.waiting[:sent]
        # An end that takes nothing holds the line up; one that waits does not save its time.
        self.free_at = now if sent < arrived else self.free_at + sent * 10 / BAUD


class Line:
    """Two pseudo-terminals; `server` and `device` are their paths. Once in `flip` bytes a bit is flipped,
    once in `lose` bytes one is lost, both ways; 0 is never. Bytes take their time at BAUD."""

    def __init__(self, seed=0, flip=0, lose=0):
        self.ends = []
        self.held = []
        self.paths = []
        for _ in range(2):
            end, other = os.openpty()
            tty.setraw(other)
            os.set_blocking(end, False)
            self.ends.append(end)
            # Kept open, so that the terminal does not hang up while nobody else has it.
            self.held.append(other)
            self.paths.append(os.ttyname(other))
        self.server, self.device = self.paths
        # By the end that the bytes come from.
        self.ways = [Direction(2 * seed + n, flip, lose) for n in range(2)]
        self.wake, self.woken = os.pipe()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            reads = [e for e, way in zip(self.ends, self.ways) if len(way.waiting) < WAITING_MAX]
            busy = any(way.waiting for way in self.ways)
            reads, _, _ = select.select(reads + [self.wake], [], [], TURN_S if busy else None)
            if self.wake in reads:
                return
            now = time.monotonic()
            for n, way in enumerate(self.ways):
                if self.ends[n] in reads:
                    if not way.waiting:
                        way.free_at = now
                    way.take(os.read(self.ends[n], 512))
                way.deliver(self.ends[1 - n], now)

    def close(self):
        """Ends it; returns how many frames there were, and how many of them were damaged."""
        os.write(self.woken, b"x")
        self.thread.join()
        for descriptor in [*self.ends, *self.held, self.wake, self.woken]:
            os.close(descriptor)
        return sum(way.frames for way in self.ways), sum(way.damaged for way in self.ways)


class Server:
    """`corelane serve` at a line's end."""

    def __init__(self, program, line, models, directory):
        self.program = program
        self.address = f"unix:{directory}/server.sock"
        self.log = open(f"{directory}/server.log", "w+", encoding="utf-8")
        self.child = subprocess.Popen(
            [program, "serve", "--model", *models, "--unpinned", "1"]
            + ["--serial", f"{line.server}:{BAUD}", "--unix", self.address.removeprefix("unix:")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        ready = self.child.stdout.readline()
        if not ready or not json.loads(ready).get("ready"):
            self.kill()
            raise RuntimeError(f"the server is not ready: {ready!r}\n{self.errors()}")

    def errors(self):
        """What it said on standard error."""
        self.log.seek(0)
        return self.log.read()

    def stats(self):
        """Its statistics."""
        command = [self.program, "stats", "--connect", self.address, "--json"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return json.loads(run.stdout)

    def stop(self):
        """Drains it; an exit code other than 0 is an error."""
        self.child.terminate()
        code = self.child.wait(timeout=30)
        if code != 0:
            raise RuntimeError(f"the server ended with {code}\n{self.errors()}")

    def kill(self):
        """Ends it if it still runs."""
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
