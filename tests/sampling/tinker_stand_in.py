"""A Tinker service with what sampling needs, spoken to by the official client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import numpy as np
import torch
from aiohttp import web
from tinker.proto import tinker_public_pb2 as proto

KEY = "tml-test"


class Service:
    """Answers with the models that it is given, by path.

    Attributes:
        bodies: What `asample` was sent.
        pauses: How many `asample` are yet to be refused with 429.
        failure: What futures end in, in place of samples.
        held: Futures aren't ready until it is set.
    """

    def __init__(self, models, *, base_model="tiny-llama"):
        self.models, self.base_model = models, base_model
        self.bodies, self.finished = [], []
        self.pauses, self.failure, self.held = 0, None, None
        self.asked = asyncio.Event()
        self.sessions, self.futures = {}, {}
        self.numbers = itertools.count()

    def app(self):
        app = web.Application(middlewares=[self.keyed])
        routes = {
            "client/config": lambda body: {},
            "client/dynamic_config": lambda body: {},
            "create_session": lambda body: {"session_id": f"s{next(self.numbers)}"},
            "session_heartbeat": lambda body: {},
            "telemetry": lambda body: {"status": "accepted"},
            "create_sampling_session": self.create_sampling_session,
            "asample": self.asample,
        }
        for name, answer in routes.items():
            app.router.add_post(f"/api/v1/{name}", self.json(answer))
        app.router.add_post("/api/v1/sessions/{id}/finish", self.finish)
        app.router.add_post("/api/v1/retrieve_future", self.retrieve_future)
        app.router.add_get("/api/v1/samplers/{id}", self.sampler)
        return app

    @web.middleware
    async def keyed(self, request, handler):
        if request.headers.get("X-API-Key") != KEY:
            return web.json_response({"error": "bad key"}, status=401)
        return await handler(request)

    def json(self, answer):
        async def handler(request):
            found = answer(await request.json())
            return found if isinstance(found, web.Response) else web.json_response(found)

        return handler

    async def finish(self, request):
        self.finished.append(request.match_info["id"])
        return web.json_response({})

    async def sampler(self, request):
        found = request.match_info["id"]
        answer = {"sampler_id": found, "base_model": self.base_model, "model_path": self.sessions[found]}
        return web.json_response(answer)

    def create_sampling_session(self, body):
        if body["model_path"] not in self.models:
            return web.json_response({"detail": f"{body['model_path']} not found"}, status=404)
        session = f"{body['session_id']}:sample:{body['sampling_session_seq_id']}"
        self.sessions[session] = body["model_path"]
        return {"sampling_session_id": session}

    def asample(self, body):
        if self.pauses:
            self.pauses -= 1
            return web.json_response({"detail": "full"}, status=429)
        self.bodies.append(body)
        future = f"f{next(self.numbers)}"
        self.futures[future] = body
        self.asked.set()
        count = body["num_samples"]
        return {"request_id": future, "sample_sequence_ids": [f"{future}-{index}" for index in range(count)]}

    async def retrieve_future(self, request):
        body = self.futures[(await request.json())["request_id"]]
        if self.held is not None:
            await self.held.wait()
        if self.failure is not None:
            return web.json_response(self.failure)
        content = self.samples(body).SerializeToString()
        return web.Response(body=content, content_type="application/x-protobuf")

    def samples(self, body):
        model = self.models[self.sessions[body["sampling_session_id"]]]
        prompt = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        params = body["sampling_params"]
        answer = proto.SampleResponse(prompt_cache_hit_tokens=len(prompt) // 2)
        generator = torch.Generator().manual_seed(params.get("seed") or 0)
        for _ in range(body["num_samples"]):
            self.sample(answer.sequences.add(), model, prompt, params, body["topk_sample_logprobs"], generator)
        if body["prompt_logprobs"]:
            rows = torch.log_softmax(logits_of(model, prompt), -1)
            scored = [float("nan"), *(float(rows[i, prompt[i + 1]]) for i in range(len(prompt) - 1))]
            answer.prompt_logprobs = np.asarray(scored, np.float32).tobytes()
        return answer

    def sample(self, sequence, model, prompt, params, count, generator):
        stops = [stop for stop in params.get("stop") or () if isinstance(stop, int)]
        tokens, logprobs, top_ids, top_values = [], [], [], []
        greedy = params["temperature"] == 0
        sequence.stop_reason = 1
        while len(tokens) < params["max_tokens"]:
            logits = logits_of(model, [*prompt, *tokens])[-1]
            drawn_from = torch.log_softmax(logits if greedy else logits / params["temperature"], -1)
            drawn = drawn_from.argmax() if greedy else torch.multinomial(drawn_from.exp(), 1, generator=generator)
            tokens.append(int(drawn))
            logprobs.append(float(drawn_from[tokens[-1]]))
            best = drawn_from.topk(max(1, count))
            top_ids += best.indices.tolist()
            top_values += best.values.tolist()
            if tokens[-1] in stops:
                sequence.stop_reason = 0
                break
        sequence.tokens = np.asarray(tokens, np.int32).tobytes()
        sequence.logprobs = np.asarray(logprobs, np.float32).tobytes()
        if count:
            told = sequence.topk_sampled_logprobs
            told.k, told.length = count, len(tokens)
            told.token_ids = np.asarray(top_ids, np.int32).tobytes()
            told.logprobs = np.asarray(top_values, np.float32).tobytes()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens])).logits[0]


@contextlib.asynccontextmanager
async def serving(service):
    """Serve it on a free port; the address."""
    runner = web.AppRunner(service.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        if service.held is not None:
            service.held.set()
        await runner.cleanup()
