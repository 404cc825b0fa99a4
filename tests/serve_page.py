"""The page of `headrace serve` in headless Chromium, in all its states: serve_page.py HEADRACE MODEL CHROMIUM FOLDER.

FOLDER gets the screenshots. Takes half a minute with SmolLM2-135M on two cores."""
import hashlib
import json
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

from chromium import Chromium, EndedEarly
from serve_page_markdown import check_markdown

program, model, chromium = sys.argv[1:4]
folder = pathlib.Path(sys.argv[4]).resolve()
text = (pathlib.Path(__file__).parent.parent / "LICENSE").read_text(encoding="utf-8")
question = "Who grants the license?"
pictures, servers = {}, []
ENTER, ESCAPE = ("Enter", 13, "\r"), ("Escape", 27)


class Server:
    def __init__(self, name, *flags):
        self.log = folder / f"{name}.log"
        with open(self.log, "wb") as log:
            # Slow enough for every state to be seen, and no answer ends early.
            command = [program, "serve", "-m", model, "-c", "4096", "--port", "0", "--device", "cpu", "-t", "1",
                       "--ignore-eos", *flags]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        servers.append(self)
        for _ in range(600):
            found = re.search(r"^listening on (\S+)", self.log.read_text(encoding="utf-8"), re.MULTILINE)
            if found:
                break
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            time.sleep(0.1)
        self.address = found[1]

    def answer(self, messages, tokens):
        body = json.dumps({"model": "m", "max_tokens": tokens, "temperature": 0, "messages": messages})
        request = urllib.request.Request(self.address + "/v1/chat/completions", body.encode())
        return json.load(urllib.request.urlopen(request, timeout=300))["choices"][0]["message"]["content"]

    def metric(self, name):
        lines = urllib.request.urlopen(self.address + "/metrics").read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"headrace_{name} "))


def picture(page, name):
    path = folder / f"{name}.png"
    page.picture(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest not in pictures.values(), f"{name} looks like another state"
    pictures[name] = digest


def state(page, *names):
    page.wait(f"{json.dumps(names)}.includes(document.body.dataset.state)", 120)


def reads(page, selector, *parts, seconds=10):
    for part in parts:
        page.wait(f"document.querySelector({json.dumps(selector)}).textContent.includes({json.dumps(part)})", seconds)


def ask(page, words):
    page.run("document.getElementById('question').value = ''")
    page.click("#question")
    page.type(words)
    page.key(*ENTER)


def sent_messages(page):
    """The messages of the last question that the page asked."""
    asked = [event for event in page.seen("Network.requestWillBeSent")
             if event["request"]["url"].endswith("/chat/completions") and event["request"]["method"] == "POST"]
    return json.loads(page.send("Network.getRequestPostData", requestId=asked[-1]["requestId"])["postData"])["messages"]


def set_tokens(page, count):
    page.run(f"""(() => {{ const box = document.getElementById('tokens'); box.value = {count};
                 box.dispatchEvent(new Event('change')); }})()""")


def check_files(page):
    (folder / "license.txt").write_text(text[:6000], encoding="utf-8")
    (folder / "notes.md").write_bytes("Notes: the turbine is green. \u00fc".encode("utf-16"))
    (folder / "picture.txt").write_bytes(b"\x89PNG\0\0\xff")
    (folder / "empty.txt").write_text(" \n", encoding="utf-8")
    page.choose("#picker", [folder / "license.txt", folder / "notes.md"])
    page.wait("document.querySelectorAll('#files li').length === 2 && !document.getElementById('files').textContent"
              ".includes('counting')")
    counts = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) tokens", page.text("#files"))]
    assert 1000 < counts[0] < 2000 and 5 < counts[1] < 20, counts
    reads(page, "#room", "of 4,096 tokens", "24 for the answer")
    picture(page, "files")
    page.choose("#picker", [folder / "picture.txt", folder / "empty.txt"])
    reads(page, "#status", "picture.txt: is not UTF-8 text", "empty.txt is empty")
    picture(page, "bad-file")
    page.run("""(() => {
      const data = new DataTransfer();
      data.items.add(new File(["Dropped words."], "dropped.txt"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
    })()""")
    reads(page, "#files", "dropped.txt")
    page.run(f"""(() => {{
      const data = new DataTransfer();
      data.setData("text/plain", {json.dumps(text[:2000])});
      const paste = new ClipboardEvent("paste", {{ clipboardData: data, bubbles: true }});
      document.getElementById("question").dispatchEvent(paste);
    }})()""")
    reads(page, "#files", "Pasted text 1")
    assert page.run("document.getElementById('question').value") == ""
    for name in ("dropped.txt", "Pasted text 1"):
        page.click(f"[aria-label='Remove {name}']")
    page.wait("document.querySelectorAll('#files li').length === 2")
    page.click("#files .name")
    assert page.run("document.getElementById('viewer').open") and page.text("#viewer-text") == text[:6000]
    picture(page, "text-of-a-file")
    page.key(*ESCAPE)
    page.wait("!document.getElementById('viewer').open")


