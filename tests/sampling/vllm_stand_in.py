"""A server that answers as vLLM's OpenAI-compatible one does to what a `VllmSampler` asks, computing with PEFT.

It refuses what vLLM would get wrong: an adapter under a name or path that it had before, a per-request seed and
prompt log-probs of a stream; its log-probs can be vLLM's default ones. As a program it takes vLLM's command line and
computes nothing: it repeats the prompt's last token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import json
import os
import sys

from aiohttp import web


class StandIn:
    """The server's state and its answers."""

    def __init__(self, model, *, name="base", context_length=64, processed=True):
        self.base, self.name, self.context_length, self.processed = model, name, context_length, processed
        self.adapters, self.loaded = {}, {}
        self.seen = set()
        self.bodies = []
        self.dead = False
        self.refusal = None
        self.asked, self.answered = asyncio.Event(), asyncio.Event()
        self.held = self.connection = None

    async def until(self, condition):
        """Return once it holds, looked at after each request."""
        while not condition():
            self.answered.clear()
            await self.answered.wait()

    @web.middleware
    async def tell(self, request, handler):
        try:
            return await handler(request)
        finally:
            self.answered.set()

    def app(self):
        app = web.Application(middlewares=[self.tell])
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/load_lora_adapter", self.load)
        app.router.add_post("/v1/unload_lora_adapter", self.unload)
        app.router.add_post("/v1/completions", self.completions)
        return app

    async def health(self, _):
        return web.Response(status=503 if self.dead else 200)

    async def models(self, _):
        base = {"id": self.name, "root": "x", "parent": None, "max_model_len": self.context_length}
        return web.json_response({"data": [base, *({"id": name, "parent": self.name} for name in self.adapters)]})

    async def load(self, request):
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        if self.dead:
            return error(500, "EngineCore encountered an issue")
        if not await asyncio.to_thread(os.path.isdir, path):
            return error(404, f"No adapter found for {path}")
        if name in self.seen or path in self.adapters.values():
            return error(400, f"The lora adapter '{name}' has already been loaded.")
        self.seen.add(name)
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(os.listdir(path))
        self.adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request):
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            return error(404, f"The lora adapter '{name}' cannot be found.")
        del self.adapters[name]
        return web.Response(text="Success")

    async def completions(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.connection = request.transport
        self.asked.set()
        if self.refusal is not None:
            return self.refusal()
        if self.held is not None:
            await self.held.wait()
        if self.dead:
            return error(500, "EngineCore encountered an issue")
        if body["model"] not in (self.name, *self.adapters):
            return error(404, f"The model `{body['model']}` does not exist.")
        if wrong := self.wrong(body):
            return error(400, wrong)
        choices = [self.choice(body, index) for index in range(body.get("n", 1))]
        count = len(body["prompt"])
        usage = {"prompt_tokens": count, "prompt_tokens_details": {"cached_tokens": count // 16 * 16}}
        if not body.get("stream"):
            return web.json_response({"choices": choices, "usage": usage})
        return await self.stream(request, choices, usage)

    def wrong(self, body):
        if "seed" in body:
            return "a seed kills the engine"
        if body["temperature"] == 0 and body.get("n", 1) > 1:
            return "n must be 1 when using greedy sampling"
        if body.get("stream") and "prompt_logprobs" in body:
            return "prompt_logprobs are not available when stream=True"
        if len(body["prompt"]) + body["max_tokens"] > self.context_length:
            return f"This model's maximum context length is {self.context_length} tokens"
        vocabulary = self.vocabulary()
        if max(body["prompt"]) >= vocabulary:
            return f"Token id {max(body['prompt'])} is out of vocabulary"
        return None

    def vocabulary(self):
        return self.base.config.vocab_size

    def model(self, name):
        from peft import PeftModel

        if name in self.adapters and name not in self.loaded:  # on weights of its own
            model = PeftModel.from_pretrained(copy.deepcopy(self.base), self.adapters[name])
            self.loaded[name] = model.eval()
        return self.loaded[name] if name in self.adapters else self.base

    def choice(self, body, index):
        import torch

        model, prompt = self.model(body["model"]), body["prompt"]
        greedy = body["temperature"] == 0
        temperature = 1.0 if greedy else body["temperature"]
        tokens, logprobs, tops, finish = [], [], [], "length"
        while len(tokens) < body["max_tokens"]:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            for token, bias in body.get("logit_bias", {}).items():
                logits[int(token)] += bias
            drawn_from = torch.log_softmax(logits / temperature, -1)
            token = int(logits.argmax()) if greedy else int(torch.multinomial(drawn_from.exp(), 1))
            told = drawn_from if self.processed else torch.log_softmax(logits, -1)
            tokens.append(token)
            logprobs.append(float(told[token]))
            best = told.topk(max(1, body["logprobs"]))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            entry = {f"token_id:{other}": value for other, value in pairs} if body["logprobs"] else {}
            tops.append(entry | {f"token_id:{token}": float(told[token])})
            if token in body.get("stop_token_ids", ()):
                finish = "stop"
                break
        choice = {
            "index": index,
            "text": "",
            "finish_reason": finish,
            "token_ids": tokens,
            "prompt_token_ids": prompt,
            "logprobs": {"token_logprobs": logprobs, "top_logprobs": tops},
        }
        if "prompt_logprobs" in body:
            with torch.no_grad():
                rows = torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0], -1)
            scored = [{str(prompt[i + 1]): {"logprob": float(rows[i, prompt[i + 1]])}} for i in range(len(prompt) - 1)]
            choice["prompt_logprobs"] = [None, *scored]
        return choice

    async def stream(self, request, choices, usage):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for choice in choices:
            for place, token in enumerate(choice["token_ids"]):
                last = place + 1 == len(choice["token_ids"])
                logprobs = {key: [values[place]] for key, values in choice["logprobs"].items()}
                piece = {
                    "index": choice["index"],
                    "token_ids": [token],
                    "logprobs": logprobs,
                    "finish_reason": choice["finish_reason"] if last else None,
                }
                await response.write(f"data: {json.dumps({'choices': [piece]})}\n\n".encode())
                if self.dead:  # while it streamed
                    request.transport.abort()
                    return response
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        return response


class Parrot(StandIn):
    """Repeats the prompt's last token, with log-prob -1."""

    def vocabulary(self):
        return 1000

    def choice(self, body, index):
        count = body["max_tokens"]
        tokens = body["prompt"][-1:] * count
        logprobs = {"token_logprobs": [-1.0] * count, "top_logprobs": [{}] * count}
        return {"index": index, "finish_reason": "length", "token_ids": tokens, "logprobs": logprobs}


def error(status, message):
    body = {"error": {"message": message, "type": "x", "code": status}}
    return web.json_response(body, status=status)


@contextlib.asynccontextmanager
async def serving(stand_in):
    """Serve it on a free port; the address."""
    runner = web.AppRunner(stand_in.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        if stand_in.held is not None:
            stand_in.held.set()
        await runner.cleanup()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--uds")
    parser.add_argument("--max-model-len", type=int)
    options, _ = parser.parse_known_args()
    assert options.module == "vllm.entrypoints.openai.api_server"
    assert os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert os.path.isfile(f"{options.model}/config.json")
    stand_in = Parrot(None, name=options.served_model_name, context_length=options.max_model_len or 64)
    sys.stdout.write(f"pid {os.getpid()}\n")
    sys.stdout.flush()
    web.run_app(stand_in.app(), path=options.uds, print=None)


if __name__ == "__main__":
    main()
