"""Chromium without a window, driven through its debugging pipe: opens files, and says what went wrong in them."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
).split()

#: Runs a command whose third and fourth file are those of the first two arguments.
MOVED = """import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

#: What a page asks of its window and its letters: run in the page, whose own scripts are none.
MEASURES = """(() => {
  const colour = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = c => [.2126, .7152, .0722].reduce((sum, w, i) => {
    const s = c[i] / 255; return sum + w * (s <= .03928 ? s / 12.92 : ((s + .055) / 1.055) ** 2.4); }, 0);
  const ground = e => { for (; e; e = e.parentElement) {
    const c = colour(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const texts = [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(
    n => n.nodeType === 3 && n.data.trim()) && e.getClientRects().length && !e.classList.contains('skip'));
  const contrast = e => { const [a, b] = [luminance(colour(getComputedStyle(e).color)), luminance(ground(e))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); };
  return {
    height: document.documentElement.scrollHeight, width: document.documentElement.scrollWidth,
    inner: innerWidth, contrast: Math.min(...texts.map(contrast)),
    letters: Math.min(...texts.map(e => parseFloat(getComputedStyle(e).fontSize))),
    broken: [...document.images].filter(i => !i.complete || !i.naturalWidth).length,
    targets: Math.min(...[...document.querySelectorAll('a:not(.skip), summary')].map(
      e => e.getBoundingClientRect().height)),
  };
})()"""


class Browser:
    """A browser with one page."""

    def __init__(self):
        chromium = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
        assert chromium, "make browser needs Chromium: apt-get install chromium"
        self.folder = tempfile.mkdtemp()
        (read, of_browser), (to_browser, write) = os.pipe(), os.pipe()

        # The pipes are moved to 3 and 4 in a process of its own: in a fork, JAX's threads would be in the way.
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", MOVED, str(to_browser), str(of_browser), chromium, *FLAGS,
             f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(of_browser, to_browser),
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(of_browser)
        os.close(to_browser)
        self.out, self.into, self.number, self.events = open(read, "rb"), open(write, "wb", 0), 0, []
        self.buffer, self.session = b"", None
        (target,) = (x for x in self("Target.getTargets")["targetInfos"] if x["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """The result of a command; events on the way are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        self.into.write(json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self.number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def _next(self):
        while b"\0" not in self.buffer:
            more = os.read(self.out.fileno(), 2**16)
            assert more, "Chromium has ended"
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width, dark):
        """Load a file; returns what the page measures, what its console said and what it asked of any server."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self("Emulation.setEmulatedMedia", features=scheme)
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self("Page.navigate", url=Path(path).absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        found = self("Runtime.evaluate", expression=MEASURES, returnByValue=True)["result"]["value"]
        said = [
            event["params"]
            for event in self.events
            if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        ]
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return found, said, [url for url in asked if not url.startswith("data:")]

    def screenshot(self, path, height):
        """The whole page, which is so high, as PNG."""
        clip = {"x": 0, "y": 0, "width": self("Page.getLayoutMetrics")["cssLayoutViewport"]["clientWidth"], "scale": 1}
        found = self("Page.captureScreenshot", captureBeyondViewport=True, clip=clip | {"height": height})
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def close(self):
        with suppress(Exception):
            self("Browser.close")
        self.process.wait(10)
        self.out.close()
        self.into.close()
        shutil.rmtree(self.folder, ignore_errors=True)
