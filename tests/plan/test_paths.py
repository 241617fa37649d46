"""Which arguments and config values count as paths, and what becomes of them."""

from __future__ import annotations

from mslaunch.plan.argument_paths import candidates, rewrite_args, rewrite_values


def test_paths_are_found_in_arguments_and_values() -> None:
    """A slash makes a path, and so does a key that says so; a plain word does not."""
    args = ("--data_dir", "../data", "--mode", "train", "--ckpt=best", "-v", "in/x.rec", "/abs", "--url=http://x/y")
    values = {"train_dir": "data", "mode": "train", "files": ["a/b", 3], "nested": {"root": "r"}, "none": None}
    variables = {"DATA_PATH": "../set", "OUT_DIR": "out", "PS1": "../>", "HOME": "/root"}
    assert candidates(args, values, variables) == {"../data", "best", "in/x.rec", "data", "a/b", "r", "../set"}


def test_only_what_changes_is_changed() -> None:
    """Everything else, options and types included, is passed on as it was."""

    def change(path: str) -> str:
        return path.upper()

    assert rewrite_args(("--d=a/b", "x/y", "-q", "word"), change) == ("--d=A/B", "X/Y", "-q", "word")
    assert rewrite_values({"dir": "a", "n": 1, "mode": "a"}, change) == {"dir": "A", "n": 1, "mode": "a"}
