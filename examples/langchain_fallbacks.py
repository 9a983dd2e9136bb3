"""LangChain's with_fallbacks goes to its second model at once while Sickbay holds the first: no code for it.

pip install langchain-openai 'sickbay[httpx]'; needs OPENAI_API_KEY.
"""

import os

from langchain_openai import ChatOpenAI

import sickbay.httpx
import sickbay.sync

MODELS = os.environ.get("MODELS", "gpt-5.2 gpt-5").split()

router = sickbay.sync.connect()
first, *rest = [ChatOpenAI(model=model) for model in MODELS]
for model in (first, *rest):
    sickbay.httpx.guard(model.root_client, router)
chat = first.with_fallbacks(rest)
for _ in range(4):
    print("answered:", chat.invoke("Say hello").content)
router.close()
