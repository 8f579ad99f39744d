"""How the API refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinker_actors.errors import ActorError, ContextOverflowError, TinkerActorsError, UnknownPolicyError
from tinker_actors.sampling.requests import InvalidRequestError, Overloaded, SamplingError

logger = logging.getLogger(__name__)


class ApiError(TinkerActorsError):
    """A request is refused, in the form in which the OpenAI API says so.

    Attributes:
        status: Of the HTTP response.
        type: The kind of error, such as `invalid_request_error`.
        param: The field of the request that is to blame, if one is.
        code: What clients tell errors apart by.
        retry_after: Seconds after which asking again may do; None where it won't.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.param, self.code = status, type, param, code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The response's body."""
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


def unsupported(name: str, value: object, reason: str) -> ApiError:
    """A field that isn't served with this value."""
    return ApiError(
        f"{name} is {shortened(value)}, which is not served here: {reason}", param=name, code="unsupported_parameter"
    )


@contextmanager
def sampling_errors(*, prompt: str, grammar: str | None) -> Iterator[None]:
    """The boundary between the sampler's errors and the API's.

    Args:
        prompt: The field that the prompt came from.
        grammar: The field that asked for a grammar, if one did.

    Raises:
        ApiError: In place of what the sampler raised.
    """
    try:
        yield
    except ContextOverflowError as error:
        raise ApiError(str(error), param=prompt, code="context_length_exceeded") from None
    except InvalidRequestError as error:
        param = grammar if "grammar" in str(error) else None
        raise ApiError(str(error) if param is None else f"{param} can't be followed: {error}", param=param) from None
    except UnknownPolicyError as error:
        raise ApiError(str(error), status=404, param="model", code="model_not_found") from None
    except Overloaded as error:
        raise ApiError(
            str(error), status=429, type="rate_limit_error", code="overloaded", retry_after=error.retry_after
        ) from None
    except SamplingError as error:
        raise ApiError(str(error), status=503, type="server_error", code="sampling_failed") from None
    except ActorError as error:
        logger.error("what samples was lost amid a request", exc_info=error)
        said = "what samples was lost amid the request, and is started again; ask again"
        raise ApiError(said, status=503, type="server_error", code="sampler_lost", retry_after=5) from None


def shortened(value: Any) -> str:
    """A value in an error's text."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
