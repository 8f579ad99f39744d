"""Harnesses for workers: they speak to the endpoint by HTTP alone."""

import httpx

URLS = []


async def play(call, extra=0):
    """Ask as often as told, the same question in conversations of their own, and answer with the last answer."""
    URLS.append(call.base_url)
    async with httpx.AsyncClient(verify=False) as http:
        for number in range(1 + extra):
            said = await http.post(
                f"{call.keyed_url}/chat/completions",
                json={"model": call.model, "messages": [{"role": "system", "content": str(number)}, *call.messages]},
            )
            said.raise_for_status()
        return said.json()["choices"][0]["message"]["content"]
