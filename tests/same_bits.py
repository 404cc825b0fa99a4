#!/usr/bin/env python3
"""Records what some 380 runs of the program answer, and compares another build's answers with it, bit for bit.

  python3 tests/same_bits.py record PROGRAM FILE.jsonl    runs the table of same_bits_table.py and writes FILE.jsonl
  python3 tests/same_bits.py check PROGRAM FILE.jsonl     repeats the runs of FILE.jsonl, prints what differs, and exits
                                                          with 1 if anything does
  --device cpu|cuda   [cpu]; a check runs on the device that was recorded
  --jobs N            runs at a time [all cores]
  --only REGEX        the runs whose names match
  --prefixes DIR      record: keep the runs' saved prefixes in DIR. check: begin with a copy of those. A prefix of the
                      other build has to be a hit with the same text or a miss, and the runs that missed are named

An answer is token ids, texts and log-probabilities, why it ended, and how many tokens came from saved or kept rows;
where nothing depends on time also how many tokens were proposed and accepted. Bits may differ between kinds of
machines: the first line of a file names the one that it was recorded on, and a check on another says so.
HEADRACE_TEST_GGUF and HEADRACE_TEST_MODELS name SmolLM2 and a folder of published drafts; without them their runs are
left out.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import same_bits_models as models  # noqa: E402
import same_bits_table as table  # noqa: E402

SECONDS = 600  # of one command
LINE = ("token_ids", "finish_reason", "prompt_tokens", "error", "truncated")
COUNTS = ("type", "verify", "partial_kv", "steps", "proposed", "accepted", "confirmed", "offered_by_depth",
          "accepted_by_depth")
PENDING = ("judged", "overturned", "discarded", "rescued")
CACHED = ("cached", "kept")  # fields that depend on what was saved before


def gguf():
    path = os.environ.get("HEADRACE_TEST_GGUF")
    return path or os.path.expanduser("~/.cache/headrace/models/SmolLM2-135M-Instruct.Q4_1.gguf")


def output(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    except OSError as error:
        return str(error)


def machine(program, device):
    """What decides bits beside the program: the processor and its vector instructions, or the GPU."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        info = file.read()
    flags = set(re.search(r"^(?:flags|Features)\s*:(.*)", info, re.M).group(1).split())
    name = re.search(r"^model name\s*:\s*(.*)", info, re.M)
    found = {"cpu": name.group(1) if name else "unknown",
             "vectors": sorted(flags & {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "asimd"})}
    if device != "cpu":
        found["gpu"] = output([program, "--list-devices"])
    return found


