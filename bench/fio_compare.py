#!/usr/bin/env python3
"""Whether `headrace profile --disk` says what fio says of the same disk.

    fio_compare.py --headrace build/cli/headrace --folder DIR [--fio fio] [--size 2GiB] [--seconds 2] [--rounds 5]
                   [--json FILE]

Turn by turn, so that a disk which others use too is the same for both: a quick profile, which writes a file of that
size and measures six tests in it, then fio with a file of its own that it has written just before (by direct writes of
random bytes: no hole, nothing in the page cache), with the same tests in the same order, for the same time, after the
same warm-up (a fifth of it). Both read and write past the page cache, by io_uring with file and buffers registered, in
buffers that lie in huge pages: glibc gives them to fio where told to, and --mem_align lets them begin there. (With 4 KiB pages a block of 1 MiB is 256 pieces,
more than many a disk takes in one request.) Every second round begins with fio. Prints medians, and 1 at exit where
they lie further than 3% apart in a row.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

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
    report = json.loads(run(command, env={**os.environ, "HOME": args.folder + "/no-home"}))
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


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def cpu_name():
    found = re.search(r"model name\s*: (.*)", read_text("/proc/cpuinfo"))
    return found[1] if found else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headrace", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--fio", default="fio")
    parser.add_argument("--size", default="2GiB")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    size_of(args.size)

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

    table = []
    for test in ours:
        a, b = statistics.median(ours[test]), statistics.median(theirs[test])
        table.append({"test": test, "profile_gb_per_s": round(a, 4), "fio_gb_per_s": round(b, 4),
                      "ratio": round(a / b, 4), "profile": [round(x, 4) for x in ours[test]],
                      "fio": [round(x, 4) for x in theirs[test]]})
        print(f"{test:32} profile {a:7.3f}  fio {b:7.3f} GB/s  {100 * (a / b - 1):+6.2f}%"
              f"   of the rounds {min(ours[test]):.3f} to {max(ours[test]):.3f}, {min(theirs[test]):.3f} to"
              f" {max(theirs[test]):.3f}")
    if args.json:
        pages = re.search(r"\[(\w+)\]", read_text("/sys/kernel/mm/transparent_hugepage/enabled"))
        report = {"program": "bench/fio_compare.py",
                  "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "huge_pages": pages[1] if pages else ""},
                  "fio": run([args.fio, "--version"]).strip(), "profile_by": how, "file": args.size,
                  "seconds_a_test": args.seconds, "rounds": args.rounds, "tests": table}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 0 if all(abs(row["ratio"] - 1) <= 0.03 for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
