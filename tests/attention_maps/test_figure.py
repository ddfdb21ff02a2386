"""Figures: colours are weights, labels are right in any script, files are reproducible."""

from __future__ import annotations

import io
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from synthetic import synthetic_maps

from transformer_cli.attention_maps import figure as module
from transformer_cli.attention_maps import fonts
from transformer_cli.attention_maps.figure import figure
from transformer_cli.attention_maps.saved import as_json
from transformer_cli.attention_maps.views import view
from transformer_cli.errors import UsageError

MAPS = synthetic_maps(["▁ich", "▁trinke", "▁$x_1$"], ["▁i", "▁drink"], layers=(2, 2), heads=3, n_padding=1)


def views(maps=MAPS, *, mean=True, blocks=None):
    found = [view(maps, block) for block in (maps.of("cross")[:1] if blocks is None else blocks)]
    return [one.mean() for one in found] if mean else found


def is_coloured(picture):
    return picture.max(axis=-1) - picture.min(axis=-1) > 0.1


def texts(svg):
    """What an SVG says, in order: with text kept as text."""
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")]


@pytest.fixture
def text_stays_text():
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield


@pytest.mark.parametrize("limit", [module.MAX_SHAPES, 0], ids=["shapes", "a picture"])
def test_each_cell_has_the_colour_of_its_weight(monkeypatch, limit):
    monkeypatch.setattr(module, "MAX_SHAPES", limit)
    shown = views(synthetic_maps(29, 29, layers=(1, 1), heads=1))  # too many for numbers in the cells
    data, _ = figure(shown, "", suffix=".png")
    picture = imread(io.BytesIO(data), format="png")[:, :, :3]
    is_frame = picture.max(axis=-1) < 0.1
    rows, columns = (np.flatnonzero(is_frame.sum(axis=axis) > 29 * module.CELL * module.DPI * 0.9) for axis in (1, 0))
    ys, xs = (np.linspace(line[0], line[-1], 61)[1::2].round().astype(int) for line in (rows, columns))
    expected = matplotlib.colormaps["viridis"](shown[0].weights_HQK[0])[:, :, :3]
    np.testing.assert_allclose(picture[np.ix_(ys, xs)], expected, atol=0.02)


def test_rows_and_columns_are_named_and_numbers_stand_in_the_cells(text_stays_text):
    svg, remarks = figure(views(), "a caption", suffix=".svg")
    said = texts(svg)
    for name in ("ich", "trinke", "$x_1$", "</s>", "<pad>", "<s> → i", "i → drink", "drink → </s>", "a caption"):
        assert name in said
    assert "cross-attention, layer 1, mean of 3 heads" in said
    weights = views()[0].weights_HQK[0]
    assert [text for text in said if re.fullmatch(r"\.\d\d", text)] == [
        f"{weight:.2f}"[1:] for weight in weights.ravel() if weight >= 0.005
    ]
    assert remarks == []


def test_caption_and_title_stand_above_the_middle_of_a_single_matrix(text_stays_text):
    """The caption used to stand in the middle of the sheet, labels and scale of colours included."""
    svg, _ = figure(views(), "a caption", suffix=".svg")
    places = {element.text: element.get("x") for element in ElementTree.fromstring(svg).iter()}
    assert places["a caption"] == places["cross-attention, layer 1, mean of 3 heads"] is not None


def test_a_grid_names_its_edges_and_every_head(text_stays_text):
    svg, _ = figure(views(mean=False, blocks=MAPS.blocks), "", suffix=".svg")
    said = texts(svg)
    for block in MAPS.blocks:
        for head in block.heads:
            assert f"{block.kind} {block.layer}, head {head}" in said
    assert said.count("<s> → i") == 4  # decoder and cross, two layers each
    assert said.count("ich") == 2 + 3 + 3  # rows of the encoder's layers; columns of each of its heads and of cross's