class Runner:
    """Carries out runs with one program. Its folder has the models, a folder a run, and an empty cache."""

    def __init__(self, program, device, folder, prefixes=None, recorded_prefixes=False):
        self.program, self.device, self.folder = os.path.abspath(program), device, folder
        self.prefixes, self.recorded_prefixes = prefixes, recorded_prefixes
        # Flags may be set by variables, and plans use what `profile` has measured: neither comes from outside.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        self.environment.update(XDG_CACHE_HOME=os.path.join(folder, "cache"), HF_HOME=os.path.join(folder, "hub"))

    def write_models(self, runs):
        """Those that the runs use. Returns their hashes."""
        args = " ".join(arg for run in runs for step in run["steps"] for arg in step)
        folder = os.path.join(self.folder, "models")
        return {name: models.write(folder, name) for name in sorted(models.WRITERS) if "{%s}" % name in args}

    def expand(self, value, folder, prefixes):
        def replace(match):
            word, *rest = match.group(1).split()
            if word == "words":  # within a text of a JSON file
                return json.dumps(models.text(*rest))[1:-1]
            if word in ("text", "prose"):
                path = os.path.join(folder, match.group(1) + ".txt")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(models.text(*rest) if word == "text" else models.prose(*rest))
                return path
            known = {"dir": folder, "prefixes": prefixes, "smollm2": gguf(),
                     "devices": "cpu,cpu" if self.device == "cpu" else "cuda:0",
                     "published": os.environ.get("HEADRACE_TEST_MODELS", "")}
            return known[word] if word in known else os.path.join(self.folder, "models", word)

        return re.sub(r"\{([a-z][a-z0-9 +-]*)\}", replace, value)

    def missing(self, run):
        """What this machine lacks for the run; empty if nothing."""
        args = " ".join(arg for step in run["steps"] for arg in step)
        if "{smollm2}" in args and not os.path.exists(gguf()):
            return "HEADRACE_TEST_GGUF"
        if "{published}" in args and not os.path.isdir(os.environ.get("HEADRACE_TEST_MODELS", "")):
            return "HEADRACE_TEST_MODELS"
        return ""

    def answers(self, run):
        """What each step of a run answers."""
        name = re.sub(r"[^a-z0-9]+", "-", run["run"])
        folder = os.path.join(self.folder, "runs", name)
        os.makedirs(os.path.join(folder, "spill"))
        prefixes = os.path.join(self.prefixes if self.prefixes and not self.recorded_prefixes else folder, name)
        if self.recorded_prefixes and os.path.isdir(os.path.join(self.prefixes, name)):
            shutil.copytree(os.path.join(self.prefixes, name), prefixes)
        for file_name, content in run["files"].items():
            with open(os.path.join(folder, file_name), "w", encoding="utf-8") as file:
                file.write(self.expand(content, folder, prefixes))
        found = [self.answer(step, run, folder, prefixes) for step in run["steps"]]
        shutil.rmtree(folder)
        return found

    def answer(self, step, run, folder, prefixes):
        args = [self.expand(arg, folder, prefixes) for arg in step]
        if "--devices" not in args:
            args += ["--device", self.device]
        if "-t" not in args:
            args += ["-t", "1"]
        questions = os.path.join(folder, "questions")
        with open(questions if os.path.exists(questions) else os.devnull, "rb") as stdin:
            done = subprocess.run([self.program, *args], stdin=stdin, capture_output=True, timeout=SECONDS, check=False,
                                  cwd=folder, env={**self.environment, **run["env"]})
        results = os.path.join(folder, "answers.jsonl")
        said = done.stdout.decode(errors="replace")
        if os.path.exists(results):
            with open(results, encoding="utf-8") as file:
                said = file.read()
            os.remove(results)
        found = {}
        if done.returncode != 0:
            error = done.stderr.decode(errors="replace").strip().splitlines()
            error = next((line for line in error if "error" in line), error[0] if error else "")
            found = {"exit": done.returncode, "error": error.replace(folder, "{dir}").replace(self.folder, "{dir}")}
        read = of_request if step[0] == "batch" else of_line
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        lines.sort(key=lambda line: line.get("custom_id") or "")
        found["lines"] = [read(line, table.fixed(step)) for line in lines]
        return found


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def of_line(line, fixed):
    """What is compared of a result line of generate, summarize or chat."""
    found = {key: line[key] for key in LINE if key in line}
    found["text"] = digest(line.get("text"))
    found["spilled"] = "spill" in line
    if "parts" in line:
        found["parts"] = [part["text"] for part in line["parts"]]
    if "prefix" in line:
        found["cached"] = line["prefix"]["cached_tokens"]
    found["kept"] = line.get("kept_tokens", 0)
    if fixed and "speculation" in line:
        said = line["speculation"]
        found["counts"] = {key: said[key] for key in COUNTS if key in said}
        found["counts"].update({key: said["pending"][key] for key in PENDING})
        found["counts"].update({mode: value["steps"] for mode, value in said["modes"].items()})
    return found


def of_request(line, _fixed):
    """What is compared of a result of a batch."""
    response = line.get("response") or {}
    body = response.get("body", {})
    found = {"id": line.get("custom_id"), "status": response.get("status_code")}
    if "choices" not in body:
        return {**found, "error": (body.get("error") or line.get("error") or {}).get("message")}
    choice, usage = body["choices"][0], body["usage"]
    found.update(text=choice["text"] if "text" in choice else choice["message"]["content"],
                 finish_reason=choice["finish_reason"], prompt_tokens=usage["prompt_tokens"],
                 completion_tokens=usage["completion_tokens"], cached=usage["prompt_tokens_details"]["cached_tokens"])
    if choice.get("logprobs"):
        said = choice["logprobs"]
        found["logprobs"] = said["token_logprobs"] if "content" not in said else [t["logprob"] for t in said["content"]]
        found["beside"] = digest(said)
    return found


def show(value):
    shown = json.dumps(value)
    return shown if len(shown) <= 90 else shown[:87] + "..."


def field_difference(key, was, now):
    if isinstance(was, list) and isinstance(now, list) and key in ("token_ids", "logprobs"):
        at = next((i for i, (a, b) in enumerate(zip(was, now)) if a != b), min(len(was), len(now)))
        return f"{key} from {at} on: {show(was[at:at + 4])} was recorded, now {show(now[at:at + 4])}"
    if isinstance(was, dict) and isinstance(now, dict):
        keys = sorted(k for k in was.keys() | now.keys() if was.get(k) != now.get(k))
        was, now = ({k: side.get(k) for k in keys} for side in (was, now))
    return f"{key}: {show(was)} was recorded, now {show(now)}"


