"""Models of several providers in the order of your preference, each with the OpenAI SDK: the first that may be called
answers. The SDK's retries are off, because each request is one attempt.

pip install openai sickbay; needs API keys. `sickbay serve` in another terminal shares what is learnt.
"""

import asyncio
import os
from collections.abc import AsyncIterator

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import sickbay

FIRST_URL = os.environ.get("FIRST_URL", "https://openrouter.ai/api/v1")
SECOND_URL = os.environ.get("SECOND_URL", "https://api.openai.com/v1")
FIRST = sickbay.Target(sickbay.provider_of(FIRST_URL), os.environ.get("FIRST_MODEL", "z-ai/glm-5.3"))
SECOND = sickbay.Target(sickbay.provider_of(SECOND_URL), os.environ.get("SECOND_MODEL", "gpt-5.2"))
CLIENTS = {
    FIRST.provider: openai.AsyncOpenAI(base_url=FIRST_URL, max_retries=0),
    SECOND.provider: openai.AsyncOpenAI(base_url=SECOND_URL, max_retries=0),
}


async def complete(target: sickbay.Target, attempt: sickbay.Attempt) -> ChatCompletion:
    """What the SDK returns is judged by itself: an empty answer leads to the next target."""
    return await CLIENTS[target.provider].chat.completions.create(
        model=target.model, messages=[{"role": "user", "content": "Say hello"}], timeout=attempt.limit_s
    )


async def pieces(target: sickbay.Target, attempt: sickbay.Attempt) -> AsyncIterator[ChatCompletionChunk]:
    """So are the chunks of a stream."""
    stream = await CLIENTS[target.provider].chat.completions.create(
        model=target.model, messages=[{"role": "user", "content": "Say hello"}], stream=True
    )
    async for chunk in stream:
        yield chunk


async def main() -> None:
    async with sickbay.connect() as router:
        answer = await router.call([FIRST, SECOND], complete, route="hello")
        print(answer.model, "answered:", answer.value.choices[0].message.content)
        async with router.stream([FIRST, SECOND], pieces, route="hello") as stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            print(stream.model, "streamed:", text)


asyncio.run(main())
