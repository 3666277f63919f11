"""Values for fields of records: such as a field may hold, and such as no honest writer writes."""

from typing import Any

from finetune_contract import Stage

#: What most fields do not take, and some should not have taken.
WILD: tuple[Any, ...] = (
    None, True, "", " ", "x" * 5000, "\0", "\u202e", "🙂" * 2000, "NaN", "-Infinity", "Infinity", "1e999", "../../x",
    "gs://elsewhere/secret/0/items", "file:///etc/passwd", "$(HF_TOKEN)", "{{ 7*7 }}",
    float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324, 0.5, -0.0,
    0, 1, 2, 999, 1000, -1, -(10**6), 10**6, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**400,
    [], {}, [[]], [None], {"": ""}, ["x"] * 300, [[1, 2, 3]],
)  # fmt: skip
#: Of each type, what a field may take and what no honest writer writes.
INTEGERS = (0, 1, 2, 3, 99, 100, 999, 1000, -1, 10**6, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**400)
FLOATS = (
    "NaN",
    "Infinity",
    "-Infinity",
    float("nan"),
    float("inf"),
    1e308,
    -1e308,
    -1.0,
    0.0,
    5e-324,
    1e-9,
    1e9,
    10**30,
)
TEXTS = (
    "", " ", "f1", "Train", "x" * 256, "x" * 1024, "x" * 5000, "\0", "\n", "\u202e", "🙂" * 300, "gs://elsewhere/secret/0/items",
    "file:///etc/passwd", "hf://acme/model@main", "../../x", "$(HF_TOKEN)", "$$", "{{ 7*7 }}", "-1", "1e999",
)  # fmt: skip
TIMES = (
    "0001-01-01T00:00:00+12:00", "1970-01-01T00:00:00Z", "2026-11-21T11:59:59Z", "2026-11-21T12:00:00Z",
    "2026-11-22T12:00:00Z", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00",
)  # fmt: skip
#: Fields that decide what a record is of, or how an attempt has ended.
TELLING: dict[str, tuple[Any, ...]] = {
    "version": (1, 2, 3, 99, 0, "1", 1.5, 10**400),
    "supports": ("1.0", "2.0", "2.1", "9.9", "0.0", "9999.9999", ""),
    "stage": (*Stage, "Deploy"),
    "attempt": (1, 2, 999, -1),
    "restart": (0, 1, 9999, -1),
    "outcome": ("Succeeded", "Stopped", "Failed", "Paused"),
    "exit_code": (0, 1, 64, 69, 75, 76, 137, -9, 2**63),
    "code": (0, 1, 64, 66, 69, 70, 75, 76, 77, 78, 137, -9, 2**63),
    "reason": (
        "Suspended", "Cancelled", "Replaced", "Evicted", "NoCapacity", "BudgetExhausted", "DeadlineExceeded",
        "Preempted", "Hung", "RecordIgnored", "ResultMalformed", "RunFolderUnreadable", "InputMissing", "GateNotMet",
        "Broken",
    ),
    "started": TIMES,
    "finished": TIMES,
    "updated": TIMES,
    "created": TIMES,
    "at": TIMES,
    "written": TIMES,
    "details": (None, {}, {"kind": "Deploy"}),
    "failure": (None, {}, {"code": 65, "reason": "Broken", "message": "it broke"}),
    "fingerprint": ("f1", "f2", "../../x", "", "x" * 200),
    "generation": (0, 1, 2, 10**9, 10**400),
    "from_stage": (*Stage, "Deploy"),
    "first": ({}, {"Train": 1}, {"Train": 999}, {"Export": 10**9}, {"Train": -5, "Preflight": 3}, {"Deploy": 1}),
    **dict.fromkeys(("seconds", "seconds_before", "queued", "provisioning", "chip_hour_price"), FLOATS),
    **dict.fromkeys(("chips", "checkpoint", "host", "step", "total_steps", "start_step"), INTEGERS),
    "uid": ("0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d2e3f", "another", ""),
}  # fmt: skip
