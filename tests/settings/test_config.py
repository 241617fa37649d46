"""A job's YAML: located errors, suggestions, overrides, and where each setting came from."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mslaunch.errors import ConfigError, RequestError
from mslaunch.job import Job
from mslaunch.plan.combinations import axis_of
from mslaunch.plan.methods import METHODS
from mslaunch.settings.environment import RANK_VARIABLES
from mslaunch.settings.json_schema import schema
from mslaunch.settings.launch import SETTINGS, LaunchSettings
from mslaunch.settings.resolve import Settings, resolve
from mslaunch.settings.yaml_config import (
    JobConfig,
    override,
    parse_config,
    read_scalar,
    split_assignments,
    write_scalar,
)


def settings_of(text: str, flags: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Settings:
    return resolve(flags or {}, env or {}, parse_config(text, "c.yaml"))


def test_script_keys_and_launch_keys_are_kept_apart() -> None:
    """Top-level keys belong to the script, `launch:` to the launcher."""
    config = parse_config("seed: 1\nlr: 0.1\nlaunch:\n  workers: 4\n", "c.yaml")
    assert config.values == {"seed": 1, "lr": 0.1}
    assert config.launch == {"workers": 4}
    assert config.where("launch", "workers") == "c.yaml:4"


def test_every_wrong_key_and_type_is_named_with_its_line() -> None:
    """All findings come at once, each with file, line and what was found."""
    with pytest.raises(ConfigError) as caught:
        settings_of("launch:\n  wokers: 3\n  tail: x\n  workers: true\n  cwd: foo\n  grace: soon\n")
    lines = str(caught.value).splitlines()
    assert lines[0] == "c.yaml:2: launch has no key 'wokers'; did you mean 'workers'?"
    assert sorted(line.split(": ")[:2] for line in lines[1:]) == [
        ["c.yaml:3", "tail"],
        ["c.yaml:4", "workers"],
        ["c.yaml:5", "cwd"],
        ["c.yaml:6", "grace"],
    ]
    assert all("got" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("a: [", "c.yaml:2: not valid YAML"),
        ("a: 1\na: 2", "c.yaml:2: 'a' stands on line 1 already"),
        ("- 1", "c.yaml:1: the file must be a mapping"),
        ("x: 1\nlaunch: 3", "c.yaml:2: launch must be a mapping"),
        ("seed: 1\ndevice_target: asend", "c.yaml:2: device_target: input should be 'None', 'Ascend', 'GPU' or 'CPU'"),
        ("context_mode: eager", "c.yaml:1: context_mode"),
        ("device_num: 0", "c.yaml:1: device_num"),
        ("device_num: true", "c.yaml:1: device_num: a number is wanted"),
    ],
)
def test_what_is_not_a_job_is_refused(text: str, finding: str) -> None:
    """Broken YAML and wrong values are one sentence with file and line."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "c.yaml")
    assert str(caught.value).startswith(finding)


def test_a_near_miss_of_a_shared_key_is_noted_not_refused() -> None:
    """A script may have any key, but `devce_num` is probably a slip."""
    assert parse_config("devce_num: 8", "c.yaml").notes == (
        "c.yaml:1: 'devce_num' is passed to the script as it is; did you mean 'device_num'?",
    )
    assert parse_config("device_num: 8\ndevice_nums: 9\nbatch: 3", "c.yaml").notes == ()


def test_three_documents_of_the_scaffolding_are_kept() -> None:
    """Help texts and choices behind the first document stay with it."""
    config = parse_config("lr: 1\n---\nlr: learning rate\n---\nlr: [1, 2]\n", "c.yaml")
    assert config.documents == ({"lr": "learning rate"}, {"lr": [1, 2]})


def test_flags_override_variables_override_yaml_override_defaults() -> None:
    """Each value has one source, and it is the strongest that names it."""
    yaml = "launch:\n  workers: 1\n  grace: 1\n  master_port: 1\n"
    found = settings_of(yaml, {"workers": 3}, {"MSLAUNCH_WORKERS": "2", "MSLAUNCH_GRACE": "2"})
    assert (found.values.workers, found.values.grace, found.values.master_port) == (3, 2.0, 1)
    assert found.sources["workers"] == "--workers"
    assert found.sources["grace"] == "MSLAUNCH_GRACE"
    assert found.sources["master_port"] == "c.yaml:4 (launch.master_port)"
    assert found.sources["method"] == "default"


def test_variables_for_ranks_add_up() -> None:
    """--env adds to launch.env, and numbers in YAML become text."""
    found = settings_of("launch:\n  env:\n    A: 1\n    B: two\n", {"env": {"B": "3", "C": None}})
    assert found.values.env == {"A": "1", "B": "3", "C": None}


def test_a_rank_of_another_run_does_not_name_this_one() -> None:
    """What mslaunch sets for a rank is not what a nested launch is asked, and is no cause for complaint."""
    outer = dict.fromkeys(RANK_VARIABLES, "outer")
    found = settings_of("", env=outer)
    assert found.values == settings_of("").values
    assert found.notes == ()


