"""tests/data/tokenizers/o200k.tokenizer.json and o200k.ids.json: a small vocabulary with the split pattern of o200k
(GPT-4o, gpt-oss), trained by the Hugging Face `tokenizers` library on the hard texts and this project's pages, and what
that library makes of the hard texts.

    pip install tokenizers && python3 tests/runtime/text/make_o200k_golden.py tests/data/tokenizers docs"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

WORD_END = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERN = "|".join([
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{WORD_END}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{WORD_END}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SPECIAL = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
           "<|message|>", "<|call|>"]


def main(folder, pages):
    folder = pathlib.Path(folder)
    texts = [row["text"] for row in json.loads((folder / "gpt2.ids.json").read_text())]
    corpus = texts + [path.read_text() for path in sorted(pathlib.Path(pages).glob("*.md"))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.save(str(folder / "o200k.tokenizer.json"), pretty=False)
    rows = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        rows.append({"text": text, "ids": ids, "ids_no_special": tokenizer.encode(text, add_special_tokens=False).ids,
                     "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    (folder / "o200k.ids.json").write_text(json.dumps(rows, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
