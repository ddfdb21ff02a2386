"""Attention as PNG, SVG or PDF, fit for a paper: one matrix, or a grid. Drawn by matplotlib.

H heads, Q queries (rows), K keys (columns)
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_cli.attention_maps.fonts import fonts_for, lacking
from transformer_cli.attention_maps.maps import ARROW
from transformer_cli.attention_maps.views import View, is_leftward, label
from transformer_cli.errors import UsageError
from transformer_cli.needs import drawing_library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

Row = tuple["View | None", ...]

CELL, SMALL_CELL, LARGEST_CELL = 0.35, 0.09, 0.8
"""Inches per weight: at least, where a few matrices are shown, and in a grid of many; and at most, in small ones."""
SIDE, SMALL_SIDE = 2.6, 0.75
"""Inches that the longest side of all has, if its cells may be so large."""
FEW = 6
GAP, SMALL_GAP = 0.2, 0.1
"""Inches between a matrix, with all that is written around it, and the next."""
BAR_WIDTH, BAR_HEIGHT = 0.12, 2.5
"""Inches of the scale of colours, at most."""
WIDEST, WIDEST_GRID = 20.0, 40.0
"""Inches at most, either way, of all cells of a few matrices and of a grid: where there are more, they are smaller."""
LARGEST, SMALLEST = 9.0, 4.8
"""Points of the names of pieces; those of a grid have the smallest."""
MAX_LABELS = 60
"""Of more pieces than this, or than fit, only every n-th is named."""
MAX_VALUES = 400
"""Up to so many weights in all are written into their cells, too, if those are wide enough."""
VALUE, VALUE_WIDTH = 6.0, 15.0
"""Points of what is written there, and of a cell that it fits in."""
MAX_SHAPES = 5000
"""Up to so many weights in all are drawn as shapes, which stay sharp; more are a picture."""
MAX_MATRICES = 400
_SELECTORS = re.compile("[\u034f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
DPI = 200


def figure(views: Sequence[View], caption: str, *, suffix: str) -> tuple[bytes, list[str]]:
    """The file, the same bytes for the same views and fonts, and what whoever looks at it should know.

    suffix: .png, .svg or .pdf. Raises UsageError for no matrices or more than can be drawn.
    """
    matplotlib = drawing_library()
    from matplotlib.figure import Figure

    views = [_drawable(view) for view in views]
    singles = [single for view in views for single in view.single()]
    n_matrices = len(singles)
    if not 0 < n_matrices <= MAX_MATRICES:
        raise UsageError(
            f"a figure shows 1 to {MAX_MATRICES} matrices, not {n_matrices:,}",
            hint="choose with --layers and --heads",
        )
    fonts, missing = fonts_for([caption, *(text for view in views for text in (*view.columns, *sum(view.rows, ())))])
    settings: Any = {
        "font.family": fonts,
        "svg.hashsalt": "tx",
        "pdf.fonttype": 42,
        "hatch.linewidth": 0.5,
        "hatch.color": "0.6",
        "text.parse_math": False,
    }
    # A creation date would make every file another one.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    file = io.BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # told by us, once
        # What is saved is all that was drawn, wherever it is: on a sheet of an inch places are inches.
        drawing = Figure(figsize=(1, 1), dpi=DPI)
        remarks = _draw(drawing, _layout(singles), label(caption, width=80))
        drawing.savefig(
            file, format=suffix[1:], dpi=DPI, metadata=dates.get(suffix), bbox_inches="tight", pad_inches=0.05
        )
    if missing:
        remarks.append(f"{lacking(missing)}, or look at the .html")
    return file.getvalue(), remarks


def _drawable(view: View) -> View:
    """Without what says how the character before it looks, which matplotlib draws as one of its own."""
    rows = tuple(tuple(_SELECTORS.sub("", name) for name in row) for row in view.rows)
    return replace(view, rows=rows, columns=tuple(_SELECTORS.sub("", name) for name in view.columns))


def _layout(singles: Sequence[View]) -> list[Row]:
    """Which matrices stand side by side: kinds where a layer has one matrix of each, heads where it has several."""
    kinds = list(dict.fromkeys(view.kind for view in singles))
    places = {(view.kind, view.layer): view for view in singles}
    if len(places) < len(singles):
        rows = [[view for view in singles if (view.kind, view.layer) == place] for place in places]
        return list(zip(*zip_longest(*rows), strict=True))
    if len(kinds) == len(singles):
        return [tuple(singles)]
    if len(kinds) > 1:
        layers = sorted({view.layer for view in singles})
        return [tuple(places.get((kind, layer)) for kind in kinds) for layer in layers]
    across = max(1, round(len(singles) ** 0.5 + 0.49))
    return list(zip_longest(*[iter(singles)] * across))


def _draw(drawing: Figure, grid: Sequence[Row], caption: str) -> list[str]:
    views = {(r, c): view for r, row in enumerate(grid) for c, view in enumerate(row) if view}
    shapes = np.array([[view.visible_QK.shape if view else (0, 0) for view in row] for row in grid])
    few, longest = len(views) <= FEW, int(shapes.max())
    n_cells = max(shapes[:, :, 0].max(axis=1).sum(), shapes[:, :, 1].max(axis=0).sum())
    least, side, widest, gap = (CELL, SIDE, WIDEST, GAP) if few else (SMALL_CELL, SMALL_SIDE, WIDEST_GRID, SMALL_GAP)
    cell = min(max(least, min(side / longest, LARGEST_CELL)), widest / n_cells)
    fits = 72 * cell * 0.8  # points of a name in one row of cells
    every = math.ceil(SMALLEST / fits)
    size = min(LARGEST if few else SMALLEST, fits * every)
    n_weights = sum(view.visible_QK.size for view in views.values())
    placed: dict[tuple[int, int], Axes] = {}
    are_wide = False
    for (r, c), view in views.items():
        n_queries, n_keys = view.visible_QK.shape
        axes = placed[r, c] = drawing.add_axes((0, 0, cell * n_keys, cell * n_queries))
        mesh = _matrix(axes, view, as_shapes=n_weights <= MAX_SHAPES)
        if n_weights <= MAX_VALUES and 72 * cell >= VALUE_WIDTH:
            _values(axes, view)
        above, beside = views.get((r - 1, c)), views.get((r, c - 1))
        columns, rows = not above or above.columns != view.columns, not beside or beside.rows != view.rows
        _labels(axes, view, size, every, columns=few or columns, rows=few or rows)
        title = axes.set_title(view.title if few else _short_title(view), fontsize=9 if few else size + 1)
        are_wide |= few and len(grid[0]) > 1 and title.get_window_extent().width / DPI > cell * n_keys
    for place, axes in placed.items() if are_wide else ():
        axes.set_title(views[place].title.replace(", ", "\n", 1), fontsize=9)
    _place(placed, gap)
    _explain(drawing, mesh, caption, gap=gap, size=size, few=few)
    stride = _stride(longest, every)
    return [f"only one in {stride} of {longest:,} pieces is named"] if stride > 1 else []


def _explain(drawing: Figure, mesh: Any, caption: str, *, gap: float, size: float, few: bool) -> None:
    """The scale of colours on the right of what is drawn, and the caption above all."""
    bodies, boxes = [axes.get_position() for axes in drawing.axes], list(map(_box, drawing.axes))
    top, bottom = max(body.y1 for body in bodies), min(body.y0 for body in bodies)
    tall = min(BAR_HEIGHT, top - bottom)
    place = (max(box.x1 for box in boxes) + gap, (top + bottom - tall) / 2, BAR_WIDTH, tall)
    bar = drawing.colorbar(mesh, cax=drawing.add_axes(place))
    bar.set_label("attention weight; a row's sum is 1", fontsize=8 if few else size + 1)
    bar.ax.tick_params(labelsize=7 if few else size)
    boxes.append(_box(bar.ax))
    ends = bodies if len(bodies) == 1 else boxes
    middle = (min(box.x0 for box in ends) + max(box.x1 for box in ends)) / 2
    drawing.text(
        middle, max(box.y1 for box in boxes) + SMALL_GAP, caption, fontsize=8, color="0.35", ha="center", va="bottom"
    )


def _place(placed: dict[tuple[int, int], Axes], gap: float) -> None:
    """Put the matrices, each at 0 at first, where rows and columns have room for all that is written around them."""
    around = {place: _box(axes) for place, axes in placed.items()}
    sizes = {place: axes.get_position().size for place, axes in placed.items()}
    lefts, tops = {}, {}
    right = bottom = 0.0
    for c in sorted({c for _, c in placed}):
        column = [box for place, box in around.items() if place[1] == c]
        lefts[c] = right - min(box.x0 for box in column)
        right = lefts[c] + max(box.x1 for box in column) + gap
    for r in sorted({r for r, _ in placed}):
        row = [(box, sizes[place][1]) for place, box in around.items() if place[0] == r]
        tops[r] = bottom - max(box.y1 - height for box, height in row)
        bottom = tops[r] - max(height - box.y0 for box, height in row) - gap
    for (r, c), axes in placed.items():
        width, height = sizes[r, c]
        axes.set_position((lefts[c], tops[r] - height - bottom, width, height))  # no title is moved that is below 0


def _box(axes: Axes) -> Bbox:
    """What it takes with all that is written around it, in inches."""
    box = axes.get_tightbbox()
    assert box is not None
    return box.transformed(axes.figure.transFigure.inverted())


def _matrix(axes: Axes, view: View, *, as_shapes: bool) -> Any:
    """The weights as colours; where a key is hidden the hatched background shows."""
    weights_QK = np.ma.array(view.weights_HQK[0], mask=~view.visible_QK)
    axes.patch.set(facecolor="0.93", hatch="/////")
    if as_shapes:
        mesh: Any = axes.pcolormesh(weights_QK, vmin=0, vmax=1, cmap="viridis", edgecolors="face", linewidth=0.2)
        axes.invert_yaxis()
        return mesh
    n_queries, n_keys = weights_QK.shape
    extent = (0, n_keys, n_queries, 0)
    return axes.imshow(weights_QK, vmin=0, vmax=1, cmap="viridis", interpolation="none", extent=extent, aspect="auto")


def _values(axes: Axes, view: View) -> None:
    """The weights as numbers, but for those that would be .00."""
    for q, k in np.argwhere(view.visible_QK):
        weight = view.weights_HQK[0, q, k]
        if weight >= 0.005:
            ink = "black" if weight > 0.55 else "white"
            text = f"{weight:.2f}".lstrip("0")
            axes.text(k + 0.5, q + 0.5, text, ha="center", va="center", fontsize=VALUE, color=ink)


def _labels(axes: Axes, view: View, size: float, every: int, *, columns: bool, rows: bool) -> None:
    names = (view.columns if columns else (), [_row_name(row) for row in view.rows] if rows else ())
    for axis, labels, n in zip((axes.xaxis, axes.yaxis), names, (len(view.columns), len(view.rows)), strict=True):
        places = range(0, n, _stride(n, every))
        axis.set_ticks([place + 0.5 for place in places], [labels[place] for place in places] if labels else [])
    axes.xaxis.tick_top()
    axes.tick_params(axis="both", labelsize=size, length=2)
    widest = max(label.get_window_extent().width for label in axes.get_xticklabels())
    room = axes.get_window_extent().width / len(view.columns) * _stride(len(view.columns), every)
    axes.tick_params(axis="x", rotation=90 if widest > 0.95 * room else 0)


def _row_name(row: tuple[str, ...]) -> str:
    """What was read, an arrow, what was written; from left to right even where the script is not."""
    if any(map(is_leftward, row)):
        return "\u200e" + ARROW.join(f"\u2068{name}\u2069" for name in row)
    return ARROW.join(row)


def _stride(n: int, every: int) -> int:
    return max(every, math.ceil(n / MAX_LABELS))


def _short_title(view: View) -> str:
    which = f"head {view.heads[0]}" if len(view.heads) == 1 else "mean"
    return f"{view.kind} {view.layer}, {which}"
