"""FastAPI that streams the first of two models that begins to answer. The stream outlives the block that began it.

pip install fastapi uvicorn openai sickbay; needs OPENAI_API_KEY. Run: uvicorn fastapi_stream:app --workers 4
The four workers share a replica name, which is right: they share one machine and its network.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import sickbay

URL = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
CHAIN = [sickbay.Target(sickbay.provider_of(URL), model) for model in os.environ.get("MODELS", "gpt-5.2 gpt-5").split()]
client = openai.AsyncOpenAI(base_url=URL, max_retries=0)
router = sickbay.connect()  # each worker gets a connection of its own, also after a fork


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with router:
        yield


app = FastAPI(lifespan=lifespan)


async def pieces(target: sickbay.Target, attempt: sickbay.Attempt) -> AsyncIterator[str]:
    stream = await client.chat.completions.create(
        model=target.model, messages=[{"role": "user", "content": "Say hello"}], stream=True
    )
    async for chunk in attempt.chunks(stream):  # gathers them, and says in the end what they make
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


@app.get("/hello")
async def hello() -> StreamingResponse:
    async with router.stream(CHAIN, pieces, route="hello") as answer:  # raises Exhausted before anything is sent
        return StreamingResponse(answer, media_type="text/plain", headers={"x-model": answer.model})
