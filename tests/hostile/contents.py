"""Contents of files that nobody should bring: YAMLs, traces, and what hooks of policies answer."""

from __future__ import annotations

from tests.hostile.words import BIDI, ESC

ROWS = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n1,20,4\n"

_NEST = "".join(f"{'  ' * level}a:\n" for level in range(300))
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{two}: &{two} [{','.join([f'*{one}'] * 9)}]\n" for one, two in zip("abcdefgh", "bcdefghi", strict=True)
)
_TEXTS = tuple(
    text.encode()
    for text in (
        *(
            "",
            "no",
            "text",
            "[1, 2]",
            "policy: no",
            "a: b: c",
            "a: [",
            "\ta: 1",
            "a: &a [*a]",
            "a: *a",
            "? [a]\n: 1",
            "1: 2",
            "a: 1\na: 2",
        ),
        *(
            f"a: {'9' * 5000}",
            f"{ESC}: 1",
            f"a: '{BIDI}'",
            "a: !!python/object/apply:os.system [ls]",
            "!!binary x",
            "--- 1\n--- 2",
        ),
        *(
            "defaults: no",
            "defaults: [x]",
            "defaults: [{a: b}]",
            "defaults: [_self_, {x: [1]}]",
            "defaults: [{override /gpu: zz}]",
        ),
        *(
            "# @package _global_\npolicy: no",
            "# @package a.b.c\nx: 1",
            "# @package\nx: 1",
            "_target_: os.system\ncommand: ls",
        ),
        *(
            "_target_: nothing.there",
            "_target_: 3",
            "_target_: ''",
            "_target_: framework.system.gpu.Gpu",
            "_target_: [a]",
            "{}",
        ),
        *(
            "name: ${x}",
            "name: ${oc.env:NOT}",
            "a: ${a}",
            "a: ${b}\nb: ${a}",
            "a: 2020-01-01",
            "a: .nan",
            "a: 1e999",
            "a: ???",
        ),
        *(
            "<<: {a: 1}",
            "<<: 3",
            _BOMB,
            _NEST,
            "[" * 5000,
            "- " * 5000,
            "a: " + "x" * 2_000_000,
            "%YAML 9.9\n---\na: 1",
            "null: 1",
        ),
        *("_convert_: x", "_partial_: true", "_args_: [1]", "_recursive_: no", "true: 1", "a.b: 1", "'': 1"),
    )
)
YAMLS: tuple[bytes, ...] = (*_TEXTS, b"\xff\xfe\x00", b"\x00", b"\xef\xbb\xbfa: 1", b"a: \x80")
KINDS_OF_FILE = ("file", "file", "file", "file", "directory", "fifo", "loop", "unreadable")
TRACES: tuple[bytes, ...] = (
    *(
        b"",
        b"\x00" * 100,
        b"\xff\xfe",
        b"a",
        b"{}",
        b"[]",
        b"null\n",
        b'{"a":1}\n',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\x1f\x8b",
        b"PAR1",
    ),
    *(
        b"\x28\xb5\x2f\xfd",
        b"a,b\n1,2\n",
        b"a,a\n1,2\n",
        b"arrived_at\n1\n",
        ROWS.encode(),
        ROWS.encode()[:-1],
        ROWS.encode() + b"x,y,z\n",
    ),
    *(
        ROWS.replace(one, other).encode()
        for one, other in (("10", "-1"), ("10", "9" * 30), ("1,20", "nan,20"), ("1,20", "1e300,20"))
    ),
    *(
        ROWS.replace(one, other).encode()
        for one, other in (("10", "1e400"), ("3", "0"), ("0,", "-5,"), ("20", f"{ESC}"), ("20", "2.5"))
    ),
    *(b'{"timestamp": 0, "input_length": 5, "output_length": 1180591620717411303424, "hash_ids": []}\n',),
    *(b'{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [-1]}\n', b'{"timestamp": "x"}\n'),
)
ANSWERS = (
    *(
        "None",
        "2**80",
        "-1",
        "'x'",
        "float('nan')",
        "[]",
        "{}",
        "object()",
        "True",
        "10**400",
        "'\\x1b[31m\\u202e'",
        "(1, 2)",
        "1.5",
    ),
    *(
        "1/0",
        "request.nothing",
        "[].pop()",
        "cluster",
        "request",
        "servelab.Plan()",
        "b''",
        "lambda: 0",
        "float('inf')",
        "''",
    ),
)
HOOKS = (
    *("admit(self, request, cluster)", "route_prefill(self, request, cluster)", "route_decode(self, request, cluster)"),
    *("priority(self, request, cluster)", "plan(self, instance, cluster)", "tick(self, cluster)", "on_arrival(self)"),
    *(
        "suggested_cluster(self)",
        "name(self)",
        "route_prefill(self)",
        "__init__(self, a=[object()])",
        "__init__(self, b)",
    ),
)
BASES = ("Aggregated", "Disaggregated", "Policy", "Predictor", "Nothing", "decision")
