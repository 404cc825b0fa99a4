"""tests/data/tokenizers/chat.json: prompts that transformers' apply_chat_template renders and tokenises.

The templates below are short ones of our own in the published forms (the same strings in the same places); the
tokenizers are tests/data/tokenizers/*.tokenizer.json, for ChatML and Qwen3 with their own special tokens.
    pip install transformers jinja2 && python3 tests/runtime/text/make_chat_golden.py tests/data/tokenizers"""
import json
import os
import sys

from transformers import PreTrainedTokenizerFast

LOOP = "{% for message in messages %}"
CHATML = (LOOP + "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
DEFAULT = ("{% if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\\nYou are Test, made by \\'us\\'. Be kind."
           "<|im_end|>\\n' }}{% endif %}")
QWEN3 = CHATML.replace("assistant\n' }}", "assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}"
                       "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}")
LLAMA3 = (LOOP + "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] "
          "| trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
          "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}")
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{#- <|im_start|> in a comment is no marker #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}"
          "{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}{% for message in loop_messages %}"
          "{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + "
          "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
          "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% endfor %}")
MISTRAL = ("{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set messages = messages[1:] %}"
           "{%- endif %}{{- bos_token }}{%- for message in messages %}{%- if loop.last and system is defined %}"
           "{{- 'OPEN' + system + '\\n\\n' + message['content'] + 'CLOSE' }}{%- else %}"
           "{{- 'OPEN' + message['content'] + 'CLOSE' }}{%- endif %}{%- endfor %}")


def mistral(opening, closing):
    return MISTRAL.replace("OPEN", opening).replace("CLOSE", closing)


CASES = [  # name, family, tokenizer, its bos, the template
    ("chatml", "chatml", "qwen2", None, CHATML),
    ("chatml-default", "chatml", "qwen2", None, DEFAULT + CHATML),
    ("chatml-bos", "chatml", "llama3+chatml", "<|begin_of_text|>", "{{ bos_token }}" + CHATML),
    ("chatml-trim", "chatml", "qwen2", None, CHATML.replace("message['content']", "message['content'] | trim")),
    ("qwen3", "qwen3", "qwen2+think", None, QWEN3),
    ("llama3", "llama3", "llama3", "<|begin_of_text|>", LLAMA3),
    ("llama31", "llama3", "llama3", "<|begin_of_text|>", LLAMA31),
    ("llama2", "llama2", "llama2", "<s>", LLAMA2),
    ("mistral-v1", "mistral", "llama2", "<s>", mistral("[INST] ", " [/INST]")),
    ("mistral-v3", "mistral", "llama2+inst", "<s>", mistral("[INST] ", "[/INST]")),
    ("mistral-tekken", "mistral", "llama3+inst", "<|begin_of_text|>", mistral("[INST]", "[/INST]")),
]
ADDED = {"chatml": ["<|im_start|>", "<|im_end|>"], "think": ["<think>", "</think>"], "inst": ["[INST]", "[/INST]"]}
MESSAGES = [
    {"system": "", "user": "What is a headrace?"},
    {"system": "Be brief.", "user": "What is a headrace?"},
    {"system": "  Spaces around.\n", "user": " \n  spaces here, too \n\n"},
    {"system": "", "user": "na\u00efve caf\u00e9 \u65e5\u672c \U0001f642\nline 2\n"},
]


def with_added(tokenizer, names):
    """Added as such files have them: '<think>' is not special, '[INST]' and the others are."""
    data = json.loads(tokenizer)
    for name in names:
        ids = [t["id"] for t in data["added_tokens"]]
        data["added_tokens"].append({"id": max(ids + list(data["model"]["vocab"].values())) + 1, "content": name,
                                     "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                                     "special": "think" not in name})
    return data


def main(folder):
    rows = []
    for name, family, kind, bos, template in CASES:
        base, _, added = kind.partition("+")
        with open(os.path.join(folder, base + ".tokenizer.json")) as file:
            data = with_added(file.read(), ADDED.get(added, []))
        path = "/tmp/chat-tokenizer.json"
        json.dump(data, open(path, "w"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, bos_token=bos, chat_template=template)
        prompts = []
        for m in MESSAGES:
            messages = [{"role": "system", "content": m["system"]}] if m["system"] else []
            messages += [{"role": "user", "content": m["user"]}]
            settings = {"add_generation_prompt": True, "enable_thinking": False}
            text = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
            ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **settings)["input_ids"]
            prompts.append({**m, "text": text, "ids": ids})
        rows.append({"name": name, "family": family, "tokenizer": base, "added": data["added_tokens"], "template": template,
                     "prompts": prompts})
    with open(os.path.join(folder, "chat.json"), "w") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
