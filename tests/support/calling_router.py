"""One router replica in a process of its own: `python calling_router.py NAME PORT PER_S`, ended by closing its input.

It calls the provider at that port of this machine through the product so many times a second. Each call tells the
provider in its headers whose it is, what its gate had seen of the log and whether it is a trial; what the gate refuses
is told as a GET of `/refused`. `$SICKBAY_NATS` says where the cluster is.
"""

from __future__ import annotations

import asyncio
import random
import sys

import aiohttp

import sickbay
from sickbay import Held, Sickbay, Target, provider_of
from waiting import patience

MODEL = "demo-1"


def target_of(port: int) -> Target:
    """What is called at that port."""
    return Target(provider_of(f"http://127.0.0.1:{port}/v1", machine="test"), MODEL)


async def call(sb: Sickbay, http: aiohttp.ClientSession, name: str, port: int) -> None:
    """One call, if it may be made."""
    base = f"http://127.0.0.1:{port}"
    try:
        async with sb.attempt(target_of(port), limit_s=patience(10)) as attempt:
            trial = attempt.decision is not None and attempt.decision.trial
            headers = {"x-replica": name, "x-seen": str(sb.mirror.seq), "x-trial": str(int(trial))}
            async with http.post(f"{base}/v1/chat/completions", json={"model": MODEL}, headers=headers) as answer:
                attempt.response(answer.status, dict(answer.headers), await answer.read())
    except Held:
        async with http.get(f"{base}/refused", headers={"x-replica": name}):
            pass


async def main(name: str, port: int, per_s: float) -> None:
    """Call until the input closes."""
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    rng = random.Random(name)
    async with sickbay.connect(replica=name, machine="test") as sb, aiohttp.ClientSession() as http:
        assert await sb.ready(patience(20))
        async with asyncio.TaskGroup() as calls:
            while not ended.done():
                calls.create_task(call(sb, http, name, port))
                await asyncio.wait([ended], timeout=rng.expovariate(per_s))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
