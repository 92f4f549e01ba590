"""Figures of rows: medians, spreads, targets, and how they are shown.

A row compares two sides of one interleaved run. `Row.values[side]` holds one figure for each round; the row's result is the
median of one against that of the other, in the way that its kind says.
"""

import json
from statistics import median

# kind: (result from the kernel's and Forebay's medians, whether a result meets a target, how a target reads)
KINDS = {
    "faster": (lambda kernel, ours: kernel / ours, lambda result, target: result >= target, "{:g}x"),
    "more of": (lambda kernel, ours: ours / kernel, lambda result, target: result >= target, "{:g} of it"),
    "share": (lambda kernel, ours: ours / kernel, lambda result, target: result <= target, "at most {:g} of it"),
    "more": (lambda kernel, ours: ours - kernel, lambda result, target: result <= target, "at most {:g} more"),
    "own": (lambda kernel, ours: ours, lambda result, target: result <= target, "at most {:g}"),
}


class Row:
    """One comparison. `unit` is that of a figure; `base` and `ours` are the names of the sides that it is made of."""

    def __init__(self, name, kind, unit, target=None, base="kernel", ours="forebay"):
        self.name, self.kind, self.unit, self.target = name, kind, unit, target
        self.base, self.ours = base, ours
        self.values = {base: [], ours: []}

    def add(self, side, figure):
        if side in self.values:
            self.values[side].append(figure)

    def median(self, side):
        return median(self.values[side])

    def spread(self, side):
        """Half of the range, as a share of the median."""
        figures = self.values[side]
        return (max(figures) - min(figures)) / 2 / self.median(side) if self.median(side) else 0.0

    def result(self):
        return KINDS[self.kind][0](self.median(self.base), self.median(self.ours))

    def by_round(self):
        results = map(KINDS[self.kind][0], self.values[self.base], self.values[self.ours])
        return min(results := list(results)), max(results)

    def met(self):
        return None if self.target is None else KINDS[self.kind][1](self.result(), self.target)

    def as_json(self):
        return {
            "row": self.name, "kind": self.kind, "unit": self.unit,
            "sides": {side: {"median": self.median(side), "spread": self.spread(side), "figures": figures}
                      for side, figures in self.values.items()},
            "base": self.base, "ours": self.ours,
            "result": self.result(), "by_round": self.by_round(), "target": self.target, "met": self.met(),
        }

    def cells(self):
        figures = [f"{show(self.median(side))} ±{self.spread(side):.0%}" for side in (self.base, self.ours)]
        low, high = self.by_round()
        target = "" if self.target is None else KINDS[self.kind][2].format(self.target)
        verdict = {None: "", True: ": met", False: ": missed"}[self.met()]
        return [self.name, self.unit, *figures, f"{show(self.result())}", f"{show(low)} to {show(high)}", target + verdict]


def show(figure):
    """Three digits, without an exponent."""
    size = abs(figure)
    return f"{figure:.0f}" if size >= 100 else f"{figure:.1f}" if size >= 10 else f"{figure:.2f}" if size >= 1 else f"{figure:.3f}"


HEAD = ["", "unit", "kernel", "Forebay", "result", "by round", "target"]


def markdown(rows):
    lines = [HEAD, ["---"] * len(HEAD)] + [row.cells() for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(rows):
    """As text in columns. Another base than the kernel is named in the row."""
    lines = [HEAD] + [row.cells() for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def write_json(path, conditions, rows):
    with open(path, "w") as out:
        json.dump({"schema": 1, **conditions, "rows": [row.as_json() for row in rows]}, out, indent=1)
        out.write("\n")
