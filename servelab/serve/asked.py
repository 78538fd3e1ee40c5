"""What a client asks for: the bodies of /v1/completions and /v1/chat/completions, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from framework.checks import is_numeric
from servelab.serve import tokens

_MOST_CHOICES = 128  # of one body: prompts times n
_MOST_TOKEN = 2**31 - 1
_COMPLETION_TOKENS = 16  # the API's default for completions
_SHOWN = 80  # characters of a value in a message


class ApiError(Exception):
    """A request that the API refuses: status, message, and the error's `type`, `param` and `code`."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None, type: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code
        self.type = type or ("invalid_request_error" if status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """The error as the API shows it."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Asked:
    """One body. `prompts`: the tokens of each; each has `n` answers. `most`: tokens of an answer, None: as many as the
    context holds.
    """

    prompts: Sequence[bytes]
    n: int
    most: int | None
    least: int
    ignore_eos: bool
    stream: bool
    usage: bool
    token_ids: bool
    priority: int
    is_chat: bool = False

    @property
    def choices(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.n

    def limits(self, natural: int, prompt: bytes, max_context: int) -> tuple[int, int]:
        """The tokens of an answer that would end after `natural` tokens, and their limit.

        Raises ApiError if the context cannot hold them.
        """
        room = max_context - tokens.count(prompt)
        most = room if self.most is None else self.most
        if room < 1 or most > room:
            raise ApiError(
                f"This model's maximum context length is {max_context} tokens. However, you requested {max(most, 1)} "
                f"output tokens and your prompt contains {tokens.count(prompt)} tokens. Please reduce either.",
                "max_tokens" if room >= 1 else "prompt",
                code="context_length_exceeded",
            )
        return (most if self.ignore_eos else max(min(natural, most), self.least, 1)), most


def decoded(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body. Raises ApiError for anything else."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ApiError(f"the body is no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiError(f"the body must be a JSON object, not {_kind(found)}")
    return found


def completion(body: Mapping[str, Any], model: str) -> Asked:
    """A body of /v1/completions. Raises ApiError for one that cannot be served."""
    if body.get("prompt") is None:
        raise ApiError("you must provide a prompt", "prompt")
    most = _COMPLETION_TOKENS if body.get("max_tokens") is None else _whole(body, "max_tokens", 1)
    return _asked(body, model, _prompts(body["prompt"]), most)


def chat(body: Mapping[str, Any], model: str) -> Asked:
    """A body of /v1/chat/completions. Raises ApiError for one that cannot be served."""
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    most = None if body.get(name) is None else _whole(body, name, 1)
    prompt = tokens.of_chat(_messages(body.get("messages")))
    return replace(_asked(body, model, [prompt], most), is_chat=True)


def _asked(body: Mapping[str, Any], model: str, prompts: Sequence[bytes], most: int | None) -> Asked:
    require_model(body.get("model"), model)
    stream, n = _truth(body, "stream"), 1 if body.get("n") is None else _whole(body, "n", 1)
    if len(prompts) * n > _MOST_CHOICES:
        raise ApiError(f"at most {_MOST_CHOICES} answers to one request, not {len(prompts) * n}", "n")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError(f"stream_options must be an object, not {_kind(options)}", "stream_options")
    if options is not None and not stream:
        raise ApiError("stream_options can only be defined when stream is true", "stream_options")
    least = 0 if body.get("min_tokens") is None else _whole(body, "min_tokens", 0)
    if most is not None and least > most:
        raise ApiError(f"min_tokens must be at most max_tokens={most}, got {least}", "min_tokens")
    temperature = body.get("temperature")
    if temperature is not None and (not is_numeric(temperature) or not 0 <= temperature <= 2):
        raise ApiError(f"temperature must be from 0 to 2, got {_shown(temperature)}", "temperature")
    return Asked(
        prompts=prompts,
        n=n,
        most=most,
        least=least,
        ignore_eos=_truth(body, "ignore_eos"),
        stream=stream,
        usage=options is not None and _truth(options, "include_usage"),
        token_ids=_truth(body, "return_token_ids"),
        priority=0 if body.get("priority") is None else _whole(body, "priority", -_MOST_TOKEN),
    )


def switched(body: Mapping[str, Any], pools: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """The number of a pool, and how many of its instances are to be on. `pools`: number and size of each, by name.

    Raises ApiError for another pool, or for more instances than it has.
    """
    pool = body.get("pool", next(iter(pools)) if len(pools) == 1 else None)
    if not isinstance(pool, str) or pool not in pools:
        raise ApiError(f"pool must be one of {', '.join(pools)}, got {_shown(pool)}", "pool")
    (number, size), instances = pools[pool], body.get("instances")
    if type(instances) is not int or not 0 <= instances <= size:
        raise ApiError(f"instances must be from 0 to {size}, got {_shown(instances)}", "instances")
    return number, instances


def require_model(name: Any, served: str) -> None:
    """Raise ApiError for the name of another model; None is the one that is served."""
    if name is not None and not isinstance(name, str):
        raise ApiError(f"model must be a text, not {_kind(name)}", "model")
    if name is not None and name != served:
        message = f"The model `{_shown(name)}` does not exist; this server has `{served}`."
        raise ApiError(message, "model", 404, "model_not_found")


def _prompts(given: Any) -> list[bytes]:
    if isinstance(given, str):
        return [_not_empty(tokens.of_text(given))]
    if not isinstance(given, list) or not given:
        raise ApiError(f"prompt must be a text, token ids, or several of them, not {_kind(given)}", "prompt")
    if isinstance(given[0], int) and not isinstance(given[0], bool):
        return [_of_ids(given)]
    return [_of_ids(one) if isinstance(one, list) else _of_text(one) for one in given]


def _of_text(given: Any) -> bytes:
    if not isinstance(given, str):
        raise ApiError(
            f"prompt must be a text, token ids, or several of them, not a list with {_kind(given)}", "prompt"
        )
    return _not_empty(tokens.of_text(given))


def _of_ids(given: list[Any]) -> bytes:
    if not all(type(one) is int and 0 <= one <= _MOST_TOKEN for one in given):
        raise ApiError(f"token ids must be whole numbers from 0 to {_MOST_TOKEN}", "prompt")
    return _not_empty(tokens.of_ids(given))


def _not_empty(prompt: bytes) -> bytes:
    if not prompt:
        raise ApiError("the prompt is empty", "prompt")
    return prompt


def _messages(given: Any) -> list[tuple[str, str]]:
    if not isinstance(given, list) or not given:
        raise ApiError("messages must be a list with at least one message", "messages")
    found = []
    for k, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(f"messages[{k}] must be an object with a role", f"messages[{k}]")
        found.append((message["role"], _content(message.get("content"), f"messages[{k}].content")))
    return found


def _content(given: Any, where: str) -> str:
    """A message's text: as a text, or as parts of which those of text count."""
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list) or not all(isinstance(part, dict) for part in given):
        raise ApiError(f"{where} must be a text or a list of parts, not {_kind(given)}", where)
    texts = [part.get("text", "") for part in given if part.get("type", "text") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(f"{where}: a part's text must be a text", where)
    return "".join(texts)


def _whole(body: Mapping[str, Any], name: str, least: int) -> int:
    value = body[name]
    if type(value) is not int or not least <= value <= _MOST_TOKEN:
        raise ApiError(f"{name} must be a whole number from {least} to {_MOST_TOKEN}, got {_shown(value)}", name)
    return value


def _truth(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(f"{name} must be true or false, got {_shown(value)}", name)
    return bool(value)


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float | bool) else _kind(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
