"""One HTTP provider of the demonstration, a process of its own that answers as real providers do on the wire.

    python -m sickbay.cli.demo.provider openai|anthropic [HOST:PORT]

It listens there, else on loopback at a free port. It prints its port, then reads commands from standard input:
`retire MODEL` makes it reject that model id from this moment on, `restore MODEL` serves it again. It ends when its
standard input closes, however its parent ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any, Final

from .pipes import lines_of_stdin, say

ANSWER_S: Final = 0.12
"""How long a generated answer takes."""
REJECT_S: Final = 0.03
"""How long a rejection takes: it comes before any generation."""
BODY_BYTES_MAX: Final = 1 << 20

retired: set[str] = set()


def answer(style: str, model: str) -> tuple[int, dict[str, Any]]:
    """Status and body for a request of `model`, in the provider's own form."""
    if model in retired:
        if style == "openai":
            text = f"The model `{model}` does not exist or you do not have access to it."
            error = {"message": text, "type": "invalid_request_error", "param": None, "code": "model_not_found"}
            return 404, {"error": error}
        return 404, {"type": "error", "error": {"type": "not_found_error", "message": f"model: {model}"}}
    if style == "openai":
        message = {"role": "assistant", "content": "All quiet on the ward.", "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}
        return 200, {
            "id": "chatcmpl-demo",
            "object": "chat.completion",
            "created": 1_790_000_000,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }
    return 200, {
        "id": "msg_demo",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": "All quiet on the ward."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 6},
    }


async def serve_one(style: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request and close."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
        request = json.loads(await reader.readexactly(min(length, BODY_BYTES_MAX)))
        status, body = answer(style, str(request.get("model", "")))
        await asyncio.sleep(ANSWER_S if status == 200 else REJECT_S)
        data = json.dumps(body).encode()
        reason = "OK" if status == 200 else "Not Found"
        writer.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (status, reason.encode(), len(data), data)
        )
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        pass  # a client that went away, or no HTTP at all
    finally:
        writer.close()


async def main(style: str, address: str = "127.0.0.1:0") -> None:
    """Serve until standard input closes."""
    host, _, port = address.rpartition(":")
    server = await asyncio.start_server(lambda r, w: serve_one(style, r, w), host, int(port))
    say(port=server.sockets[0].getsockname()[1])
    async with server:
        async for line in lines_of_stdin():
            verb, _, model = line.partition(" ")
            (retired.add if verb == "retire" else retired.discard)(model)
            say(done=line)


if __name__ == "__main__":
    # Ctrl-C goes to the whole terminal; the demonstration's own process decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(main(*sys.argv[1:]))