@pytest.fixture
def drawn(monkeypatch):
    """What figures are drawn, as matplotlib has them before they become files."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: kept.append(self))
    return kept


SELECTIONS = [
    ("cross", (1, 1), None),
    ("last", (2, 2), None),
    ("last", (2, 3), None),
    ("encoder, decoder, cross", (1, 2), None),
    ("encoder, decoder, cross", (2, 3), None),
    ("decoder, cross", (1, 1), 3),
    ("decoder, cross", (2, 2), 4),
    ("cross", (1, 9), None),
]


@pytest.mark.parametrize(("chosen", "layers", "heads"), SELECTIONS)
@pytest.mark.parametrize(("n_source", "n_target"), [(1, 1), (4, 1), (3, 5), (9, 2)])
def test_no_text_covers_another_or_the_scale_or_leaves_its_cell(drawn, chosen, layers, heads, n_source, n_target):
    """Weights were wider than the cells of a grid; titles of short sentences covered each other, the scale them."""
    maps = synthetic_maps(n_source, n_target, layers=layers, heads=heads or 2)
    last = {block.kind: block for block in maps.blocks}
    blocks = list(last.values()) if chosen == "last" else [block for block in maps.blocks if block.kind in chosen]
    figure(views(maps, mean=not heads, blocks=blocks), "synthetic, forced", suffix=".png")
    drawn[0].draw_without_rendering()
    texts = [text for text in drawn[0].findobj(Text) if text.get_visible() and text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    parts = [*boxes, *(axes.get_window_extent() for axes in drawn[0].axes)]
    x0, y0, x1, y1 = (np.array([getattr(box, name) for box in parts]) for name in ("x0", "y0", "x1", "y1"))
    overlap = np.triu((x0[:, None] < x1) & (x0 < x1[:, None]) & (y0[:, None] < y1) & (y0 < y1[:, None]), 1)
    for i, j in np.argwhere(overlap[: len(texts)]):
        is_value = j >= len(texts) and texts[i].axes and texts[i] in texts[i].axes.texts
        assert is_value, (texts[i].get_text(), texts[j].get_text() if j < len(texts) else parts[j])
    for text, box in zip(texts, boxes, strict=True):
        if text.axes and text in text.axes.texts:
            middle = np.array(text.get_position())
            cell = Bbox(text.axes.transData.transform([middle - 0.5, middle + 0.5]))
            assert cell.x0 < box.x0 < box.x1 < cell.x1, text.get_text()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_maps_give_the_same_bytes(suffix):
    first, second = (figure(views(), "tiny, beam 5", suffix=suffix)[0] for _ in range(2))
    assert first == second
    assert first.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])


@pytest.mark.parametrize("n_padding", [0, 2])
def test_hidden_cells_and_no_others_show_the_hatched_ground(n_padding):
    maps = synthetic_maps(5, 4, n_padding=n_padding)
    data, _ = figure(views(maps), "", suffix=".png")
    picture = imread(io.BytesIO(data), format="png")[:, :, :3]
    is_ground = (np.abs(picture - 0.93) < 0.004).all(axis=-1)
    share = is_ground.mean() / is_coloured(picture).mean()  # the hatching covers a part, edges mix colours
    assert 0.6 * n_padding / 6 <= share <= n_padding / 6 + 0.01


def test_any_script_finds_a_font_or_the_missing_character_is_named(monkeypatch):
    only = [font for font in fonts._installed() if font[0] == "DejaVu Sans"]
    monkeypatch.setattr(fonts, "_installed", lambda: iter(only))
    assert fonts.fonts_for(["ich möchte", "→"]) == (["DejaVu Sans"], "")
    _, remarks = figure(views(synthetic_maps(["▁猫", "▁x"], ["▁cat"])), "", suffix=".png")
    assert remarks == ["no installed font has 猫 (U+732B); install Noto Sans CJK, or look at the .html"]


@pytest.mark.parametrize(
    ("chars", "expected"),
    [
        ("猫あ한〆、ｱ", ["Noto Sans CJK"]),
        ("አ፩።", ["Noto Sans Ethiopic"]),
        ("कக", ["Noto Sans Devanagari", "Noto Sans Tamil"]),
        ("กកᓴང", ["Noto Sans Thai", "Noto Sans Khmer", "Noto Sans Canadian Aboriginal", "Noto Serif Tibetan"]),
        ("ꯀᱚ߃", ["Noto Sans Meetei Mayek", "Noto Sans Ol Chiki", "Noto Sans NKo"]),
        ("👩🏽⚕♂⃣🇪", ["Noto Emoji (figures cannot show the coloured one)"]),
        ("𐬀𐭀ꡀ", ["Noto Sans Avestan", "Noto Sans Inscriptional Parthian", "Noto Sans PhagsPa"]),
        ("𐌀ꭰⲁ", ["Noto Sans Old Italic", "Noto Sans Cherokee", "Noto Sans Coptic"]),
        ("∮\ue000", []),
    ],
)
def test_the_font_that_is_to_be_installed_has_the_script(chars, expected):
    """It used to be Noto Sans CJK for all of them, which has none but the first."""
    assert fonts.to_install(chars) == expected


def test_fonts_of_boxes_and_of_pictures_are_not_asked(monkeypatch):
    """A Mac's LastResort would come first, and has every character there is."""
    names = [".LastResort", "Last Resort High-Efficiency", "Apple Color Emoji", ".Apple Color Emoji UI", "Geneva"]
    found = [SimpleNamespace(name=name, fname=name, style="normal", weight=400) for name in names]
    monkeypatch.setattr(font_manager, "fontManager", SimpleNamespace(ttflist=found))
    assert list(fonts._installed()) == [("Geneva", "Geneva")]


