"""launch.sync in a job's YAML: what it may hold, and located errors for the rest."""

from __future__ import annotations

import pytest

from mslaunch.errors import ConfigError
from mslaunch.settings.resolve import Settings, resolve
from mslaunch.settings.yaml_config import parse_config


def settings_of(sync: str) -> Settings:
    return resolve({}, {}, parse_config(f"launch:\n  sync: {sync}\n", "c.yaml"))


def test_both_directions_are_read_and_shown_in_one_line() -> None:
    """A dry run shows that line."""
    text = "{before: [{from: obs://b/data/, to: /cache}], after: [{from: outputs, to: s3://b}], endpoint: https://h:1}"
    shown = str(settings_of(text).values.sync)
    assert shown == "before obs://b/data to /cache; after outputs to s3://b; endpoint https://h:1"


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ("7", "sync: "),
        ("{befor: []}", "launch.sync has no key 'befor'"),
        ("{before: {from: obs://b/d, to: /c}}", "sync.before: "),
        ("{before: [{from: obs://b/d}]}", "sync.before.0.to: "),
        ("{before: [{from: /data, to: /c}]}", "sync.before.0.from: name a bucket and a folder in it"),
        ("{before: [{from: 'obs:///d', to: /c}]}", "sync.before.0.from: name a bucket and a folder in it"),
        ("{before: [{from: obs://b/d, to: c}]}", "sync.before.0.to: name a folder of the host by its absolute path"),
        ("{after: [{from: '', to: obs://b/o}]}", "sync.after.0.from: name a folder of the host"),
        ("{after: [{from: obs://b/x, to: obs://b/o}]}", "sync.after.0.from: name a folder of the host"),
        ("{after: [{from: x, to: /there}]}", "sync.after.0.to: name a bucket and a folder in it"),
        ('{after: [{from: "a\\0b", to: obs://b/o}]}', "sync.after.0.from: name a folder of the host"),
        ("{endpoint: obs.example.com}", "sync.endpoint: write the whole address"),
        ("{endpoint: 'http://h:99999'}", "sync.endpoint: write the whole address"),
        ("{endpoint: 'http://['}", "sync.endpoint: write the whole address"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(sync: str, words: str) -> None:
    """File, line and key."""
    with pytest.raises(ConfigError) as caught:
        settings_of(sync)
    assert str(caught.value).startswith(f"c.yaml:2: {words}")


@pytest.mark.parametrize(
    "sync",
    [
        "{endpoint: 'https://me:hush-hush@h'}",
        "{before: [{from: 'obs://me:hush-hush@b/d', to: /c}]}",
        "{after: [{from: x, to: 's3://me:hush-hush@b/d'}]}",
    ],
)
def test_keys_in_an_address_are_refused_without_being_shown(sync: str) -> None:
    """They would be in the plan."""
    with pytest.raises(ConfigError) as caught:
        settings_of(sync)
    assert "leave keys out of the address" in str(caught.value)
    assert "hush-hush" not in str(caught.value)