@pytest.mark.parametrize("name", [name for name in SETTINGS if not SETTINGS[name].ignored])
def test_every_setting_can_be_given_by_a_variable(name: str) -> None:
    """A value that is right for its kind; only `env` cannot, and says why."""
    values = {
        "device": "0",
        "cwd": "submit",
        "on_stall": "report",
        "on_nan": "stop",
        "setup": "true",
        "config_arg": "--cfg",
        "core_map": '{"0": "0-1"}',
        **dict.fromkeys(("node_map", "memory_map"), '{"0": "0"}'),
        "webhook": "https://host/path",
    }
    for value in (values.get(name), "1", "true", "0-1", "a b"):
        with suppress(ConfigError):
            found = settings_of("", env={f"MSLAUNCH_{name.upper()}": value or "1"})
            assert found.sources[name] == f"MSLAUNCH_{name.upper()}"
            assert getattr(found.values, name) != ()
            return
    raise AssertionError(f"no value was accepted for {name}")


def test_lists_in_variables_are_words_as_a_shell_has_them() -> None:
    """A quote that is not closed is no traceback."""
    env = {"MSLAUNCH_SBATCH_ARGS": "--gres=gpu:8 '--comment=a b'", "MSLAUNCH_SHARED": "a b"}
    found = settings_of("", env=env).values
    assert (found.sbatch_args, found.shared) == (("--gres=gpu:8", "--comment=a b"), ("a", "b"))
    assert settings_of("", env={"MSLAUNCH_SHARED": "a'b"}).values.shared == ("a'b",)


@pytest.mark.parametrize(
    ("variable", "note"),
    [
        (
            "MSLAUNCH_WORKRES",
            "MSLAUNCH_WORKRES is ignored: there is no such setting; did you mean 'MSLAUNCH_WORKERS'?",
        ),
        ("MSLAUNCH_QQ", "MSLAUNCH_QQ is ignored: there is no such setting"),
        ("MSLAUNCH_ENV", "MSLAUNCH_ENV is ignored: export the variables themselves, and name them with --env K"),
    ],
)
def test_a_variable_that_is_no_setting_is_told_and_ignored(variable: str, note: str) -> None:
    """With the nearest right one."""
    found = settings_of("", env={variable: "4"})
    assert found.notes == (note,)
    assert found.values == settings_of("").values


@pytest.mark.parametrize(
    ("given", "target"), [("NPU", "Ascend"), ("ascend", "Ascend"), ("cuda", "GPU"), ("gpu", "GPU"), ("cpu", "CPU")]
)
def test_a_device_target_is_given_as_mindspore_spells_it(given: str, target: str) -> None:
    """However it was written, in the file or by --set; and that is said."""
    found = parse_config(f"seed: 1\ndevice_target: {given}\n", "c.yaml")
    assert found.values["device_target"] == target
    assert found.notes == (f"c.yaml:2: device_target {given!r} means {target!r}, which the script is given",)
    assert override(parse_config("seed: 1", "c.yaml"), (f"device_target={given}",)).values["device_target"] == target


def test_a_device_target_that_is_none_is_refused() -> None:
    """With what there is."""
    with pytest.raises(ConfigError, match="device_target"):
        parse_config("device_target: TPU\n", "c.yaml")


def test_set_overrides_one_key() -> None:
    """--set reaches nested keys, and reads values as YAML."""
    config = parse_config("lr: 0.1\nnet:\n  width: 8\n", "c.yaml")
    changed = override(config, ("lr=1e-3", "net.width=16", "seed=7"))
    assert changed.values == {"lr": 0.001, "net": {"width": 16}, "seed": 7}
    assert config.values["net"] == {"width": 8}


@pytest.mark.parametrize("text", ["lrr=1", "net.widht=1", "nte.width=1", "lr", "=1"])
def test_set_refuses_a_key_that_is_not_there(text: str) -> None:
    """A misspelt override would otherwise pass unseen."""
    with pytest.raises(RequestError, match="--set"):
        override(parse_config("lr: 0.1\nnet:\n  width: 8\n", "c.yaml"), (text,))


def test_set_suggests_the_nearest_key() -> None:
    """The refusal says what was probably meant."""
    with pytest.raises(RequestError, match="did you mean 'batch_size'"):
        override(parse_config("batch_size: 1", "c.yaml"), ("batchsize=2",))


def test_set_reaches_the_launchers_keys_too() -> None:
    """`--set launch.grace=3` outweighs variables and YAML, says so, and must name a key that exists."""
    own, assigned = split_assignments(("lr=1", "launch.grace=3"))
    found = resolve({}, {"MSLAUNCH_GRACE": "9"}, parse_config("launch: {grace: 8}", "c.yaml"), assigned)
    assert own == ("lr=1",)
    assert (found.values.grace, found.sources["grace"]) == (3.0, "--set launch.grace")
    with pytest.raises(ConfigError, match="did you mean 'grace'"):
        resolve({}, {}, JobConfig(), {"grcae": 1})


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)  # YAML has no half of a pair
_ATOMS = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
_DATA = st.recursive(
    _ATOMS | _TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3), max_leaves=8
)


