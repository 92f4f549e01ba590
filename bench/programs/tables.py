"""Tables of medians of what a script has measured of several sides in turn: a row for each name, a column for each side, and ratios.

What was found is `{name: {side: [figure of each round]}}`.
"""

from statistics import median


def measured(path, scale=1.0):
    """From lines `ROUND SIDE NAME FIGURE`. The first round warms, and does not count."""
    rows = (line.split() for line in open(path))
    return found(((side, name, figure) for number, side, name, figure in rows if number != "0"), scale)


def counted(path, scale=1.0):
    """From those lines of an emulated machine's console that are `COUNTED SIDE NAME FIGURE`."""
    rows = (line.split() for line in open(path, errors="replace"))
    return found((row[1:] for row in rows if len(row) == 4 and row[0] == "COUNTED"), scale)


def found(rows, scale):
    all = {}
    for side, name, figure in rows:
        all.setdefault(name, {}).setdefault(side, []).append(float(figure) * scale)
    return all


def table(what, found, sides, ratios, show="{:.1f}", spread=False):
    """Prints a table in Markdown. `sides`: each side's heading. `ratios`: pairs of sides. A side that a row does not have stays empty."""
    head = [what, *sides.values(), *(f"{sides[one]} / {sides[other]}" for one, other in ratios)]
    print(line(head), line(["---"] * len(head)), sep="\n")
    for name, figures in found.items():
        middle = {side: median(all) for side, all in figures.items()}
        row = [show.format(middle[side]) if side in middle else "" for side in sides]
        row += [f"{middle[one] / middle[other]:.2f}" if one in middle and other in middle else "" for one, other in ratios]
        print(line([name, *row]))
        if spread:
            ranges = ((side, show.format(min(figures[side])), show.format(max(figures[side]))) for side in sides if side in figures)
            print("  spread: " + ", ".join(f"{side} {least}-{most}" for side, least, most in ranges))


def line(cells):
    return "| " + " | ".join(cells) + " |"
