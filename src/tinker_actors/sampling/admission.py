"""How a request becomes rows: checked, pinned to its snapshot, or refused."""

from __future__ import annotations

import secrets

from tinker_actors.data import TurnEnd
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.checks import Checks
from tinker_actors.sampling.grammars import Grammars
from tinker_actors.sampling.metrics import Meter
from tinker_actors.sampling.requests import Overloaded, Sample, SamplingRequest
from tinker_actors.sampling.residents import Residents
from tinker_actors.sampling.rows import Row, Ticket, rows_of
from tinker_actors.sampling.scores import Scores
from tinker_actors.sampling.stops import PlainText, stop_ids_of


class Admission:
    """What lets requests in.

    Args:
        residents: The snapshots that are served.
        tokenizer: The base model's.
        context_length: Longest prompt and reply together, in tokens.
        max_waiting: Samples that may wait.
        meter: Counts.

    Attributes:
        checks: What refuses requests that can't be served.
        text: Turns tokens to text.
    """

    def __init__(
        self, residents: Residents, tokenizer: Tokenizer, meter: Meter, *, context_length: int, max_waiting: int
    ) -> None:
        self._residents, self._tokenizer, self._meter = residents, tokenizer, meter
        self._context_length, self._max_waiting = context_length, max_waiting
        self._grammars = Grammars(tokenizer, residents.vocab_size)
        self.text = PlainText(tokenizer)
        self.checks = Checks(residents, self._grammars, context_length)

    def check(self, request: SamplingRequest, waiting: int) -> None:
        """Refuse what can't be served, or not now.

        Args:
            request: The request.
            waiting: Samples that wait already.

        Raises:
            InvalidRequestError: A token id is outside the vocabulary.
            ContextOverflowError: The prompt is longer than the context.
            Overloaded: Too much waits.
        """
        self.checks.check(request)
        if waiting + request.num_samples > self._max_waiting:
            self._meter.refused += 1
            seconds = self._meter.seconds_for(request.num_samples)
            raise Overloaded(
                f"{waiting} samples wait, at most {self._max_waiting} may; ask again in {seconds} s", seconds
            )

    def admit(self, request: SamplingRequest, *, streams: bool) -> tuple[Ticket, list[Row]]:
        """Pin a request that was checked to its snapshot.

        Returns:
            Its ticket and rows; no rows if the prompt leaves no room for a token, and the reply is ready.

        Raises:
            UnknownPolicyError: The snapshot is not served.
        """
        resident = self._residents.pin(request.snapshot)
        count = request.num_samples
        seed = secrets.randbits(63) if request.params.seed is None else request.params.seed
        ticket = Ticket(
            request=request,
            resident=resident,
            seed=seed,
            scores=None if request.scored_from is None else Scores(request, seed),
            samples=[None] * count,
            missing=count,
            streams=streams,
        )
        if len(request.prompt) == self._context_length and ticket.scores is None:
            nothing = Sample(tokens=(), logprobs=(), end=TurnEnd.CONTEXT_OVERFLOW, text="")
            ticket.samples = [nothing] * count
            self._residents.unpin(resident)
            return ticket, []
        rows = rows_of(
            ticket,
            context_length=self._context_length,
            stop_ids=stop_ids_of(request.params, self._tokenizer),
            decoder=self.text,
        )
        if request.params.grammar is not None:
            for row in rows:
                row.grammar = self._grammars.begin(request.params.grammar)
        return ticket, rows
