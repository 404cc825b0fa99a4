#!/usr/bin/env python3
"""Would partial steps beside a refresh pay? (docs/design.md, section 8, "When to refresh")

A refresh of n pending tokens takes as long as its link or its compute. While it waits for the link, partial steps of
the next round could run from the unconfirmed state. They count if the refresh confirms all n tokens, and are lost
otherwise. Both ways take their own best n. The result favours the overlap: it assumes that every gap of the refresh
can be used, that switching costs nothing, and that the link never waits for a partial step.

Times of the H200 are measured (bench/results: kernel_bench_h200_q4_k_m_fused.jsonl, bench_h200_q4_k_m_fused.json,
partial_h200_copies_*.json) or follow from 8.05 GB of KV cache (8B, 61,440 tokens, bf16) at 55 GB/s. Those of the
RTX 4090 are scaled: 1 TB/s, a link of 25 GB/s, a quarter of the tensor rate."""

LAYERS = 32
MAX_PENDING = 192  # cache/partial.h


def interpolated(points, x):
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1:
            break
    return max(points[0][1], y0 + (y1 - y0) * (x - x0) / (x1 - x0))


def h200_q4_k(rows):
    products = interpolated([(32, 4.4), (64, 6.2), (128, 11.1), (384, 27.6)], rows)
    return products + LAYERS * interpolated([(1, 0.07), (64, 0.225), (384, 1.27)], rows)


def h200_bf16(rows):  # one pass over 16 GB of weights for each 64 rows
    return 4.5 * -(-rows // 64) + LAYERS * interpolated([(1, 0.07), (64, 0.225), (384, 1.27)], rows)


def rtx4090_q4_k(rows):
    products = interpolated([(16, 5.0), (64, 7.0), (384, 42.0)], rows)
    return products + LAYERS * interpolated([(1, 0.25), (64, 0.86), (384, 4.9)], rows)


# Name, link time of a refresh, its compute by rows, a partial step; all in ms.
CASES = [
    ("H200, 22 GiB, Q4_K weights (2.3 GB streamed)", 42, h200_q4_k, 5.6),
    ("H200, Q4_K weights, all KV in host memory", 146, h200_q4_k, 5.6),
    ("H200, 22 GiB, bf16 weights (all KV streamed)", 146, h200_bf16, 7.5),
    ("RTX 4090, 22 GiB, Q4_K weights (2.3 GB streamed)", 92, rtx4090_q4_k, 10.5),
    ("16 GiB, PCIe 4.0, Q4_K weights (all KV streamed)", 322, rtx4090_q4_k, 10.5),
]
OVERTURNED = [0.005, 0.01, 0.02, 0.04]


def confirmed(n, q):
    """Tokens that a refresh of n pending ones confirms, and its own."""
    return (1 - (1 - q) ** (n + 1)) / q


def alone(n, q, link, compute, step):
    return confirmed(n, q) / (n * step + max(link, compute(n)))


def beside(n, q, link, compute, step, slower):
    idle = max(0.0, link - compute(n))
    ahead = min(int(idle / (step * slower)), n, MAX_PENDING - n)
    # The refresh's own token is the first of those ahead.
    saved = (1 - q) ** n * max(0, ahead - 1)
    return confirmed(n, q) / ((n - saved) * step + max(link, compute(n)))


def best(rate):
    n = max(range(1, MAX_PENDING + 1), key=rate)
    return n, 1000 * rate(n)


def main():
    print("tokens/s (pending tokens); beside: if a partial step beside a refresh takes 1.0 or 1.5 times as long")
    print("%-50s %5s %12s %18s %18s" % ("", "q", "alone", "beside x 1.0", "beside x 1.5"))
    for name, link, compute, step in CASES:
        for q in OVERTURNED:
            n, rate = best(lambda n: alone(n, q, link, compute, step))
            line = "%-50s %4.1f%% %6.1f (%3d)" % (name, 100 * q, rate, n)
            for slower in (1.0, 1.5):
                m, more = best(lambda n: beside(n, q, link, compute, step, slower))
                line += " %6.1f (%3d) %+4.0f%%" % (more, m, 100 * (more / rate - 1))
            print(line)


if __name__ == "__main__":
    main()
