"""How soon a server answers a second question about a long document, a shape with random Q4_K_M weights: with the rows in
memory, and after a restart from a saved prefix (--prefix-cache).

  python3 bench/second_question.py HEADRACE --shape qwen3.6-27b --tokens 131072 --work DIR [--answer 16]
      [--flags "-c 132K --vram 22GiB"] > result.json

A file with the shape and a vocabulary of bytes is written to DIR, and the document is text of as many bytes, so as many
tokens. A first server keeps the rows of its last prompt in memory; it reads the first question whole, the others have
another end. A second server saves the prompt and ends; a third one begins with it. Of each question: seconds from
sending it to the first text, and the prompt's tokens that were not read again. `disk` is how long dd takes to read the
saved files past the page cache.
"""
import argparse
import http.client
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time

import llama_gpu


class Server:
    def __init__(self, a, model, *flags):
        command = [a.headrace, "serve", "-m", model, "--port", "0", *flags, *a.flags]
        start = time.perf_counter()
        self.log = open(os.path.join(a.work, "server.log"), "a+", encoding="utf8")
        where = self.log.tell()
        self.process = subprocess.Popen(command, stderr=self.log)
        address = None
        while address is None:
            time.sleep(0.1)
            self.log.seek(where)
            lines = self.log.read()
            address = next((l.split("//")[1].strip() for l in lines.splitlines() if l.startswith("listening on ")), None)
            if address is None and self.process.poll() is not None:
                sys.exit(f"second_question.py: the server has ended\n{lines[-2000:]}")
        self.ready_s = time.perf_counter() - start
        self.http, self.model = http.client.HTTPConnection(address, timeout=900), os.path.basename(model)

    def ask(self, prompt, count):
        body = {"model": self.model, "prompt": prompt, "max_tokens": count, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        start = time.perf_counter()
        self.http.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response, first, usage = self.http.getresponse(), None, {}
        if response.status != 200:
            sys.exit(f"second_question.py: {response.read().decode()}")
        for event in response:
            if not event.startswith(b"data: {"):
                continue
            data = json.loads(event[6:])
            if "error" in data:
                sys.exit(f"second_question.py: {data['error']}")
            if first is None and data["choices"]:
                first = time.perf_counter() - start
            usage = data.get("usage") or usage
        return {"first_text_s": round(first, 4), "prompt_tokens": usage.get("prompt_tokens"),
                "cached_tokens": usage.get("prompt_tokens_details", {}).get("cached_tokens"),
                "answer_s": round(time.perf_counter() - start, 4)}

    def end(self):
        self.http.close()
        self.process.terminate()
        self.process.wait(120)


def read_files(folder):
    files = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    files = [path for path in files if os.path.getsize(path) > 1 << 20]
    start = time.perf_counter()
    for path in files:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=8M", "iflag=direct"], stderr=subprocess.DEVNULL,
                       check=True)
    return {"bytes": sum(os.path.getsize(path) for path in files), "s": round(time.perf_counter() - start, 3)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("headrace")
    parser.add_argument("--shape", choices=llama_gpu.SHAPES, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--work", required=True)
    parser.add_argument("--flags", default="", help="of headrace serve")
    a = parser.parse_args()
    a.flags = shlex.split(a.flags)
    model = os.path.join(a.work, f"{a.shape}.gguf")
    llama_gpu.write_gguf(model, llama_gpu.SHAPES[a.shape], words=True)
    shutil.rmtree(os.path.join(a.work, "prefixes"), ignore_errors=True)  # of an earlier run
    random.seed(1)
    document = "".join(random.choice("abcdefghijklmnopqrstuvwxyz     \n") for _ in range(a.tokens - 400))
    questions = [f"\n\nQuestion {i}: what does paragraph {i * 37} say about {'xyz' * i}? Answer:" for i in range(1, 5)]
    rows = []

    def ask(server, what, question):
        rows.append({"what": what, **server.ask(document + question, a.answer)})
        print(json.dumps(rows[-1]), file=sys.stderr)

    server = Server(a, model)
    ask(server, "first question", questions[0])
    ask(server, "second, rows in memory", questions[1])
    ask(server, "third, rows in memory", questions[2])
    server.end()
    folder = os.path.join(a.work, "prefixes")
    server = Server(a, model, "--prefix-cache", folder)
    ask(server, "first question, saved", questions[0])
    server.end()
    disk = read_files(folder)
    server = Server(a, model, "--prefix-cache", folder)
    ask(server, "second, after a restart", questions[1])
    server.end()
    version = subprocess.run([a.headrace, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    print(json.dumps({"program": "bench/second_question.py", "version": version, "shape": a.shape, "flags": a.flags,
                      "weights": "Q4_K_M, random", "start_s": round(server.ready_s, 2), "disk": disk, "rows": rows}, indent=1))
    os.remove(model)


if __name__ == "__main__":
    main()
