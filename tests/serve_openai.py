"""Part of serve_openai.sh: serve_openai.py ADDRESS PROGRAM MODEL PID REQUESTS.

Talks to a server through the openai package, then soaks it, and compares every answer with `headrace generate`.
"""
import concurrent.futures
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

address, program, model, pid, requests = sys.argv[1:]
client = openai.OpenAI(base_url=address + "/v1", api_key="sesame", max_retries=20, timeout=300)


def generate(prompt, max_tokens, temperature, seed):
    """The answer of the command line."""
    ran = subprocess.run(
        [program, "generate", "-m", model, "-c", "4096", "-p", prompt, "-n", str(max_tokens), "--temp",
         str(temperature), "--seed", str(seed), "--json", "-q"], check=True, capture_output=True)
    return json.loads(ran.stdout)["text"]


def chat(prompt, **more):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}], **more)


def expect(condition, what):
    if not condition:
        sys.exit(f"serve_openai.py: {what}")


def the_package_understands():
    expect([m.id for m in client.models.list()] == ["SmolLM2-135M-Instruct.Q4_1"], "models")
    whole = chat("Name a color.", max_tokens=8)
    expect(whole.choices[0].finish_reason in ("length", "stop"), whole)
    expect(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole.usage)
    text, usage = "", None
    for piece in chat("Name a color.", max_tokens=8, stream=True, stream_options={"include_usage": True},
                      extra_body={"return_progress": True}):
        if piece.choices:
            text += piece.choices[0].delta.content or ""
        usage = piece.usage or usage
    expect(text == whole.choices[0].message.content, f"stream {text!r}, whole {whole.choices[0].message.content!r}")
    expect(usage == whole.usage, f"{usage} {whole.usage}")
    stopped = client.completions.create(model="m", prompt="One, two, three,", stop=[" six"], max_tokens=30)
    expect(stopped.choices[0].finish_reason == "stop" and " six" not in stopped.choices[0].text, stopped)
    the_package_reads_log_probs()
    for error, call in [(openai.BadRequestError, lambda: chat("x", n=2)),
                        (openai.NotFoundError, lambda: client.models.retrieve("other")),
                        (openai.AuthenticationError, lambda: client.with_options(api_key="no").models.list())]:
        try:
            call()
        except error as e:
            expect(e.code and e.body["message"], e.body)
        else:
            sys.exit(f"serve_openai.py: no {error.__name__}")
    document = " ".join(f"Sentence {n} of a document." for n in range(100))
    first, second = (chat(document + question, max_tokens=8) for question in ("What is it?", "How long is it?"))
    saved = second.usage.prompt_tokens_details.cached_tokens
    expect(first.usage.prompt_tokens_details.cached_tokens == 0 and saved > 0.9 * first.usage.prompt_tokens,
           f"{saved} saved tokens of {first.usage.prompt_tokens}")
    expect(second.model_extra["timings"]["cache_n"] == saved, second.model_extra)
    expect(second.choices[0].message.content == generate(document + "How long is it?", 8, 0, 0), "with a saved prefix")
    print("serve_openai.py: the openai package agrees")


def the_package_reads_log_probs():
    more = dict(max_tokens=8, temperature=0.8, seed=3, logprobs=True, top_logprobs=4)
    whole = chat("Name a color.", **more)
    ChatCompletion.model_validate(whole.model_dump(), strict=True)
    content = whole.choices[0].logprobs.content
    expect(b"".join(bytes(t.bytes) for t in content).decode() == whole.choices[0].message.content, content)
    for token in content:
        likely = {t.token: t.logprob for t in token.top_logprobs}
        expect(len(likely) == 4 and token.logprob <= max(likely.values()) <= 0, token)
        expect(likely.get(token.token, token.logprob) == token.logprob, token)
    pieces = [piece for piece in chat("Name a color.", stream=True, **more) if piece.choices]
    for piece in pieces:
        ChatCompletionChunk.model_validate(piece.model_dump(), strict=True)
    streamed = [t for piece in pieces if piece.choices[0].logprobs for t in piece.choices[0].logprobs.content]
    expect([t.model_dump() for t in streamed] == [t.model_dump() for t in content], streamed)
    text = client.completions.create(model="m", prompt="One, two, three,", max_tokens=6, logprobs=2).choices[0]
    expect(all(text.text[at:].startswith(token) for at, token in zip(text.logprobs.text_offset, text.logprobs.tokens)),
           text.logprobs)
    expect(all(top[token] == value == max(top.values()) for token, value, top in zip(
        text.logprobs.tokens, text.logprobs.token_logprobs, text.logprobs.top_logprobs)), text.logprobs)


