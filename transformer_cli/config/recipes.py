"""What a setting may name, and where the code of each name is; nothing is imported before it is used.

A recipe of this package is a line in its table. Another package adds one with a line in its own pyproject.toml:

    [project.entry-points."transformer_cli.positions"]
    relative = "my_package:Relative"
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from transformer_cli.errors import ResourceError

PREFIX = "transformer_cli."


class Recipes:
    """The names of one kind, such as positions; as `Annotated[str, POSITIONS]` the type of a setting."""

    def __init__(self, kind: str, own: Mapping[str, str]) -> None:
        """own: name to `module:attribute`, the module as it is called inside of this package."""
        self.kind = kind
        self.own = own
        self._loaded: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Those of this package, then those that other packages add."""
        others = {point.name for point in entry_points(group=PREFIX + self.kind)}
        return (*self.own, *sorted(others - self.own.keys()))

    def __contains__(self, name: object) -> bool:
        # What other packages add takes milliseconds to find.
        return isinstance(name, str) and (name in self.own or name in self.names)

    def load(self, name: str) -> Any:
        """The code of a recipe; ResourceError where another package promises what cannot be imported."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Any:
        if name in self.own:
            return EntryPoint(name, PREFIX + self.own[name], PREFIX + self.kind).load()
        point = next(point for point in entry_points(group=PREFIX + self.kind) if point.name == name)
        try:
            return point.load()
        except (ImportError, AttributeError) as failure:
            raise ResourceError(
                f"{self.kind}: {name} should be {point.value}, which cannot be imported: {failure}",
                hint="the package that promises it in its pyproject.toml is damaged or not whole: install it again",
            ) from failure

    def __get_pydantic_core_schema__(self, source: type[str], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "enum": list(self.names)}

    def _known(self, name: str) -> str:
        if name not in self:
            raise ValueError("no such recipe")
        return name
