"""Which variables and URLs hold secrets, and how they are shown without them. It imports nothing."""

MASK = "***"
_SECRET = (
    *("SECRET", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTH", "APIKEY", "ACCESSKEY"),
    *("BEARER", "WEBHOOK"),
)
"""How a part of a name ends: `HF_TOKEN`, `PGPASSWORD`; not `TOKENIZERS_PARALLELISM`, `GIT_AUTHOR_NAME`."""
_PERHAPS = ("KEY", "PASS", "PWD")
"""Whole last parts of names, but for those that MindSpore and CANN call otherwise: a compiler's pass, a cache's key."""
_COUNTED = (
    *("MAX", "MIN", "NUM", "TOTAL", "NEW", "PAD", "BOS", "EOS", "EOD", "EOT", "UNK", "CLS", "SEP", "MASK", "SPECIAL"),
    *("STOP", "START", "END", "IMAGE", "VIDEO", "AUDIO", "TEXT", "INPUT", "OUTPUT", "PROMPT", "VOCAB"),
)
_MEASURED = ("ID", "LENGTH", "LEN", "TYPE", "SIZE", "COUNT", "NUM", "PER", "LIMIT", "EMBEDDING", "EMBED", "DROPOUT")
"""What stands before TOKEN, or after it, where it is one that a language model reads: `pad_token`, `token_length`."""
_NOT_SECRET = ("PWD", "OLDPWD", "PUBLIC_KEY", "MSLAUNCH_SECRETS")
_TUNABLES = ("MS_", "HCCL_", "ASCEND_", "NCCL_", "GLOG_", "MINDSPORE_")
_SIGNATURES = ("KEY", "SIG", "SIGNATURE", "CODE")
_SHORTEST_HOOK = 16
_AUTHORITY_ENDS = "/?# \t\n\"'<>,;"


def looks_secret(name: str) -> bool:
    """Tell whether a variable, an option or a key of this name holds a secret: `HF_TOKEN`, `api-key`, `hub.apiKey`."""
    return any(map(_part_looks_secret, name.split(".")))


def _part_looks_secret(name: str) -> bool:
    upper = _with_underscores(name).upper()
    if upper == "PWD" and name != upper:  # a key of a configuration; the variable is a folder
        return True
    if upper in _NOT_SECRET or upper.endswith("_PUBLIC_KEY"):
        return False
    parts = [part[:-1] if part.endswith("S") and part != "PASS" else part for part in upper.split("_")]
    if any(part.endswith(_SECRET) and not _is_of_a_model(parts, at) for at, part in enumerate(parts)):
        return True
    if parts[0] == "X" and parts[-1] == "SIGNATURE":  # X-Amz-Signature; others are of functions
        return True
    return len(parts) > 1 and parts[-1] in _PERHAPS and not upper.startswith(_TUNABLES)


def _with_underscores(name: str) -> str:
    """Write `privateKey` and `private-key` as `private_Key`."""
    spread = ""
    for character in name:
        if character.isupper() and spread[-1:].islower():
            spread += "_"
        spread += character
    return spread.replace("-", "_")


def _is_of_a_model(parts: "list[str]", at: int) -> bool:
    """Tell whether a TOKEN in a name is one of a text."""
    after = parts[at + 1] if at + 1 < len(parts) else ""
    return parts[at] == "TOKEN" and (after in _MEASURED or (at > 0 and parts[at - 1] in _COUNTED))


def without_credentials(value: str) -> str:
    """Mask who logs in, and secrets in queries, wherever a URL stands in a value."""
    masked_value = ""
    while "://" in value:
        scheme, _, value = value.partition("://")
        end = _first(value, _AUTHORITY_ENDS)
        login, _, host = value[:end].rpartition("@")
        if login:
            masked_value += f"{scheme}://{MASK}@{host}"
        else:
            masked_value += f"{scheme}://{value[:end]}"
        value = value[end:]
        end = _first(value, " \t\n\"'<>")
        masked_value += _without_queries(_without_hook(host, value[:end]))
        value = value[end:]
    return masked_value + value


def _without_hook(host: str, tail: str) -> str:
    """Mask what follows `hook` or `webhooks` in the path of a URL: whoever has it may post there."""
    path, mark, query = tail.partition("?")
    parts = path.split("/")
    start = 1 if host.startswith("hooks.") else None
    for at, part in enumerate(parts):
        if part.lower() in ("hook", "hooks", "webhook", "webhooks", "webhookb2"):
            start = at + 1
            break
    if start is None or not any(_is_random(part) for part in parts[start:]):
        return tail
    return "/".join([*parts[:start], MASK]) + mark + query


def _is_random(part: str) -> bool:
    """Tell whether a part of a path was made by a program; a page's name has no digits."""
    return len(part) >= _SHORTEST_HOOK and any(map(str.isdigit, part)) and any(map(str.isalpha, part))


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable is a secret, by its name or by what its value holds."""
    return looks_secret(name) or without_credentials(value) != value


def masked(name: str, value: str) -> str:
    """The value as it may be shown."""
    return MASK if looks_secret(name) else without_credentials(value)


def _without_queries(tail: str) -> str:
    path, mark, query = tail.partition("?")
    if not mark or "://" in query:
        return tail  # a URL in a URL is looked at by itself
    pairs = []
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        hidden = value and (looks_secret(name) or name.upper().split("-")[-1] in _SIGNATURES)
        pairs.append(f"{name}={MASK}" if hidden else pair)
    return f"{path}?{'&'.join(pairs)}"


def _first(text: str, ends: str) -> int:
    """Where the first of some characters stands, or the end of the text."""
    return min((at for at in map(text.find, ends) if at >= 0), default=len(text))
