"""The runs of same_bits.py. A run has a name, the files that it reads, and steps: argument lists of the program, in
which {wide} is a model's folder, {text 1300} a file with so many bytes of text, {text 1300 200} one with 200 bytes of
another text behind them, {prose 1300} the beginning of the license, {dir} the run's own folder and {prefixes} its
folder of saved prefixes. All models are random and tiny (same_bits_models.py) except
those of `real`.

What depends on time, such as trees of automatic size, can change how a text is made, not the text. So a run's counts
(steps, proposed and accepted tokens) are compared only where all sizes are fixed and something streams.
"""

import itertools
import json

from same_bits_models import FAMILIES

TEMPERATURES = (("cold", ["--temp", "0"]), ("warm", ["--temp", "0.8", "--seed", "7"]))
DRAFTS = {
    "none": [],
    "ngram": ["--spec-type", "ngram-simple"],  # has no tree
    "small": ["--spec-type", "draft-simple", "-md", "{small}"],
    "eagle3": ["--spec-type", "draft-eagle3", "-md", "{eagle3}"],
    "longspec": ["--spec-type", "draft-longspec", "-md", "{longspec}"],
}
BOTH = {name + "+ngram": [args[0], args[1] + ",ngram-simple", *args[2:]]
        for name, args in DRAFTS.items() if name in ("small", "eagle3", "longspec")}
TREES = ("chain:4", "eagle2:20,4,4", "opt:20,4,0.7", "beams:2,4,4")
PARTIAL = {"int8": ["--partial-kv", "int8"], "int4": ["--partial-kv", "int4"],
           "blocks": ["--partial-kv", "blocks", "--partial-budget", "256"]}
TREE = ["--tree", "eagle2:12,4,3"]


def with_tree(name):
    """A draft and the size of what it proposes."""
    return DRAFTS[name] + {"none": [], "ngram": ["--spec-draft-n-max", "4"]}.get(name, TREE)


def fixed(args):
    """Whether no size of a step depends on time."""
    given = dict(zip(args, args[1:]))
    if "--preset" in given:
        return True
    if "--spec-type" in given and not {"--tree", "--spec-draft-n-max"} & set(args):
        return False
    mode = given.get("--verify", "auto")
    if given.get("--spec-type") == "ngram-simple" and mode != "approximate":  # times cut what it finds
        return False
    if mode == "auto" and {"--kv", "--spill", "--vram"} & set(args):
        mode = "lossless"
    # A lossless run measures whether partial steps pay, unless the KV cache is streamed.
    return mode != "lossless" or (given.get("--refresh-interval", "auto") != "auto" and "--kv" in given)


def verified(args):
    """With a mode in the place of auto, which depends on memory and on rates."""
    if {"--verify", "--preset"} & set(args):
        return list(args)
    return [*args, "--verify", "lossless" if {"--spec-type", "--partial-kv"} & set(args) else "full"]


def generate(model, prompt, *more, tokens=32, kind="text"):
    return ["generate", "-m", "{%s}" % model, "-f", "{%s %s}" % (kind, prompt), "-n", str(tokens), "--ignore-eos",
            "--json", "-q", *verified(more)]


def batch(model, *more, tokens=24):
    return ["batch", "-m", "{%s}" % model, "-i", "{dir}/requests.jsonl", "-o", "{dir}/answers.jsonl", "-n", str(tokens),
            "--ignore-eos", "-q", "--chat-template", "chatml", *verified(more)]


