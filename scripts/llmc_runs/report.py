"""One page about one or several runs, that needs no network and no other file."""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from html import escape
from string import Template

from bokeh.resources import Resources

from llmc_runs import charts, ranks, sections
from llmc_runs.curves import curves_of
from llmc_runs.files import write_whole
from llmc_runs.run import Run, RunError, command, open_runs


@dataclass(frozen=True)
class RunPage:
    """What the report says of one run, read at one moment."""

    run: Run
    lines: list
    live: bool
    config: dict
    memory_plan: str
    curves: dict

    def values(self, name):
        return [line.scalars[name] for line in self.lines if name in line.scalars]


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/report", description="Compares runs, finished or under way, on one self-contained page of HTML.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, e.g. runs/latest")
    parser.add_argument("-o", "--out", default="report.html", help="where to write the page (default: %(default)s)")
    return parser.parse_args()


def read_pages(folders):
    """The runs that have something to show, in the order in which they were named."""
    pages = []
    for run in open_runs(folders):
        live, lines = run.is_live(), run.read()
        if lines:
            pages.append(RunPage(run, lines, live, run.config(), run.memory_plan(), curves_of(lines)))
        else:
            print(f"report: {run.log} has no line yet: left out", file=sys.stderr)
    if not pages:
        raise RunError("none of the runs has a line in its train.jsonl: there is nothing to show")
    return pages


def own_file(name):
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def chart_cards(pages):
    """(script, HTML of the grid of charts)"""
    script, places = charts.draw([page.curves for page in pages])
    cards = ""
    for name, place in places.items():
        title, unit = charts.title_of(name)
        log = "data-log" if charts.base_of(name) in charts.LOGARITHMIC else ""
        cards += (f'<article class="chart" data-scalar="{escape(name)}" {log}><h3>{escape(title)} <small>{unit}</small>'
                  f'</h3><div class="values"></div>{place}</article>')
    return script, cards


def section(title, html):
    return f"<section><h2>{title}</h2>{html}</section>" if html else ""


def render(pages):
    script, cards = chart_cards(pages)
    names = sections.run_names(pages)
    return Template(own_file("page.html")).substitute(
        title=escape(pages[0].run.name if len(pages) == 1 else f"{len(pages)} runs"),
        when=time.strftime("%Y-%m-%d %H:%M"),
        css=own_file("page.css"), js=own_file("page.js"),
        bokeh="\n".join(Resources(mode="inline", components=["bokeh"]).js_raw),
        figures=sections.final_figures(pages),
        runs="".join(f'<button class="chip" aria-pressed="true" data-run="{i}">{name}</button>'
                     for i, name in enumerate(names)) if len(names) > 1 else "",
        charts=cards, chart_script=script,
        ranks=section("Ranks", ranks.section(pages)),
        samples=section("Samples", sections.samples(pages)),
        options=section("Options", sections.options(pages)),
        memory=section("Memory plan", sections.memory(pages)))


def main():
    arguments = parse_arguments()
    pages = read_pages(arguments.runs)
    page = render(pages)
    try:
        write_whole(arguments.out, page)
    except OSError as error:
        raise RunError(f"cannot write {arguments.out}: {error.strerror}\n  name another place with -o") from None
    print(f"{arguments.out}: {len(pages)} run{'s' * (len(pages) > 1)}, {os.path.getsize(arguments.out) / 1e6:.1f} MB")


if __name__ == "__main__":
    command(main, interrupted=130)
