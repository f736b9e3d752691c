"""A picture of how long each rank computed: ranks × looks (--gpu-every), each beside the median of its look."""

import base64
import struct
import zlib
from html import escape

import numpy as np

WIDTH, HEIGHT = 400, 128  # most pixels of a picture; more looks or ranks share one, which shows the slowest of them
EVEN, SLOW, FAST = np.array([226, 232, 240]), np.array([200, 30, 30]), np.array([40, 90, 200])
FULL = 0.3  # the colour of a rank that computes so much longer, or shorter, is full


def section(pages):
    """HTML: a picture with its legend for each run that has looks; "" if none has."""
    return "".join(of_run(page) for page in pages)


def of_run(page):
    looks = [line for line in page.lines if line.computing]
    ranks = len(looks[-1].computing) if looks else 0
    looks = [line for line in looks if len(line.computing) == ranks]  # a run may go on with other ranks
    if ranks < 2:
        return ""
    times = np.array([line.computing for line in looks])  # (looks, ranks)
    ratios = times / np.maximum(median(times), 1e-9)[:, None]
    picture = base64.b64encode(png(colours(pooled(pooled(ratios, WIDTH).T, HEIGHT)))).decode()
    slowest = np.argsort(-np.median(ratios, axis=0), kind="stable")[:3]
    named = ", ".join(f"rank {rank} {np.median(ratios[:, rank]):.2f}" for rank in slowest)
    return (f"<h3>{escape(page.run.name)}</h3><figure class='ranks'>"
            f"<img alt='ranks by time' src='data:image/png;base64,{picture}'><figcaption>ranks 0 to {ranks - 1} from above, "
            f"steps {looks[0].step} to {looks[-1].step} from the left; red: the rank computes longer than the median rank "
            f"(full from {1 + FULL:g} times on), blue: shorter. Slowest, times the median rank: {named}. "
            f"Last: {escape(looks[-1].slowest)}.</figcaption></figure>")


def median(times):
    """The median of each look. It is the smaller of two in the middle, as in the program."""
    return np.sort(times, axis=1)[:, (times.shape[1] - 1) // 2]


def pooled(rows, most):
    """At most so many rows; each has the largest number of those that it stands for."""
    return np.array([part.max(axis=0) for part in np.array_split(rows, min(most, len(rows)))])


def colours(ratios):
    """(ranks, looks) → (ranks, looks, 3) bytes."""
    far = np.clip((ratios - 1) / FULL, -1, 1)[..., None]
    return (EVEN + np.where(far > 0, far * (SLOW - EVEN), -far * (FAST - EVEN))).astype(np.uint8)


def png(pixels):
    """The file of a picture (height, width, 3)."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
