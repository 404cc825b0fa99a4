"""The pictures of README as SVG, each for a light and a dark page: the tiers, tokens/s by context, and how long a
summary of 61,440 tokens takes. The same results make the same bytes."""
from xml.sax.saxutils import escape

from tables.data import *

WIDTH, MARGIN, LABELS, FONT = 760, 16, 236, "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
THEMES = {
    "light": {"text": "#1f2328", "soft": "#59636e", "line": "#d1d9e0", "box": "#f6f8fa", "other": "#8c959f",
              "headrace": "#0969da", "lossless": "#1a7f37", "writing": "#bf8700"},
    "dark": {"text": "#f0f6fc", "soft": "#9198a1", "line": "#3d444d", "box": "#151b23", "other": "#7d8590",
             "headrace": "#4493f8", "lossless": "#3fb950", "writing": "#d29922"},
}
SUMMARY_TOKENS = 300
LLAMA, LOSSLESS, LONG = "llama_h200_qwen3.6-27b.json", "partial_h200_quarter_streamed.json", "partial_h200_131k.json"


class Drawing:
    """Shapes below each other; `y` is where the next one begins."""

    def __init__(self, theme, title):
        self.colours, self.title, self.parts, self.y = THEMES[theme], title, [], MARGIN

    def text(self, x, y, words, size=13, colour="text", anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" '
                          f'text-anchor="{anchor}" fill="{self.colours[colour]}">{escape(words)}</text>')

    def box(self, x, y, width, height, fill, border=None, radius=3):
        line = f' stroke="{self.colours[border]}"' if border else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="{radius}" '
                          f'fill="{self.colours[fill]}"{line}/>')

    def arrow(self, x, y, to):
        colour = self.colours["soft"]
        self.parts.append(f'<path d="M{x:g} {y:g}V{to + 8:g}M{x - 6:g} {to + 9:g}l6 -9l6 9z" fill="{colour}" '
                          f'stroke="{colour}" stroke-width="2"/>')

    def heading(self, words, size=13, colour="text", weight="bold", below=20):
        self.y += size
        self.text(MARGIN, self.y, words, size, colour, weight=weight)
        self.y += below - size

    def bar(self, label, parts, scale, value):
        """Parts: (number, colour) one after the other; `value` is written behind them."""
        self.text(LABELS - 8, self.y + 13, label, anchor="end", colour="soft")
        x = LABELS
        for size, colour in parts:
            self.box(x, self.y + 1, size * scale, 16, colour)
            x += size * scale
        self.text(x + 6 if parts else x, self.y + 13, value, colour="text" if parts else "soft")
        self.y += 22

    def svg(self):
        height = self.y + MARGIN
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" font-family="{FONT}" role="img">', f"<title>{escape(self.title)}</title>",
            *self.parts, "</svg>", ""])


def _beside_llama(tokens):
    """llama.cpp's times and headrace's, of one call."""
    rows = {row["program"]: row for row in find(LLAMA, tokens=tokens)}
    return rows["llama.cpp"], rows["int8"]


def _in_host_memory(name, kind):
    """The runs of a kind on the texts of a result: None is plain decoding, else a lossless run's draft."""
    return [row for row in load(name)["rows"]
            if (row.get("verify"), row.get("draft")) == (("lossless", kind) if kind else (None, None))]


KINDS = ((None, "headrace, plain", "headrace"), ("none", "headrace lossless", "lossless"),
         ("draft-eagle3", "headrace lossless, EAGLE-3", "lossless"))


def tokens_by_context(theme):
    draw = Drawing(theme, "Tokens per second by context: llama.cpp, headrace, headrace lossless")
    draw.heading("Tokens per second by context", 16, below=22)
    draw.heading("One NVIDIA H200. Longer is better.", 12, "soft", "normal", 26)
    scale = (WIDTH - LABELS - 2 * MARGIN - 40) / mean(_in_host_memory(LOSSLESS, "draft-eagle3"), "tokens_per_s")
    draw.heading("Cache in GPU memory: Qwen3.6-27B, Q4_K_M, random weights")
    for tokens in sorted({row["tokens"] for row in load(LLAMA)["rows"]}):
        draw.heading(f"{number(tokens)} tokens", 12, "soft", below=19)
        for row, label, colour in zip(_beside_llama(tokens), ("llama.cpp", "headrace"), ("other", "headrace")):
            rate = 1000 / row["decode_ms"] if "decode_ms" in row else None
            draw.bar(label, [(rate, colour)] if rate else [], scale, digits(rate) if rate else "not measured")
    draw.y += 12
    draw.heading("Cache in host memory: the shape of Llama-3.1-8B, Q4_K, real text")
    for name in (LOSSLESS, LONG):
        draw.heading(f"{number(max(row['prompt_tokens'] for row in load(name)['rows']))} tokens", 12, "soft", below=19)
        for kind, label, colour in KINDS:
            rate = mean(_in_host_memory(name, kind), "tokens_per_s")
            draw.bar(label, [(rate, colour)], scale, digits(rate, 2 if rate < 10 else 3))
    return draw.svg()


