#!/usr/bin/env python3
"""How near the hot loops come to the most multiply-adds that a core can do, by static analysis.

Needs llvm-mca (Debian package "llvm"; another one as --mca) and assembly of the library for aarch64 or x86-64:

    cargo rustc --release --lib --target aarch64-unknown-linux-gnu -- \
        --emit asm=kernels.s -C codegen-units=1
    benches/mca.py kernels.s

For every innermost loop with at least --least vector multiply-adds it prints, for each core, the cycles
of one pass by llvm-mca's model of it, and the share of the peak: the rate of a loop of the same number of
multiply-adds that depend on nothing, by the same model. All data is taken to be in the first-level cache,
which is what the blocking of the kernels is for; what a machine does beyond that only a machine can say.
"""

import argparse
import inorder
import json
import re
import subprocess
import sys
from collections import Counter

LABEL = re.compile(r"^([.\w$]+):")


class Aarch64:
    triple = "aarch64"
    cores = ["cortex-a53", "cortex-a72", "cortex-a76"]
    fma = re.compile(r"^\s+fml[as]\s+v\d+\.(?:4s|2s)")
    # A branch back, and what may not be in a loop that is to be looked at alone.
    branch = re.compile(r"^\s+(?:b|b\.\w+|cbn?z|tbn?z)\s+(?:[wx]\d+,\s*)?(?:#\d+,\s*)?([.\w$]+)\s*$")
    call = re.compile(r"^\s+(?:bl|blr|ret)\b")

    @staticmethod
    def width(_line):
        return "4s"

    @staticmethod
    def free(width, i):
        """One of 24 multiply-adds in a row that depend on nothing."""
        return f"\tfmla v{i % 24}.{width}, v30.{width}, v31.{width}"


class X86:
    triple = "x86_64"
    cores = ["skylake-avx512", "icelake-server", "sapphirerapids", "znver4"]
    fma = re.compile(r"^\s+vfn?m(?:add|sub)\d{3}ps\s.*%([xyz]mm)\d+\s*$")
    branch = re.compile(r"^\s+j(?!mpq?\s+\*)\w+\s+([.\w$]+)\s*$")
    call = re.compile(r"^\s+(?:callq?|retq?|jmpq?\s+\*)\b")

    @staticmethod
    def width(line):
        return X86.fma.match(line).group(1)

    @staticmethod
    def free(width, i):
        # Names that an encoding without AVX-512 has, too: 12 suffice, at 2 a cycle and 4 cycles each.
        return f"\tvfmadd231ps %{width}14, %{width}15, %{width}{i % 12}"


def instructions(lines):
    return [line for line in lines if re.match(r"^\s+[a-z]", line)]


def function_name(symbol):
    """The last path segments of a mangled name that say which kernel it is."""
    parts, rest = [], symbol
    while match := re.search(r"(\d+)", rest):
        length = int(match.group(1))
        part = rest[match.end() : match.end() + length]
        if len(part) == length and re.fullmatch(r"[A-Za-z_]\w*", part):
            parts.append(part)
            rest = rest[match.end() + length :]
        else:
            rest = rest[match.end() :]
    names = [p for p in parts if not re.fullmatch(r"h[0-9a-f]{16}|_.*", p)]
    return "::".join(names[-3:]) or symbol


def loops(arch, text):
    """(function, lines) of every innermost loop."""
    function, start, block = "?", None, []
    for line in text.splitlines():
        label = LABEL.match(line)
        if label:
            name = label.group(1)
            if not name.startswith(".") and not name.isdigit():
                function = name
            start, block = name, []
            continue
        block.append(line)
        if arch.call.match(line):
            start = None
        branch = arch.branch.match(line)
        if branch:
            # Assembly in the source has numbers for labels, and says which way they are.
            to = re.sub(r"^(\d+)b$", r"\1", branch.group(1))
            if start is not None and to == start:
                yield function, instructions(block)
            # Code after a branch out of the loop still belongs to it.


