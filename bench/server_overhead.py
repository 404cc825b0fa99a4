"""What a server and a chat add to the engine's own time, on this machine's CPU.

  python3 bench/server_overhead.py HEADRACE MODEL.gguf DOCUMENT [--bytes 12000] [--rounds 15] [--threads N] > result.json

HEADRACE and MODEL are as for `headrace serve`; of DOCUMENT the first --bytes are read. Three measurements:

request   the wall time of a request of one token as the client sees it, less the time of its run (`run_seconds_total` of
          /metrics). Milliseconds.
decode    milliseconds a token of the same answer: `headrace generate`, the server's whole answer, and its stream, in
          turns. Of the stream also the share of the server's processor time that the connection's thread takes.
question  a second question about the document, short and long: from sending it to its first token, over the time in
          which the engine computes its own tokens (`prompt_ms`, `ttft_ms`), less 1. Of the server and of the chat.

On a machine with other loads the median says little: read the minimum, and of `decode` the share of processor time,
which other loads do not change much. `load` has the load average before and after.
"""
import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time


def summary(values, decimals=4):
    return {"min": round(min(values), decimals), "median": round(statistics.median(values), decimals),
            "max": round(max(values), decimals), "count": len(values)}


def cpu():
    with open("/proc/cpuinfo", encoding="utf8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


class Server:
    def __init__(self, a):
        self.process = subprocess.Popen([a.headrace, "serve", "-m", a.model, "--device", "cpu", "-t", str(a.threads),
                                         "-c", "8192", "--port", "0"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if line.startswith("listening on "):
                break
        else:
            sys.exit("server_overhead.py: the server has ended")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # a line a request
        self.http = http.client.HTTPConnection(line.split("//")[1].strip(), timeout=600)

    def post(self, body):
        """(the answer's JSON, seconds, seconds to the first text of a stream, milliseconds of the run)"""
        before = self.run_seconds()
        start = time.perf_counter()
        self.http.request("POST", "/v1/chat/completions" if "messages" in body else "/v1/completions", json.dumps(body),
                          {"Content-Type": "application/json"})
        response = self.http.getresponse()
        first, last = None, None
        if body.get("stream"):
            for event in response:
                if not event.startswith(b"data: {"):
                    continue
                last = json.loads(event[6:])
                if first is None and last["choices"][0].get("text"):
                    first = time.perf_counter() - start
        else:
            last = json.loads(response.read())
        seconds = time.perf_counter() - start
        if response.status != 200:
            sys.exit(f"server_overhead.py: {last}")
        return last, seconds, first, self.run_seconds() - before

    def run_seconds(self):
        self.http.request("GET", "/metrics")
        lines = self.http.getresponse().read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("headrace_run_seconds_total ")))

    def processor_seconds(self):
        """Of each thread: user and system."""
        folder = f"/proc/{self.process.pid}/task"
        out = {}
        for thread in os.listdir(folder):
            with open(f"{folder}/{thread}/schedstat", encoding="ascii") as f:
                out[thread] = int(f.read().split()[0]) / 1e9
        return out

    def since(self, before):
        return {thread: after - before.get(thread, 0) for thread, after in self.processor_seconds().items()}

    def connection_thread(self):
        """The one that answers while the engine does nothing."""
        before = self.processor_seconds()
        for _ in range(300):
            self.http.request("GET", "/health")
            self.http.getresponse().read()
        used = self.since(before)
        return max(used, key=used.get)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def requests(a, server):
    over = []
    for number in range(10 * a.rounds):
        _, seconds, _, run = server.post({"model": "m", "prompt": f"Number {number}", "max_tokens": 1})
        over.append(1000 * (seconds - run))
    return summary(over[a.rounds:])


def decode(a, server):
    tokens, prompt = 64, "Once upon a time"
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    out = {"generate": [], "whole": [], "stream": []}
    thread, share = server.connection_thread(), []
    for _ in range(a.rounds):
        ran = subprocess.run([a.headrace, "generate", "-m", a.model, "--device", "cpu", "-t", str(a.threads), "-p", prompt,
                              "-c", "8192", "-n", str(tokens), "--no-chat-template", "--json", "-q"], check=True,
                             capture_output=True)
        out["generate"].append(1000 / json.loads(ran.stdout)["timings"]["decode_tokens_per_s"])
        timings = server.post(body)[0]["timings"]
        out["whole"].append(1000 / timings["predicted_per_second"])
        before = server.processor_seconds()
        timings = server.post(dict(body, stream=True))[0]["timings"]
        used = server.since(before)
        share.append(used[thread] / sum(used.values()))
        out["stream"].append(1000 / timings["predicted_per_second"])
    result = {kind: summary(values) for kind, values in out.items()}
    for kind in ("whole", "stream"):
        result[f"{kind}_over_generate"] = summary([s / g - 1 for s, g in zip(out[kind], out["generate"])])
    result["stream_share_of_processor"] = summary(share, 5)
    return result


SHORT = "What does the text say about copies?"
LONG = " ".join(f"Point {n}: explain how this part of the text differs from what was said before." for n in range(30))


def questions_to_server(a, server, text):
    out = {"short": [], "long": [], "tokens": {}}
    ask = lambda question: server.post({"model": "m", "prompt": text + "\n\n" + question, "max_tokens": 4, "stream": True})
    ask("Read.")
    for number in range(a.rounds):
        for kind, question in (("short", SHORT), ("long", LONG)):
            last, _, first, _ = ask(f"{number}. {question}")
            out["tokens"][kind] = last["timings"]["prompt_n"]
            out[kind].append(1000 * first / last["timings"]["prompt_ms"] - 1)
    return {"tokens": out["tokens"], "short": summary(out["short"]), "long": summary(out["long"])}


def questions_to_chat(a, document):
    process = subprocess.Popen([a.headrace, "chat", "-m", a.model, "--device", "cpu", "-t", str(a.threads), "-c", "8192",
                                "-n", "4", "--json", "-q", document], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    out = {"short": [], "long": [], "tokens": {}}
    for number in range(a.rounds):
        for kind, question in (("new", "/new"), ("first", "Read."), ("short", SHORT), ("long", LONG)):
            start = time.perf_counter()
            process.stdin.write(question + "\n")
            process.stdin.flush()
            if kind == "new":
                continue
            result = json.loads(process.stdout.readline())
            seconds = time.perf_counter() - start
            if kind == "first":
                continue
            out["tokens"][kind] = result["prompt_tokens"] - result.get("kept_tokens", 0)
            timings = result["timings"]
            rate = timings["decode_tokens_per_s"]
            decode_ms = 1000 * timings["decode_tokens"] / rate if rate > 0 else 0
            out[kind].append((1000 * seconds - decode_ms) / timings["ttft_ms"] - 1)
    process.stdin.close()
    process.wait()
    return {"tokens": out["tokens"], "short": summary(out["short"]), "long": summary(out["long"])}


def note(what, values):
    print(f"{what}: {json.dumps(values)}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headrace")
    parser.add_argument("model")
    parser.add_argument("document")
    parser.add_argument("--bytes", type=int, default=12000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()
    with open(a.document, encoding="utf8") as f:
        text = f.read()[:a.bytes]
    load = [os.getloadavg()]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("server_overhead.py: terminated"))
    server = Server(a)
    result = {"program": "bench/server_overhead.py", "machine": {"cpu": cpu(), "threads": a.threads},
              "model": os.path.basename(a.model), "document_bytes": len(text.encode()), "rounds": a.rounds}
    try:
        result["request_ms"] = requests(a, server)
        note("request", result["request_ms"])
        result["decode_ms_per_token"] = decode(a, server)
        note("decode", result["decode_ms_per_token"])
        result["question_server"] = questions_to_server(a, server, text)
        note("question to the server", result["question_server"])
    finally:
        server.stop()
    cut = f"/tmp/server_overhead.{os.getpid()}.txt"
    with open(cut, "w", encoding="utf8") as f:
        f.write(text)
    try:
        result["question_chat"] = questions_to_chat(a, cut)
    finally:
        os.remove(cut)
    load.append(os.getloadavg())
    result["load"] = [round(one[0], 1) for one in load]
    print(json.dumps(result, indent=1))


main()
