"""tests/data/jinja/table.json: what jinja2 makes of every filter, test and method that runtime/text/jinja has, on values of
every type, set up as transformers does. [expression, text], or null in place of the text where jinja2 fails.

    pip install jinja2 && python3 tests/data/jinja/make_table.py > tests/data/jinja/table.json"""
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

VALUES = ["none", "u", "''", "0", "[]", "{}", "'aB c'", "3", "-2.5", "true", "[1, 'x']", "{'k': 'v'}", "'a,b\\nC'", "[3, 1, 2]",
          "'12'", "[{'k': 2}, {'k': 1}]", "(1, 2)", "1.0", "'ß'", "' x '"]

# Filters with their arguments; those that give an iterator are listed.
FILTERS = ["upper", "lower", "title", "capitalize", "string", "escape", "e", "forceescape", "trim", "trim('a')", "replace('a', 'X')",
           "replace('a', 'X', 1)", "replace('', '-')", "indent", "indent(2, true)", "indent('>', blank=true)", "format(1)", "tojson",
           "tojson(indent=2)", "int", "int(7)", "float", "float(7)", "abs", "round", "round(1)", "round(0, 'ceil')",
           "round(0, 'floor')", "wordcount", "safe", "default('d')", "d('d')", "default('d', true)", "length", "count",
           "first", "last", "list", "items | list", "reverse | list", "join", "join(', ')", "join('-', attribute='k')", "sort",
           "sort(reverse=true)", "sort(attribute='k')", "dictsort", "dictsort(by='value')", "unique | list", "min", "max",
           "min(attribute='k')", "sum", "sum(attribute='k')", "sum(start=1)", "batch(2) | list", "batch(2, 'z') | list",
           "select | list", "reject | list", "select('string') | list", "reject('number') | list", "selectattr('k') | list",
           "rejectattr('k') | list", "selectattr('k', 'equalto', 1) | list", "rejectattr('k', 'eq', 1) | list", "map('upper') | list",
           "map(attribute='k') | list", "map(attribute='k', default='n') | list", "map('default', 'd') | list", "attr('k')",
           "groupby('k') | list"]
TESTS = ["boolean", "callable", "defined", "undefined", "none", "true", "false", "integer", "float", "number", "string", "mapping",
         "sequence", "iterable", "escaped", "lower", "upper", "filter", "test", "even", "odd", "divisibleby(3)", "sameas(3)",
         "sameas(none)", "eq(0)", "equalto('aB c')", "ne(0)", "lt(1)", "le(0)", "gt(0)", "ge(0)", "in([0, 'aB c'])", "in('aB c')"]
METHODS = ["strip()", "lstrip()", "rstrip()", "strip('a')", "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "rsplit()",
           "splitlines()", "splitlines(true)", "startswith('a')", "endswith(('c', 'x'))", "find('B')", "rfind('B')", "index('B')",
           "rindex('B')", "find('')", "rfind('')", "removeprefix('a')", "removesuffix('c')", "replace('a', 'X')", "replace('', '.', 2)",
           "count('a')", "count('')", "join(['p', 'q'])", "partition(',')", "rpartition(',')", "zfill(6)", "upper()", "lower()", "title()",
           "capitalize()", "isalpha()", "isdigit()", "isnumeric()", "isdecimal()", "isalnum()", "isspace()", "isupper()", "islower()",
           "format(1)", "get('k')", "get('x')", "get('x', 1)", "items() | list", "keys() | list", "values() | list", "copy()",
           "index(1)", "count(1)", "k", "append(1)", "update({})", "pop('k')"]
OTHERS = ["not %s", "-%s", "%s + 1", "%s + 'x'", "%s ~ 'x'", "%s * 2", "%s == 0", "%s < 1", "%s in 'aB c'", "1 in %s", "%s[0]", "%s['k']",
          "%s[:2]", "%s[::-1]", "%s.k", "'%%s!' %% %s", "%s and 1", "%s or 1", "1 if %s else 2", "%s // 2", "%s %% 2", "%s ** 2", "'%%d' %% %s",
          "'{}'.format(%s)", "'{:>6}'.format(%s)", "'{!r}'.format(%s)"]
FORMATS = ["'<{}:{}>'.format('a', b='b', *[])", "'<{}:{}>'.format('a', 'b')", "'{1}{0}{1}'.format('a', 'b')", "'{x} {y}'.format(x=1, y='z')",
           "'{{}}{}'.format(1)", "'{0.k}{0[k]}'.format({'k': 'v'})", "'{[1]}'.format([1, 2])", "'{:>5}|{:<5}|{:^5}'.format(1, 'a', 'b')",
           "'{:*^9}'.format('mid')", "'{:05d}'.format(-42)", "'{:+}'.format(3)", "'{: }'.format(3)", "'{:,}'.format(1234567)",
           "'{:.2f}'.format(3.14159)", "'{:8.3f}'.format(3.14159)", "'{:e}'.format(12345.678)", "'{:g}'.format(0.00001)", "'{:.1%}'.format(0.256)",
           "'{:x} {:X} {:o} {:b}'.format(255, 255, 8, 5)", "'{:.2}'.format('abcdef')", "'{!s:>4}'.format(1)", "'{} {0}'.format(1)", "'{}'.format()",
           "'{'.format(1)", "'}'.format(1)", "'{a}'.format(1)", "'{:d}'.format('a')", "'{:s}'.format(1)", "'{:d}'.format(1.5)", "'{:.2f}'.format(1)",
           "'{:,.2f}'.format(1234.5)", "'{:08.2f}'.format(-3.14159)", "'{:=+6d}'.format(7)", "'{:<8}|'.format(true)", "'{:d}'.format(true)",
           "'{:ß>4}'.format(1)", "'{!r}'.format('a')", "'{0}{x}'.format(1, x=2)", "'{:5}|'.format('ab')", "'{:5}|'.format(12)"]

# Generators that are printed show an address; jinja2's undefined prints as nothing.
SKIPPED = {"sequence": "ours take an iterable for one"}


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def expressions():
    for value in VALUES:
        for call in FILTERS:
            yield f"{value} | {call}" if not value.startswith("-") else f"({value}) | {call}"
        for test in TESTS:
            yield f"({value}) is {test}"
        for method in METHODS:
            yield f"({value}).{method}"
        for other in OTHERS:
            yield other % f"({value})"
    yield from FORMATS
    for pattern in ("range(%s) | list", "dict(%s)", "namespace(a=%s).a"):
        for value in VALUES:
            yield pattern % value


def main():
    env, rows = environment(), []
    for expression in expressions():
        try:
            text = env.from_string("{{ " + expression + " }}").render()
        except Exception:
            text = None
        if text is not None and " object at 0x" in text or text is not None and "<built-in" in text:
            continue
        rows.append([expression, text])
    print("[" + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "]")


main()
