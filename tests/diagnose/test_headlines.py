"""The first words on a failure: the line of an exception's text that says what went wrong."""

from __future__ import annotations

import pytest

from mslaunch.diagnose.logs.scan import Scanner
from mslaunch.shared.headlines import headline
from tests.conftest import Bench

RULER = "-" * 66
KERNEL = f"TypeError: \n{RULER}\n- Kernel select failed:\n{RULER}\nSelect CPU operator[Sigmoid] fail!\nmore\n"
SHAPES = f"""RuntimeError: Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error Message'.

{RULER}
- Dataset Pipeline Error Message:
{RULER}
[ERROR] Cannot batch tensors with different shapes in column 0.

{RULER}
- C++ Call Stack: (For framework developers)
{RULER}
mindspore/ccsrc/minddata/dataset/engine/datasetops/batch_op.cc(301).
"""
FUNCTION = f"""RuntimeError: Exception thrown from user defined Python function in dataset.

{RULER}
- Python Call Stack:
{RULER}
Traceback (most recent call last):
  File "data.py", line 4, in __getitem__
    raise ValueError("sample 3 has no label")
ValueError: sample 3 has no label

{RULER}
- Dataset Pipeline Error Message:
{RULER}
[ERROR] Execute user Python code failed, check 'Python Call Stack' above.
"""
HEADLINES = {
    KERNEL: "TypeError: Select CPU operator[Sigmoid] fail!",
    SHAPES: "RuntimeError: Exception thrown from dataset pipeline: "
    "Cannot batch tensors with different shapes in column 0.",
    FUNCTION: "RuntimeError: Exception thrown from user defined Python function in dataset: "
    "ValueError: sample 3 has no label",
    "ValueError: \n\n   the third line\nfourth": "ValueError: the third line",
    "\n=====\nplease set DATA_DIR\n": "please set DATA_DIR",
    "KeyError: 'x'\nmore": "KeyError: 'x'",
    "pkg.Error: Exception thrown from dataset pipeline. Refer to the log.": "pkg.Error: Exception thrown from dataset"
    " pipeline. Refer to the log.",
    f"TypeError:\n{RULER}\n- Only a title:\n{RULER}": "TypeError:",
    "StopIteration": "StopIteration",
    "": "",
}


def test_the_headline_is_the_first_line_that_says_something() -> None:
    """Behind the type of the exception; MindSpore's messages begin with empty lines, rulers and titles."""
    assert {text: headline(text) for text in HEADLINES} == HEADLINES


@pytest.mark.parametrize("label", ["", "[rank1]: "])
@pytest.mark.parametrize("text", [KERNEL, SHAPES])
def test_the_headline_of_an_exception_in_a_log_is_the_same(text: str, label: str) -> None:
    """Wherever a block ends, and behind the label of a rank."""
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', *text.splitlines()]
    data = "".join(f"{label}{line}\n" for line in lines).encode()
    for size in (len(data), 300, 64):
        scanner = Scanner()
        for at in range(0, len(data), size):
            scanner.feed(data[at : at + size])
        assert [raised.summary for raised in scanner.finish().raised] == [HEADLINES[text]]


def test_an_exception_whose_message_begins_with_an_empty_line_has_a_headline(bench: Bench) -> None:
    """On the screen while the job is stopped, and in the verdict."""
    bench.write("train.py", "raise ValueError('\\n\\n  the third line\\nfourth')\n")
    done = bench.mslaunch("train", "-n", "1")
    assert "mslaunch: rank 0 on localhost: ValueError: the third line\n" in done.stdout
    assert bench.record()["verdict"]["summary"].splitlines()[0] == "ValueError: the third line"
    assert bench.record()["verdict"]["line"] == 1
