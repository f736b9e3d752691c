"""A picture (SVG) of curves over each other, for results that are kept: by hand, so that it needs no package."""

import math
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, RIGHT = 760, 420, 64, 48, 230
COLORS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#06b6d4", "#d4a106", "#ec4899", "#64748b", "#84cc16")


class Curve(NamedTuple):
    name: str
    xs: list
    ys: list
    color: int  # of COLORS
    dashed: bool = False


def ticks(least, most):
    """Round numbers between them, about six."""
    step = 10 ** math.floor(math.log10((most - least) / 6))
    step *= next(factor for factor in (1, 2, 5, 10) if (most - least) / (step * factor) <= 8)
    return [step * i for i in range(math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9) + 1)]


def line_chart(title, x_title, y_title, curves):
    """The SVG's text."""
    xs = [x for curve in curves for x in curve.xs]
    ys = [y for curve in curves for y in curve.ys]
    least_x, most_x, least_y, most_y = min(xs), max(xs), min(ys), max(ys)
    if least_x == most_x:
        most_x += 1
    margin = (most_y - least_y) * 0.05 or 1
    least_y, most_y = least_y - margin, most_y + margin

    def place(x, y):
        return (LEFT + WIDTH * (x - least_x) / (most_x - least_x), TOP + HEIGHT * (most_y - y) / (most_y - least_y))

    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + RIGHT}" height="{bottom + 52}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="100%" height="100%" fill="#ffffff"/><text x="12" y="24" font-size="15">{escape(title)}</text>',
           f'<text x="{LEFT}" y="{TOP - 8}" fill="#475569">{escape(y_title)}</text>',
           f'<text x="{right}" y="{bottom + 40}" text-anchor="end" fill="#475569">{escape(x_title)}</text>']
    for x in ticks(least_x, most_x):
        at = place(x, 0)[0]
        svg.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>')
    for y in ticks(least_y, most_y):
        at = place(0, y)[1]
        svg.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="#00000018"/>'
                   f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{round(y, 9):g}</text>')
    for row, curve in enumerate(curves):
        style = (f'stroke="{COLORS[curve.color % len(COLORS)]}" stroke-width="1.6"' +
                 (' stroke-dasharray="5 3" opacity="0.8"' if curve.dashed else ""))
        points = " ".join("%.1f,%.1f" % place(x, y) for x, y in zip(curve.xs, curve.ys))
        y = TOP + 8 + 18 * row
        svg.append(f'<polyline points="{points}" fill="none" {style}/>'
                   f'<line x1="{right + 14}" y1="{y}" x2="{right + 40}" y2="{y}" {style}/>'
                   f'<text x="{right + 47}" y="{y + 4}">{escape(curve.name)}</text>')
    return "\n".join(svg + ["</svg>"]) + "\n"