@given(_DATA)
def test_what_is_written_for_set_is_read_back(value: object) -> None:
    """Whatever plain data it is; texts that look like numbers or YAML included."""
    assert repr(read_scalar(write_scalar(value))) == repr(value)


@pytest.mark.parametrize("text", ["module load cann", "/opt/\udcff/python"])
def test_text_that_set_reads_as_it_stands_is_not_quoted(text: str) -> None:
    """A person can read it, and what is not UTF-8 can be written at all."""
    assert write_scalar(text) == text
    assert read_scalar(text) == text


@pytest.mark.parametrize("value", ["😀 é", {"lr": 1e-05}, [1e-05, "1e-05"], ["漢\x85"]])
def test_values_of_a_program_reach_the_script_as_they_are(value: object) -> None:
    """Those of a Job, and those of a sweep."""
    (given,) = Job("train.py", values={"seed": value}).request.assignments
    assert read_scalar(given.partition("=")[2]) == value
    assert [read_scalar(text) for text in axis_of("seed", [value]).values] == [value]


def test_schema_describes_every_setting() -> None:
    """The JSON Schema has the script's shared keys and every launch key with its description."""
    found = schema(METHODS)
    launch = found["properties"]["launch"]
    assert {"seed", "device_target", "device_num"} <= set(found["properties"])
    assert set(launch["properties"]) == set(SETTINGS)
    assert all(item.get("description") for item in launch["properties"].values())
    assert launch["additionalProperties"] is False
    json.dumps(found)


def test_no_config_is_an_empty_config() -> None:
    """Without a YAML everything is a default."""
    assert resolve({}, {}, JobConfig()).values == LaunchSettings()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{name: acc, regex: 'acc: ('}", "not a regular expression"),
        ("{name: acc, regex: 'acc: .*'}", "put the number into a group"),
        ("{name: acc, regex: '(x*)'}", "matches an empty line"),
        ("{name: 1 acc, regex: '(x)'}", "begin with a letter"),
        ("{name: rank, regex: '(x)'}", "no metric is called rank"),
        ("{name: acc}", "it is missing"),
        ("{name: acc, regexp: '(x)', regex: '(x)'}", "has no key 'regexp'; did you mean 'regex'?"),
    ],
)
def test_a_wrong_metric_is_refused_with_its_place(entry: str, words: str) -> None:
    """File, line, what is wrong with it and what was given."""
    config = parse_config(f"launch:\n  workers: 2\n  metrics: [{entry}]\n", "cfg.yaml")
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, config)
    assert str(caught.value).startswith(("cfg.yaml:3: metrics.0", "cfg.yaml:3: launch.metrics.0"))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("kubernetes: {imagee: x}", "launch.kubernetes has no key 'imagee'; did you mean 'image'?"),
        ("kubernetes: {user: 0}", "kubernetes.user: write 1 or more, got 0."),
        ("kubernetes: {volumes: /data}", "kubernetes.volumes: write a list, such as [a, b], got '/data'."),
        ("kubernetes: x", "kubernetes: write keys and values, such as {key: value}, got 'x'."),
        (
            "kubernetes: {patch: {wroker: {}}}",
            "kubernetes.patch: there is no object 'wroker'; did you mean 'worker', got {'wroker': {}}.",
        ),
        (
            "kubernetes: {resources: {cpus: 4}}",
            "kubernetes.resources: there is no resource 'cpus'; did you mean 'cpu', got {'cpus': 4}.",
        ),
        (
            "kubernetes: {volumes: [{claim: x, path: /a, readonly: true}]}",
            "launch.kubernetes.volumes.0 has no key 'readonly'; did you mean 'read_only'?",
        ),
        ("sync: {befor: []}", "launch.sync has no key 'befor'; did you mean 'before'?"),
        ("hosts: [{address: a, devicse: 3}]", "launch.hosts.0 has no key 'devicse'; did you mean 'devices'?"),
        ("hosts: ['n1:x']", "hosts: cannot read 'n1:x'. Write for example \"n1:8,n2:[0-3,6]\", got ['n1:x']."),
        ("hosts: [3]", "hosts.0: write keys and values, such as {key: value}, got 3."),
    ],
)
def test_a_wrong_value_inside_a_setting_is_one_sentence(setting: str, expected: str) -> None:
    """It says what to write in its place, and names the nearest key for an unknown one."""
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, parse_config(f"launch:\n  {setting}\n", "cfg.yaml"))
    assert str(caught.value) == f"cfg.yaml:2: {expected}"


def test_a_wrong_value_inside_an_assignment_names_its_key() -> None:
    """`--set` gives a whole section at once."""
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, JobConfig(), {"kubernetes": {"user": 0}})
    assert str(caught.value) == "--set launch.kubernetes: kubernetes.user: write 1 or more, got 0."
