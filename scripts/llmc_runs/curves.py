"""Curves: each scalar of a run over its steps, tokens and seconds, thinned to what a page can show."""

from dataclasses import dataclass

import numpy as np

LIMIT = 2000  # points of a curve


@dataclass(frozen=True)
class Curve:
    """Five columns of equal length. What is not finite is NaN: a gap."""

    step: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    value: np.ndarray
    mean: np.ndarray  # of the points that this one stands for; smoothing works on these

    def columns(self):
        return {name: np.asarray(column, float) for name, column in vars(self).items()}


def curves_of(lines, limit=LIMIT):
    """name → Curve, in the order in which the names appear."""
    points = {}
    for line in lines:
        for name, value in line.scalars.items():
            points.setdefault(name, []).append((line.step, line.tokens, line.seconds, value))
    return {name: thin(*np.array(rows, float).T, limit) for name, rows in points.items()}


def thin(step, tokens, seconds, value, limit=LIMIT):
    """The whole curve if it is short. Else of each interval its lowest and its highest point, a gap if it has one, and
    the first and last point of all: spikes stay, however short."""
    value = np.where(np.isfinite(value), value, np.nan)
    if len(value) <= limit:
        return Curve(step, tokens, seconds, value, value)
    intervals = np.array_split(np.arange(len(value)), limit // 2 - 1)
    kept, mean = {0, len(value) - 1}, np.empty_like(value)
    for interval in intervals:
        finite = interval[~np.isnan(value[interval])]
        kept.update(interval[np.isnan(value[interval])][:1])
        if len(finite):
            kept.update((finite[value[finite].argmin()], finite[value[finite].argmax()]))
        mean[interval] = value[finite].mean() if len(finite) else np.nan
    keep = np.array(sorted(kept))
    return Curve(step[keep], tokens[keep], seconds[keep], value[keep], np.where(np.isnan(value), np.nan, mean)[keep])
