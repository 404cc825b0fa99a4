"""llama.cpp (xllamacpp's wheel) and headrace in turns on this machine's CPU: same file, prompt, threads.

  python3 bench/llama_baseline.py HEADRACE MODEL.gguf DOCUMENT [--threads 2] [--new-tokens 64] [--rounds 3]
      [--processor-time [--other HEADRACE] [--prefix-cache DIR]] > result.json

Each run is a process of its own. headrace: `summarize --json`, with --weights keep and with --weights dtype. llama.cpp:
one chat completion with the file's own template, greedy, no prompt cache, flash attention left at its default.
DOCUMENT '-' is a short prompt ("What is a headrace?") for decode at a short context.

--processor-time is for a machine that others load: everything on one thread of one core, and a token's time is the
difference in processor time between a run of --new-tokens and one of 4, by the minima of the rounds. --other is a
second build of headrace, with --weights keep. With --prefix-cache headrace reads a document's rows instead of computing
them, and llama.cpp is left out, because the time of its prefill would hide that of a token.
"""
import argparse, json, os, resource, statistics, subprocess, sys

INSTRUCTION = "Write a short summary of the text above."
SHORT = "What is a headrace?"


def cpu():
    with open("/proc/cpuinfo", encoding="utf8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


def text_of(document):
    if document == "-":
        return SHORT
    with open(document, encoding="utf8", errors="replace") as f:
        return f.read() + "\n\n" + INSTRUCTION


def llama(a):
    import resource, time
    import xllamacpp as xlc
    params = xlc.CommonParams()
    params.model.path = a.model
    params.n_ctx = 8192
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.n_batch, params.n_ubatch = 2048, a.ubatch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
    params.warmup = True
    start = time.perf_counter()
    server = xlc.Server(params)
    load_s = time.perf_counter() - start
    done = server.handle_chat_completions({
        "messages": [{"role": "user", "content": text_of(a.document)}], "max_tokens": a.new_tokens, "temperature": 0,
        "ignore_eos": True, "cache_prompt": False, "timings_per_token": True})
    if isinstance(done, (str, bytes)):
        done = json.loads(done)
    t = done["timings"]
    print(json.dumps({"prompt_tokens": t["prompt_n"], "prefill_tokens_per_s": t["prompt_per_second"],
                      "decode_tokens": t["predicted_n"], "decode_tokens_per_s": t["predicted_per_second"],
                      "load_s": load_s, "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                      "text": done["choices"][0]["message"]["content"][:120]}))


def headrace(a, weights):
    args = [a.headrace]
    if a.document == "-":
        args += ["generate", "-p", SHORT]
    else:
        args += ["summarize", a.document]
    args += ["-m", a.model, "--device", "cpu", "-t", str(a.threads), "-n", str(a.new_tokens), "--ignore-eos",
             "--weights", weights, "--json", "-q"]
    if a.prefix_cache and a.document != "-":
        args += ["--prefix-cache", a.prefix_cache]
    out = json.loads(subprocess.run(args, check=True, capture_output=True, text=True).stdout)
    t, m = out["timings"], out["memory"]
    return {"prompt_tokens": out["prompt_tokens"], "prefill_tokens_per_s": t["prefill_tokens_per_s"],
            "decode_tokens": t.get("decode_tokens"), "decode_tokens_per_s": t["decode_tokens_per_s"],
            "load_s": t["load_ms"] / 1000, "rss_peak_bytes": m["rss_peak_bytes"], "text": out["text"][:120]}


def beside(a):
    command = [sys.executable, os.path.abspath(__file__), a.headrace, a.model, a.document, "--threads", str(a.threads),
               "--new-tokens", str(a.new_tokens), "--ubatch", str(a.ubatch), "--llama-run"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


FEW_TOKENS = 4


def processor_s(run, a, new_tokens):
    a = argparse.Namespace(**{**vars(a), "new_tokens": new_tokens})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(a)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def processor_time(a):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    a.threads = 1
    runs = {"headrace keep": lambda b: headrace(b, "keep"), "headrace dtype": lambda b: headrace(b, "dtype")}
    if a.other:
        runs["other keep"] = lambda b: headrace(argparse.Namespace(**{**vars(b), "headrace": a.other}), "keep")
    if not a.prefix_cache:
        runs["llama.cpp"] = beside
    seconds = {name: {"few": [], "all": []} for name in runs}
    for _ in range(a.rounds):
        for name, run in runs.items():
            seconds[name]["few"].append(processor_s(run, a, FEW_TOKENS))
            seconds[name]["all"].append(processor_s(run, a, a.new_tokens))
    ms = {name: 1e3 * (min(s["all"]) - min(s["few"])) / (a.new_tokens - FEW_TOKENS) for name, s in seconds.items()}
    return {"processor_ms_per_token": ms, "ratio": {name + " / headrace keep": t / ms["headrace keep"]
                                                    for name, t in ms.items() if name != "headrace keep"},
            "few_tokens": FEW_TOKENS, "processor_s": seconds}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("headrace"), ap.add_argument("model"), ap.add_argument("document")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--new-tokens", type=int, default=64)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--ubatch", type=int, default=512)
    ap.add_argument("--llama-run", action="store_true")
    ap.add_argument("--processor-time", action="store_true")
    ap.add_argument("--other")
    ap.add_argument("--prefix-cache")
    a = ap.parse_args()
    if a.llama_run:
        return llama(a)
    import xllamacpp
    machine = {"cpu": cpu(), "cores": len(os.sched_getaffinity(0)),
               "instruction_set": os.environ.get("HEADRACE_ISA", "the widest")}
    about = {"llama.cpp": "xllamacpp " + xllamacpp.__version__, "model": a.model, "document": a.document,
             "new_tokens": a.new_tokens}
    if a.processor_time:
        measured = processor_time(a)
        return print(json.dumps({"machine": machine, "load": os.getloadavg(), "threads": 1, **about, **measured},
                                indent=1))
    rows = {"headrace keep": [], "headrace dtype": [], "llama.cpp": []}
    for _ in range(a.rounds):
        rows["headrace keep"].append(headrace(a, "keep"))
        rows["llama.cpp"].append(beside(a))
        rows["headrace dtype"].append(headrace(a, "dtype"))
    median = {name: {key: statistics.median(r[key] for r in runs) for key in
                     ("prompt_tokens", "prefill_tokens_per_s", "decode_tokens_per_s", "load_s", "rss_peak_bytes")}
              for name, runs in rows.items()}
    ours, theirs, plain = median["headrace keep"], median["llama.cpp"], median["headrace dtype"]
    ratio = {"prefill, keep / llama.cpp": ours["prefill_tokens_per_s"] / theirs["prefill_tokens_per_s"],
             "decode, keep / llama.cpp": ours["decode_tokens_per_s"] / theirs["decode_tokens_per_s"],
             "prefill, keep / dtype": ours["prefill_tokens_per_s"] / plain["prefill_tokens_per_s"],
             "decode, keep / dtype": ours["decode_tokens_per_s"] / plain["decode_tokens_per_s"]}
    print(json.dumps({"machine": machine, "threads": a.threads, **about, "median": median, "ratio": ratio,
                      "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
