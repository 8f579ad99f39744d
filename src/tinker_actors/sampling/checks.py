"""Which requests can be served."""

from __future__ import annotations

from tinker_actors.errors import ContextOverflowError, ModelError
from tinker_actors.sampling.grammars import Grammars
from tinker_actors.sampling.requests import InvalidRequestError, SamplingRequest
from tinker_actors.sampling.residents import Residents


class Checks:
    """What a request must be, given the base model and the context."""

    def __init__(self, residents: Residents, grammars: Grammars, context_length: int) -> None:
        self._residents, self._grammars, self._context_length = residents, grammars, context_length

    def check(self, request: SamplingRequest) -> None:
        """Refuse a request that can't be served.

        Raises:
            InvalidRequestError: A token id is outside the vocabulary, or an image or the grammar can't be read.
            ContextOverflowError: Prompt and targets are longer than the context.
        """
        length, limit = len(request.prompt) + len(request.targets), self._context_length
        if length > limit:
            raise ContextOverflowError(f"the prompt has {length} tokens; the context holds {limit}")
        if length == limit and request.scored_from is not None and not request.targets:
            raise ContextOverflowError(
                f"the prompt has {length} tokens; the context of {limit} leaves no room to sample"
            )
        vocabulary = self._residents.vocab_size
        biased = tuple(token for token, _ in request.params.logit_bias)
        fields = [("prompt", request.prompt), ("targets", request.targets), ("logit_bias", biased)]
        fields += [(f"scoring.candidates[{place}]", ids) for place, ids in enumerate(request.scoring.candidates)]
        for field, tokens in fields:
            if tokens and max(tokens) >= vocabulary:
                position = next(i for i, token in enumerate(tokens) if token >= vocabulary)
                raise InvalidRequestError(
                    f"{field}[{position}] is {tokens[position]}; a token id below {vocabulary} is needed"
                )
        if request.params.grammar is not None:
            self._grammars.check(request.params.grammar)
        self.look(request)

    def look(self, request: SamplingRequest) -> None:
        """Decode a request's images, which `submit` then need not do.

        Raises:
            InvalidRequestError: The model reads no images, or not these.
        """
        vision = self._residents.vision
        if vision is None:
            if request.images:
                raise InvalidRequestError(f"images has {len(request.images)}; the base model reads none")
            return
        try:
            vision.check(request.input)
        except ModelError as error:
            raise InvalidRequestError(f"the prompt can't be read: {error}") from error
