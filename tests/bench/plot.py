"""The plot of cost against depth, written as SVG: no library draws four lines in less text than this.

Both axes are logarithmic, so that a cost that grows with the history is a slope and one that does not is flat.
"""

import math
from collections.abc import Mapping

from tests.bench.gateways import OURS, PEER
from tests.bench.load import Cost
from tests.bench.measures import COLD

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 570, 48, 344
# Distinct for the colour-blind as well, and on dark pages.
COLOURS = {OURS: "#0072b2", COLD: "#56b4e9", PEER: "#d55e00"}
STYLE = "text{font:13px system-ui,sans-serif;fill:#777}.title{font-weight:600}.grid{stroke:#8884}"


def cost_by_depth(depths: Mapping[int, Mapping[str, Cost]]) -> str:
    """CPU milliseconds per request by the number of turns before, one line a server."""
    continued = {depth: costs for depth, costs in depths.items() if depth}
    lines = {
        name: [(depth, costs[name].cpu_ms) for depth, costs in continued.items()]
        for name in COLOURS
        if all(name in costs for costs in continued.values())
    }
    values = [value for line in lines.values() for _, value in line]
    bounds = _bounds(min(values), max(values))
    deepest = max(continued)

    def x(depth: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(depth) / math.log(deepest)

    def y(value: float) -> float:
        low, high = map(math.log, bounds)
        return BOTTOM - (BOTTOM - TOP) * (math.log(value) - low) / (high - low)

    parts = [f'<text class="title" x="{LEFT}" y="26">CPU time of the server per continued turn, milliseconds</text>']
    for tick in _ticks(*bounds):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for depth in continued:
        parts.append(f'<line class="grid" x1="{x(depth):.1f}" x2="{x(depth):.1f}" y1="{TOP}" y2="{BOTTOM}"/>')
        parts.append(f'<text x="{x(depth):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{depth}</text>')
    parts.append(
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 42}" text-anchor="middle">turns before, 2 kB each</text>'
    )
    # Where lines end close together their names would lie on each other.
    free_above = BOTTOM + 20.0
    for name, line in sorted(lines.items(), key=lambda named: named[1][-1][1]):
        colour = COLOURS[name]
        points = " ".join(f"{x(depth):.1f},{y(value):.1f}" for depth, value in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x(depth):.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}"/>' for depth, value in line]
        free_above = min(y(line[-1][1]) + 4, free_above - 18)
        parts.append(f'<text x="{RIGHT + 12}" y="{free_above:.1f}" style="fill:{colour}">{name}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="CPU time per continued turn by depth">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _bounds(low: float, high: float) -> tuple[float, float]:
    """The ticks just below and just above."""
    ticks = _ticks(low / 10, high * 10)
    return max(tick for tick in ticks if tick <= low), min(tick for tick in ticks if tick >= high)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
