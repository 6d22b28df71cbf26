#!/usr/bin/env python3
"""Loops of the kernels that keep their sums in memory, in a program for x86-64.

    benches/spills.py target/release/corelane

A register tile multiplies and adds in registers. Where the compiler lets the sums live on the stack, it stores
one after every multiplication: the answers are the same, and the speed is a third. Nothing else tells, so this
looks for it: an innermost loop that stores to the stack as often as it multiplies. Ends with 1 if there is one.
Needs nm and objdump (binutils).
"""

import argparse
import re
import subprocess
import sys

# Multiply-adds from which on a loop is one of the hot ones.
LEAST = 8

JUMP = re.compile(r"^j\w+\s+([0-9a-f]+)\b")
STORE = re.compile(r"^vmov[au]ps\s+%[xyz]mm\d+(\{%k\d\})?,(-?0x[0-9a-f]+)?\(%r[sb]p")


def functions(program):
    """Where the functions lie that were compiled for an instruction set: (first address, end)."""
    names = subprocess.run(["nm", "-S", program], check=True, capture_output=True, text=True).stdout
    for line in names.splitlines():
        parts = line.split()
        if len(parts) == 4 and "engine7kernels" in parts[3] and "5enter" in parts[3]:
            yield int(parts[0], 16), int(parts[0], 16) + int(parts[1], 16)


def loops(program, first, end):
    """The innermost loops of a function: (first address, multiply-adds, stores to the stack)."""
    command = ["objdump", "-d", "--no-show-raw-insn", f"--start-address={first}", f"--stop-address={end}", program]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    code = []
    for line in text.splitlines():
        address, colon, instruction = line.partition(":\t")
        if colon:
            code.append((int(address, 16), instruction.strip()))
    place = {address: i for i, (address, _) in enumerate(code)}
    # The nearest jump back is the innermost loop's end.
    inner = -1
    for i, (address, instruction) in enumerate(code):
        jump = JUMP.match(instruction)
        if jump is None:
            continue
        to = place.get(int(jump[1], 16))
        if to is None or to > i or to <= inner:
            continue
        body = [text for _, text in code[to : i + 1]]
        inner = to
        yield code[to][0], sum(t.startswith("vfmadd") for t in body), sum(bool(STORE.match(t)) for t in body)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="a program or library with the kernels, not stripped")
    args = parser.parse_args()
    seen = 0
    spilled = []
    for first, end in functions(args.program):
        for address, products, stores in loops(args.program, first, end):
            if products >= LEAST:
                seen += 1
                if stores >= products:
                    spilled.append(f"{address:#x}: {products} multiply-adds, {stores} stores to the stack")
    if seen == 0:
        sys.exit(f"{args.program}: no loop of the kernels was found")
    print(f"{args.program}: {seen} loops of at least {LEAST} multiply-adds, {len(spilled)} keep sums in memory")
    for line in spilled:
        print(f"  {line}")
    sys.exit(1 if spilled else 0)


if __name__ == "__main__":
    main()
