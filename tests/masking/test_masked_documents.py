"""Documents without their secrets: YAML, JSON, lines; what is masked, what stays, and what is then known."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from mslaunch.masking.documents import MOST_KNOWN, find_secrets, mask_document, mask_values
from mslaunch.masking.free_text import mask_text
from mslaunch.shared.secret_names import looks_secret

HARMLESS: dict[str, Any] = {
    "max_tokens": 2048,
    "num_tokens": "many",
    "maxNewTokens": "64k",
    "token_length": "longest",
    "tokens_per_batch": "4k",
    "tokenizer": "path/to/tokenizer",
    "monkey": "banana",
    "key": "value",
    "keys": ["a", "b"],
    "pad_token_id": "zero",
    "pad_token": "pad",
    "special_tokens": {"bos": "<s>", "eos": "endoftext"},
    "assistant_token": "<|assistant|>",
    "use_auth_token": True,
    "token": 512,
    "tokens": [1, 2.5, "77", None],
    "author": "Ada Lovelace",
    "net": {"key": "attention"},
    "compass": "north",
}
SECRET: dict[str, Any] = {
    "ssh_private_key": "line-one-hush\nline-two-hush\n",
    "tokens": ["hush-list", {"deep": "hush-deep"}],
    "credentials": {"user": "hush", "value": "hush-nested", "more": [["hush-most"]]},
    "privateKey": "hush-camel",
    "env": [{"name": "HF_TOKEN", "value": "hush-pair"}, {"value": "hush-before", "name": "DB_PASSWORD"}],
    "args": ["--api-key", "hush-word", "--token=hush-assigned", "hub.token=hush-hydra"],
    "command": "run --password hush-option",
    "url": "https://me:hush@host/x",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_names_and_values_stay_in_every_kind_of_document(name: str) -> None:
    """Counts, tokens of a language model, keys of a mapping: a report without them would be useless."""
    value = {name: HARMLESS[name]}
    assert json.loads(mask_document("a/config.json", json.dumps(value))) == value
    assert yaml.safe_load(mask_document("config.yaml", yaml.safe_dump(value))) == value
    text = yaml.safe_dump(value)
    assert mask_document("config.yaml", f"{text}broken: [\n") == f"{text}broken: [\n"
    assert find_secrets([("config.json", json.dumps(value))], {}) == ()


@pytest.mark.parametrize("name", SECRET)
@pytest.mark.parametrize("flow", [False, True, None])
@pytest.mark.parametrize("style", [None, "|", '"'])
def test_everything_below_a_secrets_name_is_masked_in_yaml(name: str, flow: bool | None, style: str | None) -> None:
    """However YAML spells it; what is before and after it stays, in its order."""
    text = yaml.dump({"z": 1, name: SECRET[name], "a": 2.50}, default_flow_style=flow, sort_keys=False)
    if style:
        text = yaml.dump({"z": 1, name: SECRET[name], "a": 2.5}, default_style=style, sort_keys=False)
    shown = mask_document("config.yaml", text)
    assert "hush" not in shown
    assert list(yaml.safe_load(shown)) == ["z", name, "a"]


@pytest.mark.parametrize("name", SECRET)
@pytest.mark.parametrize("file", ["config.json", "events.jsonl"])
def test_everything_below_a_secrets_name_is_masked_in_json(name: str, file: str) -> None:
    """Structure, order and numbers stay."""
    shown = mask_document(file, json.dumps({"z": 1, name: SECRET[name], "a": 2.5}))
    assert "hush" not in shown
    found = json.loads(shown)
    assert list(found) == ["z", name, "a"]
    assert type(found[name]) is type(SECRET[name])


@pytest.mark.parametrize("name", ["ssh_private_key", "tokens", "credentials", "privateKey", "command", "url"])
@pytest.mark.parametrize("flow", [False, True, None])
def test_yaml_that_cannot_be_parsed_is_masked_with_the_lines_below_a_name(name: str, flow: bool | None) -> None:
    """An error somewhere in a file does not show its secrets; the other lines stay."""
    text = yaml.dump({"z": 1, name: SECRET[name], "a": 2}, default_flow_style=flow, sort_keys=False, width=40)
    text += "after: last\n"
    for broken in (f"{text}broken: [\n", f"b: [\n{text}", f"\tx\n{text}"):
        shown = mask_document("config.yaml", broken)
        assert "hush" not in shown
        assert "last" in shown
        assert shown.count("\n") == broken.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "password: |\n  hush-1\n\n  hush-2\na: last\n}",
        "password: >-\n    hush-1\n  hush-2\na: last\n}",
        "- password: hush-1\n    hush-2\n  a: last\n}",
        "tokens:\n- hush-1\n- hush-2\na: last\n}",
        "tokens: [\n  hush-1,\n]\na: last\n}}",
        '"tokens" : [\n "hush-1"\n ],\n"a": "last"\n',
        "# password: hush-1\na: last\n}",
        "x: {credentials: {user: hush-1, b: [hush-2]}, a: last\n",
        "password: 'hush-1\n\n  hush-2'\na: last\n}",
    ],
)
def test_blocks_and_brackets_of_a_broken_document_are_masked(text: str) -> None:
    """Up to where they end."""
    shown = mask_document("config.yaml", text)
    assert "hush" not in shown
    assert "last" in shown


def test_cut_off_json_is_masked() -> None:
    """Also where it is one line."""
    text = json.dumps({"a": "first", **SECRET})
    for end in (5, 60, 120, 200):
        shown = mask_document("plan.json", text[:-end])
        assert "hush-nested" not in shown
        assert "line-two" not in shown
        assert "first" in shown


def test_an_alias_is_masked_with_what_it_stands_for() -> None:
    """The same text is the same secret, wherever it is written."""
    text = "base: &a {x: hush-1}\nplain: &b hush-2\ncredentials: *a\ntoken: *b\n"
    shown = yaml.safe_load(mask_document("config.yaml", text))
    assert shown == {"base": {"x": "***"}, "plain": "***", "credentials": {"x": "***"}, "token": "***"}


def test_numbers_tags_and_further_documents_stay_as_they_were_written() -> None:
    """What is written again reads as before."""
    text = "lr: 1e-4\nn: 0x10\nw: !own 5\npassword: hush\n---\nhelp: '007'\n"
    shown = mask_document("config.yaml", text)
    assert shown == "---\nlr: 1e-4\nn: 0x10\nw: !own 5\npassword: '***'\n---\nhelp: '007'\n"


def test_files_in_a_plan_are_masked_as_documents() -> None:
    """A plan holds the configuration as a text."""
    files = [
        {"path": "config.yaml", "content": "tokens:\n- hush\n"},
        {"path": "a.json", "content": '{"token": "hush"}'},
    ]
    shown = mask_document("plan.json", json.dumps({"files": files}))
    assert "hush" not in shown
    assert find_secrets([("plan.json", shown.replace("***", "hush-hush"))], {})[:1] == ("hush-hush",)


def test_a_text_of_lines_in_a_value_is_masked_with_what_is_below_a_name() -> None:
    """A configuration may hold another one; what stands around it stays as it was."""
    text = "first: 1\r\ncredentials:\n  a: hush\n  b:\n  - hush\nlast: 2"
    shown = json.loads(mask_document("config.json", json.dumps({"x": text})))["x"]
    assert "hush" not in shown
    assert (shown[:11], shown[-8:]) == ("first: 1\r\nc", "\nlast: 2")


def test_an_environment_is_masked_by_the_names_of_its_lines() -> None:
    """All of a value, whatever stands in it."""
    text = "A=1 2\nDB_PASSWORD=hush hush, 'hush'\nTOKENIZERS_PARALLELISM=false\n"
    assert mask_document("rank_0/env.log", text) == "A=1 2\nDB_PASSWORD=***\nTOKENIZERS_PARALLELISM=false\n"


def test_what_is_secret_by_name_is_known_in_every_spelling() -> None:
    """Lines of a block, escapes of JSON and Python, quotes of YAML and URLs."""
    config = {"ssh_private_key": "line one\n  line two\n", "password": 'it\'s "a" b&c'}
    known = find_secrets([("config.json", json.dumps(config))], {"HF_TOKEN": "of-the-shell", "HOME": "/home/of-me"})
    told = f"x line two, {json.dumps(config)} {config!r} {yaml.safe_dump(config)} it%27s%20%22a%22%20b%26c of-the-shell"
    shown = mask_text(told, known)
    for part in ("line", "it's", "it\\'s", "it''s", "it%27s", "of-the-shell"):
        assert part not in shown
    assert list(known) == sorted(known, key=len, reverse=True)
    assert "/home/of-me" not in known


@pytest.mark.parametrize(
    "config",
    [
        {"password": "short"},
        {"credentials": {"user": "somebody9", "region": "cn-north-4", "endpoint": "obs.example.com", "auth": "oauth"}},
        {"auth": "kerberos", "sort_key": "created_at", "tokens": ["hello", "default"]},
        {"password": 123456789, "token": "12345678"},
        {"password_file": "/data/of/everybody", "tokens_dir": "/data/of/everybody"},
    ],
)
def test_short_and_common_words_are_masked_where_they_stand_only(config: dict[str, Any]) -> None:
    """Masked everywhere, they would take a report apart."""
    assert find_secrets([("config.json", json.dumps(config))], {}) == ()


def test_names_of_secrets_in_a_plan_are_no_secrets() -> None:
    """A plan lists the variables that it has no values of."""
    plan = {"secrets": ["HF_TOKEN_1"], "sources": {"secret_file": "not set, from default"}, "processes": []}
    assert find_secrets([("plan.json", json.dumps(plan))], {}) == ()


def test_the_number_of_known_secrets_is_bounded() -> None:
    """A file that somebody else wrote cannot make a report take for ever; the environment counts first."""
    config = json.dumps({"tokens": [f"token-{number:06}" for number in range(5 * MOST_KNOWN)]})
    known = find_secrets([("config.json", config)], {"HF_TOKEN": "of-the-shell"})
    assert len(known) == MOST_KNOWN
    assert "of-the-shell" in known


@pytest.mark.parametrize(
    "line",
    [
        "    tokens = tokenizer(text, return_tensors='ms')",
        "    token = tokens[0]",
        "loss 0.5, tokens: 512, use_auth_token=False, pad_token='[PAD]', eos_token=<|end|>",
        "max_tokens=auto num_tokens: many",
        "PWD=/home/me pwd=/data/x pwd: ~/x OLDPWD=/tmp",
        'secret "registry-key" not found; secrets "x" is forbidden; the password is required, was it set?',
        "the secret is: none; password is: none; KeyError: 'password'; Unexpected token 'N' is not valid JSON",
        "docker run -u 1000:1000 x; ssh -p 22 n1; curl -o f https://h/x; pip install mysql -p",
        "see https://docs.example.com/en/webhooks/about-webhooks-and-their-events; use_webhook=True",
        "signature: (x: Tensor) -> Tensor; signature=construct(x)",
    ],
)
def test_code_and_counts_in_tracebacks_and_logs_stay(line: str) -> None:
    """They explain a failure, and are no secrets."""
    assert mask_text(line) == line


@pytest.mark.parametrize("name", ["api_token", "apiToken", "hub.token", "credentials.value", "access-token", "token_2"])
def test_names_of_keys_and_options_are_known_as_secrets(name: str) -> None:
    """However their parts are joined."""
    assert looks_secret(name)


def test_flags_after_a_secret_option_stay() -> None:
    """An option without a value names no secret."""
    assert mask_values(["--token", "--verbose", "-k"]) == ["--token", "--verbose", "-k"]
