"""pydantic-ai's FallbackModel goes to its second model at once while Sickbay holds the first: no code for it.

pip install 'pydantic-ai-slim[openai]' 'sickbay[httpx]'; needs OPENAI_API_KEY.
"""

import asyncio
import os

import openai
from pydantic_ai import Agent
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import sickbay
import sickbay.httpx

MODELS = os.environ.get("MODELS", "gpt-5.2 gpt-5").split()


async def main() -> None:
    async with sickbay.connect() as router:
        provider = OpenAIProvider(openai_client=sickbay.httpx.guard(openai.AsyncOpenAI(), router))
        agent = Agent(FallbackModel(*(OpenAIChatModel(model, provider=provider) for model in MODELS)))
        for _ in range(4):
            answer = await agent.run("Say hello")
            print("answered:", answer.output)


asyncio.run(main())
