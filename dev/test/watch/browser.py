"""Chromium without a window, by its DevTools protocol over a pipe: opens pages, looks, clicks, takes pictures.

The browser has no network. What a page asks of it, and what it complains about, is kept in Page.requests and
Page.complaints.

    python3 dev/test/watch/browser.py report.html dev/docs/report.png          a picture of a whole page
    python3 dev/test/watch/browser.py report.html dev/docs/run.png 1000 520    of a window of this width and height
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
           "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe")


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no Chromium here\n  Debian: apt-get install chromium")


def without_network():
    """Words before a command that take its network away, where that is allowed."""
    for words in (["unshare", "-n"], ["unshare", "-rn"]):
        if subprocess.run([*words, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return words
    return []


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [*without_network(), find_chromium(), *OPTIONS, f"--user-data-dir={self.profile}"]
        # It reads its orders from 3 and answers on 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "chromium", *command],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._text, self._id, self.events = b"", 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, session=None, **parameters):
        """Sends one order and waits for its answer; events on the way are kept."""
        self._id += 1
        order = {"id": self._id, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while True:
            message = self._receive(60)
            if message.get("id") == self._id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    def _receive(self, seconds):
        while b"\0" not in self._text:
            if not select.select([self._in], [], [], seconds)[0]:
                raise TimeoutError(f"Chromium said nothing for {seconds} s")
            self._text += os.read(self._in, 1 << 20) or b'{"method": "closed"}\0'
        text, _, self._text = self._text.partition(b"\0")
        message = json.loads(text)
        if message.get("method") == "closed":
            raise RuntimeError("Chromium has ended")
        if "method" in message:
            self.events.append(message)
        return message


class Page:
    """A page of a file, of some width, light or dark."""

    def __init__(self, browser, path, width=1280, height=900, dark=False, ready="document.body?.dataset.ready"):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self._call(f"{domain}.enable")
        self.resize(width, height)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=theme)
        self._call("Page.navigate", url="file://" + os.path.abspath(path))
        self.wait_for(ready)

    def _call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def _events(self, method):
        return [e["params"] for e in self._browser.events
                if e.get("sessionId") == self._session and e["method"] == method]

    def resize(self, width, height):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                   mobile=width < 600)

    def evaluate(self, script):
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait_for(self, script, seconds=60):
        end = time.monotonic() + seconds
        while not self.evaluate(script):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {script}; {self.complaints}")
            time.sleep(0.1)

    @property
    def complaints(self):
        """Errors and warnings of the console, and exceptions that nobody caught."""
        said = [e["exceptionDetails"].get("exception", {}).get("description", e["exceptionDetails"]["text"])
                for e in self._events("Runtime.exceptionThrown")]
        said += [str([a.get("value") for a in e["args"]]) for e in self._events("Runtime.consoleAPICalled")
                 if e["type"] in ("error", "warning", "assert")]
        return said + [e["entry"]["text"] for e in self._events("Log.entryAdded")
                       if e["entry"]["level"] in ("error", "warning")]

    @property
    def requests(self):
        """What the page fetched besides itself and what it carries."""
        urls = [e["request"]["url"] for e in self._events("Network.requestWillBeSent")]
        return [url for url in urls[1:] if not url.startswith(("data:", "blob:"))]

    def picture(self, path, whole=False):
        if whole:
            width, height = self.evaluate("[innerWidth, document.documentElement.scrollHeight]")
            self.resize(width, height)
        time.sleep(0.5)  # charts follow a new size
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("Page.captureScreenshot")["data"]))


if __name__ == "__main__":
    address, path, *size = sys.argv[1:]
    with Browser() as chromium:
        page = Page(chromium, address)
        if size:
            page.resize(int(size[0]), int(size[1]))
        page.picture(path, whole=not size)
