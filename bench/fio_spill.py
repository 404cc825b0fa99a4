#!/usr/bin/env python3
"""Whether the disk tier brings what fio reads from the same file.

    fio_spill.py --spill-bench build/bench/spill_bench --folder DIR [--fio fio] [--size 4GiB] [--seconds 3] [--rounds 8]
                 [--depth 32] [--slot 16MiB] [--slots 8] [--device cpu|cuda] [--json FILE]

Turn by turn, so that a disk which others use too is the same for both: fio, spill_bench, fio, spill_bench, …, fio. Each
reads spill_bench's file, from one end to the other and again, past the page cache, by io_uring with file and buffers
registered, in requests of 1 MiB, so many at a time, for the same time after a first second. fio's buffers lie in huge
pages as the disk tier's do (in small ones a request of 1 MiB is 256 pieces, more than many a disk takes at once, and
fio is slower). spill_bench also verifies all bytes and copies them on, to the device's memory.

A round's ratio is spill_bench's rate by the mean of fio's before and after it. Prints their mean (geometric) with its
standard error; and of each round by what share of the time the disk tier was later than without verifying.
"""

import json
import math
import os
import statistics
import subprocess
import sys

from fio_compare import flags, parsed, run


class Spill:
    """spill_bench, which reads whenever it is told to."""

    def __init__(self, args):
        self.folder = os.path.realpath(args.folder)
        self.process = subprocess.Popen(
            [args.spill_bench, "--turns", "--folder", args.folder, "--size", args.size, "--seconds", str(args.seconds),
             "--depth", str(args.depth), "--slot", args.slot, "--slots", str(args.slots), "--device", args.device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.made = self.line()
        self.file = self.open_file()

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"spill_bench: exit code {self.process.wait()}")
        return json.loads(line)

    def open_file(self):
        """It has no name: the system has one for it while it is open."""
        for entry in os.scandir(f"/proc/{self.process.pid}/fd"):
            place = os.readlink(entry.path)
            if place.startswith(self.folder) and place.endswith("(deleted)"):
                if os.stat(entry.path).st_size == self.made["file_bytes"]:
                    return entry.path
        sys.exit(f"spill_bench: has no file open in {self.folder}")

    def read(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()

    def end(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit(f"spill_bench: exit code {self.process.returncode}")


def fio(args, path, size):
    """GB/s of one sequential read of the file's `size` bytes: spill_bench makes whole units of what it was asked."""
    command = [args.fio, "--name=read", "--readonly", "--filename", path, f"--size={size}", "--rw=read", "--bs=1m",
               "--direct=1", "--ioengine=io_uring", f"--iodepth={args.depth}", "--fixedbufs", "--registerfiles",
               "--mem_align=2m", "--time_based", "--ramp_time=1s", f"--runtime={int(args.seconds * 1000)}ms",
               "--output-format=json"]
    job = json.loads(run(command, env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}))["jobs"][0]
    if job["error"] != 0:
        sys.exit(f"fio: error {job['error']}")
    return job["read"]["bw_bytes"] * 1e-9


def said(logs):
    """A mean of ratios and its standard error, in percent."""
    return round(100 * math.exp(statistics.mean(logs)), 1), round(100 * statistics.stdev(logs) / math.sqrt(len(logs)), 1)


def main():
    parser = flags(__doc__, "--spill-bench", size="4GiB", seconds=3)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--slot", default="16MiB")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parsed(parser)

    spill = Spill(args)
    size = spill.made["file_bytes"]
    theirs, rows, loads = [fio(args, spill.file, size)], [], []
    for number in range(args.rounds):
        rows.append(spill.read())
        if rows[-1]["read_depth"] != args.depth:
            sys.exit(f"spill_bench reads {rows[-1]['read_depth']} at once ({rows[-1]['read_depth_why']}), fio "
                     f"{args.depth}: give a --depth that both can have")
        loads.append(round(os.getloadavg()[0], 1))
        theirs.append(fio(args, spill.file, size))
        row = rows[-1]
        print(f"round {number + 1}: fio {theirs[-2]:.3f}, spill {row['read_gb_per_s']:.3f}, fio {theirs[-1]:.3f} GB/s; "
              f"late by verifying {100 * row['verify_late_share']:.1f}% (waited {100 * row['verify_wait_share']:.1f}%); "
              f"load {loads[-1]}", flush=True)
    spill.end()
    ratio, error = said([math.log(row["read_gb_per_s"] / ((a + b) / 2))
                         for row, a, b in zip(rows, theirs, theirs[1:])])
    # What the disk itself moves by: fio against the fio before it.
    _, unrest = said([math.log(b / a) for a, b in zip(theirs, theirs[1:])])
    late = [row["verify_late_share"] for row in rows]
    print(f"spill / fio {ratio}% +- {error} (fio / fio before: +- {unrest})")
    if args.json:
        report = {"program": "bench/fio_spill.py", "fio": run([args.fio, "--version"]).strip(), "seconds": args.seconds,
                  "reads_at_once": rows[0]["read_depth"], "how": rows[0]["how"], "rounds": args.rounds,
                  "spill_by_fio_percent": ratio, "error_percent": error, "fio_by_fio_error_percent": unrest,
                  "verify_late_share_median": statistics.median(late), "verify_late_share_most": max(late),
                  "load_average": loads, "fio_gb_per_s": [round(x, 3) for x in theirs], "file": spill.made,
                  "spill": rows}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