def cycles(mca, arch, core, body, passes=200):
    """Cycles of one pass."""
    run = subprocess.run(
        [mca, f"-mtriple={arch.triple}", f"-mcpu={core}", f"-iterations={passes}", "-json"],
        input="\n".join(body) + "\n",
        capture_output=True,
        text=True,
    )
    if run.returncode:
        sys.exit(f"llvm-mca failed on a loop:\n{run.stderr}")
    summary = json.loads(run.stdout)["CodeRegions"][0]["SummaryView"]
    return summary["TotalCycles"] / passes


def main():
    parser = argparse.ArgumentParser(description="FMA rates of hot loops, by llvm-mca.")
    parser.add_argument("assembly")
    parser.add_argument("--mca", default="llvm-mca", help="which llvm-mca")
    parser.add_argument("--least", type=int, default=16, help="multiply-adds of a loop that counts")
    parser.add_argument("--goal", type=float, help="exit with 1 if a loop has less than this share")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    parser.add_argument("--in-order", action="store_true", help="by the rules of inorder.py, too")
    parser.add_argument("--show", action="store_true", help="print each loop's instructions")
    args = parser.parse_args()
    with open(args.assembly) as file:
        text = file.read()
    arch = X86 if "%rsp" in text else Aarch64
    if args.in_order and arch is X86:
        sys.exit("the rules of inorder.py are for cores of aarch64")
    # An older llvm-mca takes a name that it doesn't know for a processor that there isn't.
    known = subprocess.run(
        [args.mca, f"-mtriple={arch.triple}", "-mcpu=help"], input="", capture_output=True, text=True
    ).stderr
    cores = [core for core in arch.cores if re.search(rf"^\s+{core}\s", known, re.MULTILINE)]
    for core in set(arch.cores) - set(cores):
        print(f"{args.mca} has no model of {core}", file=sys.stderr)

    seen, rows = set(), []
    for symbol, body in loops(arch, text):
        adds = [line for line in body if arch.fma.match(line)]
        count = len(adds)
        key = "\n".join(re.sub(r"[.\w$]*L[.\w$]+$", "", line) for line in body)
        name = function_name(symbol)
        if count >= args.least and args.only in name and key not in seen:
            seen.add(key)
            rows.append((name, arch.width(adds[0]), count, body))
    if not rows:
        sys.exit("no such loop: is this assembly of an optimised build?")
    peak = {}
    for core in cores:
        for width, count in {(width, count) for _, width, count, _ in rows}:
            free = [arch.free(width, i) for i in range(24 * count)]
            peak[core, width, count] = cycles(args.mca, arch, core, free, 20) / 24
    measured = list(inorder.LATENCY) if args.in_order else []
    columns = cores + [f"{core} rules" for core in measured]
    print(f"{'function':<48} {'of':>3} {'fma':>4} {'other':>5}  " + "  ".join(f"{c:>18}" for c in columns))
    low = 0
    for name, width, count, body in sorted(rows, key=lambda row: (row[0], row[1], -row[2])):
        cells = []
        for core in cores:
            took = cycles(args.mca, arch, core, body)
            share = peak[core, width, count] / took
            low += args.goal is not None and share < args.goal
            cells.append(f"{took:7.1f} cyc {share:5.0%}")
        for core in measured:
            took = inorder.cycles(core, body)
            # At most one starts in a cycle.
            cells.append(f"{took:7.1f} cyc {count / took:5.0%}")
        print(f"{name[-48:]:<48} {width:>3} {count:>4} {len(body) - count:>5}  " + "  ".join(f"{c:>18}" for c in cells))
        if args.show:
            print("\n".join(body))
            print(dict(Counter(line.split()[0] for line in body)))
    if low:
        sys.exit(f"{low} below the goal")


if __name__ == "__main__":
    main()
