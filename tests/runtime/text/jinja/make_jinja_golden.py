#!/usr/bin/env python3
"""Writes tests/data/jinja/rendered.json: small templates and what jinja2 makes of them, set up as transformers does.

    pip install jinja2==3.1.6 && python3 tests/runtime/text/jinja/make_jinja_golden.py
"""
import json
import pathlib

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


VARIABLES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hi <|end|> \"you\"\n"},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes é中😀"}]},
    ],
    "numbers": [3, 1, 2, 3, -7, 0],
    "d": {"b": 2, "a": 1, "C": [1, {"x": None}], "items": "a key"},
    "empty": {}, "none": None, "yes": True, "no": False, "pi": 3.25, "big": 1e22, "tiny": 1e-7, "s": "Hello World",
    "bos_token": "<s>", "quotes": "it's \"both\" \\ \t\x01\x7f", "lines": "one\n\ntwo\r\nthree\n", "u": "É é ß 中 😀 x",
    "people": [{"name": "Bo", "age": 3, "a": {"b": [5, 6]}}, {"name": "al", "age": 5, "a": {"b": [7, 8]}},
               {"name": "Cy", "age": 3, "a": {"b": [1]}}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "q": {"type": "string", "description": "<q> & 'more'"}}, "required": ["q"]}}}],
}

TEMPLATES = pathlib.Path(__file__).with_name("golden_templates.txt").read_text().split("\n====\n")


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["strftime_now"] = lambda form: "now in " + form
    cases = []
    for template in TEMPLATES:
        try:
            cases.append({"template": template, "text": env.from_string(template).render(**VARIABLES)})
        except Exception as error:
            print(f"{template!r}: {error}")
            raise
    out = pathlib.Path(__file__).parents[3] / "data/jinja/rendered.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"variables": VARIABLES, "cases": cases}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