def summary_time(theme):
    def bar(label, reading_ms, writing_ms, colour):
        total_s = (reading_ms + writing_ms) / 1000
        draw.bar(label, [(reading_ms / 1000, colour), (writing_ms / 1000, "writing")], scale,
                 f"{digits(total_s)} s: {digits(reading_ms / 1000, 2)} + {digits(writing_ms / 1000, 2)}")

    draw = Drawing(theme, "Seconds to summarize 61,440 tokens: llama.cpp, headrace, headrace lossless")
    draw.heading("Seconds to summarize 61,440 tokens", 16, below=22)
    draw.heading(f"One NVIDIA H200. Reading them, then writing {SUMMARY_TOKENS} tokens (yellow), at the rates that "
                 "were measured. Shorter is better.", 12, "soft", "normal", 26)
    plain = 1000 * SUMMARY_TOKENS / mean(_in_host_memory(LOSSLESS, None), "tokens_per_s")
    longest = (mean(_in_host_memory(LOSSLESS, None), "ttft_ms") + plain) / 1000
    scale = (WIDTH - LABELS - 2 * MARGIN - 130) / longest
    draw.heading("Cache in GPU memory: Qwen3.6-27B, Q4_K_M, random weights")
    for row, label, colour in zip(_beside_llama(61440), ("llama.cpp", "headrace"), ("other", "headrace")):
        bar(label, row["prefill_ms"], SUMMARY_TOKENS * row["decode_ms"], colour)
    draw.y += 12
    draw.heading("Cache in host memory: the shape of Llama-3.1-8B, Q4_K, real text")
    for kind, label, colour in KINDS:
        runs = _in_host_memory(LOSSLESS, kind)
        bar(label, mean(runs, "ttft_ms"), 1000 * SUMMARY_TOKENS / mean(runs, "tokens_per_s"), colour)
    return draw.svg()


def tiers(theme):
    spilled = load("bench_h200_llama-3.1-8b_spill_quarter.json")
    link, disk = spilled["link"]["to_device_gb_per_s"], find_one(
        "bench_h200_llama-3.1-8b_spill_quarter.json", kv="host")["decode"]["disk_gb_per_s"]
    memory = load("kernel_gpu_bench_h200.jsonl")[0]["ceilings"]["read_gb_per_s"]
    draw = Drawing(theme, "The tiers of the KV cache: GPU memory, pinned host memory, a disk")

    def tier(name, rate, cells):
        draw.box(MARGIN, draw.y, WIDTH - 2 * MARGIN, 86, "box", "line", 6)
        draw.text(MARGIN + 12, draw.y + 22, name, 14, weight="bold")
        draw.text(WIDTH - MARGIN - 12, draw.y + 22, rate, 12, "soft", "end")
        x, width = MARGIN + 12, (WIDTH - 2 * MARGIN - 24 - 8 * (len(cells) - 1)) / len(cells)
        for first, second, colour in cells:
            draw.box(x, draw.y + 34, width, 42, "box", colour, 4)
            draw.text(x + width / 2, draw.y + 52, first, 12, anchor="middle")
            draw.text(x + width / 2, draw.y + 68, second, 12, "soft", "middle")
            x += width + 8
        draw.y += 86

    def stream(words):
        draw.arrow(WIDTH - MARGIN - 88, draw.y + 36, draw.y + 2)
        draw.text(WIDTH - MARGIN - 110, draw.y + 24, words, 12, "soft", "end")
        draw.y += 38

    tier("GPU memory", f"compute reads it at {digits(memory, 4)} GB/s", [
        ("weights", "of the model and a draft", "line"), ("KV cache", "as far as it fits", "headrace"),
        ("a smaller copy of all of it", "read by most passes", "lossless"),
        ("ring of buffers", "64 or 128 MiB", "line")])
    stream(f"a full pass streams these rows through the ring, ahead of the compute: {digits(link, 2)} GB/s")
    tier("Pinned host memory", "locked, so that copies run beside the compute",
         [("KV cache", "what the GPU has no room for", "headrace")])
    stream(f"read ahead, checksums compared: {digits(disk, 2)} GB/s")
    tier("Disk", "optional (--spill)", [("KV cache", "what host memory has no room for", "headrace")])
    draw.y += 8
    draw.heading("Rates: an NVIDIA H200 on PCIe 5.0 x16, and its machine's disk.", 12, "soft", "normal", 12)
    return draw.svg()


def pictures():
    """The text of each file, by its path from the root."""
    drawings = {"tiers": tiers, "tokens-by-context": tokens_by_context, "summary-time": summary_time}
    return {f"docs/pictures/{name}-{theme}.svg": draw(theme) for theme in THEMES for name, draw in drawings.items()}
