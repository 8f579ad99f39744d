"""A harness that knows nothing of the package: it speaks to an OpenAI-compatible API through the `openai` client."""

import openai

# one client, and so one pool of connections, for all episodes; address and key are each call's own
CLIENT = openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key="-", max_retries=0)


async def play(call):
    """Answer an observation.

    Args:
        call: A `HarnessCall`: `base_url`, `api_key`, `model`, `messages`, ...
    """
    api = CLIENT.with_options(base_url=call.base_url, api_key=call.api_key)
    said = await api.chat.completions.create(model=call.model, messages=call.messages)
    return said.choices[0].message.content
