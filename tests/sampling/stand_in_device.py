"""A device that isn't the CPU, and yet computes: for what only a GPU would refuse.

Tensors there say that they are on torch's `meta` device. Their numbers are in a tensor of the CPU that only this module
reads, so steps give the numbers that they should. What a GPU refuses is an error: operations of tensors of two
devices, a NumPy array of a tensor that is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

THERE = torch.device("meta")
_INDEXED = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_}
_COPIES = {torch.ops.aten.to, torch.ops.aten._to_copy, torch.ops.aten.copy_}


class Afar(torch.Tensor):
    """A tensor on the device."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> Afar:
        assert type(numbers) is torch.Tensor
        assert numbers.device.type == "cpu"
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=THERE,
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with Device():
            return func(*args, **(kwargs or {}))

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"Afar({self.numbers!r})"


class _FromNumbers(TorchFunctionMode):
    """Numbers in Python are made a tensor of the CPU and copied; torch doesn't even look at those for `meta`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        device = given.pop("device", None) if func is torch.tensor else None
        made = func(*args, **given)
        return made if device is None else made.to(device)


class Device(TorchDispatchMode):
    """Within, in the thread that enters it, what is made on the device has numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        wrappers: dict[int, Afar] = {}
        here: list[torch.Tensor] = []
        places: list[torch.device] = []

        def unwrap(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                places.append(leaf)
                return torch.device("cpu")
            if isinstance(leaf, Afar):
                wrappers[id(leaf.numbers)] = leaf
                return leaf.numbers
            if isinstance(leaf, torch.Tensor) and leaf.dim():
                here.append(leaf)
            return leaf

        plain, named = tree_map(unwrap, (args, kwargs))
        copies = func.overloadpacket in _COPIES
        if func.overloadpacket in _INDEXED and isinstance(args[0], Afar):
            here = [leaf for leaf in here if any(leaf is value for value in args[2:])]  # an index may be here
        assert copies or not (wrappers and here), f"{func} of tensors of two devices"
        found = func(*plain, **named)
        if func.overloadpacket is torch.ops.aten.copy_:
            return args[0]
        there = places[0] == THERE if places else bool(wrappers)
        if copies and there != isinstance(args[0], Afar) and found.data_ptr() == plain[0].data_ptr():
            found = found.clone()

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return wrappers[id(leaf)] if id(leaf) in wrappers else Afar(leaf)

        return tree_map(wrap, found) if there else found


def move(model: torch.nn.Module) -> torch.nn.Module:
    """Move a model there, in place; tied weights stay tied."""
    moved: dict[int, Afar] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    if id(tensor) not in moved:
                        moved[id(tensor)] = Afar(tensor.detach().clone())
                    held[name] = moved[id(tensor)]  # pyright: ignore[reportArgumentType]
    return model


@contextlib.contextmanager
def device_that_computes() -> Iterator[None]:
    """Engines that are made within have their steps on the device."""
    from tinker_actors.sampling.engine import Engine

    run, inference_mode = Engine._run, torch.inference_mode

    def within(self: Engine) -> None:
        with Device(), _FromNumbers():
            run(self)

    Engine._run = within
    # inference mode can't have tensors of a class of their own
    torch.inference_mode = lambda on=True: torch.no_grad() if on else contextlib.nullcontext()
    try:
        with Device(), _FromNumbers():
            yield
    finally:
        Engine._run, torch.inference_mode = run, inference_mode