def differences(was, now, ignored=()):
    """A line for each field that differs between the answers of a run."""
    found = []
    for step, (old, new) in enumerate(zip(was, now), 1):
        at = f"step {step}, " if len(was) > 1 else ""
        for key in ("exit", "error"):
            if old.get(key) != new.get(key):
                found.append(at + field_difference(key, old.get(key), new.get(key)))
        if len(old["lines"]) != len(new["lines"]):
            found.append(at + field_difference("answers", len(old["lines"]), len(new["lines"])))
        for i, (a, b) in enumerate(zip(old["lines"], new["lines"]), 1):
            each = f"answer {i}, " if len(old["lines"]) > 1 else ""
            found += [at + each + field_difference(key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys())
                      if a.get(key) != b.get(key) and key not in ignored]
    return found


def in_parallel(runner, runs, jobs, done):
    """done(run, answers) for each run, in order."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for run, answers in zip(runs, pool.map(runner.answers, runs)):
            done(run, answers)


def chosen(runs, runner, only):
    runs = [run for run in runs if re.search(only, run["run"])]
    if not runs:
        sys.exit(f"same_bits.py: no run matches {only!r}")
    for what in ("HEADRACE_TEST_GGUF", "HEADRACE_TEST_MODELS"):
        without = [run["run"] for run in runs if runner.missing(run) == what]
        if without:
            print(f"left out without {what}: {', '.join(without)}")
    return [run for run in runs if not runner.missing(run)]


def record(options, folder):
    if options.prefixes and os.path.isdir(options.prefixes) and os.listdir(options.prefixes):
        sys.exit(f"same_bits.py: {options.prefixes} is not empty")
    runner = Runner(options.program, options.device, folder, options.prefixes and os.path.abspath(options.prefixes))
    runs = chosen(table.runs(options.device), runner, options.only)
    head = {"program": output([options.program, "--version"]), "device": options.device,
            "machine": machine(options.program, options.device), "models": runner.write_models(runs), "runs": len(runs)}
    failed = []
    with open(options.file, "w", encoding="utf-8") as file:
        def write(run, answers):
            file.write(json.dumps({**run, "answers": answers}) + "\n")
            failed.extend(f"{run['run']}: {answer['error']}" for answer in answers if "error" in answer)

        file.write(json.dumps(head) + "\n")
        in_parallel(runner, runs, options.jobs, write)
    for line in failed:
        print("an error is recorded as the answer:", line)
    print(f"{len(runs)} runs recorded, {len(failed)} answers are errors")
    return 0


def check(options, folder):
    with open(options.file, encoding="utf-8") as file:
        head, *recorded = [json.loads(line) for line in file]
    if len(recorded) != head["runs"]:
        sys.exit(f"same_bits.py: {options.file} has {len(recorded)} of {head['runs']} runs: record it again")
    runner = Runner(options.program, head["device"], folder, options.prefixes and os.path.abspath(options.prefixes),
                    recorded_prefixes=bool(options.prefixes))
    here = machine(options.program, head["device"])
    if here != head["machine"]:
        print(f"recorded on another machine, so that bits may differ: {head['machine']}; this is {here}")
    runs = chosen(recorded, runner, options.only)
    others = [name for name, made in runner.write_models(runs).items() if made != head["models"].get(name)]
    if others:
        sys.exit(f"same_bits.py: same_bits_models.py makes other models now ({', '.join(others)}): record it again")
    differ, hits, misses = [], [], []

    def compare(run, answers):
        found = differences(run["answers"], answers, CACHED if options.prefixes else ())
        if found:
            differ.append(run["run"])
            print(f"{run['run']}:", *found, sep="\n  ")
        if options.prefixes and any("{prefixes}" in arg for arg in run["steps"][0]):
            first = answers[0]["lines"]
            (hits if first and first[0].get("cached") else misses).append(run["run"])

    in_parallel(runner, runs, options.jobs, compare)
    if options.prefixes:
        print(f"prefixes of {head['program']}: {len(hits)} hits; {len(misses)} misses: {', '.join(misses)}")
    print(f"{len(runs)} runs compared with {head['program']}, {len(differ)} differ")
    return 1 if differ else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("program")
    parser.add_argument("file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="")
    parser.add_argument("--prefixes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same_bits.") as folder:
        return (record if options.action == "record" else check)(options, folder)


if __name__ == "__main__":
    sys.exit(main())