SANS = (
    "Adlam, Anatolian Hieroglyphs, Arabic, Armenian, Avestan, Balinese, Bamum, Bassa Vah, Batak, Bengali, "
    "Bhaiksuki, Brahmi, Buginese, Buhid, CJK, Canadian Aboriginal, Carian, Caucasian Albanian, Chakma, Cham, "
    "Cherokee, Chorasmian, Coptic, Cuneiform, Cypriot, Cypro Minoan, Deseret, Devanagari, Duployan, Egyptian "
    "Hieroglyphs, Elbasan, Elymaic, Ethiopic, Georgian, Glagolitic, Gothic, Grantha, Gujarati, Gunjala Gondi, "
    "Gurmukhi, Hanifi Rohingya, Hanunoo, Hatran, Hebrew, Imperial Aramaic, Inscriptional Pahlavi, Inscriptional "
    "Parthian, Javanese, Kaithi, Kannada, Kawi, Kayah Li, Kharoshthi, Khmer, Khojki, Khudawadi, Lao, Lepcha, "
    "Limbu, Linear A, Linear B, Lisu, Lycian, Lydian, Mahajani, Malayalam, Mandaic, Manichaean, Marchen, Masaram "
    "Gondi, Math, Medefaidrin, Meetei Mayek, Mende Kikakui, Meroitic, Miao, Modi, Mongolian, Mro, Multani, "
    "Myanmar, NKo, Nabataean, Nag Mundari, Nandinagari, New Tai Lue, Newa, Nushu, Ogham, Ol Chiki, Old Hungarian, "
    "Old Italic, Old North Arabian, Old Permic, Old Persian, Old Sogdian, Old South Arabian, Old Turkic, Oriya, "
    "Osage, Osmanya, Pahawh Hmong, Palmyrene, Pau Cin Hau, PhagsPa, Phoenician, Psalter Pahlavi, Rejang, Runic, "
    "Samaritan, Saurashtra, Sharada, Shavian, Siddham, Sinhala, Sogdian, Sora Sompeng, Soyombo, Sundanese, "
    "Sunuwar, Syloti Nagri, Syriac, Tagalog, Tagbanwa, Tai Le, Tai Tham, Tai Viet, Takri, Tamil, Tangsa, Telugu, "
    "Thaana, Thai, Tifinagh, Tirhuta, Ugaritic, Vai, Vithkuqi, Wancho, Warang Citi, Yi, Zanabazar Square "
)
SERIF = (
    "Ahom, Dives Akuru, Dogra, Hentaigana, Khitan Small Script, Makasar, NP Hmong, Old Uyghur, Tangut, Tibetan, "
    "Todhri, Toto, Yezidi "
)
"""Of fonts.google.com/noto, those that are named for a script."""
NAMELESS = (
    "ALEF ANGSTROM BET CARON DALET EULER FEMININE GIMEL INFORMATION KELVIN MASCULINE MASU MICRO MODIFIER OHM OLD "
)
NAMELESS += "PLANCK ROMAN SUPERSCRIPT TURNED VERTICAL"


