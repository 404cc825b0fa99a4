#!/usr/bin/env python3
"""Whether `headrace profile --disk` says what fio says of the same disk.

    fio_compare.py --headrace build/cli/headrace --folder DIR [--fio fio] [--size 2GiB] [--seconds 2] [--rounds 8]
                   [--json FILE]

Turn by turn, so that a disk which others use too is the same for both: a quick profile, which writes a file of that
size and measures six tests in it, then fio with a file of its own that it has written just before (by direct writes of
random bytes: no hole, nothing in the page cache), with the same tests in the same order, for the same time, after the
same warm-up (a fifth of it). Both read and write past the page cache, by io_uring with file and buffers registered, in
buffers that lie in huge pages: glibc gives them to fio where told to, and --mem_align lets them begin there. (With
4 KiB pages a block of 1 MiB is 256 pieces, more than many a disk takes in one request.) Every second round begins with
fio. Prints medians and how far the rounds' pairs lie apart, with the standard error of that: twice of it decides
whether the two agree to 3%, differ, or whether the disk is too noisy for so few rounds. The exit code is 1 where a test
differs.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

HOME = tempfile.TemporaryDirectory()
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size_of(text):
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is no size like 2GiB")
    return int(match[1]) * UNITS[match[2]]


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}{done.stdout}")
    return done.stdout


def key(row):
    return f"{row['test']}, {row['bytes'] >> 10} KiB x {row['depth']}"


def profile(args):
    """One quick profile, of which the disk's rows count: {test: GB/s}."""
    command = [args.headrace, "profile", "--quick", "-q", "--device", "cpu", "-t", "1", "--host-mem", "256MiB"]
    command += ["--disk", f"{args.folder}:{args.size}", "--disk-seconds", str(args.seconds), "-o", "json"]
    # What is kept of a profile is of a machine as it is, not of a comparison.
    report = json.loads(run(command, env={**os.environ, "HOME": HOME.name}))
    rows = [row for row in report["rows"] if row["group"] == "disk"]
    broken = [row["error"] for row in rows if "error" in row]
    if not rows or broken or report["disk"]["file_bytes"] != size_of(args.size):
        sys.exit(f"profile: {broken or report['notes'] or 'the file is shorter than it was to be'}")
    return rows, report["disk"]["how"]


def fio(args, rows):
    """The same tests by fio, in one file."""
    path = os.path.join(args.folder, "fio_compare.tmp")
    common = [args.fio, "--filename", path, f"--size={size_of(args.size)}", "--direct=1", "--ioengine=io_uring"]
    common += ["--fixedbufs", "--registerfiles", "--mem_align=2m", "--output-format=json"]
    huge = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    figures = {}
    try:
        run(common + ["--name=layout", "--rw=write", "--bs=1m", "--iodepth=16", "--refill_buffers", "--fallocate=none",
                      "--create_on_open=1"], env=huge)
        for row in rows:
            reads = row["test"].endswith("read")
            kind = ("rand" if row["test"].startswith("random") else "") + ("read" if reads else "write")
            command = common + [f"--name={kind}", f"--rw={kind}", f"--bs={row['bytes']}", f"--iodepth={row['depth']}",
                                "--time_based", f"--runtime={int(args.seconds * 1000)}ms",
                                f"--ramp_time={int(args.seconds * 200)}ms", "--norandommap", "--randrepeat=0"]
            job = json.loads(run(command, env=huge))["jobs"][0]
            if job["error"] != 0:
                sys.exit(f"fio: error {job['error']} in {kind}")
            figures[key(row)] = job["read" if reads else "write"]["bw_bytes"] * 1e-9
    finally:
        if os.path.exists(path):
            os.unlink(path)
    return figures


def compared(test, ours, theirs):
    """Medians, and how far apart the rounds' pairs are on the average, with that mean's standard error."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs)]
    apart = 100 * statistics.mean(logs)
    error = 100 * statistics.stdev(logs) / math.sqrt(len(logs))
    noisy = "differ" if abs(apart) - 2 * error > 3 else "too noisy to tell"
    verdict = "agree" if abs(apart) + 2 * error <= 3 else noisy
    return {"test": test, "profile_gb_per_s": round(statistics.median(ours), 4),
            "fio_gb_per_s": round(statistics.median(theirs), 4), "apart_percent": round(apart, 2),
            "error_percent": round(error, 2), "verdict": verdict,
            "profile": [round(x, 4) for x in ours], "fio": [round(x, 4) for x in theirs]}


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def cpu_name():
    found = re.search(r"model name\s*: (.*)", read_text("/proc/cpuinfo"))
    return found[1] if found else ""


def flags(description, program, size, seconds):
    """What a comparison with fio, turn by turn, takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(program, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--fio", default="fio")
    parser.add_argument("--size", default=size)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json")
    return parser


def parsed(parser):
    args = parser.parse_args()
    size_of(args.size)
    if args.rounds < 4:
        parser.error("--rounds: at least 4, or nothing is known of the noise")
    return args


def main():
    args = parsed(flags(__doc__, "--headrace", size="2GiB", seconds=2))

    ours, theirs, rows, how = {}, {}, [], ""
    for number in range(args.rounds):
        turns = ["profile", "fio"] if number % 2 == 0 or not rows else ["fio", "profile"]
        for turn in turns:
            if turn == "profile":
                rows, how = profile(args)
                figures, into = {key(row): row["value"] for row in rows}, ours
            else:
                figures, into = fio(args, rows), theirs
            for test, value in figures.items():
                into.setdefault(test, []).append(value)
            print(f"round {number + 1} {turn:8}" + "".join(f"{value:8.3f}" for value in figures.values()), flush=True)

    table = [compared(test, ours[test], theirs[test]) for test in ours]
    for row in table:
        print(f"{row['test']:32} profile {row['profile_gb_per_s']:7.3f}  fio {row['fio_gb_per_s']:7.3f} GB/s"
              f"  {row['apart_percent']:+5.1f}% +- {row['error_percent']:.1f}: {row['verdict']}")
    if args.json:
        pages = re.search(r"\[(\w+)\]", read_text("/sys/kernel/mm/transparent_hugepage/enabled"))
        report = {"program": "bench/fio_compare.py",
                  "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "huge_pages": pages[1] if pages else ""},
                  "fio": run([args.fio, "--version"]).strip(), "profile_by": how, "file": args.size,
                  "seconds_a_test": args.seconds, "rounds": args.rounds, "tests": table}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 1 if any(row["verdict"] == "differ" for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
