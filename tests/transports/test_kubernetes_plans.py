"""Kubernetes in plans: the objects that are submitted, compared with golden files and with newer schemas."""

from __future__ import annotations

from dataclasses import replace

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mslaunch.errors import ConfigError, RequestError
from mslaunch.plan.methods import METHODS
from mslaunch.plan.spec import JobSpec
from mslaunch.settings.kubernetes_settings import KubernetesSettings
from mslaunch.settings.resolve import resolve
from mslaunch.settings.setting import READERS
from mslaunch.settings.yaml_config import JobConfig, parse_config
from mslaunch.transports.kubernetes.frames import Frame, decode, encode
from mslaunch.transports.kubernetes.manifests import Objects, merge, object_name, planned_hosts, render
from mslaunch.transports.kubernetes.pod_states import ending_of, why_it_waits
from tests.beds.pod_bed import expanded
from tests.plan.test_make import compare

SETTINGS = READERS.reader_of(KubernetesSettings).read(
    {
        "context": "it's: mine",
        "resources": {"cpu": 8, "memory": "64Gi"},
        "launcher_resources": {"cpu": "500m"},
        "node_selector": {"accelerator": "yes"},
        "tolerations": [{"key": "npu", "operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [{"claim": "data", "path": "/data, all", "read_only": True}],
        "runs_claim": "runs",
        "shared_memory": "16Gi",
        "priority_class": "high",
        "image_pull_secrets": "registry",
        "service_account": "trainer",
        "queue": "research",
    }
)
OBJECTS = Objects(
    run_id="r1",
    run_dir="/home/u/my job/mslaunch-runs/r1",
    project="/home/u/my job",
    nodes=4,
    ranks_per_node=8,
    target="Ascend",
    restarts=1,
    grace=10.0,
    join_timeout=604800.0,
    image="registry.example/team/job:1.0",
    volcano=False,
    namespace="team",
    command=("train", "--workers=32", "--set=text='a: b' # no comment", "--script=/home/u/my job/train.py"),
    settings=SETTINGS,
)


@pytest.mark.parametrize("volcano", [False, True], ids=["job", "volcano"])
def test_objects_are_the_golden_ones(volcano: bool) -> None:
    compare("volcano.yaml" if volcano else "kubernetes.yaml", render(replace(OBJECTS, volcano=volcano)))


@pytest.mark.parametrize("version", ["1.26", "1.30", "1.34"])
def test_objects_fit_newer_schemas(version: str) -> None:
    """The control plane of the tests is 1.20."""
    for one in yaml.safe_load_all(render(OBJECTS)):
        kubernetes_validate.validate(one, version, strict=True)


@settings(max_examples=30)
@given(st.text(max_size=40))
def test_values_cannot_leave_their_place(text: str) -> None:
    """Whatever a command or a variable holds, the container has it as that one word."""
    made = replace(OBJECTS, command=(text,), variables={"A": text})
    launcher = list(yaml.safe_load_all(render(made)))[1]["spec"]["template"]["spec"]["containers"][0]
    assert expanded(launcher["command"][-1], {"HOME": "/tmp"}) == text
    assert expanded(launcher["env"][-1]["value"], {"HOME": "/tmp"}) == text


def test_kubernetes_replaces_nothing_in_a_command() -> None:
    """A $(NAME) of the user's is for the user's shell, also where the container has a variable of that name."""
    made = replace(OBJECTS, command=("--set=launch.setup=cd $(HOME) $HOME $$",))
    launcher = list(yaml.safe_load_all(render(made)))[1]["spec"]["template"]["spec"]["containers"][0]
    assert expanded(launcher["command"][-1], {"HOME": "/tmp"}) == made.command[0]


def test_a_patch_changes_what_it_names() -> None:
    """Containers are merged by name; null removes."""
    patch = {"worker": {"spec": {"template": {"spec": {"containers": [{"name": "worker", "tty": True}]}}}}}
    patched = replace(SETTINGS, patch=patch)
    worker = list(yaml.safe_load_all(render(replace(OBJECTS, settings=patched))))[2]["spec"]["template"]["spec"]
    assert worker["containers"][0]["tty"] is True
    assert worker["containers"][0]["image"] == OBJECTS.image
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}


def test_a_patch_of_nothing_is_told() -> None:
    patched = replace(SETTINGS, patch={"workers": {}})
    with pytest.raises(RequestError, match=r"patch\.workers: there is no such object"):
        render(replace(OBJECTS, settings=patched))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "launch:\n  kubernetes:\n    imag: x\n",
            "job.yaml:2: launch.kubernetes has no key 'imag'; did you mean 'image'",
        ),
        ("launch:\n  kubernetes: {shared_memory: a lot}\n", "kubernetes.shared_memory: write an amount such as 16Gi"),
        ("launch:\n  kubernetes: {volumes: [{claim: data}]}\n", "kubernetes.volumes.0.path"),
        ("launch:\n  kubernetes: {code: /a:b}\n", "kubernetes.code: a path in a pod has no colon"),
        ("launch:\n  kubernetes: {namespace: My_Team}\n", "kubernetes.namespace: write lower-case letters"),
    ],
)
def test_wrong_settings_are_located(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve({}, {}, parse_config(text, "job.yaml"))
    assert words in str(error.value)


def test_ranks_that_cannot_be_spread_are_told() -> None:
    settings = resolve({"nodes": 3, "workers": 8}, {}, JobConfig())
    spec = JobSpec(settings.values, settings.sources, JobConfig(), METHODS["dynamic"])
    with pytest.raises(RequestError, match="Ask for a multiple of 3"):
        planned_hosts(spec)


@pytest.mark.parametrize("run_id", ["r1", "20261117-1", "My.Run_1", "a" * 100, "-", "x."])
def test_names_of_objects_are_dns_labels(run_id: str) -> None:
    name = object_name(run_id)
    assert len(f"{name}-worker-abcde") <= 63
    assert name.replace("-", "").isalnum()
    assert name[0].isalpha()
    assert name[-1].isalnum()


@pytest.mark.parametrize("file", ["../run.json", "/etc/passwd", "rank_0/../../x", "code/train.py", "", ".x", "a/b/c"])
def test_a_pod_writes_to_no_other_file(file: str) -> None:
    assert decode(encode(Frame(1, file, 0, b"x")).encode()) is None


@given(st.binary(max_size=8192), st.integers(-1, 1 << 39))
def test_pieces_arrive_as_they_were(data: bytes, at: int) -> None:
    frame = Frame(7, "rank_3/log.txt", at, data)
    assert decode(encode(frame).encode()) == frame


@given(st.binary(max_size=200))
def test_other_lines_are_left_out(line: bytes) -> None:
    assert decode(line) is None
    decode(b"mslaunch-file " + line)


def test_pods_that_are_well_have_no_trouble() -> None:
    assert why_it_waits({"status": {"phase": "Running"}}) == ""
    assert ending_of({"status": {"containerStatuses": [{"state": {"terminated": {"reason": "Error"}}}]}}) is None
