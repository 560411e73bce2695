"""Who answers: one file for each wire format, and the strings that name them."""

from __future__ import annotations

import pkgutil

from trioagent._ports import Model

# Imported when used: `import trioagent` must stay light.
PROVIDERS = {
    "anthropic": "trioagent.models.anthropic:AnthropicMessages",
    "gemini": "trioagent.models.gemini:Gemini",
    "local": "trioagent.models.local:LocalModel",
    "openai": "trioagent.models.openai_chat:OpenAIChat",
    "openai-responses": "trioagent.models.openai_responses:OpenAIResponses",
}


def find_model(text: str) -> Model:
    """The model that `provider:model` names.

    Providers of other packages register themselves as entry points of the group
    `trioagent.models`. Raises ValueError for a provider that nobody knows.
    """
    provider, _, name = text.partition(":")
    make = PROVIDERS.get(provider)
    if make is None:
        from importlib.metadata import entry_points  # slow to import, seldom needed

        others = {e.name: e.value for e in entry_points(group="trioagent.models")}
        make = others.get(provider)
        if make is None:
            known = ", ".join(sorted({*PROVIDERS, *others}))
            raise ValueError(
                f"no provider {provider!r} in {text!r}: write provider:model, with one"
                f" of {known}"
            )
    if not name and provider != "local":
        raise ValueError(f"{text!r} names no model: write {provider}:MODEL")
    model: Model = pkgutil.resolve_name(make)(*([name] if name else []))
    return model
