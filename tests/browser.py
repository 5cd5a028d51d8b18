"""A headless Chromium for tests: opens a page, runs scripts in it, and keeps what it complained about or asked for."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TROUBLES = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening")
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)  # where Chromium reads and writes messages
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A headless Chromium, spoken to over two pipes; collects errors and requests."""

    def __init__(self, profile: Path) -> None:
        (child_in, self.to), (self.come, child_out) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (child_in, child_out)]
        flags = "headless no-sandbox disable-gpu no-first-run disable-sync disable-background-networking"
        command = [sys.executable, "-c", LAUNCH, *map(str, ends), str(BROWSER), "--remote-debugging-pipe"]
        command += [
            f"--user-data-dir={profile}",
            "--disable-component-update",
            *(f"--{flag}" for flag in flags.split()),
        ]
        self.process = subprocess.Popen(command, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (child_in, child_out, *ends):
            os.close(end)
        os.set_blocking(self.come, False)
        self.buffer, self.number, self.session = b"", 0, {}
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.send(f"{domain}.enable")

    def read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert time.monotonic() < deadline, "the browser does not answer"
            try:
                self.buffer += os.read(self.come, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        os.write(
            self.to,
            json.dumps({"id": self.number, "method": method, "params": parameters, **self.session}).encode() + b"\0",
        )
        deadline = time.monotonic() + 60
        while (message := self.read(deadline)).get("id") != self.number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def open(self, path: Path) -> None:
        self.send("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read(deadline))

    def run(self, script: str) -> Any:
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        os.close(self.to)
        os.close(self.come)

    def find_troubles(self) -> list[dict[str, Any]]:
        """Errors, console messages and dialogues so far."""
        return [event for event in self.events if event["method"] in TROUBLES]

    def find_requests(self) -> list[str]:
        """Every address the page asked for so far, its own included; what it carries itself is no request."""
        asked = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        found = [event["params"]["request"]["url"] for event in asked]
        return [address for address in found if not address.startswith("data:")]
