"""Record what any Hugging Face model reads: `with clearhead.hf.record(model) as run: model(**x)`.

Models of `transformers` ask for their attention function by name each time they need it
(`AttentionInterface.get_interface`). While a recording is open, that question is answered with a
function that calls the very one the model would have had, passes on what it returns, and keeps the
queries and keys that went in. So the model stays as it is, eager or not, and its outputs are the
same; nothing T x S is built; and what was not asked for that way is not seen: `record` says so.
"""

import inspect
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

try:
    import torch
    from transformers import PreTrainedModel
    from transformers.modeling_utils import AttentionInterface
except ImportError as error:
    raise ImportError(
        f"clearhead.hf: needs torch and transformers ({error}); pip install 'clearhead[hf]'"
    ) from None

from .models.capture import Call, Capture
from .models.recording import Recording
from .models.wanted import wanted

__all__ = ["record"]

_GIB = 1 << 30


@contextmanager
def record(
    model: Any,
    tokenizer: Any = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    stats_only: bool = False,
    folder: str | Path | None = None,
    max_bytes: int = 4 * _GIB,
) -> Iterator[Recording]:
    """Keep what `model` reads in every call made inside the `with`, on this thread.

    model       a transformers model, on any device, eager or sdpa; it is not changed
    tokenizer   its tokenizer: gives tokens their text; without it they are called by their ids
    layers      the numbers of the layers to keep; None: all. Negative: from the last
    heads       the numbers of the query heads to keep, likewise
    stats_only  keep what `run.heads()` and `run.received(layer)` need, and no queries and keys
    folder      keep queries and keys on disk, as one .safetensors file for each run
    max_bytes   the most that the recording may keep; more is refused before it is taken

    Yields a `Recording`, filled when the block ends: a sequence of `AttentionRun`s that answers as
    the only one itself where there is only one. Prompt and generated tokens are one run; each text
    of a batch is one, and encoder, decoder and cross-attention are one each.

    Cost: copies of q and k, and one pass of attention a layer, to find lse and to prove that this
    is the attention that the model computed (`run.certificate()`).
    Raises  ValueError for a model that computes attention by itself, an implementation that cannot
    be recorded, layers that it does not have, a cache that was reordered (beam search), a recording
    of nothing, and for more than `max_bytes`. The model is as it was, whatever happens.

        with clearhead.hf.record(model, tokenizer) as run:
            model.generate(**inputs, max_new_tokens=20)
        run.links("it", top=3)
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model: {type(model).__name__}, must be a transformers PreTrainedModel")
    if not hasattr(AttentionInterface, "get_interface"):
        raise ImportError("transformers: is too old, must be 5.0 or later to be recorded")
    _check_shows_mask(str(getattr(model.config, "_attn_implementation", None)))
    recordable = _recordable(model)
    if tokenizer is not None and not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise TypeError(f"tokenizer: {type(tokenizer).__name__}, must be a transformers tokenizer")
    keep = wanted(layers, heads, stats_only, folder, max_bytes)
    capture = Capture(_sites(model, recordable), keep, model_name(model), tokenizer)
    recording = Recording()
    listener = _Listener(model, capture)
    try:
        with listener.listening():
            yield recording
        listener.check()
        recording.fill(capture.runs())
    finally:
        capture.close()


def model_name(model: Any) -> str:
    """What to call a model: its name on the hub or its folder's, else its class."""
    name = getattr(model, "name_or_path", "") or type(model).__name__
    return Path(name).resolve().name if Path(name).is_dir() else name


_listening: list["_Listener"] = []
_lock = threading.Lock()
_numbers = itertools.count()
_answer: Any = None  # the library's own `get_interface`, while ours stands in for it