def test_of_every_letter_there_is_the_font_is_one_that_there_is():
    """It was Noto Sans Inscriptional, Noto Sans Ahom; and none for scripts that have capitals."""
    real = {f"Sans {name.strip()}" for name in SANS.split(",")} | {f"Serif {name.strip()}" for name in SERIF.split(",")}
    wrong = set()
    for char in map(chr, range(0x110000)):
        if (name := unicodedata.name(char, "")) and unicodedata.category(char)[0] == "L":
            named = fonts.to_install(char)
            if not named and name.split()[0] not in NAMELESS.split():
                wrong.add(name)
            wrong.update(one for one in named if one != "Noto Sans" and one.removeprefix("Noto ") not in real)
    assert not {name for name in wrong if not (name.startswith("Noto") and unicodedata.unidata_version > "15")}


def test_what_only_changes_the_character_before_it_is_not_drawn(text_stays_text, monkeypatch):
    """A box stood for it, over its neighbour, and the joiner of an emoji was a code point."""
    svg, _ = figure(views(synthetic_maps(["▁❤\ufe0f", "▁👩🏽\u200d⚕\ufe0f", "▁葛\U000e0100"], 1)), "", suffix=".svg")
    assert {"❤", "👩🏽⚕", "葛"} <= set(texts(svg))


def test_a_joiner_needs_no_font(text_stays_text):
    svg, remarks = figure(views(synthetic_maps(["▁می\u200cخورد", "▁می\u200d\u06cc"], 1)), "", suffix=".svg")
    assert {"می\u200cخورد", "می\u200d\u06cc"} <= set(texts(svg))
    assert remarks == []
    assert fonts.fonts_for(["\u200c\u200d"])[1] == ""


def test_a_mark_without_its_letter_stands_on_a_circle_in_figures_but_not_in_data(text_stays_text):
    maps = synthetic_maps(["▁a", "\u0301", "▁\u0301e"], 1)
    svg, _ = figure(views(maps), "", suffix=".svg")
    assert {"\u2423a", "\u25cc\u0301", "\u2423\u25cc\u0301e"} <= set(texts(svg))
    assert "\u25cc" not in as_json(maps)


def test_hostile_text_is_drawn():
    maps = synthetic_maps(
        ["▁</script>", "\u202e", "\u200b", "x" * 200, "▁😀", "▁$\\frac$", "\x00", "\ud800"], ["▁مرحبا", "\u0301"]
    )
    for suffix in (".png", ".svg", ".pdf"):
        figure(views(maps), "\x1b[31m </svg> $", suffix=suffix)


def test_what_was_read_stands_left_of_the_arrow_in_any_script():
    """Hebrew and Arabic used to turn the row around and leave the arrow pointing right."""
    svg, _ = figure(views(synthetic_maps(1, ["▁\u05d0", "▁\u05d3", "▁\u0628"])), "", suffix=".svg")
    font = get_font(findfont("DejaVu Sans"))
    for read, written in (("\u05d0", "\u05d3"), ("\u05d3", "\u0628")):
        row = re.split(f"{read}\u2069? → ", svg.decode())[1].split("<!--")[0]
        glyphs = re.findall(r'href="#DejaVuSans-(\w+)"(?: transform="translate\((\S+))?', row)
        places = {int(name, 16): float(x or 0) for name, x in glyphs}
        left, arrow, right = (places[font.get_char_index(ord(char))] for char in (read, "→", written))
        assert left < arrow < right


