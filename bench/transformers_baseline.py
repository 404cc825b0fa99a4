"""What Hugging Face transformers does with the same model, document and question: the figure beside headrace summarize --json's.

  python3 transformers_baseline.py MODEL_DIR DOCUMENT [--threads N] [--new-tokens N] [--dtype bf16|f32] > result.json

MODEL_DIR is a Hugging Face directory (headrace's tests/support makes one of the GGUF). Greedy, one prefill, one token at a
time with the default cache. Needs torch and transformers.
"""
import argparse, json, os, resource, time

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

INSTRUCTION = "Write a short summary of the text above."


def machine():
    with open("/proc/cpuinfo", encoding="utf8") as f:
        name = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")
    return {"cpu": name, "cores": len(os.sched_getaffinity(0))}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("document")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--new-tokens", type=int, default=64)
    ap.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[a.dtype]
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype).eval()
    with open(a.document, encoding="utf8", errors="replace") as f:
        text = f.read().rstrip("\n") + "\n\n" + INSTRUCTION
    ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)["input_ids"]
    out, cache = [], DynamicCache()
    with torch.inference_mode():
        model(ids[:, :64], use_cache=False)  # warm up
        start = time.perf_counter()
        token = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].argmax()
        prefill_s = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(a.new_tokens):
            out.append(token.item())
            token = model(token.view(1, 1), past_key_values=cache, use_cache=True).logits[0, -1].argmax()
        decode_s = time.perf_counter() - start
    print(json.dumps({
        "program": "transformers " + transformers.__version__ + ", torch " + torch.__version__,
        "machine": machine(), "threads": a.threads, "dtype": a.dtype, "document": a.document,
        "prompt_tokens": ids.shape[1], "new_tokens": a.new_tokens,
        "prefill_tokens_per_s": ids.shape[1] / prefill_s, "decode_tokens_per_s": a.new_tokens / decode_s,
        "ttft_ms": prefill_s * 1000, "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "text": tokenizer.decode(out)}, indent=1))


if __name__ == "__main__":
    main()
