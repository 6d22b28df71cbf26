#!/usr/bin/env python3
"""Cycles of a loop on cores that run in order, by rules that others have measured on boards.

llvm-mca's models of them don't tell a load of 64 bits from one of 128, nor what may start beside what. The
rules here are from the notes on dual issue in ncnn (docs/developer-guide/arm-a53-a55-dual-issue.md), the
measurements of pairs of instructions in daniestevez/qsdr and, for latencies, LLVM's models. Two instructions
start in a cycle at most, in order, each when what it reads is there:

* A multiply-add of 128 bits is alone in the vector unit for its cycle.
* A load of 128 bits takes two cycles, in which nothing else starts. One load starts in a cycle.
* Cortex-A53: beside a multiply-add nothing starts that writes a vector register (a load to one, or an
  insertion), and a load to an integer register only behind it; a load to a vector register doesn't start in
  the fifth cycle of a multiply-add, when that writes its own.
* Cortex-A55: beside a multiply-add starts anything but another, and loads of 128 bits.

Data is in the first-level cache. What no rule is known of costs nothing: a figure is an upper bound, for
comparing loops. `mca.py --in-order` prints it; `inorder.py` checks the rules on small cases.
"""

import re

LATENCY = {
    "cortex-a53": {"fma": 8, "vector load": 4, "load": 3, "insert": 2, "integer": 1, "branch": 1},
    "cortex-a55": {"fma": 4, "vector load": 3, "load": 3, "insert": 3, "integer": 1, "branch": 1},
}
# A multiply-add takes the sum of the one before it so long before its result is there.
FORWARDED = 4


def register(operand):
    match = re.match(r"[vqds](\d+)|[xw](\d+|zr)|sp", operand.strip())
    if not match:
        return None
    return "v" + match[1] if match[1] else "x" + match[2] if match[2] else "sp"


class Instruction:
    def __init__(self, line):
        name, _, rest = line.split("//")[0].strip().replace("\t", " ").partition(" ")
        operands = [o.strip() for o in re.split(r",(?![^\[]*\])", rest)]
        registers = [r for r in map(register, operands) if r]
        self.writes, self.reads, self.wide, self.busy = registers[:1], registers[1:], False, 1
        if name in ("fmla", "fmls"):
            self.kind, self.reads = "fma", registers
        elif name in ("ldr", "ldp", "ldur"):
            self.kind = "vector load" if operands[0][0] in "qds" else "load"
            count = 2 if name == "ldp" else 1
            self.wide = operands[0][0] == "q" or count == 2
            self.busy = (2 if operands[0][0] == "q" else 1) * count
            address = re.findall(r"\b(x\d+|sp)\b", rest[rest.index("[") :])
            self.writes, self.reads = registers[:count], address
            if rest.endswith("!") or re.search(r"\],", rest):
                self.writes = self.writes + address[:1]
        elif name in ("ins", "mov") and re.match(r"v\d+\.[ds]\[", operands[0]):
            self.kind, self.reads = "insert", registers
        elif name in ("fmov", "dup"):
            self.kind = "insert"
        elif name in ("subs", "cmp", "add", "sub", "mov", "lsl", "and"):
            self.kind = "integer"
            if name in ("subs", "cmp"):
                self.writes = (registers[:1] if name == "subs" else []) + ["flags"]
                self.reads = registers[0 if name == "cmp" else 1 :]
        elif name.startswith("b") or name in ("cbz", "cbnz"):
            self.kind, self.reads, self.writes = "branch", registers + ["flags"], []
        else:
            raise ValueError(f"no rule for {line.strip()}")


def together(core, first, second):
    """Whether the second starts in the first's cycle, as far as units go."""
    kinds = (first.kind, second.kind)
    if first.wide or second.wide or first.kind == "branch":
        return False
    if all("load" in kind for kind in kinds) or kinds == ("fma", "fma"):
        return False
    if core == "cortex-a53" and "fma" in kinds:
        return not {"vector load", "insert"} & set(kinds) and first.kind != "load"
    return True


def cycles(core, body, passes=24):
    """Cycles of one pass of a loop."""
    latency, loop = LATENCY[core], [Instruction(line) for line in body]
    now, free, started, ready, multiplied, ends = 0, 0, [], {}, set(), []
    for n in range(passes):
        for one in loop:
            at = max(now, free)
            for r in one.reads:
                there, forwarded = ready.get(r, (0, 0))
                at = max(at, forwarded if one.kind == "fma" and r == one.writes[0] else there)
            while True:
                if at > now:
                    now, started = at, []
                blocked = core == "cortex-a53" and one.kind == "vector load" and now - 4 in multiplied
                if not blocked and (not started or len(started) == 1 and together(core, started[0], one)):
                    break
                at = now + 1
            started.append(one)
            if one.kind == "fma":
                multiplied.add(now)
            if one.busy > 1:
                free = now + one.busy
            for i, r in enumerate(one.writes):
                address = "load" in one.kind and r in one.reads and i == len(one.writes) - 1
                there = now + (1 if address else latency[one.kind] + one.busy - 1)
                early = FORWARDED if core == "cortex-a53" and one.kind == "fma" else 0
                ready[r] = (there, there - early)
        ends.append(now)
    settled = passes // 2
    return (ends[-1] - ends[settled]) / (passes - 1 - settled)


def main():
    fma = [f"fmla v{i}.4s, v30.4s, v31.s[0]" for i in range(12)]
    by_three = [line for i in range(0, 12, 3) for line in [f"ldr d{20 + i // 3}, [x1]", *fma[i : i + 3]]]
    behind = [line for i in range(12) for line in [fma[i], f"ldr x{2 + i % 6}, [x1]"]]
    wide = fma + ["ldr q20, [x1]"]
    for body, a53, a55 in ((fma, 12, 12), (by_three, 16, 12), (behind, 12, 12), (wide, 18, 14)):
        assert (cycles("cortex-a53", body), cycles("cortex-a55", body)) == (a53, a55), body
    print("the rules hold on small cases")


if __name__ == "__main__":
    main()
