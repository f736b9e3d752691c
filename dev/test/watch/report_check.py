"""Opens reports in a browser without network and compares what they show with train.jsonl.

    report_check.py SCRATCH REAL_RUN REAL_RUN   (scripts/report is run from here; pictures go to SCRATCH)
"""

import json
import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "scripts"))

from browser import Browser, Page
from invented_runs import HOSTILE, long_run, write_run

from llmc_runs.curves import thin

ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..")
PLOT = "Bokeh.documents[0].roots().find((p) => p.name === '%s')"
SET = """function set(id, value) {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event("input"));
}"""
checks = 0


def check(what, holds):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"FAIL: {what}")
    print(f"ok   {what}")


def report(runs, out):
    subprocess.run([os.path.join(ROOT, "scripts", "report"), *runs, "-o", out], check=True, stdout=subprocess.DEVNULL)
    return out


def scalars(run, name):
    with open(os.path.join(run, "train.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [(line["step"], line[name]) for line in lines if name in line]


def column(page, scalar, run, name):
    """A column of a run's curve as the page has it."""
    return page.evaluate(f"Array.from({PLOT % scalar}.renderers.find((r) => r.name === 'run:{run}')"
                         f".data_source.data.{name}, (x) => Number.isNaN(x) ? null : x)")


def quiet(page, what):
    check(f"{what}: the console is silent {page.complaints}", not page.complaints)
    check(f"{what}: nothing is fetched {page.requests}", not page.requests)


def check_thinning():
    steps = np.arange(1.0, 100001)
    values = np.sin(steps)
    values[777], values[5555], values[9999] = 99, -99, np.inf
    curve = thin(steps, steps, steps, values, 2000)
    check(f"100000 points become {len(curve.step)}", len(curve.step) <= 2100)
    check("their extremes stay", curve.value[curve.step == 778] == 99 and curve.value[curve.step == 5556] == -99)
    check("so does the gap", np.isnan(curve.value).sum() == 1 and np.isnan(curve.value[curve.step == 10000]))
    check("the order stays", (np.diff(curve.step) > 0).all() and curve.step[0] == 1 and curve.step[-1] == 100000)
    check("an interval's mean is that of all its points", np.nanmax(np.abs(curve.mean)) < 3)
    short = thin(steps[:50], steps[:50], steps[:50], values[:50], 2000)
    check("a short curve stays as it is", (short.value == values[:50]).all())


def check_real(browser, scratch, runs):
    """Two real runs: every number, and everything that moves."""
    path = report(runs, os.path.join(scratch, "real.html"))
    page = Page(browser, path)
    names = page.evaluate("Bokeh.documents[0].roots().map((p) => p.name)")
    known = ["loss", "val_loss", "val_bits_per_byte", "grad_norm", "lr", "tokens_per_s", "step_ms"]
    check(f"a chart for each scalar: {', '.join(names)}", names == known)
    for number, run in enumerate(runs):
        for name in names:
            shown = list(zip(column(page, name, number, "step"), column(page, name, number, "value")))
            check(f"{os.path.basename(run)}: {name} is train.jsonl's, number for number", shown == scalars(run, name))
    check_controls(page, runs)
    quiet(page, "real runs")
    page.picture(os.path.join(scratch, "light.png"))
    Page(browser, path, dark=True).picture(os.path.join(scratch, "dark.png"))
    phone = Page(browser, path, width=390, height=844)
    check("a phone needs no scrolling sideways", phone.evaluate("document.documentElement.scrollWidth") == 390)
    check("a chart is as wide as a phone", 270 < phone.evaluate(f"{PLOT % 'loss'}.inner_width") < 390)
    phone.picture(os.path.join(scratch, "phone.png"), whole=True)
    quiet(phone, "a phone")


def check_controls(page, runs):
    page.evaluate(SET)
    page.evaluate("set('smoothing', 0)")
    check("smoothing 0 is the curve itself", column(page, "loss", 0, "smooth") == column(page, "loss", 0, "value"))
    page.evaluate("set('smoothing', 1)")
    smooth, value = column(page, "loss", 0, "smooth"), column(page, "loss", 0, "value")
    check("more smoothing moves less", np.abs(np.diff(smooth)).sum() < 0.8 * np.abs(np.diff(value)).sum())
    check("and begins where the curve does", smooth[0] == value[0])
    check("validation and learning rate are never smoothed",
          all(column(page, name, 0, "smooth") == column(page, name, 0, "value") for name in ("val_loss", "lr")))
    page.evaluate("set('smoothing', 0.3)")
    for axis in ("tokens", "seconds", "step"):
        page.evaluate(f"document.querySelector('[data-axis={axis}]').click()")
        check(f"the x axis is {axis}", column(page, "loss", 1, "x") == column(page, "loss", 1, axis))
    check_clock(page, runs[0])
    left, right = page.evaluate(f"[{PLOT % 'lr'}.x_range.start, {PLOT % 'lr'}.x_range.end]")
    check(f"all of it is in sight: {left} to {right}", left < 0 < 30 < right)
    page.evaluate("page.read_at(10)")
    loss = dict(scalars(runs[0], "val_loss"))[10]
    shown = page.evaluate("document.querySelector('[data-scalar=val_loss] .run').textContent")
    check(f"under the pointer at step 10: {shown}", shown == f"{loss:.4g}".ljust(5, "0"))
    page.evaluate("document.querySelector('[data-run=\"0\"]').click()")
    visible = page.evaluate(f"{PLOT % 'loss'}.renderers.filter((r) => r.visible).map((r) => r.name)")
    check("a run can be hidden", visible and all(name.endswith(":1") for name in visible))
    page.evaluate("document.querySelector('[data-run=\"0\"]').click()")
    text = dict(scalars(runs[0], "sample"))[10]
    page.evaluate("set('sample-step', 1)")
    shown = page.evaluate("document.querySelector('.sample pre:not([hidden])').textContent")
    check("the sample after step 10 is train.jsonl's", shown == text.strip())
    page.evaluate("set('sample-step', 99)")
    for scale in ("LogScale", "LinearScale"):
        page.evaluate("document.getElementById('log').click()")
        check(f"the loss is on a {scale}", page.evaluate(f"{PLOT % 'loss'}.y_scale.type") == scale)
        check("the learning rate stays linear", page.evaluate(f"{PLOT % 'lr'}.y_scale.type") == "LinearScale")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.evaluate("document.getElementById('theme').click()")
    check("the button makes it dark", page.evaluate("getComputedStyle(document.body).backgroundColor") != light)
    page.evaluate("document.getElementById('theme').click()")


def check_clock(page, run):
    """Tokens and seconds add up."""
    lines = list(zip(scalars(run, "step_ms"), scalars(run, "tokens_per_s")))
    seconds = np.cumsum([ms / 1e3 for (_, ms), _ in lines])
    tokens = np.cumsum([ms / 1e3 * rate for (_, ms), (_, rate) in lines])
    check("seconds of training add up", np.allclose(column(page, "loss", 0, "seconds"), seconds, rtol=1e-9))
    check(f"tokens add up to {tokens[-1]:.0f}", np.allclose(column(page, "loss", 0, "tokens"), tokens, rtol=1e-9))


def check_hostile(browser, scratch, real):
    """A run of 20000 steps whose texts would like to be code, next to a real one."""
    folder = long_run(os.path.join(scratch, "<img src=x onerror='window.stolen=3'>"))
    page = Page(browser, report([folder, real], os.path.join(scratch, "hostile.html")))
    check("no text became code", page.evaluate("window.stolen === undefined && !document.querySelector('img:not(.ranks img)')"))
    page.evaluate(SET)
    page.evaluate("set('sample-step', 0)")
    check("a sample is shown as it is", page.evaluate("document.querySelector('.sample pre').textContent") == HOSTILE)
    check("an unknown field is a chart", column(page, "unheard_of", 0, "value")[-1] == 20000)
    titles = page.evaluate("[...document.querySelectorAll('.chart h3')].map((title) => title.textContent)")
    check(f"charts have words: {titles}", "Right answers acc: the likeliest ending, of all questions" in titles)
    loss = column(page, "loss", 0, "value")
    check(f"20000 steps are {len(loss)} points", len(loss) <= 2100)
    check("the spike and the gap are among them", 50 in loss and None in loss)
    bad = page.evaluate("document.querySelector('.figures .bad').textContent")
    check(f"what is not finite is told: {bad}", bad == "step 12346")
    figures = page.evaluate("document.querySelector('.figures').textContent")
    check("a skipped step is told", "1step 12345" in figures)
    check("  and is not the one highest above the steps before", "loss 1.4 σ, norm 1.4 σ" in figures)
    check("an option that only one has differs", page.evaluate("document.body.textContent.includes('--recompute')"))
    check_ranks(page)
    size = os.path.getsize(os.path.join(scratch, "hostile.html"))
    check(f"the page has {size / 1e6:.1f} MB", size < 5e6)
    quiet(page, "hostile")
    page.picture(os.path.join(scratch, "hostile.png"), whole=True)


def check_ranks(page):
    """The picture of four ranks, of which the third is slow in the second half of 40 looks."""
    pixels = page.evaluate("""(() => {
      const picture = document.querySelector('.ranks img'), canvas = document.createElement('canvas');
      [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
      const context = canvas.getContext('2d', {willReadFrequently: true});
      context.drawImage(picture, 0, 0);
      const of = (x, y) => Array.from(context.getImageData(x, y, 1, 1).data.slice(0, 3));
      return [[canvas.width, canvas.height], of(0, 2), of(39, 2), of(39, 0), of(39, 3)];
    })()""")
    size, even, slow, median, fast = pixels
    check(f"a pixel for each look and rank: {size}", size == [40, 4])
    check(f"the slow rank is red since it is slow, and not before: {even}, {slow}", even == median and slow == [200, 30, 30])
    check(f"the median rank has no colour, and a faster one a little blue: {median}, {fast}",
          median == [226, 232, 240] and fast[0] < 226 and fast[2] >= fast[0])
    words = page.evaluate("document.querySelector('.ranks figcaption').textContent")
    check(f"the slowest is named: {words}", "rank 2 1.20" in words and "steps 500 to 20000" in words)


def check_young(browser, scratch):
    """A run that has a sample, and no number yet."""
    folder = write_run(os.path.join(scratch, "young"), [{"step": 0, "sample": "once"}])
    page = Page(browser, report([folder], os.path.join(scratch, "young.html")))
    check("no chart, and the sample", page.evaluate("!document.querySelector('.chart')") and
          page.evaluate("document.querySelector('.sample pre').textContent") == "once")
    quiet(page, "a young run")


def check_seen_failing(browser, scratch):
    """Pages with one mistake each."""
    with open(os.path.join(scratch, "real.html"), encoding="utf-8") as file:
        html = file.read()
    mistakes = {"an exception": "<script>nobody.knows()</script>", "an error": "<script>console.error(1)</script>",
                "a picture from elsewhere": '<img src="http://192.0.2.1/x.png">'}
    for what, mistake in mistakes.items():
        path = os.path.join(scratch, "mistaken.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(html.replace("<main>", mistake + "<main>"))
        page = Page(browser, path)
        check(f"{what} is seen", page.complaints or page.requests)


def main():
    scratch, *runs = sys.argv[1:]
    check_thinning()
    with Browser() as browser:
        check_real(browser, scratch, runs)
        check_hostile(browser, scratch, runs[0])
        check_young(browser, scratch)
        check_seen_failing(browser, scratch)
    print(f"{checks} checks passed")


if __name__ == "__main__":
    main()
