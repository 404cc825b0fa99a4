"""Part of serve_page.sh: serve_page.py ADDRESS ADDRESS_WITH_KEY CHROMIUM FOLDER. The page in all its states."""
import hashlib
import json
import pathlib
import sys
import urllib.request

from playwright.sync_api import expect, sync_playwright

address, locked, chromium, folder = sys.argv[1:]
text = pathlib.Path("LICENSE").read_text(encoding="utf-8")[:9000]
question = "Who grants the license?"
pictures = {}


def picture(page, name):
    path = pathlib.Path(folder) / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest not in pictures.values(), f"{name} looks like another state"
    pictures[name] = digest


def state(page, *names):
    page.wait_for_function("(names) => names.includes(document.body.dataset.state)", arg=list(names), timeout=120000)


def answer_of_the_server():
    body = json.dumps({"model": "m", "max_tokens": 24, "temperature": 0,
                       "messages": [{"role": "user", "content": f"{text}\n\n{question}"}]})
    request = urllib.request.Request(address + "/v1/chat/completions", body.encode())
    return json.load(urllib.request.urlopen(request, timeout=300))["choices"][0]["message"]["content"]


def cancelled():
    lines = urllib.request.urlopen(address + "/metrics").read().decode().splitlines()
    return next(line for line in lines if line.startswith("headrace_runs_cancelled_total "))


def ask(page):
    page.fill("#question", question)
    page.fill("#tokens", "24")
    page.click("#ask")


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 900, "height": 700})
    elsewhere, errors = [], []
    page.on("request", lambda r: None if r.url.startswith((address, "data:")) else elsewhere.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" and "status of 4" not in m.text else None)

    page.goto(address)
    expect(page.locator("#model")).to_contain_text("SmolLM2-135M-Instruct.Q4_1, context 4,096 tokens")
    state(page, "idle")
    picture(page, "idle")

    page.evaluate("""(text) => {
      const data = new DataTransfer();
      data.items.add(new File([text], "license.txt"));
      document.getElementById("document").dispatchEvent(new DragEvent("drop", { dataTransfer: data }));
    }""", text)
    expect(page.locator("#note")).to_have_text("license.txt, 9,000 bytes")
    assert page.input_value("#document") == text
    picture(page, "document")

    ask(page)
    state(page, "prefill")
    expect(page.locator("#status")).to_contain_text("a second", timeout=60000)
    assert page.evaluate("document.getElementById('bar').value") > 0
    picture(page, "prefill")
    state(page, "answer")
    picture(page, "answer")
    state(page, "done")
    picture(page, "done")
    shown = page.locator("article p").first.text_content()
    assert shown == answer_of_the_server(), shown
    cost = page.locator("article .cost").first.text_content()
    assert "tokens read" in cost and "first token after" in cost and "24 tokens" in cost, cost
    assert "cut: allow more tokens" in cost, cost

    before = cancelled()
    ask(page)
    state(page, "prefill", "answer")
    page.click("#stop")
    state(page, "stopped")
    picture(page, "stopped")
    for _ in range(100):
        if cancelled() != before:
            break
        page.wait_for_timeout(100)
    assert cancelled() != before, "the run of a stopped answer goes on"

    page.fill("#document", text * 5)
    ask(page)
    state(page, "error")
    expect(page.locator("#status")).to_contain_text("the context holds 4096")
    picture(page, "error")
    assert not elsewhere, elsewhere
    assert not errors, errors

    page.goto(locked)
    state(page, "error")
    expect(page.locator("#key")).to_be_visible()
    picture(page, "key")
    page.fill("#key", "sesame")
    page.locator("#key").blur()
    state(page, "idle")
    expect(page.locator("#model")).to_contain_text("SmolLM2-135M-Instruct.Q4_1")
    browser.close()
print(f"serve_page.py: {len(pictures)} states: {', '.join(pictures)}")