KINDS = ["whole", "stream", "whole", "stream", "cancelled", "whole", "stream", "malformed", "whole", "cancelled"]


def cases():
    for number in range(int(requests)):
        prompt = f"Tell me about number {number % 20}."
        yield KINDS[number % 10], prompt, dict(max_tokens=12, temperature=0.8 if number % 20 < 10 else 0,
                                               seed=number % 20)


def cancelled(prompt, more, number):
    """A client that leaves: at once, while it waits or runs, or within the stream."""
    url = urllib.parse.urlparse(address)
    body = json.dumps(dict(more, model="m", stream=number % 2 == 0, max_tokens=2000,
                           messages=[{"role": "user", "content": prompt}]))
    with socket.create_connection((url.hostname, url.port)) as s:
        s.sendall((f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer sesame\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
        if number % 3 == 2:
            s.recv(1)
        else:
            time.sleep(number % 3 * 0.3)


def malformed(prompt, number):
    bodies = [b"{", b"[]", json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "tools": [1]}),
              json.dumps({"model": "m", "prompt": prompt}), b"\xff" * 100]
    body = bodies[number % len(bodies)]
    request = urllib.request.Request(address + "/v1/chat/completions",
                                     body if isinstance(body, bytes) else body.encode(),
                                     {"Authorization": "Bearer sesame", "Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=60)
        return "it was answered"
    except urllib.error.HTTPError as error:
        return None if error.code == 400 and json.load(error)["error"]["message"] else f"status {error.code}"


def run(number, kind, prompt, more):
    if kind == "cancelled":
        return cancelled(prompt, more, number)
    if kind == "malformed":
        return malformed(prompt, number // 10)
    if kind == "whole":
        text = chat(prompt, **more).choices[0].message.content
    else:
        text = "".join(p.choices[0].delta.content or "" for p in chat(prompt, stream=True, **more) if p.choices)
    key = (prompt, more["temperature"], more["seed"])
    return None if text == wanted[key] else f"{text!r}, generate says {wanted[key]!r}"


def metric(name):
    request = urllib.request.Request(address + "/metrics", headers={"Authorization": "Bearer sesame"})
    lines = urllib.request.urlopen(request).read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"headrace_{name} ")))


def state():
    """Resident bytes, descriptors and threads of the server."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def soak():
    work = list(cases())
    random.Random(1).shuffle(work)
    begun = time.time()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda item: run(item[0], *item[1]), enumerate(work)))
    for (kind, prompt, more), wrong in zip(work, results):
        expect(wrong is None, f"{kind} {prompt} {more}: {wrong}")
    for _ in range(100):  # what the last clients left
        if metric("requests_running") == 0 and metric("requests_waiting") == 0:
            break
        time.sleep(0.1)
    else:
        sys.exit("serve_openai.py: a request is stuck")
    return time.time() - begun


the_package_understands()
wanted = {}
for kind, prompt, more in cases():
    key = (prompt, more["temperature"], more["seed"])
    if kind in ("whole", "stream") and key not in wanted:
        wanted[key] = generate(prompt, **more)
soak()  # the first time fills caches
before = state()
seconds = soak()
after = state()
expect(after[1] <= before[1] + 16, f"descriptors: {before[1]} before, {after[1]} after")  # connections that idle
expect(after[2] == before[2], f"threads: {before[2]} before, {after[2]} after")
expect(after[0] - before[0] < 16 << 20, f"resident bytes: {before[0]} before, {after[0]} after")
print(f"serve_openai.py: {requests} requests by 8 clients in {seconds:.0f} s, "
      f"{metric('runs_cancelled_total'):.0f} of {metric('runs_total'):.0f} runs cancelled; every answer is generate's; "
      f"resident {before[0] >> 20} MiB before, {after[0] >> 20} MiB after; {after[1]} descriptors, {after[2]} threads")
