"""The OpenAI SDK with Sickbay under it. Nothing else in the program changes.

pip install openai 'sickbay[httpx]'; needs OPENAI_API_KEY. `sickbay serve` in another terminal shares what is learnt.
"""

import asyncio
import os

import openai

import sickbay
import sickbay.httpx

MODEL = os.environ.get("MODEL", "gpt-5.2")


async def main() -> None:
    async with sickbay.connect() as router:
        client = openai.AsyncOpenAI(http_client=sickbay.httpx.async_client(router))
        for _ in range(4):
            try:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "Say hello"}]
                )
                print("answered:", answer.choices[0].message.content)
            except openai.APIStatusError as error:
                # A held model: status 503, code `quarantined`, `throttled`, ... and no request was sent.
                print("failed:", error.status_code, error.code)


asyncio.run(main())