def requests(*bodies):
    """The file that batch() reads: {words 300} in a text is so many bytes of text."""
    lines = []
    for i, body in enumerate(bodies):
        url = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        lines.append(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": {"model": "m", **body}}))
    return {"requests.jsonl": "".join(line + "\n" for line in lines)}


def scored(prompt, **more):
    return {"prompt": "{words %s}" % prompt, "logprobs": 5, **more}


def user(text):
    return {"role": "user", "content": text}


class Table:
    def __init__(self, device):
        self.device, self.runs = device, []

    def add(self, name, *steps, files=None, env=None):
        self.runs.append({"run": name, "steps": list(steps), "files": files or {}, "env": env or {}})

    def logits(self, name, model, prompt, *more, env=None):
        """A completion with the log-probabilities of its tokens and of those beside them: they show a changed bit."""
        self.add(name, batch(model, *more), files=requests(scored(prompt)), env=env)


def families(table):
    for family in FAMILIES:
        for name, temperature in TEMPERATURES:
            table.logits(f"family/{family}/{name}", family, "300", *temperature)
        table.logits(f"family/{family}/f32", family, "300", "--dtype", "f32")
        table.add(f"family/{family}/lossless",
                  generate(family, "600", *with_tree("ngram"), "--verify", "lossless",
                           *PARTIAL["blocks"][:2], "--partial-budget", "64", "--refresh-interval", "6", "--kv", "host"))


def cache_types(table):
    types = ("bf16", "f16", "f32", "int8")
    for k, v in itertools.product(types, types):
        table.logits(f"cache/wide/{k},{v}", "wide", "700", "-ctk", k, "-ctv", v)
    for k, v in (("f16", "f16"), ("int8", "int8"), ("bf16", "int8"), ("f32", "f32")):
        table.logits(f"cache/long/{k},{v}", "long", "700", "-ctk", k, "-ctv", v)
        table.logits(f"cache/deep/{k},{v}", "deep", "700", "-ctk", k, "-ctv", v)
    for kind in ("f32", "f16", "int8"):
        table.logits(f"cache/wide/f32/{kind}", "wide", "700", "--dtype", "f32", "-ctk", kind, "-ctv", kind)


def weights(table):
    for kind in ("keep", "dtype", "bf16", "q8_0", "q6_k", "q5_k", "q4_k"):
        table.logits(f"weights/wide/{kind}", "wide", "500", "--weights", kind)
        table.logits(f"weights/wide/{kind}/int8,warm", "wide", "500", "--weights", kind, "-ctk", "int8", "-ctv", "int8",
                     *TEMPERATURES[1][1])
    for kind in ("q8_0", "q6_k", "q5_k", "q4_k"):
        table.logits(f"weights/long/{kind}", "long", "500", "--weights", kind, "--dtype", "f32")
    for draft in ("small", "eagle3"):
        table.add(f"weights/draft/{draft}", generate("wide", "500", "--weights", "q4_k", *DRAFTS[draft], *TREE,
                                                     "--verify", "full", *TEMPERATURES[1][1]))


def lengths(table):
    for length in (1, 2, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1025, 2047, 2049, 4097):
        table.logits(f"length/{length}", "wide", str(length))
    table.add("length/17000", generate("deep", "17000"))
    table.add("length/17000/lossless", generate("deep", "17000", "--verify", "lossless", *PARTIAL["int4"], "--kv",
                                                "host", "--refresh-interval", "10"))
    table.add("length/answer of 600", generate("wide", "450", tokens=600))
    table.add("length/end token", [arg for arg in generate("wide", "80", tokens=2000) if arg != "--ignore-eos"])


def places(table):
    for place, kind in itertools.product(("device", "host"), ("bf16", "f16", "int8")):
        for name, temperature in TEMPERATURES:
            table.logits(f"place/{place}/{kind}/{name}", "wide", "2100", "--kv", place, "-ctk", kind, "-ctv", kind,
                         *temperature)
    table.logits("place/host/2 threads", "wide", "2100", "--kv", "host", "-t", "2")
    # On a CPU the limits are the whole memory of a run, of which the disk takes a part.
    limits = {"bf16": ("14MiB", "25MiB"), "int8": ("11MiB", "20MiB"), "f32": ("26MiB", "38MiB")}
    for kind, (plain, partial) in limits.items():
        common = ["-ctk", kind, "-ctv", kind, "--spill", "{dir}/spill", "-c", "6100", "--kv", "host", "--host-mem"]
        table.add(f"place/disk/{kind}", generate("deep", "6000", *common, plain if table.device == "cpu" else "4MiB"))
        table.add(f"place/disk/{kind}/lossless",
                  generate("deep", "6000", *common, partial if table.device == "cpu" else "4MiB", "--verify",
                           "lossless", *PARTIAL["blocks"], "--refresh-interval", "8", "--temp", "0.8"))


def drafts(table):
    for (name, draft), tree in itertools.product({**DRAFTS, **BOTH}.items(), TREES):
        if name in ("none", "ngram"):
            continue
        for warmth, temperature in TEMPERATURES:
            table.add(f"draft/{name}/{tree}/{warmth}",
                      generate("wide", "700", *draft, "--tree", tree, "--verify", "full", *temperature))
    for name, temperature in TEMPERATURES:
        table.add(f"draft/ngram/{name}", generate("wide", "700", *with_tree("ngram"), "--verify", "full", *temperature))
    for name, draft in {**DRAFTS, **BOTH}.items():
        table.add(f"draft/{name}/auto", generate("wide", "700", *draft, "--verify", "full", *TEMPERATURES[1][1]))
    for name in ("eagle3", "small"):
        common = ["--verify", "full", *TREE, *TEMPERATURES[1][1]]
        for label, more in (("at most 2", ["--spec-draft-n-max", "2"]), ("window 320", ["--draft-window", "320"]),
                            ("window 0", ["--draft-window", "0"]), ("retrieval", ["--draft-cache", "retrieval:8,16,2"]),
                            ("yarn", ["--draft-rope-scaling", "yarn", "--draft-rope-scale", "2"]),
                            ("q5_k", ["--weights", "q5_k"])):
            table.add(f"draft/{name}/{label}", generate("wide", "1300", *DRAFTS[name], *more, *common))


def lossless(table):
    common = ["--verify", "lossless", "--kv", "host"]
    for (kind, partial), name in itertools.product(PARTIAL.items(), DRAFTS):
        for warmth, temperature in TEMPERATURES:
            table.add(f"lossless/{kind}/{name}/{warmth}", generate("wide", "1300", *with_tree(name), *common, *partial,
                                                                   "--refresh-interval", "8", *temperature))
        table.add(f"lossless/{kind}/{name}/auto",
                  generate("wide", "1300", *DRAFTS[name], "--verify", "lossless", *partial))
    for (kind, partial), interval in itertools.product(PARTIAL.items(), ("1", "32", "192")):
        table.add(f"lossless/{kind}/interval {interval}",
                  generate("wide", "1300", *DRAFTS["eagle3"], *TREE, *common, *partial, "--refresh-interval", interval,
                           *TEMPERATURES[1][1], tokens=64))
    for (kind, partial), cache in itertools.product(PARTIAL.items(), ("f16", "f32", "int8")):
        table.add(f"lossless/{kind}/cache {cache}",
                  generate("long", "1300", *common, *partial, "-ctk", cache, "-ctv", cache, *with_tree("ngram"),
                           "--refresh-interval", "12"))
    for kind, partial in PARTIAL.items():
        table.logits(f"lossless/{kind}/logits", "wide", "1300", *DRAFTS["small"], *common, *partial)


def approximate(table):
    for (kind, partial), name in itertools.product(PARTIAL.items(), DRAFTS):
        for warmth, temperature in TEMPERATURES:
            table.add(f"approximate/{kind}/{name}/{warmth}",
                      generate("wide", "1300", *with_tree(name), "--verify", "approximate", *partial,
                               "--refresh-interval", "8", *temperature))
    common = ["--verify", "approximate", *DRAFTS["eagle3"], *PARTIAL["blocks"], *TREE, *TEMPERATURES[1][1]]
    for flag, values in (("score", ("quest", "specpv", "recent")), ("reduce", ("mean", "max", "last")),
                         ("queries", ("recent", "tree")), ("window", ("64", "192"))):
        for value in values:
            table.add(f"approximate/block {flag} {value}", generate("wide", "1300", *common, f"--block-{flag}", value))
    table.add("approximate/specpv", generate("wide", "5000", "--preset", "specpv", "-md", "{eagle3}",
                                            *TEMPERATURES[1][1]))
    table.logits("approximate/logits", "wide", "1300", "--verify", "approximate", *PARTIAL["blocks"])


def prefixes(table):
    """Saved, then hit by the same prompt, by a longer one and by one that differs from the middle on."""
    saved = ["--prefix-cache", "{prefixes}"]
    kinds = {
        "plain": [], "int8": ["-ctk", "int8", "-ctv", "int8"], "f16": ["-ctk", "f16", "-ctv", "f16"],
        "host": ["--kv", "host"], "q4_k": ["--weights", "q4_k"], "f32": ["--dtype", "f32"],
        "warm": TEMPERATURES[1][1],
        "lossless": ["--kv", "host", "--verify", "lossless", *PARTIAL["int8"], "--refresh-interval", "8"],
        "blocks": ["--verify", "approximate", *PARTIAL["blocks"], *with_tree("ngram")],
    }
    for name in ("small", "eagle3", "longspec"):
        kinds[name] = [*DRAFTS[name], *TREE, "--verify", "full", *TEMPERATURES[1][1]]
    for name, more in kinds.items():
        table.add(f"prefix/{name}", generate("wide", "2400", *saved, *more), generate("wide", "2400", *saved, *more),
                  generate("wide", "2900", *saved, *more), generate("wide", "1200 1300", *saved, *more))
    table.add("prefix/batch", batch("wide", *saved), files=requests(*(scored(f"{n}") for n in (2400, 2900, 2200))))
    summary = ["summarize", "{text 2400}", "-m", "{wide}", "-n", "16", "--json", "-q", *saved]
    table.add("prefix/summarize", [*summary, "--instruction", "One."], [*summary, "--instruction", "Another one?"])


def batches(table):
    sampled = ({"temperature": 0.9, "top_k": 20, "seed": 3}, {"temperature": 0.9, "top_p": 0.7, "seed": 4},
               {"temperature": 1.3, "min_p": 0.1, "seed": 5}, {"temperature": 0}, {"stop": ["w3", "e"]},
               {"max_tokens": 5})
    mixed = requests(*(scored(f"{400 + 37 * i}", **body) for i, body in enumerate(sampled)),
                     {"messages": [{"role": "system", "content": "{words 90}"}, user("{words 300}"),
                                   {"role": "assistant", "content": "{words 10 40}"}, user("{words 20}")],
                      "logprobs": True, "top_logprobs": 4},
                     {"messages": [user("{words 1400}")], "logprobs": True}, {"messages": [user("{words 1700}")]},
                     {"prompt": "{words 2300}"})
    for name, more in (("plain", []), ("in order", ["--in-order"]), ("host", ["--kv", "host"]),
                       ("int8", ["-ctk", "int8", "-ctv", "int8"]), ("eagle3", DRAFTS["eagle3"]),
                       ("ngram", DRAFTS["ngram"]), ("lossless", ["--verify", "lossless", *PARTIAL["blocks"]]),
                       ("approximate", ["--verify", "approximate", *PARTIAL["int4"]]), ("warm", TEMPERATURES[1][1])):
        table.add(f"batch/{name}", batch("wide", *more), files=mixed)
    table.add("batch/two engines", batch("wide", "--devices", "{devices}"), files=mixed)


def conversations(table):
    for template in ("chatml", "llama2", "mistral", "qwen3"):
        table.add(f"template/{template}", generate("wide", "90", "--chat-template", template, "--system", "Be brief."))
    table.add("template/none", generate("wide", "90", "--no-chat-template"))
    questions = {"questions": "What?\nAnd then what about this?\n/new\nWhy?\n"}
    for name, more in (("plain", []), ("host", ["--kv", "host"]), ("int8", ["-ctk", "int8", "-ctv", "int8"]),
                       ("eagle3", DRAFTS["eagle3"]), ("small", DRAFTS["small"]), ("warm", TEMPERATURES[1][1]),
                       ("lossless", ["--verify", "lossless", *PARTIAL["blocks"], "--kv", "host"])):
        table.add(f"chat/{name}", ["chat", "{text 900}", "-m", "{wide}", "-c", "4096", "-n", "20", "--ignore-eos",
                                   "--json", "-q", "--chat-template", "chatml", *more], files=questions)
    summary = ["summarize", "{text 700}", "{text 900}", "-m", "{wide}", "-n", "16", "--ignore-eos", "--json", "-q"]
    for name, more in (("plain", []), ("ngram", DRAFTS["ngram"]), ("eagle3", [*DRAFTS["eagle3"], *TREE]),
                       ("middle", ["-c", "600", "--truncate", "middle"]), ("split", ["-c", "700", "--long", "split"]),
                       ("approximate", ["--verify", "approximate", *PARTIAL["blocks"]])):
        table.add(f"summarize/{name}", [*summary, *more])


def positions(table):
    for name, more in (("linear", ["--rope-scaling", "linear", "--rope-scale", "4"]),
                       ("yarn", ["--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "512"]),
                       ("none", ["--rope-scaling", "none"]), ("base", ["--rope-freq-base", "500000"])):
        table.logits(f"rope/{name}", "wide", "900", *more)


def instruction_sets(table):
    """A machine that lacks one answers with an error, which is compared like an answer."""
    if table.device != "cpu":
        return
    for isa in ("baseline", "avx2", "avx512"):
        env = {"HEADRACE_ISA": isa}
        for name, more in (("bf16", []), ("int8", ["-ctk", "int8", "-ctv", "int8"]), ("f32", ["--dtype", "f32"]),
                           ("q4_k", ["--weights", "q4_k"]),
                           ("blocks", ["--verify", "approximate", *PARTIAL["blocks"]])):
            table.logits(f"isa/{isa}/{name}", "wide", "900", *more, env=env)


def real(table):
    """SmolLM2 as a GGUF file, and published drafts for it where HEADRACE_TEST_MODELS has them."""
    def prose(length, *more):
        return generate("smollm2", length, *more, tokens=40, kind="prose")

    published = {"small": ["--spec-type", "draft-simple", "-md", "{published}/small-lm"],
                 "eagle3": ["--spec-type", "draft-eagle3", "-md", "{published}/eagle3"],
                 "longspec": ["--spec-type", "draft-longspec", "-md", "{published}/longspec"]}
    for name, more in (("plain", []), ("warm", TEMPERATURES[1][1]), ("dtype", ["--weights", "dtype"]),
                       ("int8", ["-ctk", "int8", "-ctv", "int8"]), ("host", ["--kv", "host"])):
        table.logits(f"real/{name}", "smollm2", "1200", *more)
    streamed = ["--verify", "lossless", "--kv", "host", "--refresh-interval", "16"]
    for kind, partial in PARTIAL.items():
        table.add(f"real/lossless/{kind}", prose(5000, *partial, *streamed))
    for name, draft in published.items():
        table.add(f"real/{name}", prose(3000, *draft, *TREE, "--verify", "full"))
        table.add(f"real/{name}/lossless", prose(3000, *draft, *TREE, *streamed, *PARTIAL["int8"]))
    saved = ["--prefix-cache", "{prefixes}"]
    table.add("real/prefix", prose(4000, *saved), prose(5000, *saved))


def runs(device):
    table = Table(device)
    for part in (families, cache_types, weights, lengths, places, drafts, lossless, approximate, prefixes, batches,
                 conversations, positions, instruction_sets, real):
        part(table)
    return table.runs
