#!/usr/bin/env python3
"""Opens reports in a headless Chromium and holds them against what they promise: every figure is
drawn, nothing is written to the console, nothing is loaded, light and dark differ and can be read, and
nothing is wider than a phone.

    check.py REPORT.html [SCREENSHOTS]
"""

import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 9517
PHONE, DESK = (390, 844), (1280, 900)


def call(method, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["value"]


def wait_for_driver():
    for _ in range(200):
        try:
            if call("GET", "/status")["ready"]:
                return
        except OSError:
            time.sleep(0.1)
    sys.exit("chromedriver does not answer")


def luminance(colour):
    parts = [int(p) / 255 for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


PROBE = """
const body = getComputedStyle(document.body);
const faint = document.querySelector('.faint');
return {
  drawn: Number(document.documentElement.dataset.drawn),
  figures: JSON.parse(document.getElementById('data').textContent).figures.length,
  plots: document.querySelectorAll('figure svg').length,
  shapes: [...document.querySelectorAll('figure svg')].map(
    (s) => s.querySelectorAll('polyline, rect, circle').length),
  broken: [...document.querySelectorAll('svg *')].filter(
    (e) => [...e.attributes].some((a) => /NaN|undefined|Infinity/.test(a.value))).length,
  resources: performance.getEntriesByType('resource').map((r) => r.name),
  width: document.documentElement.scrollWidth,
  back: body.backgroundColor, text: body.color,
  faint: faint ? getComputedStyle(faint).color : body.color,
  size: Math.min(...[...document.querySelectorAll('p, td, h3, figcaption')].map(
    (e) => parseFloat(getComputedStyle(e).fontSize))),
  verdict: document.getElementById('verdict')?.textContent,
};
"""


def main():
    report = pathlib.Path(sys.argv[1]).resolve()
    shots = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    wrong = []
    with tempfile.TemporaryDirectory() as profile:
        driver = subprocess.Popen(
            ["chromedriver", f"--port={PORT}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for_driver()
            arguments = [
                "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                f"--user-data-dir={profile}",
            ]
            session = call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
            }}})["sessionId"]
            base = f"/session/{session}"

            def cdp(command, **params):
                call("POST", f"{base}/goog/cdp/execute", {"cmd": command, "params": params})

            backs = {}
            for width, height in (DESK, PHONE):
                for scheme in ("light", "dark"):
                    where = f"{report.name}, {width} wide, {scheme}"
                    cdp("Emulation.setDeviceMetricsOverride", width=width, height=height,
                        deviceScaleFactor=1, mobile=width < 500)
                    cdp("Emulation.setEmulatedMedia",
                        features=[{"name": "prefers-color-scheme", "value": scheme}])
                    call("POST", f"{base}/url", {"url": report.as_uri()})
                    seen = call("POST", f"{base}/execute/sync", {"script": PROBE, "args": []})
                    log = call("POST", f"{base}/se/log", {"type": "browser"})
                    for entry in log:
                        wrong.append(f"{where}: console: {entry['message']}")
                    if not seen["figures"] or not seen["figures"] == seen["drawn"] == seen["plots"]:
                        wrong.append(f"{where}: {seen['drawn']} of {seen['figures']} figures drawn")
                    if 0 in seen["shapes"]:
                        wrong.append(f"{where}: a figure shows nothing: {seen['shapes']}")
                    if seen["broken"]:
                        wrong.append(f"{where}: {seen['broken']} shapes without a place")
                    if [r for r in seen["resources"] if not r.startswith("data:")]:
                        wrong.append(f"{where}: loads {seen['resources']}")
                    if seen["width"] > width:
                        wrong.append(f"{where}: the page is {seen['width']} wide")
                    if seen["size"] < 12:
                        wrong.append(f"{where}: letters of {seen['size']} px")
                    for part in ("text", "faint"):
                        ratio = contrast(seen[part], seen["back"])
                        if ratio < 4.5:
                            wrong.append(f"{where}: {part} has a contrast of {ratio:.1f} only")
                    backs[scheme] = seen["back"]
                    if shots:
                        shots.mkdir(parents=True, exist_ok=True)
                        picture = call("GET", f"{base}/screenshot")
                        name = f"{report.parent.name}-{width}-{scheme}.png"
                        (shots / name).write_bytes(base64.b64decode(picture))
                    print(f"{where}: {seen['drawn']} figures, verdict {seen['verdict']!r}")
            if backs["light"] == backs["dark"]:
                wrong.append("light and dark are the same")
            call("DELETE", base)
        finally:
            driver.terminate()
            driver.wait(20)
    for line in wrong:
        print("WRONG:", line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
