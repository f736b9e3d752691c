"""A picture (SVG) of a bar for each row, written by hand, so that it needs no package."""

from html import escape
from typing import NamedTuple

CHARACTER, BARS, VALUES, TOP, ROW = 7, 420, 200, 48, 26  # widths in pixels; heights
COLORS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#06b6d4", "#d4a106", "#ec4899", "#64748b", "#84cc16")


class Bar(NamedTuple):
    label: str
    value: float  # 0 or more
    text: str  # next to the bar
    color: int  # of COLORS
    group: object  # bars of one group stand together


def bar_chart(title, bars):
    """The SVG's text. A gap separates groups; bars keep their order."""
    largest = max(bar.value for bar in bars) or 1
    labels = CHARACTER * max(len(bar.label) for bar in bars) + 20  # the width of their column
    svg, y = [], TOP
    for number, bar in enumerate(bars):
        if number and bar.group != bars[number - 1].group:
            y += ROW / 2
        width, middle = BARS * bar.value / largest, y + ROW / 2 + 3
        svg.append(f'<text x="{labels - 10}" y="{middle:g}" text-anchor="end">{escape(bar.label)}</text>'
                   f'<rect x="{labels}" y="{y:g}" width="{width:.1f}" height="{ROW - 6}" '
                   f'fill="{COLORS[bar.color % len(COLORS)]}"/>'
                   f'<text x="{labels + width + 8:.1f}" y="{middle:g}" fill="#475569">{escape(bar.text)}</text>')
        y += ROW
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{labels + BARS + VALUES}" height="{y + 12:g}" '
            'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>'
            f'<text x="12" y="24" font-size="15">{escape(title)}</text>')
    return "\n".join([head, *svg, "</svg>"]) + "\n"
