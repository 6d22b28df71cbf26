"""Tries versions of ONNX Runtime and writes the table in src/engine/ort/versions.md.

    python3 tests/ort/versions.py target/release/corelane

A version comes from the Python package `onnxruntime` (its library is in the package from 1.19 on; the newest
of each minor version that there is for this Python) or, for older ones, from the npm package
`onnxruntime-node`. With each, the program loads models of this repository with `engine = "ort"`, which
compares every golden row, or must refuse the library.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

PYTHON_FROM = (1, 19)
NPM = ["1.18.0", "1.17.3", "1.16.3", "1.14.0"]
MODELS = ["mlp", "resnet8", "magika"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def published():
    """The newest of each minor version of the Python package, newest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "onnxruntime"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line, = [l for l in said.splitlines() if l.startswith("Available versions:")]
    newest = {}
    for version in line.split(":")[1].split(","):
        numbers = tuple(int(n) for n in version.strip().split("."))
        if numbers[:2] >= PYTHON_FROM:
            newest[numbers[:2]] = max(numbers, newest.get(numbers[:2], numbers))
    return [".".join(map(str, newest[minor])) for minor in sorted(newest, reverse=True)]


def fetch(package, version, into):
    """Unpacks a package's library; its path."""
    if package == "onnxruntime":
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run(command + ["-d", into, f"onnxruntime=={version}"], check=True)
        archive, = glob.glob(f"{into}/*.whl")
        shutil.unpack_archive(archive, into, "zip")
    else:
        command = ["npm", "pack", "--silent", f"onnxruntime-node@{version}"]
        subprocess.run(command, cwd=into, check=True, stdout=subprocess.DEVNULL)
        archive, = glob.glob(f"{into}/*.tgz")
        shutil.unpack_archive(archive, into, filter="data")
    machine = {"x86_64": "x64", "aarch64": "arm64"}[os.uname().machine]
    found = glob.glob(f"{into}/**/libonnxruntime.so.*", recursive=True)
    found = [f for f in found if "linux" not in f or f"/linux/{machine}/" in f]
    return found[0]


def attempt(program, library, into):
    """What the program makes of a library: one cell."""
    cells = []
    for model in MODELS:
        directory = f"{into}/{model}"
        shutil.copytree(f"{ROOT}/models/{model}", directory)
        with open(f"{directory}/manifest.toml", encoding="utf-8") as file:
            text = "\n".join(l for l in file.read().splitlines() if not l.startswith("engine"))
        with open(f"{directory}/manifest.toml", "w", encoding="utf-8") as file:
            file.write('engine = "ort"\n' + text)
        environment = dict(os.environ, ORT_DYLIB_PATH=library)
        ran = subprocess.run(
            [program, "inspect", directory, "--json"],
            env=environment, capture_output=True, text=True, timeout=120,
        )
        if ran.returncode != 0:
            said = ran.stderr.strip().replace(os.path.dirname(library) + "/", "")
            return "refused: " + said.split(": ", 2)[-1]
        found = json.loads(ran.stdout)
        got = ", ".join(f"{b['nodes']} on {b['provider']}" for b in found["backend_got"])
        cells.append(f"{model}: {found['golden_rows']} rows within "
                     f"{found['golden_difference']:.0e}, {got}")
    return "; ".join(cells)


def main():
    program = os.path.abspath(sys.argv[1])
    rows = []
    tries = [("onnxruntime", v) for v in published()] + [("onnxruntime-node", v) for v in NPM]
    for package, version in tries:
        with tempfile.TemporaryDirectory() as into:
            cell = attempt(program, fetch(package, version, into), into)
        rows.append(f"| {version} | `{package}` | {cell} |")
        print(rows[-1], flush=True)
    machine = f"{os.uname().sysname} {os.uname().machine}"
    with open(f"{ROOT}/src/engine/ort/versions.md", "w", encoding="utf-8") as file:
        file.write(f"Tried on {machine} by `tests/ort/versions.py`: models of this repository, their golden\n"
                   "rows against the processor's provider (difference over the largest value), and where\n"
                   "the nodes ran.\n\n"
                   "| version | package | what happened |\n|---|---|---|\n" + "\n".join(rows) + "\n")


main()
