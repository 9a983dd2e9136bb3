"""Sickbay under every SDK that stands on httpx or httpx2: OpenAI, Anthropic, google-genai, Mistral, Groq and others.

    import openai, sickbay, sickbay.httpx

    async with sickbay.connect() as router:
        client = openai.AsyncOpenAI(http_client=sickbay.httpx.async_client(router))

A held target is answered by a 503 in the provider's own error shape, which the SDK raises at once.
"""

from __future__ import annotations

from .integrations.httpx_transport import async_client, client, guard, transport

__all__ = ["async_client", "client", "guard", "transport"]
