"""What OpenAI's two APIs share: an address, and who asks."""

from __future__ import annotations

import os

from ._keys import check_key

DEFAULT_URL = "https://api.openai.com/v1"


def find_url(base_url: str | None) -> str:
    """The server: as given, else from the environment, else OpenAI."""
    return base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL


def own_headers(key: str) -> dict[str, str]:
    """The key, and whom the requests are billed to where an account has several."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    for header, variable in (
        ("openai-organization", "OPENAI_ORG_ID"),
        ("openai-project", "OPENAI_PROJECT_ID"),
    ):
        if value := os.environ.get(variable):
            headers[header] = check_key(value, source=variable)
    return headers
