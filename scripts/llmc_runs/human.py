"""Figures for people, as the trainer prints them."""

import math


def scaled(value, base, units):
    """Three digits and a unit: (12345, 1000, " kM") → ("12.3", "k")."""
    power = 0
    while abs(value) >= 999.5 and power + 1 < len(units):
        value, power = value / base, power + 1
    if power == 0 and value == int(value):
        return f"{value:.0f}", units[0]
    return (f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"), units[power]


def human_bytes(count):
    return " ".join(scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")))


def human_count(count):
    return "".join(scaled(count, 1000, ("", "k", "M", "B", "T"))) if math.isfinite(count) else str(count)


def human_duration(seconds):
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, hours = round(seconds / 60), int(seconds / 3600)
    if seconds < 600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if hours < 24 else f"{hours // 24} d {hours % 24:02d} h"
