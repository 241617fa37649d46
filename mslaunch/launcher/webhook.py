"""Posts one message to a URL, with the standard library."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Any

from mslaunch.shared.secret_names import without_credentials
from mslaunch.words import first_line

ANSWER_SECONDS = 10.0
_WORTH_A_RETRY = (408, 425, 429)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without a body: that is told, not followed."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


def post(url: str, body: bytes) -> tuple[str, bool]:
    """Post once; return what went wrong, and whether another try may help."""
    head = {"Content-Type": "application/json", "User-Agent": "mslaunch"}
    try:
        request = urllib.request.Request(url, body, head, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_SECONDS):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP status {error.code}", error.code >= 500 or error.code in _WORTH_A_RETRY
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        return first_line(without_credentials(str(why).replace(url, "the URL"))), not isinstance(error, ValueError)
