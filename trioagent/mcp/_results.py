"""What a server answers, as text for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # the package is loaded when it is needed
    import mcp_types


def as_text(result: mcp_types.CallToolResult, limit: int) -> str:
    """The text of a result, up to `limit` bytes; other content is only described.

    Structured content is added as JSON, unless a text says the same, as servers send it
    for clients that know text only.
    """
    texts = [_block(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and not any(_same(text, structured) for text in texts):
        texts.append(msgspec.json.encode(structured).decode())
    return _capped("\n".join(filter(None, texts)) or "(no output)", limit)


def _same(text: str, structured: Any) -> bool:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        value = text
    # A tool that returns no object has it put into one, under this key.
    return bool(value == structured or {"result": value} == structured)


def _block(block: mcp_types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_size(block.data)}]"
        case "resource_link":
            told = f": {block.description}" if block.description else ""
            return f"[resource {block.uri} ({block.name}){told}]"
        case "resource":
            return _resource(block.resource)
    return f"[{block.type}]"  # type: ignore[unreachable]  # of a later revision


def _resource(
    resource: mcp_types.TextResourceContents | mcp_types.BlobResourceContents,
) -> str:
    text = getattr(resource, "text", None)
    if text is not None:
        return f"[resource {resource.uri}]\n{text}"
    size = _size(getattr(resource, "blob", ""))
    return f"[resource {resource.uri}: {resource.mime_type or 'data'}, {size}]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4} bytes"


def _capped(text: str, limit: int) -> str:
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    head = data[:limit].decode(errors="ignore")
    return f"{head}\n… {len(data) - limit} bytes left out (result_bytes={limit}) …"
