"""The Anthropic SDK in threads, with Sickbay under it, streaming.

pip install anthropic 'sickbay[httpx]'; needs ANTHROPIC_API_KEY. `sickbay serve` in another terminal shares what is
learnt.
"""

import os

import anthropic

import sickbay.httpx
import sickbay.sync

MODEL = os.environ.get("MODEL", "claude-opus-4-8")

router = sickbay.sync.connect()
client = anthropic.Anthropic(http_client=sickbay.httpx.client(router))
for _ in range(4):
    try:
        with client.messages.stream(
            model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "Say hello"}]
        ) as stream:
            print("answered:", "".join(stream.text_stream))
    except anthropic.APIStatusError as error:
        print("failed:", error.status_code, error.response.headers.get("x-sickbay", "by the provider"))
router.close()
