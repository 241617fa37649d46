"""What user scripts import: load_config and the contract of init_env."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mslaunch.runtime import Config, init_env, load_config, save_strategy

YAML = "lr: 0.1\nepochs: 3\nshuffle: true\nname: net\nnothing:\nnet:\n  width: 8\nlaunch:\n  workers: 2\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("MSLAUNCH_CONFIG", raising=False)
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    return str(path)


def test_values_are_attributes_and_flags_override_them(config: str) -> None:
    """Each top-level scalar is a flag of its own type; nested values are attributes too."""
    cfg = load_config(
        argv=["--config_path", config, "--lr", "0.5", "--shuffle=false", "--epochs", "7", "--nothing=[1]"]
    )
    assert (cfg.lr, cfg.epochs, cfg.shuffle, cfg.name, cfg.nothing, cfg.net.width) == (0.5, 7, False, "net", [1], 8)
    assert "launch" not in cfg


def test_a_default_path_and_the_launchers_path(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line wins over what the launcher gave, which wins over the default."""
    assert load_config(config, argv=[]).lr == 0.1
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"lr": 2}))
    monkeypatch.setenv("MSLAUNCH_CONFIG", str(given))
    assert load_config(config, argv=[]).lr == 2
    assert load_config(argv=["--config_path", config]).lr == 0.1


def test_help_and_choices_come_from_the_second_and_third_document(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scaffolding's three documents: values, help texts, choices."""
    Path(config).write_text("mode: graph\n---\nmode: 100% of the mode\n---\nmode: [graph, pynative]\n")
    assert load_config(argv=["--config_path", config, "--mode", "pynative"]).mode == "pynative"
    with pytest.raises(SystemExit):
        load_config(argv=["--config_path", config, "--mode", "eager"])
    with pytest.raises(SystemExit):
        load_config(argv=["--config_path", config, "--help"])
    assert "100% of the mode" in capsys.readouterr().out


def test_a_number_with_an_exponent_is_a_number(config: str) -> None:
    """As for --set; what stands in quotes is text."""
    Path(config).write_text("lr: 1e-3\nname: '1e-3'\n")
    assert load_config(config, argv=[]) == {"lr": 0.001, "name": "1e-3"}
    assert load_config(config, argv=["--lr", "0.5"]).lr == 0.5


def test_any_name_may_stand_in_the_file(config: str) -> None:
    """Those of flags that are there already, names with dashes, and names that are no text."""
    Path(config).write_text("help: me\nconfig_path: here\nbatch-size: 8\n7: seven\n")
    expected = {"help": "me", "config_path": "here", "batch-size": 16, 7: "seven"}
    assert load_config(config, argv=["--batch-size", "16"]) == expected


def test_no_configuration_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script started by hand without one gets a sentence."""
    monkeypatch.delenv("MSLAUNCH_CONFIG", raising=False)
    with pytest.raises(ValueError, match="give --config_path FILE"):
        load_config(argv=[])


def test_a_missing_key_names_those_that_are_there() -> None:
    """A slip in the script is answered with the keys."""
    with pytest.raises(AttributeError, match="no key 'lrr'; it has lr, epochs"):
        _ = Config(lr=1, epochs=2).lrr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"device_target": "TPU"}, "device_target must be one of None, Ascend, GPU, CPU, got 'TPU'"),
        ({"context_mode": "eager"}, "context_mode must be one of graph, pynative, got 'eager'"),
    ],
)
def test_init_env_names_the_right_values(values: dict[str, str], words: str) -> None:
    """A wrong target or mode is refused before MindSpore is touched."""
    with pytest.raises(ValueError, match=words):
        init_env(Config(values))


NETWORK = SimpleNamespace(get_parameters=lambda: [SimpleNamespace(name="w", shape=(4, 8))])


@pytest.mark.parametrize(("cut", "mapped"), [(0, [0, -1]), (1, [-1, 0]), (-1, [-1, 0])])
def test_a_strategy_by_hand_says_where_a_parameter_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, mapped: list[int]
) -> None:
    """Dimensions may be counted from the end."""
    monkeypatch.setenv("RANK_SIZE", "2")
    save_strategy(tmp_path / "s.json", NETWORK, {"w": cut})
    layout = json.loads((tmp_path / "s.json").read_text())["parallel_layout_item"]["w"]
    assert layout["tensor_map"] == mapped
    assert layout["tensor_shape"] == [size * (2 if at == 0 else 1) for size, at in zip((4, 8), mapped, strict=True)]


@pytest.mark.parametrize("cut", [2, -3])
def test_a_dimension_that_is_not_there_is_refused(tmp_path: Path, cut: int) -> None:
    """The slices would be taken for whole parameters."""
    with pytest.raises(ValueError, match=f"w has 2 dimensions, and cannot be cut along dimension {cut}"):
        save_strategy(tmp_path / "s.json", NETWORK, {"w": cut})
    assert not list(tmp_path.iterdir())