def check_conversation(page, server):
    ask(page, question)
    state(page, "prefill")
    reads(page, "#status", "tokens \u00b7", "a second", "left", seconds=60)
    assert re.search(r"Reading: [\d,]+ of [\d,]+ tokens \u00b7 [\d,]+ a second \u00b7 .* left$", page.text("#status"))
    assert page.run("document.getElementById('bar').value") > 0 and "%" in page.run("document.title")
    picture(page, "prefill")
    state(page, "answer")
    picture(page, "answer")
    state(page, "done")
    picture(page, "done")
    first = sent_messages(page)
    assert [m["role"] for m in first] == ["user"], first
    notes = "Notes: the turbine is green. \u00fc"
    content = f"File: license.txt\n\n{text[:6000]}\n\nFile: notes.md\n\n{notes}\n\n{question}"
    assert first[0]["content"] == content, first
    answer = page.run("turns[0].answer")
    assert answer == server.answer(first, 24), answer
    reads(page, ".cost", "tokens read", "first word after", "24 tokens written", "cut here")

    ask(page, "And to whom?")
    state(page, "done")
    second = sent_messages(page)
    assert second[:2] == [first[0], {"role": "assistant", "content": answer}] and second[2]["content"] == "And to whom?"
    reads(page, "article:last-child .cost", "of them kept from before")

    page.click("article .actions button:nth-of-type(1)")
    page.wait("document.querySelector('article .actions button').textContent === 'Copied'")
    assert page.run("navigator.clipboard.readText()") == answer
    page.click("article .actions button:nth-of-type(2)")
    for _ in range(100):
        if (folder / "answer.md").exists():
            break
        page.run("0")
        time.sleep(0.05)
    assert (folder / "answer.md").read_text(encoding="utf-8") == answer
    page.wait("document.querySelector('article .actions button').textContent === 'Copy'")


def check_stop(page, server):
    before = server.metric("runs_cancelled_total")
    set_tokens(page, 400)
    ask(page, "Explain all of it.")
    state(page, "answer")
    page.click("#stop")
    state(page, "stopped")
    reads(page, "article:last-child .cost", "stopped here")
    picture(page, "stopped")
    for _ in range(100):
        if server.metric("runs_cancelled_total") != before:
            break
        time.sleep(0.1)
    assert server.metric("runs_cancelled_total") != before, "the run of a stopped answer goes on"
    turns = page.run("turns.length")
    ask(page, "Explain all of it again.")
    state(page, "waiting", "prefill", "answer")
    page.key(*ESCAPE)
    state(page, "stopped")
    assert page.run("turns.length") >= turns


def check_reload(page):
    shown, names = page.text("#turns"), page.text("#files")
    page.reload()
    reads(page, "#model", "SmolLM2")
    assert page.text("#turns") == shown and page.text("#files") == names
    assert page.run("sessionStorage.headrace.length") > 1000 and page.run("localStorage.length") == 0
    page.run("document.getElementById('settings').open = true")
    page.click("#keep")
    assert page.run("localStorage.headrace.length") > 1000 and page.run("'headrace' in sessionStorage") is False
    picture(page, "settings")
    # More than a store holds: the conversation stays, and the file has to be chosen again.
    page.run("files[0].text += 'x'.repeat(6 << 20); save();")
    page.reload()
    reads(page, "#files", "choose again", "9 tokens")
    assert page.text("#turns") == shown and page.run("document.getElementById('keep').checked")
    ask(page, question)
    reads(page, "#status", "Choose license.txt again")
    page.choose("#picker", [folder / "license.txt"])
    page.wait("!document.getElementById('files').textContent.includes('choose again')")
    page.run("document.getElementById('settings').open = true")
    page.click("#keep")
    assert page.run("localStorage.length") == 0 and page.run("sessionStorage.headrace.length") > 1000


