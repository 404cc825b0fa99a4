#!/usr/bin/env python3
"""Would partial steps beside a refresh pay? (docs/design.md, section 8, "A refresh runs alone")

A refresh takes as long as its link or its compute. While it waits for the link, partial steps of the next round could
run from the unconfirmed state. They count if the refresh confirms all first choices, and are lost otherwise. Both ways
take their own best number of partial steps. The result favours the overlap: it assumes that every gap of the refresh
can be used, that switching costs nothing, and that the link never waits for a partial step.

Pending tokens are a tree, as in today's runs: a partial step adds some tokens to the first choices, and a refresh judges
some nodes for each. A second choice recovers some of the first choices that are overturned.

Times, nodes and rates are of bench/results/partial_h200_quarter_streamed.json (int8 copy), partial_h200_bf16_int4.json
(int4 copy) and partial_h200_32b.json (blocks); nothing is measured for the RTX 4090, whose times are those of the H200
scaled to 1 TB/s, a link of 25 GB/s and a quarter of the tensor rate. The compute of a refresh is known where it binds,
at 140 to 205 nodes. "Least" is the sum of its kernels measured alone (kernel_bench_h200_q4_k_m_many_rows.jsonl,
kernel_bench_h200_low_bit.jsonl, kernel_bench_h200_remainders.jsonl), below which it cannot be."""

LAYERS = 32
MAX_PENDING = 192  # cache/partial.h


def interpolated(points, x):
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1:
            break
    return max(points[0][1], y0 + (y1 - y0) * (x - x0) / (x1 - x0))


PRODUCTS = [(1, 1.9), (16, 2.7), (32, 4.0), (64, 5.8), (128, 10.3), (192, 15.7), (384, 27.3)]
ATTENTION = [(1, 0.070), (16, 0.083), (64, 0.232), (384, 1.291)]  # a layer
DECODING = LAYERS * 61440 / 8192 * 0.0337  # rows from the copy and its remainders


def int8_least(rows):
    return DECODING + interpolated(PRODUCTS, rows) + LAYERS * interpolated(ATTENTION, rows)


def int8_measured(rows):  # 51 to 55 ms at 140 nodes, 60 at 169, 65 to 69 at 205
    return 24 + 0.2 * rows


def int4_least(rows):  # bf16 weights: a pass for each 64 rows
    return 4.45 * -(-rows // 64) + LAYERS * interpolated(ATTENTION, rows)


def rtx4090_least(rows):
    return 4 * int8_least(rows)


def blocks_32b(rows):  # 376 ms at 341 nodes
    return 40 + 0.985 * rows


# Name, link time of a refresh, its compute by rows, a partial step, all in ms; tokens that a step adds to the first
# choices, nodes that a refresh judges for each step; the share of first choices that refreshes overturned, and how many
# of these no other choice recovered.
CASES = [
    ("int8 copy, Q4_K, no draft; compute as measured", 44, int8_measured, 4.5, 1.0, 3.4, 0.018, 0.14),
    ("int8 copy, Q4_K, no draft; least compute", 44, int8_least, 4.5, 1.0, 3.4, 0.018, 0.14),
    ("int8 copy, Q4_K, EAGLE-3; compute as measured", 44, int8_measured, 6.1, 1.95, 4.1, 0.017, 0.44),
    ("int8 copy, Q4_K, EAGLE-3; least compute", 44, int8_least, 6.1, 1.95, 4.1, 0.017, 0.44),
    ("the same on an RTX 4090, no draft; least compute", 97, rtx4090_least, 8.4, 1.0, 3.4, 0.018, 0.14),
    ("the same on an RTX 4090, EAGLE-3; least compute", 97, rtx4090_least, 11.4, 1.95, 4.1, 0.017, 0.44),
    ("int4 copy, bf16, no draft; least compute", 146, int4_least, 7.8, 0.9, 4.3, 0.033, 0.5),
    ("int4 copy, bf16, EAGLE-3; least compute", 146, int4_least, 9.6, 1.6, 6.7, 0.033, 0.9),
    ("32B shape, blocks, no draft", 303, blocks_32b, 11.5, 1.0, 6.8, 0.2, 0.4),
]
OVERTURNED = [0.005, 0.01, 0.02, 0.04]


def confirmed(tokens, lost):
    """Tokens that a refresh of so many pending ones confirms, and its own."""
    return (1 - (1 - lost) ** (tokens + 1)) / lost


def rates(case, q, slower):
    """Tokens/s after each number of partial steps, alone and beside."""
    _, link, compute, step, tokens, nodes, _, unrecovered = case
    alone, beside = [], []
    for n in range(1, int(MAX_PENDING / tokens) + 1):
        refresh = max(link, compute(nodes * n + 1))
        right = confirmed(tokens * n, q * unrecovered)
        idle = max(0.0, link - compute(nodes * n + 1))
        ahead = min(idle / (step * slower), n)
        # The refresh's own token is the first of those ahead.
        saved = (1 - q) ** (tokens * n) * max(0.0, ahead - 1 / tokens)
        alone.append(1000 * right / (n * step + refresh))
        beside.append(1000 * right / ((n - saved) * step + refresh))
    return alone, beside


def main():
    print("tokens/s (partial steps a refresh); beside: if a partial step beside a refresh takes 1.0 or 1.5 times as long;")
    print("* the share of first choices that refreshes overturned in measured runs")
    print("%-50s %6s %13s %19s %19s" % ("H200, 61,440 tokens, unless said otherwise", "q", "alone", "beside x 1.0",
                                        "beside x 1.5"))
    for case in CASES:
        for q in sorted(OVERTURNED + [case[6]]):
            line = "%-50s %5.1f%%%s" % (case[0], 100 * q, "*" if q == case[6] else " ")
            for slower in (1.0, 1.5):
                alone, beside = rates(case, q, slower)
                if slower == 1.0:
                    line += " %6.1f (%3d)" % (max(alone), 1 + alone.index(max(alone)))
                line += " %6.1f (%3d) %+4.0f%%" % (max(beside), 1 + beside.index(max(beside)),
                                                 100 * (max(beside) / max(alone) - 1))
            print(line)


if __name__ == "__main__":
    main()
