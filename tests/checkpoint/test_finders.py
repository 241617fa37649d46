"""The short form of `python -m fuzz.finders`: a few random folders of checkpoints."""

from __future__ import annotations

from pathlib import Path

from fuzz.finders import VERBS, chains, run_case, run_restarts

SEED = 3


def test_no_command_takes_a_value_of_another_network_or_step(tmp_path: Path) -> None:
    """Reshard, convert, infer and prune, each in the same folders; some are answered, some refused."""
    outcomes = [one for case in range(12) for one in run_case(SEED, case, tmp_path / str(case), VERBS)]
    assert [outcome for outcome in outcomes if outcome.finding] == []
    for verb in ("reshard", "convert", "infer"):
        assert {outcome.refused for outcome in outcomes if outcome.verb == verb} == {True, False}


def test_no_restart_resumes_a_value_of_another_network_or_step(tmp_path: Path) -> None:
    """One job that is started again for each of the folders."""
    chain = max(chains(SEED, range(12)), key=len)[:4]
    outcomes = run_restarts(SEED, chain, tmp_path)
    assert [outcome for outcome in outcomes if outcome.finding] == []
    assert any(not outcome.refused for outcome in outcomes)
