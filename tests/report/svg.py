#!/usr/bin/env python3
"""Draws one of the lab's figures as an SVG that stands by itself in a page of the documentation:
`svg.py FIGURE.plotly.json OUT.svg`. Lines on logarithmic axes, and flame graphs with a width that is
fixed; letters and rules have the colour of the page around them, dark or light."""

import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 60, 40, 24
COLOURS = ("#0b62c4", "#d2600f")


def text(x, y, words, anchor="start", size=11, fill="currentColor"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{fill}">{html.escape(words)}</text>')


def short(value):
    for size, unit in ((1e6, " s"), (1e3, " ms")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g} us"


def decades(low, high):
    return [10.0**n for n in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def lines(figure):
    """Each run a colour, by what is before the colon of a trace's name."""
    traces = [t for t in figure["data"] if t["x"]]
    xs = [v for t in traces for v in t["x"]]
    ys = [v for t in traces for v in t["y"]]
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))

    def place(value, low, high, start, end):
        return start + math.log(value / low) / math.log(high / low) * (end - start)

    out = []
    right, floor = WIDTH - 12, HEIGHT - BOTTOM
    for value in decades(y_low, y_high):
        y = place(value, y_low, y_high, floor, TOP)
        out.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" '
                   'stroke="currentColor" stroke-opacity="0.2"></line>')
        out.append(text(LEFT - 6, y + 4, short(value), "end"))
    axis = figure["layout"]["xaxis"]
    for value, name in zip(axis["tickvals"], axis["ticktext"]):
        if x_low <= value <= x_high:
            out.append(text(place(value, x_low, x_high, LEFT, right), floor + 16, name, "middle"))
    out.append(text((LEFT + right) / 2, HEIGHT - 6, axis["title"]["text"], "middle"))
    runs = []
    for trace in traces:
        run = trace["name"].split(":")[0]
        if run not in runs:
            runs.append(run)
        points = " ".join(
            f"{place(x, x_low, x_high, LEFT, right):.1f},{place(y, y_low, y_high, floor, TOP):.1f}"
            for x, y in zip(trace["x"], trace["y"]))
        out.append(f'<polyline points="{points}" fill="none" stroke-width="1.6" '
                   f'stroke="{COLOURS[runs.index(run) % 2]}"></polyline>')
    for n, run in enumerate(runs):
        out.append(text(LEFT + 8 + 120 * n, 14, run, size=13, fill=COLOURS[n % 2]))
    return out, HEIGHT


def flame(figure):
    """Boxes wide enough to be seen; what each is comes up under the pointer."""
    trace = figure["data"][0]
    at = {name: n for n, name in enumerate(trace["ids"])}
    children = [[] for _ in at]
    for n, parent in enumerate(trace["parents"]):
        if parent:
            children[at[parent]].append(n)
    row, out, depths = 17, [], [0]

    def box(n, x, depth, width):
        depths.append(depth + 1)
        label, fits = trace["labels"][n], int((width - 6) / 6.2)
        out.append(f'<g><title>{html.escape(label)}: {html.escape(trace["text"][n])}</title>'
                   f'<rect x="{x:.1f}" y="{depth * row}" width="{max(width - 0.6, 0.6):.1f}" height="{row - 1}" '
                   f'rx="2" fill="{trace["marker"]["colors"][n]}"></rect>')
        if fits >= 4:
            # Where there is no room for all of a name, its end says most.
            end = label[max(label.rfind("::"), 0):]
            clipped = "\u2026" + end if len(end) < fits else end[: fits - 1] + "\u2026"
            shown = label if len(label) <= fits else clipped
            out.append(text(x + 4, depth * row + 12, shown, fill="#1b1f24"))
        out.append("</g>")
        for child in children[n]:
            part = width * trace["values"][child] / trace["values"][n]
            if part >= 2:
                box(child, x, depth + 1, part)
            x += part

    box(0, 0, 0, WIDTH)
    return out, max(depths) * row


def main():
    figure = json.loads(pathlib.Path(sys.argv[1]).read_text())
    is_flame = figure["data"][0]["type"] == "icicle"
    out, height = flame(figure) if is_flame else lines(figure)
    title = figure["layout"]["title"]["text"]
    # No empty line: it would end the block in the page. Every tag is closed by name: rustdoc insists.
    pathlib.Path(sys.argv[2]).write_text("\n".join([
        f'<div><svg viewBox="0 0 {WIDTH} {height}" role="img" font-family="system-ui, sans-serif" '
        f'style="width:100%;max-width:{WIDTH}px">',
        f"<title>{html.escape(title)}</title>", *out, "</svg></div>", ""]))


if __name__ == "__main__":
    main()
