"""By how much the steps of a run came above the steps before them: what --skip-spikes sees, with or without it.

The window is that of llmc/kernels/spike_window.h: the last 128 steps that were not skipped, of which there must be 64.
"""

import numpy as np

STEPS, FEWEST, LEAST = 128, 64, 1e-3


def farthest(lines, name):
    """(step, standard deviations) of the training step that came the farthest above its window by this scalar, "loss" or
    "grad_norm", and was not skipped; None if no step has a window."""
    made = [(line.step, line.scalars[name]) for line in lines
            if not line.skipped and {"loss", name} <= line.scalars.keys() and np.isfinite(line.scalars[name])]
    if len(made) <= FEWEST:
        return None
    steps, values = np.array(made).T
    level = values.mean()
    x = values - level  # small numbers, whose squares lose no digits
    sums, squares = (np.concatenate([[0], np.cumsum(power)]) for power in (x, x * x))
    end = np.arange(FEWEST, len(x))
    begin = np.maximum(end - STEPS, 0)
    n = end - begin
    mean = (sums[end] - sums[begin]) / n
    variance = np.maximum(squares[end] - squares[begin] - n * mean * mean, 0) / (n - 1)
    deviation = np.maximum(np.sqrt(variance), LEAST * np.abs(mean + level))
    above = (x[end] - mean) / np.where(deviation > 0, deviation, np.inf)
    at = int(above.argmax())
    return int(steps[FEWEST + at]), float(above[at])
