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

CELL, SMALL_CELL = 0.3, 0.09
"""Inches per weight, at least, where a few matrices are shown, and in a grid of many."""
FEW = 6
BAR_WIDTH, BAR_HEIGHT = 0.12, 2.5
"""Inches of the scale of colours, at most."""
WIDEST, WIDEST_GRID = 20.0, 40.0
"""Inches at most, either way, of all cells of a few matrices and of a grid: where there are more, they are smaller."""
LARGEST, SMALLEST = 9.0, 4.8
"""Points of the names of pieces; those of a grid have the smallest."""
MAX_LABELS = 60
"""Of more pieces than this, or than fit, only every n-th is named."""
MAX_VALUES = 400
"""Up to so many weights in all are written into their cells, too."""
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
    rows = _layout([single for view in views for single in view.single()])
    n_matrices = sum(map(len, rows))
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
        drawing = Figure(layout="constrained")
        remarks = _draw(drawing, rows, label(caption, width=80))
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


def _layout(singles: Sequence[View]) -> list[list[View]]:
    """Which matrices stand side by side: kinds where a layer has one matrix of each, heads where it has several."""
    kinds = list(dict.fromkeys(view.kind for view in singles))
    places = [(view.kind, view.layer) for view in singles]
    if len(set(places)) < len(places):
        return [[view for view in singles if (view.kind, view.layer) == place] for place in dict.fromkeys(places)]
    if len(kinds) > 1:
        layers = sorted({view.layer for view in singles})
        return [[view for view in singles if view.layer == layer] for layer in layers]
    across = max(1, round(len(singles) ** 0.5 + 0.49))
    return [list(singles[first : first + across]) for first in range(0, len(singles), across)]


def _draw(drawing: Figure, rows: list[list[View]], caption: str) -> list[str]:
    from matplotlib.transforms import blended_transform_factory

    n_matrices, n_columns = sum(map(len, rows)), max(map(len, rows))
    few = n_matrices <= FEW
    longest = max(max(len(view.rows), len(view.columns)) for row in rows for view in row)
    widths = [max(len(row[c].columns) for row in rows if c < len(row)) for c in range(n_columns)]
    heights = [max(len(view.rows) for view in row) for row in rows]
    n_cells = max(sum(widths), sum(heights))
    cell = min(CELL, WIDEST / n_cells) if few else min(SMALL_CELL, WIDEST_GRID / n_cells)
    fits = 72 * cell * 0.8  # points of a name in one row of cells
    every = math.ceil(SMALLEST / fits)
    size = min(LARGEST if few else SMALLEST, fits * every)
    # Room for labels; what is too much is cut off when the figure is saved.
    margin = 1.6 if few else 0.5
    drawing.set_size_inches(
        cell * sum(widths) + margin * n_columns + 1.2, cell * sum(heights) + margin * len(rows) + 0.6
    )
    axes = drawing.subplots(len(rows), n_columns, squeeze=False, width_ratios=widths, height_ratios=heights)
    n_weights = sum(view.visible_QK.size for row in rows for view in row)
    mesh = None
    for r, row in enumerate(rows):
        for c in range(n_columns):
            if c >= len(row):
                axes[r, c].set_axis_off()
                continue
            mesh = _matrix(axes[r, c], row[c], n_weights)
            above = r > 0 and c < len(rows[r - 1]) and rows[r - 1][c].columns == row[c].columns
            beside = c > 0 and row[c - 1].rows == row[c].rows
            _labels(axes[r, c], row[c], size, every, columns=few or not above, rows=few or not beside)
            axes[r, c].set_title(row[c].title if few else _short_title(row[c]), fontsize=9 if few else size + 1)
    assert mesh is not None
    height = drawing.get_figheight()
    tall = min(BAR_HEIGHT, height)
    bar = drawing.colorbar(mesh, ax=axes, shrink=tall / height, aspect=tall / BAR_WIDTH, pad=0.02)
    bar.set_label("attention weight; a row's sum is 1", fontsize=8 if few else size + 1)
    bar.ax.tick_params(labelsize=7 if few else size)
    middle = axes[0, 0].transAxes if n_matrices == 1 else drawing.transFigure
    drawing.suptitle(
        caption, fontsize=8, color="0.35", transform=blended_transform_factory(middle, drawing.transFigure)
    )
    stride = _stride(longest, every)
    return [f"only one in {stride} of {longest:,} pieces is named"] if stride > 1 else []


def _matrix(axes: Axes, view: View, n_weights: int) -> Any:
    """The weights as colours; where a key is hidden the hatched background shows."""
    weights_QK = np.ma.array(view.weights_HQK[0], mask=~view.visible_QK)
    axes.set_anchor("N")
    axes.patch.set(facecolor="0.93", hatch="/////")
    if n_weights <= MAX_SHAPES:
        mesh: Any = axes.pcolormesh(weights_QK, vmin=0, vmax=1, cmap="viridis", edgecolors="face", linewidth=0.2)
        axes.set_aspect("equal")
        axes.invert_yaxis()
    else:
        n_queries, n_keys = weights_QK.shape
        mesh = axes.imshow(
            weights_QK, vmin=0, vmax=1, cmap="viridis", interpolation="none", extent=(0, n_keys, n_queries, 0)
        )
    if n_weights <= MAX_VALUES:
        for (q, k), weight in np.ndenumerate(weights_QK):
            if weight is not np.ma.masked and weight >= 0.005:
                ink = "black" if weight > 0.55 else "white"
                axes.text(
                    k + 0.5, q + 0.5, f"{weight:.2f}".lstrip("0"), ha="center", va="center", fontsize=6, color=ink
                )
    return mesh


def _labels(axes: Axes, view: View, size: float, every: int, *, columns: bool, rows: bool) -> None:
    names = (view.columns if columns else (), [_row_name(row) for row in view.rows] if rows else ())
    for axis, labels, n in zip((axes.xaxis, axes.yaxis), names, (len(view.columns), len(view.rows)), strict=True):
        places = range(0, n, _stride(n, every))
        axis.set_ticks([place + 0.5 for place in places], [labels[place] for place in places] if labels else [])
    crowded = len(view.columns) > 6 or max(map(len, view.columns)) > (6 if size > 8 else 2)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", labelsize=size, rotation=90 if crowded else 0, length=2)
    axes.tick_params(axis="y", labelsize=size, length=2)


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
