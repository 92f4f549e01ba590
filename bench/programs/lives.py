"""Experiments with files that live briefly: made, written, closed, read or mapped, and removed, many in turn.

Each row is the program's own time for one file (`life.c`), with the session's daemon there. `forebay` has the default settings,
under which many of these files stay with the kernel; `forebay, managed` has the engine manage each from its first byte on.
"""

import json
import os

from figures import Row

MANAGED = ["env", "FOREBAY_SMALL_FILE_BYTES=0", "FOREBAY_LARGE_FILE_BYTES=0"]
MIB = 1 << 20


class Life:
    sides = ["kernel", "forebay", "forebay, managed"]

    def __init__(self, name, files, writes, size, steps, target, managed=None):
        self.files, self.writes, self.bytes, self.steps = files, writes, size, steps
        self.rows = [
            Row(name, "faster", "µs each", target),
            Row(f"{name}, managed", "faster", "µs each", managed, ours="forebay, managed"),
        ]

    def prepare(self, place, side):
        place.fresh(side)
        live = 1 if "u" in self.steps else self.files
        place.settle(live * self.writes * self.bytes // MIB)

    def run(self, place, side):
        command = [os.path.join(place.tools, "life"), *map(str, (self.files, self.writes, self.bytes)), self.steps]
        command = place.under(side, command)
        if side == "forebay, managed":
            command = MANAGED + command
        seconds = json.loads(place.said(command, place.path(side, "")))["seconds"]
        return {row.name: seconds * 1e6 for row in self.rows if side in row.values}

    def check(self, place):
        left = [sorted(os.listdir(place.path(side, ""))) for side in self.sides]
        if any(names != left[0] for names in left):
            raise OSError("the sides have left other files")
        for name in left[0]:
            place.same_file(name, *self.sides)


class Store:
    """A store that maps its tables (`store.c`): the time of each phase."""

    sides = ["kernel", "forebay"]
    phases = {"fill": "filled", "update": "half got, half put", "change": "got and put again"}

    def __init__(self, name, target):
        self.name = name
        self.rows = [Row(f"{name}, {said}", "faster", "ms", target) for said in self.phases.values()]

    def prepare(self, place, side):
        place.fresh(side)
        # A put for each KiB of the sizes asked for; all of it is there twice while it is merged.
        self.records = 256 * place.mib
        place.settle(3 * place.mib)

    def run(self, place, side):
        command = [os.path.join(place.tools, "store"), str(self.records), str(self.records)]
        seconds = json.loads(place.said(place.under(side, command), place.path(side, "")))
        return {row.name: seconds[phase] * 1e3 for row, phase in zip(self.rows, self.phases)}

    def check(self, place):
        place.same_tree(place.path("kernel", ""), place.path("forebay", ""))


def groups():
    return {
        "life-store": Store("a store that maps its tables", 1.0),
        "life-small": Life("100 KB by 25 writes, closed, read, removed", 400, 25, 4000, "corcu", 1.0, managed=1.2),
        "life-one": Life("100 KB by one write, closed, read, removed", 400, 1, 100_000, "corcu", 0.97),
        "life-temporary": Life("64 MiB by 64 KiB, closed, read, removed", 4, 1024, 65_536, "corcu", 1.1),
        "life-table": Life("2 MiB by 64 KiB, synced, closed, mapped, removed", 200, 32, 65_536, "scomcu", 0.95),
        "life-table-private": Life("2 MiB by 64 KiB, synced, closed, mapped privately, removed", 200, 32, 65_536, "scopcu", 0.95),
        "life-2m": Life("2.4 MB by 4,000 bytes, closed, removed", 50, 600, 4000, "cu", 1.0),
        "life-begun": Life("2.1 MB by 530 writes of 4,000 bytes, closed, removed", 50, 530, 4000, "cu", 0.9),
        "life-8m": Life("8 MB by 4,000 bytes, closed, removed", 20, 2000, 4000, "cu", 1.0),
        "life-8m-read": Life("8 MB by 4,000 bytes, closed, read, removed", 20, 2000, 4000, "corcu", 1.0),
        "life-32m": Life("32 MB by 4,000 bytes, closed, removed", 5, 8000, 4000, "cu", 1.0),
        "life-short-log": Life("411 KB by 137 bytes, closed, removed", 50, 3000, 137, "cu", 1.0),
        "life-log": Life("8 MB by 137 bytes, closed, kept", 5, 58_394, 137, "c", 1.0),
    }
