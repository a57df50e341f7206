"""`run.view()` and `amap.view()`: the app in a notebook, the picture where it cannot be shown.

In a notebook with anywidget they give a widget (`clearhead.widget`); without anywidget,
matplotlib's axes of one head; outside of a notebook, an object that says how the app is opened.
"""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .maps import AttentionMap
    from .models.run import AttentionRun


class HowToView:
    """What `view` gives outside of a notebook: one sentence, as its repr and str."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def __repr__(self) -> str:
        return self._sentence


def view(run: "AttentionRun") -> Any:
    """The app over a run, or what there is instead: see above."""
    if not _in_notebook():
        return HowToView(
            'view: run.save("run.safetensors"), then `clearhead view run.safetensors` in a '
            'terminal; or run.to_html("map.html") for a short text; in a notebook it opens here'
        )
    try:
        from .widget import AttentionWidget
    except ImportError:
        return _plot_strongest(run)
    return AttentionWidget(run)


def _plot_strongest(run: "AttentionRun") -> Any:
    """matplotlib's axes of the head with the strongest link, as the app opens on it.

    Of a text too long to look for it, the last layer's first head.
    """
    from .viewer import opening
    from .viewer.scene import Scene

    layer, head = opening.strongest_head(Scene(run)) or (run.num_layers - 1, 0)
    return run.map(layer).plot(head)


def view_map(amap: "AttentionMap") -> Any:
    """The app over a map, whose queries and keys are called by their positions."""
    run = run_of(amap)
    if _in_notebook():
        return view(run)
    return HowToView("view: opens in a notebook; here, amap.plot() draws a head or a window of it")


def run_of(amap: "AttentionMap") -> "AttentionRun":
    """A map (..., H, T, S) as a run of one layer.

    Raises `ValueError` for a map with a batch of more than one.
    """
    from .models.run import AttentionRun, LayerState, Reading
    from .models.spelling import numbered

    if any(n != 1 for n in amap.shape[:-3]):
        raise ValueError(
            f"view: the map has a batch, {amap.shape[:-3]}, must be of one text: "
            "make the map of one entry's q and k"
        )
    T, S = amap.shape[-2:]
    H = amap.shape[-3] if amap.ndim > 2 else 1

    def of_one(array: Any, axes: int) -> Any:
        """The array without its leading axes, with one for heads."""
        if not isinstance(array, np.ndarray):
            return array
        array = array.reshape(array.shape[-axes:]) if array.ndim > axes else array
        return (
            array if array.ndim == axes else array.reshape((1,) * (axes - array.ndim) + array.shape)
        )

    state = LayerState(
        of_one(amap.q, 3),
        of_one(amap.k, 3),
        np.broadcast_to(amap.lse, (*amap.shape[:-3], H, T)).reshape(H, T),
        of_one(amap.mask, 3),
        of_one(amap.bias, 3),
        amap.scale,
        amap.softcap,
        None if amap.sink is None else np.broadcast_to(amap.sink, (*amap.shape[:-3], H)).reshape(H),
    )

    def positions(begin: int, end: int) -> Reading:
        names = [str(at) for at in range(begin, end)]
        return Reading(*numbered(names, [False] * len(names), list(range(begin, end))))

    keys = positions(0, S)
    mine = keys if T == S else positions(max(0, S - T), max(0, S - T) + T)
    return AttentionRun("map", *mine, [state], keys=keys)


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this, which may show widgets."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
