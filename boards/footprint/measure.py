"""What the client half costs a microcontroller, in flash and RAM: the same program linked with it and
without, for four kinds of core, and the C client.

    measure.py            compares with the table, and ends with 1 if it is out of date, or a goal missed
    measure.py --write    writes the table

Needs these targets of Rust, and arm-none-eabi-gcc. Flags of RUSTFLAGS are kept, and those of FLAGS added.
"""

import os
import pathlib
import re
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TABLE = HERE / "table.md"
TARGET_DIR = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target" / "firmware"))

TARGETS = {
    "thumbv6m-none-eabi": "Cortex-M0, M0+",
    "thumbv7m-none-eabi": "Cortex-M3",
    "thumbv7em-none-eabihf": "Cortex-M4F, M7F",
    "riscv32imc-unknown-none-elf": "RISC-V without atomics",
}
# What a target does not do by itself: a linker for RISC-V shortens calls that don't go far, if the compiler
# says where (LLD can from version 15 on).
FLAGS = {"riscv32imc-unknown-none-elf": ["-C", "target-feature=+relax"]}
GOAL_FLASH_BYTES_MAX = 12 * 1024
GOAL_RAM_BYTES_MAX = 1024
# Compilers differ a little from version to version.
TOLERANCE = 0.05


def segments(path):
    """Bytes that a linked program takes in flash and in RAM."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x01\x01", f"{path} is not a little-endian ELF file of 32 bits"
    (table,) = struct.unpack_from("<I", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x2E)
    flash = ram = 0
    for n in range(count):
        _, kind, flags, _, _, length = struct.unpack_from("<6I", data, table + n * size)
        allocated, writable, has_bytes = flags & 2, flags & 1, kind != 8
        if allocated:
            flash += length if has_bytes else 0
            ram += length if writable else 0
    return flash, ram


def cargo(target):
    """Builds both programs for a target; what the client adds in flash and RAM."""
    command = ["cargo", "build", "--release", "--locked", "--target", target]
    command += ["--manifest-path", str(HERE / "Cargo.toml"), "--target-dir", str(TARGET_DIR)]
    flags = os.environ.get("RUSTFLAGS", "").split() + FLAGS.get(target, [])
    subprocess.run(command, check=True, env={**os.environ, "RUSTFLAGS": " ".join(flags)})
    out = TARGET_DIR / target / "release"
    (flash, ram), (flash0, ram0) = segments(out / "client"), segments(out / "empty")
    return flash - flash0, ram - ram0


def c_client():
    """The same of the C client: its code, and what one client takes besides its two frames."""
    source = TARGET_DIR / "client.c"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(
        "#define CORELANE_CLIENT_IMPLEMENTATION\n#include <corelane_client.h>\n"
        "char client_bytes[sizeof(corelane_client) - 2 * CORELANE_CLIENT_FRAME_BYTES];\n",
        encoding="utf-8",
    )
    built = source.with_suffix(".o")
    command = ["arm-none-eabi-gcc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Os"]
    command += ["-mcpu=cortex-m3", "-mthumb", "-I", str(ROOT / "examples/c")]
    subprocess.run([*command, "-c", str(source), "-o", str(built)], check=True)
    return segments(built)


def main():
    """Builds, compares, writes."""
    rows = {}
    for target, cores in TARGETS.items():
        flags = "".join(f", `{flag}`" for flag in FLAGS.get(target, [])[1:])
        rows[f"Rust, `{target}`{flags} ({cores})"] = cargo(target)
    rows["C, `arm-none-eabi-gcc -Os -mcpu=cortex-m3`"] = c_client()
    text = "| client | flash, bytes | RAM, bytes |\n|---|---|---|\n"
    text += "".join(f"| {name} | {flash} | {ram} |\n" for name, (flash, ram) in rows.items())
    print(text)
    if "--write" in sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")
    wrong = []
    table = TABLE.read_text(encoding="utf-8")
    for name, measured in rows.items():
        flash, ram = measured
        if flash > GOAL_FLASH_BYTES_MAX or ram > GOAL_RAM_BYTES_MAX:
            goal = f"{GOAL_FLASH_BYTES_MAX} and {GOAL_RAM_BYTES_MAX} bytes are the goal"
            wrong.append(f"{name}: {flash} and {ram} bytes; {goal}")
        row = re.search(rf"^\| {re.escape(name)} \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
        told = [int(n) for n in row.groups()] if row else [0, 0]
        if any(abs(a - b) > TOLERANCE * max(a, 1) for a, b in zip(measured, told)):
            wrong.append(f"{name}: the table says {told}; write it anew with --write")
    if len(re.findall(r"^\| (?:Rust|C)", table, re.MULTILINE)) != len(rows):
        wrong.append("the table has other rows; write it anew with --write")
    print("\n".join(wrong) or "the table is current")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