class _Listener:
    """The hooks of one recording."""

    def __init__(self, model: Any, capture: Capture) -> None:
        self.model, self.capture = model, capture
        self.thread = threading.get_ident()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.unused: dict[int, str] = {}  # functions that a module asked for and did not call

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if isinstance(module, PreTrainedModel):
                    begin = partial(self.begin, name)
                    for hook in (
                        module.register_forward_pre_hook(begin, with_kwargs=True),
                        module.register_forward_hook(self.end, always_call=True),
                    ):
                        stack.callback(hook.remove)
            with _lock:
                _stand_in()
                _listening.append(self)
            stack.callback(self.leave)
            yield

    def leave(self) -> None:
        with _lock:
            _listening.remove(self)
            if not _listening:
                _stand_down()

    def begin(self, name: str, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Before the forward of a model or a model within it: its token ids, padding and cache."""
        if threading.get_ident() != self.thread:
            return
        given = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        cache = given.get("past_key_values", given.get("cache"))
        past = None if cache is None else getattr(cache, "get_seq_length", lambda: None)()
        self.capture.begin(
            name,
            ids=_numpy(ids) if isinstance(ids, torch.Tensor) and ids.ndim == 2 else None,
            shown=_numpy(mask) != 0 if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None,
            past=None if past is None else int(past),
        )

    def end(self, module: Any, args: Any, output: Any) -> None:
        if threading.get_ident() == self.thread:
            self.capture.end()

    def take(
        self, backend: str, module: Any, tensors: Sequence[Any], options: dict[str, Any]
    ) -> None:
        """After a call of attention: what went in, and what came out."""
        name = self.names.get(id(module))
        if name is None or not self.capture.wants(name):
            return
        query, key, value, mask, out = tensors
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        sink = options.get("s_aux")
        self.capture.take(
            Call(
                name=name,
                backend=backend,
                q=_numpy(query),
                k=_numpy(key),
                v=_numpy(value),
                out=_numpy(out),
                mask=None if mask is None else _numpy(mask),
                mask_key=id(mask),
                causal=bool(causal) and backend != "eager" and query.shape[2] > 1 and mask is None,
                scale=options.get("scaling"),
                softcap=options.get("softcap"),
                sink=None if sink is None else _numpy(sink),
                bias=None if (b := options.get("position_bias")) is None else _numpy(b),
                bias_key=id(options.get("position_bias")),
                held=(mask, options.get("position_bias")),
            )
        )

    def check(self) -> None:
        """Whether everything that ran was seen."""
        if self.unused:
            names = ", ".join(sorted(set(self.unused.values())))
            raise ValueError(
                f"model: {names} asked transformers for its attention function and computed "
                "attention by itself, so it was not recorded (GPT-2: reorder_and_upcast_attn=False)"
            )
        if not self.capture.taken:
            raise ValueError(
                "record: nothing was recorded; call the model inside the `with`, on the same "
                "thread, not compiled, with layers= and heads= that it has"
            )


def _stand_in() -> None:
    global _answer
    if _answer is None:
        _answer = AttentionInterface.get_interface
        AttentionInterface.get_interface = _get_interface  # type: ignore


def _stand_down() -> None:
    global _answer
    AttentionInterface.get_interface = _answer  # type: ignore
    _answer = None


def _get_interface(interface: Any, attn_implementation: Any, default: Any) -> Any:
    """The function that a module gets for its question, overheard by this thread's recordings."""
    function = _answer(interface, attn_implementation, default)
    mine = [one for one in _listening if one.thread == threading.get_ident()]
    if not mine:
        return function
    backend = "eager" if function is default else str(attn_implementation)
    return _Overheard(function, backend, mine)


class _Overheard:
    """An attention function that listeners hear."""

    def __init__(self, function: Callable[..., Any], backend: str, mine: list[_Listener]) -> None:
        self.function, self.backend, self.mine = function, backend, mine
        self.number = next(_numbers)
        module = sys._getframe(2).f_locals.get("self")  # who asks: one of a model's own modules
        for one in mine:
            if id(module) in one.names:
                one.unused[self.number] = type(module).__name__

    def __call__(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        for one in self.mine:
            one.unused.pop(self.number, None)
        if any(id(module) in one.names for one in self.mine):
            _check_shows_mask(self.backend)
        result = self.function(module, query, key, value, attention_mask, *args, **kwargs)
        if args:
            names = list(inspect.signature(self.function).parameters)[5:]
            kwargs = dict(zip(names, args, strict=False)) | kwargs
        for one in self.mine:
            one.take(self.backend, module, (query, key, value, attention_mask, result[0]), kwargs)
        return result


def _check_shows_mask(backend: str) -> None:
    if backend.startswith(("flash", "flex", "paged")):
        raise ValueError(
            f"model: its attention implementation {backend!r} does not show the mask it applies; "
            'model.set_attn_implementation("sdpa") can be recorded'
        )


def _numpy(tensor: Any) -> Any:
    """The numbers of a tensor as a NumPy array, shared with it where it is on the CPU."""
    import ml_dtypes

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _recordable(model: Any) -> dict[str, Any]:
    """The modules that ask for their attention function, by name. Raises if there are none."""
    innermost = {
        name: module
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__
        and not any("Attention" in type(inner).__name__ for inner in list(module.modules())[1:])
    }
    asks = {name: module for name, module in model.named_modules() if _asks(type(module))}
    alone = sorted({type(m).__name__ for n, m in innermost.items() if n not in asks})
    if not asks:
        who = f": {', '.join(alone)} computes" if alone else "; it computes"
        raise ValueError(
            f"model: {type(model).__name__} cannot be recorded{who} attention by itself, not "
            "through transformers' AttentionInterface"
        )
    return asks


_asking: dict[type, bool] = {}


def _asks(kind: type) -> bool:
    """Whether a module class asks the interface in its own code."""
    if kind not in _asking:
        try:
            source = "" if kind.__module__.startswith("torch.") else inspect.getsource(kind)
        except (OSError, TypeError):
            source = ""
        _asking[kind] = "get_interface(" in source
    return _asking[kind]


def _sites(model: Any, recordable: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Of each module that can be recorded, its part of the model and the number of its layer."""
    patterns: dict[str, list[str]] = {}
    for name in recordable:
        patterns.setdefault(re.sub(r"\.\d+(\.|$)", r".*\1", name, count=1), []).append(name)
    parts = _parts(model, {pattern: recordable[names[0]] for pattern, names in patterns.items()})
    sites: dict[str, tuple[str, int]] = {}
    for pattern, names in patterns.items():
        for place, name in enumerate(names):
            found = re.search(r"\.(\d+)(\.|$)", name)
            sites[name] = parts[pattern], int(found[1]) if found else place
    return sites


def _parts(model: Any, patterns: dict[str, Any]) -> dict[str, str]:
    """A short name for each stack of layers: encoder, decoder, cross, self, else its path."""
    parts: dict[str, str] = {}
    two_sided = bool(getattr(model.config, "is_encoder_decoder", False))
    for pattern, module in patterns.items():
        crosses = getattr(module, "is_cross_attention", False)
        if crosses or re.search(r"(?i)cross_?att|encoder_attn|EncDecAttention", pattern):
            part = "cross"
        elif two_sided:
            part = "encoder" if re.search(r"(^|\.)encoder\.", pattern) else "decoder"
        else:
            part = "self"
        parts[pattern] = part
    for pattern, part in list(parts.items()):
        if list(parts.values()).count(part) > 1:
            parts[pattern] = f"cross {pattern}" if part == "cross" else pattern
    return parts
