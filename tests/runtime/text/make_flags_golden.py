"""tests/data/tokenizers/flags.json: what the Hugging Face `tokenizers` library does with added tokens' flags, Metaspace,
prefix spaces, unknown characters, broken byte runs, and with the split patterns of families that have no vocabulary here.

    pip install tokenizers && python3 tests/runtime/text/make_flags_golden.py tests/data/tokenizers"""
import copy
import itertools
import json
import os
import random
import sys

from tokenizers import Tokenizer


def added(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def main(folder):
    gpt2 = json.load(open(os.path.join(folder, "gpt2.tokenizer.json")))
    qwen2 = json.load(open(os.path.join(folder, "qwen2.tokenizer.json")))
    llama2 = json.load(open(os.path.join(folder, "llama2.tokenizer.json")))
    llama3 = json.load(open(os.path.join(folder, "llama3.tokenizer.json")))
    rng = random.Random(5)
    cases = []

    def case(name, base, changes, texts, ids=()):
        data = copy.deepcopy(base)
        del data["_name"]
        for pointer, value in changes.items():
            *parents, last = pointer.split("/")
            at = data
            for key in parents:
                at = at[int(key) if isinstance(at, list) else key]
            at[last] = value
        tokenizer = Tokenizer.from_str(json.dumps(data))
        rows = []
        for text in texts:
            row = {"text": text, "ids": tokenizer.encode(text).ids}
            tokenizer.encode_special_tokens = True
            row["as_text"] = tokenizer.encode(text, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = False
            if "prepended" not in name:  # there 0.23 writes "\u2581</s>" for </s> and does not know it as special
                row["decoded"] = tokenizer.decode(row["ids"], skip_special_tokens=False)
                row["decoded_plain"] = tokenizer.decode(row["ids"], skip_special_tokens=True)
            rows.append(row)
        decodes = [{"ids": i, "decoded": tokenizer.decode(i, skip_special_tokens=False)} for i in ids]
        cases.append({"name": name, "base": base["_name"], "changes": changes, "rows": rows, "decodes": decodes})

    def mixed(words, count):
        return ["".join(rng.choice(words) for _ in range(rng.randrange(1, 14))) for _ in range(count)]

    for base, name in ((gpt2, "gpt2"), (qwen2, "qwen2"), (llama2, "llama2"), (llama3, "llama3")):
        base["_name"] = name
    words = ["<|a|>", "<|b|>", "<|c|>", "<|d|>", "<|a|><", "<|", " ", "  ", "\n", "\u3000", "x", "word", "9", "_", "\u00e9",
             "e\u0301", "run", ".", "\t"]
    tokens = [added(2000, "<|a|>", lstrip=True), added(2001, "<|b|>", rstrip=True), added(2002, "<|c|>", single_word=True),
              added(2003, "<|d|>", lstrip=True, rstrip=True)]
    case("strip and single word", gpt2, {"added_tokens": tokens}, mixed(words, 60))
    longer = [added(2000, "<|a|>"), added(2001, "<|a|><|b|>"), added(2002, "run", special=False, normalized=True,
                                                                   single_word=True),
              added(2003, "caf\u00e9", special=False, normalized=True)]
    words += ["cafe\u0301", "caf\u00e9", "cafe"]
    # Overlaps: "\n" is found in the white space that <|b|> takes; a character that is a token only as an added one.
    overlaps = [*tokens, added(2004, "\n", special=False, normalized=True, rstrip=True),
                added(2005, "  ", special=False, lstrip=True), added(87, "x", special=False, single_word=True)]
    case("strips that overlap", gpt2, {"added_tokens": overlaps}, mixed(words + ["\u24d0", "\U0001f131"], 80))
    case("longest, normalized", qwen2, {"added_tokens": longer}, mixed(words, 60))
    case("normalized, prepended", llama2, {"added_tokens": [
        added(0, "<unk>"), added(1, "<s>", normalized=True), added(2, "</s>", normalized=True)]},
        mixed(["<s>", "</s>", "a", " ", "word", "\n", "<unk>"], 40))
    case("prefix space", gpt2, {"pre_tokenizer/add_prefix_space": True}, mixed(words, 30))
    text = [*mixed(["a", " ", "  ", "\u2581", "<s>", "the", "cat", "\n", "\u65e5", ".", "</s>"], 30), "", " ", "\u2581"]
    for scheme, split in itertools.product(("first", "always", "never"), (True, False)):
        case(f"metaspace {scheme} {split}", llama2, {"normalizer": None, "pre_tokenizer": {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}}, text)
    spaced = [added(0, "<unk>"), added(1, "<s>", lstrip=True, rstrip=True), added(2, "</s>", rstrip=True),
              added(2000, "tier", special=False, normalized=True, lstrip=True, rstrip=True),
              added(2001, "cat", special=False, normalized=True, lstrip=True, single_word=True),
              added(2002, " a", special=False, normalized=True), added(2003, "\u24d0", special=False, normalized=True)]
    prepend, replace = {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "},
                                                                  "content": "\u2581"}
    strips = mixed(["a", " ", "  ", "\u2581", "<s>", "tier", "cat", "\n", "\u24d0", ".", "</s>", "s"], 40)
    for name, steps in (("none", None), ("prepend", prepend), ("replace", replace),
                        ("both", {"type": "Sequence", "normalizers": [prepend, replace]})):
        for scheme in ("first", "always", "never", None):
            metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": True}
            case(f"prepended {name}, metaspace {scheme}, strips", llama2, {
                "normalizer": steps, "pre_tokenizer": metaspace if scheme else None, "added_tokens": spaced}, strips)
    odd = mixed(["a", "\u65e5", "\u672c", "\U0001f642", " ", "\n", "\u0301"], 40)
    for fallback, fuse in itertools.product((True, False), (True, False)):
        case(f"unknown {fallback} {fuse}", llama2, {"model/byte_fallback": fallback, "model/fuse_unk": fuse}, odd)
    runs = [[rng.choice((3 + 0xE6, 3 + 0x97, 3 + 0xA5, 3 + 0x41, 3 + 0xFF, 3 + 0xC3, 300, 259, 0, 1)) for _ in
             range(rng.randrange(1, 9))] for _ in range(120)]
    case("byte runs", llama2, {}, ["\u65e5"], runs)
    case("bytes in tokens", gpt2, {}, ["\u65e5"], [[rng.randrange(90, 256) for _ in range(rng.randrange(1, 9))]
                                               for _ in range(120)])
    template = {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                                                    "use_regex": True},
                {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {
                    "Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}],
                 "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                 "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [2000], "tokens": ["<|endoftext|>"]},
                                    "x": {"id": "x", "ids": [87], "tokens": ["x"]}}}]}
    case("post-processors", gpt2, {"post_processor": template}, ["", "a b", "<|endoftext|>"])
    words = ["'S", "'ll", "'d", " ", "  ", "\n", "\r\n", "\t", "\u3000", "the", "The", "\u00e9", "e\u0301", "1", "42", "\u00b2",
             "...", "!", "/", "_", "\u65e5", "\U0001f642"]
    case("pre dbrx", llama3, {"model/ignore_merges": False, "post_processor": None}, mixed(words, 60))
    seed = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|"
            "\\s+(?!\\S)|\\s+")
    case("pre seed-coder", qwen2, {"normalizer": None, "pre_tokenizer/pretokenizers/0/pattern/Regex": seed},
         mixed(words, 60))
    # Qwen3.5: marks are part of words, and no punctuation. Without NFC, as llama.cpp reads GGUF files of it.
    marked = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
              r"\s*[\r\n]+|\s+(?!\S)|\s+")
    case("pre qwen35", qwen2, {"normalizer": None, "pre_tokenizer/pretokenizers/0/pattern/Regex": marked},
         mixed(["'ll", "\u0301", "\u0301'll", "x\u0302y", "x\u0302'll", "\u0915\u093f", "\u20dd", "\u0e34", ".",
                ".\u0301", " ", "\n", "the", "42"], 60))
    with open(os.path.join(folder, "flags.json"), "w") as file:
        json.dump(cases, file)


if __name__ == "__main__":
    main(sys.argv[1])
