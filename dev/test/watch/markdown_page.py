"""A picture of a Markdown page about as a repository's host shows it: columns of 830 pixels, its fonts' sizes, its tables.

    build/watch/bin/python dev/test/watch/markdown_page.py README.md wide.png 1280 800      the first screen of a wide window
    build/watch/bin/python dev/test/watch/markdown_page.py README.md narrow.png 420 900     and of a phone's

Needs Chromium, and the package markdown, which TensorBoard brings along (build/watch is made by scripts/tensorboard)."""

import sys
import tempfile
from pathlib import Path

import markdown
from browser import Browser, Page

STYLE = """
body { margin: 0; font: 16px/1.5 sans-serif; color: #1f2328 }
main { max-width: 830px; margin: 24px auto; padding: 0 24px }
h1, h2 { border-bottom: 1px solid #d1d9e0; padding-bottom: .3em }
pre, code { background: #f0f1f2; border-radius: 6px; font-size: 85% }
pre { padding: 16px; overflow: auto }
table { border-collapse: collapse; display: block; overflow: auto }
td, th { border: 1px solid #d1d9e0; padding: 6px 13px }
img { max-width: 100% }
a { color: #0969da; text-decoration: none }
"""


def main():
    page, picture, width, height = Path(sys.argv[1]).resolve(), *sys.argv[2:5]
    body = markdown.markdown(page.read_text(encoding="utf-8"), extensions=["fenced_code", "tables"])
    with tempfile.TemporaryDirectory() as folder, Browser() as chromium:
        html = Path(folder, "page.html")
        html.write_text(
            f'<base href="{page.parent.as_uri()}/"><meta name="viewport" content="width=device-width">'
            f'<style>{STYLE}</style><body data-ready="1"><main>{body}</main>', encoding="utf-8")
        shown = Page(chromium, str(html))
        shown.resize(int(width), int(height))
        shown.picture(picture)


main()