@pytest.mark.parametrize(("layers", "heads"), [(3, 1), (2, 2)])
def test_the_scale_of_colours_is_smaller_than_what_it_explains(layers, heads):
    """In a grid of small matrices it used to be half as wide as one of them, and as tall as all."""
    maps = synthetic_maps(4, 4, layers=(layers, layers), heads=heads)
    data, _ = figure(views(maps, mean=False, blocks=maps.blocks), "", suffix=".png")
    picture = imread(io.BytesIO(data), format="png")[:, :, :3]
    yellow = (np.abs(picture - matplotlib.colormaps["viridis"](1.0)[:3]) < 0.01).all(axis=-1)
    columns = np.flatnonzero(yellow.any(axis=0))
    assert 0.08 * module.DPI < (np.diff(columns)[::-1] > 1).argmax() + 1 < 0.15 * module.DPI


def test_a_long_sentence_is_named_in_part_and_said_so():
    maps = synthetic_maps(130, 3, layers=(1, 1), heads=1)
    _, remarks = figure(views(maps), "", suffix=".png")
    assert remarks == ["only one in 3 of 131 pieces is named"]


@pytest.mark.parametrize(("layers", "most"), [(3, 25), (7, 45)], ids=["few", "a grid"])
def test_a_figure_is_no_larger_than_can_be_looked_at(layers, most):
    """Only a single matrix used to have a limit: 6 of 60 pieces were five feet wide, and some grids 65,536 dots."""
    maps = synthetic_maps(3, 199, layers=(1, layers), heads=1)
    svg, remarks = figure(views(maps, blocks=maps.of("cross")), "", suffix=".svg")
    root = ElementTree.fromstring(svg)
    assert max(float(root.get(side).removesuffix("pt")) for side in ("width", "height")) < 72 * most
    assert remarks == ["only one in 4 of 200 pieces is named"]


def grid_of(drawing):
    """The titles of a figure's matrices, by where they stand: rows from the top, columns from the left."""
    places = {axes.get_title().replace("\n", ", "): axes.get_position() for axes in drawing.axes if axes.get_title()}
    tops, lefts = (sorted({round(getattr(box, side), 3) for box in places.values()}) for side in ("y1", "x0"))
    return {(tops[::-1].index(round(box.y1, 3)), lefts.index(round(box.x0, 3))): t for t, box in places.items()}


def test_one_matrix_of_each_kind_stands_side_by_side_whatever_its_layer(drawn):
    """`--layers last` of 2 + 3 layers put the encoder's alone into a row, the others below and to its right."""
    maps = synthetic_maps(3, 3, layers=(2, 3))
    last = {block.kind: block for block in maps.blocks}
    figure(views(maps, blocks=last.values()), "", suffix=".png")
    assert grid_of(drawn[0]) == {(0, c): one.title for c, one in enumerate(views(maps, blocks=last.values()))}


@pytest.mark.parametrize("layers", [(2, 3), (3, 2)])
def test_each_kind_has_a_column_and_each_layer_a_row(drawn, layers):
    """What the encoder did not have, the decoder's took the place of, and names of rows did not fit to their rows."""
    maps = synthetic_maps(6, 3, layers=layers)
    figure(views(maps, blocks=maps.blocks), "", suffix=".png")
    kinds = ["encoder", "decoder", "cross"]
    assert grid_of(drawn[0]) == {
        (block.layer - 1, kinds.index(block.kind)): f"{block.kind} {block.layer}, mean" for block in maps.blocks
    }


def test_too_many_matrices_are_refused():
    maps = synthetic_maps(1, 1, layers=(1, 8), heads=60)
    with pytest.raises(UsageError, match="shows 1 to 400 matrices, not 480"):
        figure(views(maps, mean=False, blocks=maps.of("cross")), "", suffix=".png")
