#!/usr/bin/env python3
"""Whether the disk tier brings what fio reads.

    fio_spill.py --spill-bench build/bench/spill_bench --folder DIR [--fio fio] [--size 4GiB] [--seconds 3] [--rounds 8]
                 [--depth 32] [--device cpu|cuda] [--json FILE]

Turn by turn, so that a disk which others use too is the same for both: fio, spill_bench, fio, spill_bench, …, fio. Each
writes a file of that size just before (fio by direct writes of random bytes) and reads it from one end to the other,
past the page cache, by io_uring with file and buffers registered, in requests of 1 MiB, so many at a time, for the same
time after a first second. fio's buffers lie in huge pages as the disk tier's do (in small ones a request of 1 MiB is
256 pieces, more than many a disk takes at once, and fio is slower). spill_bench also verifies all bytes and copies them
on, to the device's memory.

A round's ratio is spill_bench's rate by the mean of fio's before and after it. Prints their mean (geometric) with its
standard error; and of each round by what share of the time the disk tier was later than without verifying.
"""

import json
import math
import os
import statistics
import sys
import tempfile

from fio_compare import cpu_name, flags, parsed, run, size_of


def fio(args):
    """GB/s of one sequential read, of a file that it has just written."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        common = [args.fio, "--filename", os.path.join(folder, "file"), f"--size={size_of(args.size)}", "--direct=1",
                  "--ioengine=io_uring", "--fixedbufs", "--registerfiles", "--mem_align=2m", "--output-format=json",
                  "--bs=1m"]
        huge = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        run(common + ["--name=layout", "--rw=write", "--iodepth=16", "--refill_buffers", "--fallocate=none",
                      "--create_on_open=1"], env=huge)
        text = run(common + ["--name=read", "--rw=read", f"--iodepth={args.depth}", "--time_based", "--ramp_time=1s",
                             f"--runtime={int(args.seconds * 1000)}ms"], env=huge)
        job = json.loads(text)["jobs"][0]
        if job["error"] != 0:
            sys.exit(f"fio: error {job['error']}")
        return job["read"]["bw_bytes"] * 1e-9


def spill(args):
    text = run([args.spill_bench, "--folder", args.folder, "--size", args.size, "--seconds", str(args.seconds),
                "--depth", str(args.depth), "--device", args.device])
    return json.loads(text)


def said(logs):
    """A mean of ratios and its standard error, in percent."""
    return round(100 * math.exp(statistics.mean(logs)), 1), round(100 * statistics.stdev(logs) / math.sqrt(len(logs)), 1)


def main():
    parser = flags(__doc__, "--spill-bench", size="4GiB", seconds=3)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parsed(parser)

    theirs, rows, loads = [fio(args)], [], []
    for number in range(args.rounds):
        rows.append(spill(args))
        loads.append(round(os.getloadavg()[0], 1))
        theirs.append(fio(args))
        row = rows[-1]
        print(f"round {number + 1}: fio {theirs[-2]:.3f}, spill {row['read_gb_per_s']:.3f} (not verified "
              f"{row['read_unverified_gb_per_s']:.3f}), fio {theirs[-1]:.3f} GB/s; late by verifying "
              f"{100 * row['verify_late_share']:.1f}% (waited {100 * row['verify_wait_share']:.1f}%); "
              f"load {loads[-1]}", flush=True)
    ratio, error = said([math.log(row["read_gb_per_s"] / ((a + b) / 2))
                         for row, a, b in zip(rows, theirs, theirs[1:])])
    # What the disk itself moves by: fio against the fio before it.
    _, unrest = said([math.log(b / a) for a, b in zip(theirs, theirs[1:])])
    late = [row["verify_late_share"] for row in rows]
    print(f"spill / fio {ratio}% +- {error} (fio / fio before: +- {unrest})")
    if args.json:
        report = {"program": "bench/fio_spill.py", "machine": {"cpu": cpu_name(), "cores": os.cpu_count()},
                  "fio": run([args.fio, "--version"]).strip(), "file": args.size, "seconds": args.seconds,
                  "reads_at_once": rows[0]["read_depth"], "how": rows[0]["how"], "rounds": args.rounds,
                  "spill_by_fio_percent": ratio, "error_percent": error, "fio_by_fio_error_percent": unrest,
                  "verify_late_share_median": statistics.median(late), "verify_late_share_most": max(late),
                  "load_average": loads, "fio_gb_per_s": [round(x, 3) for x in theirs], "spill": rows}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
