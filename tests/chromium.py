"""Headless Chromium over its DevTools protocol, with Python's own library: a script reads, clicks and types."""
import base64
import fcntl
import json
import os
import pathlib
import select
import shlex
import subprocess
import time


class EndedEarly(Exception):
    """The browser is gone."""


class Chromium:
    """One browser with one tab. Messages go through two pipes, each ended by a zero byte."""

    def __init__(self, program, profile):
        to_browser, self.out = os.pipe()
        self.inbox, from_browser = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser, from_browser)]
        command = [program, "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                   "--no-first-run", "--disable-background-networking", "--disable-component-update",
                   "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        shell = f"exec {shlex.join(command)} 3<&{ends[0]} 4>&{ends[1]}"
        self.process = subprocess.Popen(["bash", "-c", shell], pass_fds=ends, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for fd in (to_browser, from_browser, *ends):
            os.close(fd)
        self.rest, self.sent, self.session, self.events = b"", 0, None, []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.send(domain + ".enable")

    def message(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            if not select.select([self.inbox], [], [], max(0, end - time.monotonic()))[0]:
                return None
            read = os.read(self.inbox, 1 << 16)
            if not read:
                raise EndedEarly("it has ended")
            self.rest += read
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def send(self, method, **parameters):
        self.sent += 1
        request = {"id": self.sent, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        try:
            while data:
                data = data[os.write(self.out, data):]
        except BrokenPipeError:
            raise EndedEarly("it has ended") from None
        while True:
            message = self.message(60)
            assert message is not None, f"no answer to {method}"
            if message.get("id") == self.sent:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def seen(self, method):
        """Parameters of all events of this kind so far."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def run(self, script):
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True,
                           userGesture=True)
        assert "exceptionDetails" not in result, f"{script}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"not within {seconds} s: {script}; status: {self.text('#status')}"
            time.sleep(0.03)
        return value

    def loaded(self, method, **parameters):
        """Sends what loads a page, and waits until it is there."""
        begun = len(self.events)
        self.send(method, **parameters)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[begun:]):
            message = self.message(60)
            assert message is not None, f"{method}: no page"
            self.events.append(message)

    def open(self, address):
        self.loaded("Page.navigate", url=address)

    def reload(self):
        self.loaded("Page.reload")

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")

    def visible(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.checkVisibility() ?? false")

    def click(self, selector):
        assert self.visible(selector), f"{selector} cannot be seen"
        box = self.run(f"""(() => {{
          const element = document.querySelector({json.dumps(selector)});
          element.scrollIntoView({{ block: "nearest", behavior: "instant" }});
          const box = element.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def key(self, name, code, text="", modifiers=0):
        self.send("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, windowsVirtualKeyCode=code, text=text,
                  modifiers=modifiers)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code,
                  modifiers=modifiers)

    def choose(self, selector, paths):
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def screen(self, width, height, phone=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def picture(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def errors(self):
        """What scripts threw, and what the browser's console has as errors, but refusals that the page shows."""
        thrown = [str(event["exceptionDetails"]) for event in self.seen("Runtime.exceptionThrown")]
        logged = [event["entry"] for event in self.seen("Log.entryAdded") if event["entry"]["level"] == "error"]
        return thrown + [entry["text"] for entry in logged if entry["source"] != "network"]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.inbox)