def check_screens(page):
    page.run("document.activeElement.blur()")
    seen = set()
    for _ in range(25):
        page.key("Tab", 9)
        seen.add(page.run("document.activeElement.id || document.activeElement.className"))
    assert {"new", "choose", "quiet name", "quiet remove", "tokens", "question", "ask"} <= seen, seen
    page.run("document.activeElement.blur()")
    before = page.run("document.getElementById('question').value")
    page.key("/", 191, "/")
    assert page.run("document.activeElement.id") == "question"
    assert page.run("document.getElementById('question').value") == before
    page.screen(390, 844, phone=True)
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), "a phone has to scroll sideways"
    page.run("window.scrollTo(0, document.documentElement.scrollHeight)")
    assert page.run("document.getElementById('ask').getBoundingClientRect().bottom <= innerHeight"), "the button is off"
    picture(page, "phone")
    page.screen(1200, 800)
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    picture(page, "dark")
    page.send("Emulation.setEmulatedMedia", features=[])


def check_errors(page, server):
    page.click("#new")
    (folder / "long.txt").write_text(text * 3, encoding="utf-8")
    page.choose("#picker", [folder / "long.txt"])
    reads(page, "#room", "too long by about", seconds=20)
    ask(page, question)
    state(page, "error")
    reads(page, "#status", "are too long", "takes 4,096 tokens")
    assert page.run("document.getElementById('question').value") == question and page.run("turns.length") == 0
    picture(page, "too-long")
    page.click("[aria-label='Remove long.txt']")
    ask(page, question)
    state(page, "answer")
    server.process.send_signal(signal.SIGKILL)
    state(page, "error")
    reads(page, "#status", "The connection broke")
    assert page.run("turns.length") == 1 and page.run("turns[0].answer.length") > 0
    reads(page, ".cost", "incomplete")
    picture(page, "broken")
    ask(page, question)
    reads(page, "#status", "The server does not answer")


def check_key(page, locked):
    page.open(locked.address)
    state(page, "error")
    assert page.visible("#key")
    reads(page, "#status", "This server asks for a key.")
    picture(page, "key")
    for key, words in (("wrong", "does not accept this key"), ("sesame", "")):
        page.click("#key")
        page.type(key)
        page.key(*ENTER)
        reads(page, "#status", words)
    reads(page, "#model", "SmolLM2-135M-Instruct.Q4_1, reads 4,096 tokens")
    assert not page.visible("#key")
    page.reload()
    reads(page, "#model", "SmolLM2")
    state(page, "idle")


def check_page(page):
    server = Server("open")
    (folder / "keys").write_text("sesame\n", encoding="utf-8")
    locked = Server("locked", "--api-key-file", str(folder / "keys"))
    policy = urllib.request.urlopen(server.address).headers["Content-Security-Policy"]
    assert "unsafe" not in policy and "sha256-" in policy, policy
    page.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.screen(1200, 800)
    page.open(server.address)
    reads(page, "#model", "SmolLM2-135M-Instruct.Q4_1, reads 4,096 tokens")
    state(page, "idle")
    picture(page, "idle")
    set_tokens(page, 24)
    check_markdown(page)
    check_files(page)
    check_conversation(page, server)
    check_stop(page, server)
    check_reload(page)
    check_screens(page)
    check_errors(page, server)
    check_key(page, locked)
    own = (server.address, locked.address, "data:", "blob:", "about:")
    elsewhere = [event["request"]["url"] for event in page.seen("Network.requestWillBeSent")
                 if not event["request"]["url"].startswith(own)]
    assert not elsewhere, elsewhere
    assert not page.errors(), page.errors()


try:
    browser = Chromium(chromium, folder / "profile")
except (OSError, EndedEarly) as error:
    print(f"serve_page.py: {chromium} does not start: {error}")
    sys.exit(77)
begun = time.monotonic()
try:
    check_page(browser)
finally:
    browser.close()
    for started in servers:
        started.process.kill()
        started.process.wait()
print(f"serve_page.py: {len(pictures)} states in {time.monotonic() - begun:.0f} s: {', '.join(pictures)}")
