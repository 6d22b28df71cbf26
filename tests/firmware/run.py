"""Joins a microcontroller's program to a real server by a line: clean, faulty, and with a server whose
answers are wrong, which the program must notice.

    run.py --server target/release/corelane --kind lm3s6965evb --program ELF --decoder defmt-print
    run.py --server target/release/corelane --kind host --program PROGRAM

The first runs a firmware in QEMU, the second a program that takes the terminal as its argument. Both open
`mlp` and `dscnn_kws`, compare answers with the goldens, and end with 0 if all are right. What they say on
their last line but the counters is printed. Ends everything that it starts; ends with 1 if anything is not
as it must be.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import line

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {
    "mlp": ("[64]", "[10]"),
    "dscnn_kws": ("[1, 49, 10]", "[12]"),
}
# How deep the stack of the firmware was.
STACK = ROOT / "boards/lm3s6965evb/stack.md"
# Interrupts come at other moments each time.
STACK_TOLERANCE = 0.05
# A device that has not ended by then hangs.
DEVICE_S_MAX = 180
# Once in so many bytes a bit is flipped, and once in so many a byte is lost, each way.
FLIP = 2000
LOSE = 2000


def lm3s6965evb(arguments, terminal, directory):
    """Runs the firmware in the emulator; its exit code and its decoded log."""
    frames = f"{directory}/log"
    command = ["qemu-system-arm", "-M", "lm3s6965evb", "-display", "none", "-monitor", "none"]
    command += ["-semihosting-config", "enable=on,target=native"]
    command += ["-serial", terminal, "-serial", f"file:{frames}", "-kernel", arguments.program]
    code = None
    try:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=DEVICE_S_MAX).returncode
    except subprocess.TimeoutExpired:
        pass
    with open(frames, "rb") as log:
        command = [arguments.decoder, "-e", arguments.program, "--log-format", "{L} {s}"]
        decoded = subprocess.run(command, stdin=log, capture_output=True, text=True, timeout=60)
    return code, decoded.stdout + decoded.stderr


def host(arguments, terminal, _directory):
    """Runs a program of this machine; its exit code and what it says."""
    command = [arguments.program, terminal, str(ROOT / "models")]
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEVICE_S_MAX,
        )
    except subprocess.TimeoutExpired as hung:
        return None, (hung.stdout or b"").decode()
    return run.returncode, run.stdout


DEVICES = {"lm3s6965evb": lm3s6965evb, "host": host}


def liars(directory):
    """Models of the same names and shapes that answer with something else."""
    for name, (given, answered) in MODELS.items():
        path = pathlib.Path(directory, name)
        path.mkdir()
        tensor = "[{{ name = '{}', dtype = 'float32', shape = {} }}]".format
        (path / "manifest.toml").write_text(
            "engine = 'fake'\nbatch_sizes = [1, 4]\n[fake]\n"
            f"inputs = {tensor('x', given)}\noutputs = {tensor('y', answered)}\n",
            encoding="utf-8",
        )
        yield str(path)


class Wrong(Exception):
    """Something is not as it must be."""


def check(condition, what):
    """Raises if it does not hold."""
    if not condition:
        raise Wrong(what)


def run(arguments, name, lies=False, **faults):
    """One device at one server over one line; what the device said."""
    with tempfile.TemporaryDirectory(prefix="corelane-firmware-") as directory:
        models = list(liars(directory)) if lies else [str(ROOT / "models" / m) for m in MODELS]
        cable = line.Line(**faults)
        server = None
        code, log, errors = None, "", ""
        try:
            server = line.Server(arguments.server, cable, models, directory)
            code, log = DEVICES[arguments.kind](arguments, cable.device, directory)
            stats = server.stats()
            server.stop()
        except RuntimeError as error:
            raise Wrong(error) from error
        finally:
            if server:
                server.kill()
                errors = server.errors()
            frames, damaged = cable.close()
        print(f"--- {name}\n{log.strip()}")
        print(f"{name}: {frames} frames on the line, {damaged} of them damaged")
        said = f"exit code {code}\n{log}\nThe server: {errors}"
        check(code is not None, f"it did not end within {DEVICE_S_MAX} s: {said}")
        transport = stats["extra"]["transport"]
        noticed = transport["link_crc_error_total"] + transport["link_oversize_total"]
        if lies:
            check(code == 1 and re.search(r"failed after 0 rows: .*[Ww]rong", log), said)
            print(f"{name}: noticed")
            return log
        check(code == 0, said)
        passed = re.search(r"passed: (\d+) rows, all answers right", log)
        check(passed, said)
        answered = sum(model["inference_request_success"] for model in stats["models"])
        check(0 < answered <= int(passed[1]), f"the server counts {answered} answers: {said}")
        check(frames > 2 * answered, f"{answered} answers in {frames} frames: {said}")
        if faults:
            check(damaged > 0 and noticed > 0, f"the line was not faulty: {stats}")
            check(transport["link_retransmit_total"] > 0, f"nothing was sent again: {stats}")
        else:
            check(damaged == 0 and noticed == 0, f"damage on a clean line: {stats}")
        print(f"{name}: {passed[1]} rows in {answered} answers, all right")
        return log


def stack(log, write):
    """Holds the table of the stack to what the firmware says on a clean line, or writes it."""
    said = re.search(r"(\d+) bytes of stack were used, (\d+) of them before .*; the client is (\d+)", log)
    check(said, f"the firmware does not say how deep its stack was: {log}")
    used, before, client = (int(n) for n in said.groups())
    rows = {
        "the whole, at its deepest": used,
        "before the first request": before,
        "the client itself": client,
    }
    text = "| stack of a firmware in Rust | bytes |\n|---|---|\n"
    text += "".join(f"| {what} | {n} |\n" for what, n in rows.items())
    if write:
        STACK.write_text(text, encoding="utf-8")
    told = dict(re.findall(r"^\| (.*) \| (\d+) \|$", STACK.read_text(encoding="utf-8"), re.MULTILINE))
    check(set(told) == set(rows), f"{STACK} has other rows than {list(rows)}; write it anew with --write-stack")
    for what, n in rows.items():
        right = abs(int(told[what]) - n) <= STACK_TOLERANCE * n
        check(right, f"{STACK} says {told[what]} for {what}, which is {n}; write it anew with --write-stack")
    print(f"the stack is as {STACK.name} says: {used} bytes")


def main():
    """Takes the arguments, runs all cases."""
    parser = argparse.ArgumentParser(description="Joins a device's program to a real server.")
    parser.add_argument("--server", required=True, help="the command corelane")
    parser.add_argument("--kind", required=True, choices=DEVICES)
    parser.add_argument("--program", required=True, help="what runs on the device")
    parser.add_argument("--write-stack", action="store_true", help="write the table of the stack")
    parser.add_argument("--decoder", default="defmt-print", help="the command defmt-print")
    arguments = parser.parse_args()
    for path in (arguments.server, arguments.program):
        check(pathlib.Path(path).exists(), f"no {path}")
    log = run(arguments, f"{arguments.kind}, clean line")
    if arguments.kind == "lm3s6965evb":
        stack(log, arguments.write_stack)
    for seed in (1, 2):
        name = f"{arguments.kind}, faulty line, seed {seed}"
        run(arguments, name, seed=seed, flip=FLIP, lose=LOSE)
    run(arguments, f"{arguments.kind}, wrong answers", lies=True)


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        print(f"FAILED: {wrong}", file=sys.stderr)
        sys.exit(1)
